/*
 * redaction_rules.c
 *		The rules of redaction_rule: their paths, and what a session knows of them.
 *
 * A path is dotted and relative to the envelope's body: payload.cards.*.number.  A step
 * names a member, or by a number also an element of an array; * is every member or
 * element; a name with other characters is quoted, "" being a quote.
 *
 * All rules are read at once and kept until one changes.  Only changes of a table's
 * definition invalidate it in other sessions by themselves, so a trigger on the table
 * says the same of its rows, and a callback forgets them; both follow the transaction
 * that made the change.  Where there is no rule, a claim or settle does no more than
 * to look at a flag.
 */
#include "acme_outbox.h"

#include "catalog/namespace.h"
#include "commands/trigger.h"
#include "envelope.h"
#include "executor/spi.h"
#include "plans.h"
#include "redaction.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

PG_FUNCTION_INFO_V1(acme_outbox_check_redaction_rule);
PG_FUNCTION_INFO_V1(acme_outbox_redaction_rule_changed);
PG_FUNCTION_INFO_V1(acme_outbox_redacted);

#define MAX_PATH_BYTES 1000
#define MAX_PATH_STEPS 32

/* of an unquoted step: what other path languages give a meaning */
#define RESERVED_IN_STEP "\"'[]{}()$@?\\ \t\n\r"

typedef struct EventRules
{
	char		event_name[MAX_SHORT_STRING + 1];
	List	   *paths;
} EventRules;

/* What this session knows; events is NULL where there is no rule. */
static struct
{
	bool		valid;
	Oid			table;
	MemoryContext context;
	HTAB	   *events;
} rules;

static KeptPlan rules_plan = {
	"SELECT event_name, path FROM acme_outbox.redaction_rule",
	0, {0}
};

/* ---- paths ---- */

static void
bad_path(const char *source, const char *at, const char *problem)
{
	ereport(ERROR,
			(errcode(ERRCODE_OX_REDACTION_PATH),
			 errmsg("invalid redaction path at byte %d", (int) (at - source) + 1),
			 errdetail("%s", problem),
			 errhint("A path is dotted and begins with payload, for example payload.token or payload.cards.*.number; a name with other characters is quoted: payload.\"card number\".")));
}

static const char *
parse_quoted(const char *source, const char *p, StringInfo name)
{
	const char *start = p++;

	for (;; p++)
	{
		if (*p == '\0')
			bad_path(source, start, "The quote is not closed.");
		if (*p == '"' && *++p != '"')
			return p;
		appendStringInfoChar(name, *p);
	}
}

static const char *
parse_plain(const char *source, const char *p, StringInfo name)
{
	while (*p != '\0' && *p != '.')
	{
		if (strchr(RESERVED_IN_STEP, *p) != NULL)
			bad_path(source, p, "This character must be quoted.");
		appendStringInfoChar(name, *p++);
	}
	return p;
}

static int64
step_index(const char *name)
{
	char	   *end;
	long		index;

	if (strspn(name, "0123456789") != strlen(name) || (name[0] == '0' && name[1] != '\0'))
		return -1;
	errno = 0;
	index = strtol(name, &end, 10);
	return errno == 0 ? index : -1;
}

static const char *
parse_step(const char *source, const char *p, RedactionStep *step)
{
	bool		quoted = *p == '"';
	const char *start = p;
	StringInfoData name;

	initStringInfo(&name);
	p = quoted ? parse_quoted(source, p, &name) : parse_plain(source, p, &name);
	if (p == start)
		bad_path(source, start, "The step is empty.");
	if (*p != '\0' && *p != '.')
		bad_path(source, p, "A dot is expected after the quote.");
	step->name = name.data;
	step->name_len = name.len;
	step->any = !quoted && strcmp(name.data, "*") == 0;
	step->index = quoted ? -1 : step_index(name.data);
	return p;
}

static void
set_step(RedactionStep *step, char *name)
{
	step->name = name;
	step->name_len = strlen(name);
	step->index = -1;
	step->any = false;
}

