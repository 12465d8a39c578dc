/*
 * inbox.c
 *		A service's inbox: which one, its statements, the guard (P 2, G 7).
 *
 * An inbox is five tables in a service's own schema, made by create_inbox() and
 * registered in acme_outbox.inbox; acme_outbox.inbox_schema says which one a session
 * uses.  Its statements are planned once per session, for at most MAX_INBOXES, and run
 * with the rights of whoever is the current user: the tables' privileges decide.
 *
 * The guard is a row (consumer, event id) inserted in the transaction that makes the
 * change, ON CONFLICT DO NOTHING: a second delivery waits until the first has ended,
 * and is a duplicate only if that one committed.
 */
#include "acme_outbox.h"

#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "consumed.h"
#include "funcapi.h"
#include "guc.h"
#include "inbox.h"
#include "message.h"
#include "plan_cache.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/uuid.h"

PG_FUNCTION_INFO_V1(acme_outbox_inbox_accept);
PG_FUNCTION_INFO_V1(acme_outbox_inbox_accept_uuid);
PG_FUNCTION_INFO_V1(acme_outbox_inbox_record);
PG_FUNCTION_INFO_V1(acme_outbox_inbox_record_uuid);
PG_FUNCTION_INFO_V1(acme_outbox_inbox_attempt);
PG_FUNCTION_INFO_V1(acme_outbox_inbox_attempt_uuid);

typedef struct StatementText
{
	const char *table;			/* what it is about; must exist */
	const char *sql;			/* @ stands for the schema */
	int			nparams;
	Oid			types[PLAN_MAX_PARAMS];
} StatementText;

#define MAX_INBOXES 50

#define OPEN_COLUMNS \
	" id, tenant_id, consumer, event_id, event_type, source_entity_type," \
	" source_entity_id, reason, parked_at, payload #>> '{header,traceId}'"

/* $1 rows, $2 seconds kept */
#define PURGE(table, column) \
	"DELETE FROM @." table " WHERE ctid = ANY (ARRAY(" \
	" SELECT ctid FROM @." table \
	" WHERE " column " < clock_timestamp() - $2 * interval '1 second'" \
	" ORDER BY " column " LIMIT $1 FOR UPDATE SKIP LOCKED))"

