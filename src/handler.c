/*
 * handler.c
 *		Functions that handle messages.
 *
 * A handler is named schema.function, so that nobody's search_path decides what runs,
 * and is a function of one jsonb, the envelope, that returns void.  A name is looked up
 * once per session and again after any function or schema changed; what is remembered
 * is the kept plan of its call, which PostgreSQL renews by itself, of at most MAX_HANDLERS.
 * The call runs through SPI with the rights of whoever asked for it.
 *
 * Settings that a handler changes, its tenant among them, end with it: the next message
 * of a batch must not run under the tenant of the one before.
 */
#include "acme_outbox.h"

#include "catalog/namespace.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "handler.h"
#include "plan_cache.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/regproc.h"
#include "utils/syscache.h"
#include "utils/varlena.h"

/* schema and function, both quoted with every letter doubled, a dot, (jsonb) */
#define MAX_HANDLER_NAME (4 * NAMEDATALEN + 16)

#define MAX_HANDLERS 200

struct Handler
{
	char		name[MAX_HANDLER_NAME];
	uint64		checked;		/* generation in which it was looked up; 0: never */
	KeptPlan	call;
};

static uint64 generation = 1;

static void
forget_lookups(Datum arg, int cacheid, uint32 hash)
{
	generation++;
}

static void
register_callbacks(void)
{
	static bool registered = false;

	if (registered)
		return;
	CacheRegisterSyscacheCallback(PROCOID, forget_lookups, (Datum) 0);
	CacheRegisterSyscacheCallback(NAMESPACEOID, forget_lookups, (Datum) 0);
	registered = true;
}

static void
free_handler(void *handler)
{
	plan_forget(&((Handler *) handler)->call);
}

static PlanCache handlers = {
	"acme_outbox handlers", MAX_HANDLER_NAME, sizeof(Handler), MAX_HANDLERS, free_handler
};

static void
unusable(const char *why, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_OX_HANDLER),
			 errmsg("%s", why),
			 errdetail("A handler is a function of one jsonb that returns void, named with its schema."),
			 errhint("%s", hint)));
}

/* Splits schema.function or schema.function(jsonb). */
static List *
parse_name(const char *name)
{
	char	   *copy = pstrdup(name);
	char	   *arguments = strstr(copy, "(jsonb)");
	List	   *names;

	if (arguments != NULL && strcmp(arguments, "(jsonb)") == 0)
		*arguments = '\0';
	if (!SplitIdentifierString(copy, '.', &names) || list_length(names) != 2)
		unusable("handler is not named schema.function",
				 "For example: trading.on_invoice_processed");
	return names;
}

/* The one function of that name that takes jsonb, or an error. */
static Form_pg_proc
find_function(const char *name, const char *schema, const char *function, HeapTuple *tuple)
{
	Oid			namespace = get_namespace_oid(schema, true);
	Oid			argument = JSONBOID;
	oidvector  *arguments = buildoidvector(&argument, 1);

	*tuple = OidIsValid(namespace) ?
		SearchSysCache3(PROCNAMEARGSNSP, PointerGetDatum(function),
						PointerGetDatum(arguments), ObjectIdGetDatum(namespace)) : NULL;
	if (!HeapTupleIsValid(*tuple))
		unusable(psprintf("handler %s(jsonb) does not exist", name),
				 "Create it, or check the name.");
	return (Form_pg_proc) GETSTRUCT(*tuple);
}

/* Checks that the name means a handler; returns the statement that calls it. */
static char *
look_up(const char *name)
{
	List	   *names = parse_name(name);
	char	   *quoted = quote_qualified_identifier(linitial(names), lsecond(names));
	HeapTuple	tuple;
	Form_pg_proc form = find_function(quoted, linitial(names), lsecond(names), &tuple);

	if (form->prokind != PROKIND_FUNCTION || form->prorettype != VOIDOID ||
		form->proretset)
		unusable(psprintf("%s(jsonb) cannot be a handler", quoted),
				 "Declare it: CREATE FUNCTION schema.function(message jsonb) RETURNS void");
	ReleaseSysCache(tuple);
	return psprintf("SELECT %s($1)", quoted);
}

/*
 * handler_find
 *		The handler of a name; raises if it is none.
 */
Handler *
handler_find(const char *name)
{
	Handler    *handler;
	char	   *call;

	if (name == NULL || strlen(name) >= MAX_HANDLER_NAME)
		unusable(name == NULL ? "handler is null" : "handler's name is too long",
				 "For example: trading.on_invoice_processed");
	register_callbacks();
	handler = plan_cache_find(&handlers, name);
	if (handler != NULL && handler->checked == generation)
		return handler;

	call = look_up(name);
	handler = plan_cache_enter(&handlers, name);
	if (handler->call.sql == NULL)
		handler->call.sql = MemoryContextStrdup(TopMemoryContext, call);
	handler->call.nparams = 1;
	handler->call.types[0] = JSONBOID;
	handler->checked = generation;
	return handler;
}

/*
 * handler_run
 *		Runs a handler on a message; true if it parked the message.
 */
bool
handler_run(Handler *handler, Handling *handling)
{
	int			guc_level = NewGUCNestLevel();
	Datum		args[] = {JsonbPGetDatum(handling->envelope)};

	handling->parked_in = InvalidSubTransactionId;
	message_begin(handling);
	PG_TRY();
	{
		SPI_connect();
		plan_run(&handler->call, args, NULL, SPI_OK_SELECT);
		SPI_finish();
	}
	PG_FINALLY();
	{
		message_end(handling);
	}
	PG_END_TRY();
	AtEOXact_GUC(false, guc_level);
	return handling->parked_in != InvalidSubTransactionId;
}