/* In the current memory context; an error with a position for what is no path. */
static RedactionPath *
parse_path(const char *source)
{
	RedactionPath *path = palloc(sizeof(RedactionPath));
	const char *p = source;

	if (strlen(source) > MAX_PATH_BYTES)
		bad_path(source, source + MAX_PATH_BYTES,
				 psprintf("A path has at most %d bytes.", MAX_PATH_BYTES));
	path->steps = palloc(sizeof(RedactionStep) * (MAX_PATH_STEPS + 1));
	path->nsteps = 0;
	set_step(&path->steps[path->nsteps++], "body");
	for (;;)
	{
		if (path->nsteps > MAX_PATH_STEPS)
			bad_path(source, p, psprintf("A path has at most %d steps.", MAX_PATH_STEPS));
		p = parse_step(source, p, &path->steps[path->nsteps++]);
		if (*p == '\0')
			break;
		p++;
	}
	if (path->steps[1].any || strcmp(path->steps[1].name, "payload") != 0)
		bad_path(source, source, "A path is relative to the envelope's body, of which only the payload can be redacted.");
	return path;
}

/* ---- what this session knows of them ---- */

static void
forget_rules(Datum arg, Oid relation)
{
	if (relation == InvalidOid || relation == rules.table)
		rules.valid = false;
}

static void
clear_rules(void)
{
	if (rules.context == NULL)
	{
		rules.context = AllocSetContextCreate(TopMemoryContext, "acme_outbox redaction rules",
											  ALLOCSET_SMALL_SIZES);
		CacheRegisterRelcacheCallback(forget_rules, (Datum) 0);
	}
	MemoryContextReset(rules.context);
	rules.events = NULL;
	rules.table = get_relname_relid("redaction_rule",
									get_namespace_oid(ACME_OUTBOX_SCHEMA, false));
}

static HTAB *
new_events(void)
{
	HASHCTL		ctl = {0};

	ctl.keysize = MAX_SHORT_STRING + 1;
	ctl.entrysize = sizeof(EventRules);
	ctl.hcxt = rules.context;
	return hash_create("acme_outbox redaction rules", 32, &ctl,
					   HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
}

static void
add_rule(const char *event_name, const char *path)
{
	MemoryContext caller = MemoryContextSwitchTo(rules.context);
	EventRules *event;
	bool		found;

	if (rules.events == NULL)
		rules.events = new_events();
	event = hash_search(rules.events, event_name, HASH_ENTER, &found);
	if (!found)
		event->paths = NIL;
	event->paths = lappend(event->paths, parse_path(path));
	MemoryContextSwitchTo(caller);
}

/* Valid before they are read: a change that is noticed meanwhile makes it invalid. */
static void
load_rules(void)
{
	clear_rules();
	rules.valid = true;
	PG_TRY();
	{
		plan_run(&rules_plan, NULL, NULL, SPI_OK_SELECT);
		for (uint64 i = 0; i < SPI_processed; i++)
			add_rule(SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1),
					 SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 2));
	}
	PG_CATCH();
	{
		rules.valid = false;
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/* Inside an SPI connection, as the next. */
bool
redaction_has_rules(void)
{
	if (!rules.valid)
		load_rules();
	return rules.events != NULL;
}

/* The paths of an event's rules; NIL: none. */
List *
redaction_paths(const char *event_name)
{
	EventRules *event;

	if (!redaction_has_rules())
		return NIL;
	event = hash_search(rules.events, event_name, HASH_FIND, NULL);
	return event ? event->paths : NIL;
}

/* ---- SQL ---- */

/* The table's CHECK: true, or an error that says what is wrong. */
Datum
acme_outbox_check_redaction_rule(PG_FUNCTION_ARGS)
{
	envelope_check_event_name(text_to_cstring(PG_GETARG_TEXT_PP(0)));
	parse_path(text_to_cstring(PG_GETARG_TEXT_PP(1)));
	PG_RETURN_BOOL(true);
}

/* All sessions, this one included, read the rules anew. */
Datum
acme_outbox_redaction_rule_changed(PG_FUNCTION_ARGS)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function was not called as a trigger")));
	CacheInvalidateRelcache(((TriggerData *) fcinfo->context)->tg_relation);
	PG_RETURN_POINTER(NULL);
}

Datum
acme_outbox_redacted(PG_FUNCTION_ARGS)
{
	text	   *envelope = PG_GETARG_TEXT_PP(1);
	text	   *redacted = NULL;
	List	   *paths;

	SPI_connect();
	paths = redaction_paths(text_to_cstring(PG_GETARG_TEXT_PP(0)));
	SPI_finish();
	if (paths != NIL)
		redacted = redaction_apply(paths, envelope);
	PG_RETURN_TEXT_P(redacted ? redacted : envelope);
}