static const StatementText texts[INBOX_STATEMENTS] = {
	[INBOX_ACCEPT] = {"processed_event",
		"INSERT INTO @.processed_event (consumer, event_id) VALUES ($1, $2)"
		" ON CONFLICT DO NOTHING",
	2, {TEXTOID, TEXTOID}},
	/* in the order of the array, which the caller has sorted */
	[INBOX_ACCEPT_ALL] = {"processed_event",
		"INSERT INTO @.processed_event (consumer, event_id)"
		" SELECT $1, e FROM unnest($2) AS e ON CONFLICT DO NOTHING RETURNING event_id",
	2, {TEXTOID, TEXTARRAYOID}},
	[INBOX_FORGET] = {"processed_event",
		"DELETE FROM @.processed_event WHERE consumer = $1 AND event_id = ANY ($2)",
	2, {TEXTOID, TEXTARRAYOID}},
	[INBOX_ATTEMPT] = {"consumer_attempt",
		"INSERT INTO @.consumer_attempt AS a (consumer, event_id) VALUES ($1, $2)"
		" ON CONFLICT (consumer, event_id) DO UPDATE"
		" SET attempts = a.attempts + 1, last_at = clock_timestamp()"
		" RETURNING attempts",
	2, {TEXTOID, TEXTOID}},
	[INBOX_GUARD_TIME] = {"processed_event",
		"SELECT processed_at = now() FROM @.processed_event"
		" WHERE consumer = $1 AND event_id = $2",
	2, {TEXTOID, TEXTOID}},
	[INBOX_LOCK_GUARD] = {"processed_event",
		"SELECT FROM @.processed_event WHERE consumer = $1 AND event_id = $2 FOR UPDATE",
	2, {TEXTOID, TEXTOID}},
	[INBOX_PARK] = {"parked_message",
		"INSERT INTO @.parked_message (id, tenant_id, consumer, event_id, event_type,"
		" source_entity_type, source_entity_id, reason, payload, message, guarded)"
		" VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
		11, {UUIDOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID,
	JSONBOID, JSONBOID, BOOLOID}},
	[INBOX_TAKE_PARKED] = {"parked_message",
		"SELECT consumer, event_id, tenant_id, payload, message, guarded,"
		" resolved_at IS NOT NULL FROM @.parked_message WHERE id = $1 FOR UPDATE",
	1, {UUIDOID}},
	[INBOX_IS_APPLIED] = {"parked_resolution",
		"SELECT FROM @.parked_resolution r JOIN @.parked_message p ON p.id = r.parked_id"
		" WHERE p.consumer = $1 AND p.event_id = $2 AND r.outcome = 'applied'",
	2, {TEXTOID, TEXTOID}},
	[INBOX_RESOLVE] = {"parked_message",
		"UPDATE @.parked_message SET resolved_at = now()"
		" WHERE id = $1 AND resolved_at IS NULL",
	1, {UUIDOID}},
	[INBOX_RECORD] = {"parked_resolution",
		"INSERT INTO @.parked_resolution (parked_id, action, outcome, why, actor, role_name)"
		" VALUES ($1, $2, $3, $4, $5, $6)",
	6, {UUIDOID, TEXTOID, TEXTOID, TEXTOID, NAMEOID, NAMEOID}},
	[INBOX_FIND_PARKED] = {"parked_message",
		"SELECT id FROM @.parked_message WHERE resolved_at IS NULL"
		" AND ($1 IS NULL OR consumer = $1) AND ($2 IS NULL OR event_type = $2)"
		" AND ($3 IS NULL OR reason = $3) ORDER BY parked_at, id LIMIT $4",
	4, {TEXTOID, TEXTOID, TEXTOID, INT4OID}},
	[INBOX_LIST_PARKED] = {"parked_message",
		"SELECT" OPEN_COLUMNS " FROM @.parked_message WHERE resolved_at IS NULL"
		" ORDER BY parked_at, id",
	0},
	[INBOX_COUNT_PARKED] = {"parked_message",
		"SELECT consumer, event_type, reason, count(*),"
		" count(*) FILTER (WHERE resolved_at IS NULL), max(parked_at)"
		" FROM @.parked_message GROUP BY 1, 2, 3 ORDER BY 1, 2, 3",
	0},
	[INBOX_PURGE_PROCESSED] = {"processed_event",
		PURGE("processed_event", "processed_at"),
	2, {INT4OID, INT4OID}},
	[INBOX_PURGE_ATTEMPTS] = {"consumer_attempt",
		PURGE("consumer_attempt", "last_at"),
	2, {INT4OID, INT4OID}},
};

static KeptPlan registered_plan = {
	"SELECT FROM acme_outbox.inbox WHERE schema = $1", 1, {NAMEOID}
};

static KeptPlan schemas_plan = {
	"SELECT schema FROM acme_outbox.inbox ORDER BY schema", 0, {0}
};

static void
free_inbox(void *inbox)
{
	for (int i = 0; i < INBOX_STATEMENTS; i++)
		plan_forget(&((Inbox *) inbox)->plans[i]);
}

static PlanCache inboxes = {
	"acme_outbox inboxes", NAMEDATALEN, sizeof(Inbox), MAX_INBOXES, free_inbox
};

/*
 * Which inbox
 */

/* A statement's text for a schema, until the inbox is forgotten. */
static const char *
text_for(const char *sql, const char *schema)
{
	const char *quoted = quote_identifier(schema);
	StringInfoData out;

	initStringInfo(&out);
	for (const char *p = sql; *p; p++)
	{
		if (*p == '@')
			appendStringInfoString(&out, quoted);
		else
			appendStringInfoChar(&out, *p);
	}
	return MemoryContextStrdup(TopMemoryContext, out.data);
}

/* A table of a schema's inbox; raises if it is not there. */
Oid
inbox_table(const char *schema, const char *table)
{
	Oid			namespace = get_namespace_oid(schema, true);
	Oid			relation = OidIsValid(namespace) ?
	get_relname_relid(table, namespace) : InvalidOid;

	if (!OidIsValid(relation))
		ereport(ERROR,
				(errcode(ERRCODE_OX_INBOX),
				 OidIsValid(namespace) ?
				 errmsg("inbox \"%s\" has no table \"%s\"", schema, table) :
				 errmsg("schema \"%s\" has no inbox", schema),
				 errhint("An administrator makes what is missing: SELECT acme_outbox.create_inbox('schema')")));
	return relation;
}

static void
check_registered(Inbox *inbox, Oid table)
{
	Datum		args[] = {NameGetDatum(&inbox->schema)};
	uint64		found = 0;

	if (OidIsValid(table))
	{
		SPI_connect();
		found = plan_run(&registered_plan, args, NULL, SPI_OK_SELECT);
		SPI_finish();
	}
	if (found == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OX_INBOX),
				 errmsg("schema \"%s\" has no inbox", NameStr(inbox->schema)),
				 errhint("An administrator makes one: SELECT acme_outbox.create_inbox('schema')")));
	inbox->processed_event = table;
}

/*
 * inbox_find
 *		The inbox of a schema; raises if there is none.
 *
 * Looked up once per session and table: a registration lives as long as its tables.
 */
Inbox *
inbox_find(const char *schema)
{
	Oid			namespace = get_namespace_oid(schema, true);
	Oid			table = OidIsValid(namespace) ?
	get_relname_relid("processed_event", namespace) : InvalidOid;
	Inbox	   *inbox;
	NameData	name;

	namestrcpy(&name, schema);
	inbox = plan_cache_enter(&inboxes, NameStr(name));
	if (inbox->processed_event != table || !OidIsValid(table))
		check_registered(inbox, table);
	return inbox;
}

/* The session's inbox. */
Inbox *
inbox_current(void)
{
	return inbox_find(guc_inbox_schema);
}

/* All registered inboxes, as C strings; allocated where the caller is. */
List *
inbox_schemas(void)
{
	MemoryContext context = CurrentMemoryContext;
	List	   *schemas = NIL;

	SPI_connect();
	plan_run(&schemas_plan, NULL, NULL, SPI_OK_SELECT);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		char	   *schema = SPI_getvalue(SPI_tuptable->vals[i],
										  SPI_tuptable->tupdesc, 1);
		MemoryContext spi = MemoryContextSwitchTo(context);

		schemas = lappend(schemas, pstrdup(schema));
		MemoryContextSwitchTo(spi);
	}
	SPI_finish();
	return schemas;
}

/* Runs one of the inbox's statements inside the caller's SPI connection. */
uint64
inbox_run(Inbox *inbox, InboxStatement statement, Datum *values, const char *nulls,
		  int expected)
{
	const StatementText *text = &texts[statement];
	KeptPlan   *plan = &inbox->plans[statement];

	(void) inbox_table(NameStr(inbox->schema), text->table);
	if (plan->sql == NULL)
	{
		plan->nparams = text->nparams;
		memcpy(plan->types, text->types, sizeof(plan->types));
		plan->sql = text_for(text->sql, NameStr(inbox->schema));
	}
	return plan_run(plan, values, nulls, expected);
}

/*
 * The guard
 */

static void
check_name(const char *what, const char *value)
{
	if (value == NULL || value[0] == '\0' || strlen(value) > MAX_SHORT_STRING)
		ereport(ERROR,
				(errcode(ERRCODE_OX_INBOX_ARGUMENT),
				 errmsg("%s is %s", what, value == NULL ? "null" :
						value[0] == '\0' ? "empty" : "too long"),
				 errdetail("It has 1 to %d bytes.", MAX_SHORT_STRING)));
}

void
inbox_check_names(const char *consumer, const char *event_id)
{
	check_name("consumer", consumer);
	check_name("event id", event_id);
}

/* True: the first; the row stays if and only if the caller's transaction commits. */
bool
inbox_accept(Inbox *inbox, const char *consumer, const char *event_id)
{
	Datum		args[] = {CStringGetTextDatum(consumer), CStringGetTextDatum(event_id)};
	bool		first;

	SPI_connect();
	first = inbox_run(inbox, INBOX_ACCEPT, args, NULL, SPI_OK_INSERT) == 1;
	SPI_finish();
	return first;
}

/* A text argument as a C string, or NULL. */
const char *
inbox_arg(FunctionCallInfo fcinfo, int i)
{
	return PG_ARGISNULL(i) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(i));
}

static const char *
uuid_arg(FunctionCallInfo fcinfo, int i)
{
	if (PG_ARGISNULL(i))
		return NULL;
	return DatumGetCString(DirectFunctionCall1(uuid_out, PG_GETARG_DATUM(i)));
}

/* What a handler records beside its message, a line of it perhaps, is no message. */
static bool
accept_checked(const char *consumer, const char *event_id)
{
	bool		first;

	inbox_check_names(consumer, event_id);
	first = inbox_accept(inbox_current(), consumer, event_id);
	if (message_current() == NULL)
		consumed_count(consumer, NULL, first ? "applied" : "duplicate");
	return first;
}

/* inbox_accept(consumer text, event_id text) RETURNS boolean */
Datum
acme_outbox_inbox_accept(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(accept_checked(inbox_arg(fcinfo, 0), inbox_arg(fcinfo, 1)));
}

Datum
acme_outbox_inbox_accept_uuid(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(accept_checked(inbox_arg(fcinfo, 0), uuid_arg(fcinfo, 1)));
}

/* inbox_record(consumer text, event_id text) RETURNS void */
Datum
acme_outbox_inbox_record(PG_FUNCTION_ARGS)
{
	(void) accept_checked(inbox_arg(fcinfo, 0), inbox_arg(fcinfo, 1));
	PG_RETURN_VOID();
}

Datum
acme_outbox_inbox_record_uuid(PG_FUNCTION_ARGS)
{
	(void) accept_checked(inbox_arg(fcinfo, 0), uuid_arg(fcinfo, 1));
	PG_RETURN_VOID();
}

static int32
count_attempt(const char *consumer, const char *event_id)
{
	Datum		args[] = {CStringGetTextDatum(consumer), CStringGetTextDatum(event_id)};
	Inbox	   *inbox = inbox_current();
	bool		isnull;
	int32		attempts;

	SPI_connect();
	inbox_run(inbox, INBOX_ATTEMPT, args, NULL, SPI_OK_INSERT_RETURNING);
	attempts = DatumGetInt32(SPI_getbinval(SPI_tuptable->vals[0],
										   SPI_tuptable->tupdesc, 1, &isnull));
	SPI_finish();
	return attempts;
}

static Datum
attempt(FunctionCallInfo fcinfo, const char *consumer, const char *event_id)
{
	TupleDesc	desc;
	Datum		values[2];
	bool		nulls[2] = {false, false};
	int32		attempts;

	inbox_check_names(consumer, event_id);
	if (PG_ARGISNULL(2) || PG_GETARG_INT32(2) < 1)
		ereport(ERROR,
				(errcode(ERRCODE_OX_INBOX_ARGUMENT),
				 errmsg("max_attempts is not a positive number")));
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	attempts = count_attempt(consumer, event_id);
	values[0] = Int32GetDatum(attempts);
	values[1] = BoolGetDatum(attempts <= PG_GETARG_INT32(2));
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}

/*
 * inbox_attempt(consumer text, event_id text, max_attempts integer)
 *		RETURNS (attempts integer, allowed boolean)
 */
Datum
acme_outbox_inbox_attempt(PG_FUNCTION_ARGS)
{
	return attempt(fcinfo, inbox_arg(fcinfo, 0), inbox_arg(fcinfo, 1));
}

Datum
acme_outbox_inbox_attempt_uuid(PG_FUNCTION_ARGS)
{
	return attempt(fcinfo, inbox_arg(fcinfo, 0), uuid_arg(fcinfo, 1));
}
