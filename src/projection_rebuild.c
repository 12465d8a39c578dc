/*
 * projection_rebuild.c
 *		Rebuilds a projection from its source while events go on (P 4).
 *
 * Nothing is emptied first.  Under a lock that stops writers of the target and lets
 * readers through:
 *
 *	1. The seed runs.  What it projects replaces every row that is not newer, at the same
 *	   time too: that is how wrong rows are mended.  A newer row stays as it is, but is
 *	   written again unchanged, and so counts as seen.  Tombstones count as always.
 *	2. Rows that the seed did not touch are deleted, if they are older than the seed: they
 *	   are in the projection and not in its source.
 *
 * Events that came meanwhile wait for the lock and then meet the guard as usual: what is
 * newer than the seed wins, what the seed knew already is discarded.  So the end is that of
 * a table that was never rebuilt, provided the seed is as new as it says (as_of).
 *
 * "Touched" is told by the row's xmin: this transaction's.  It needs no memory per row.
 */
#include "acme_outbox.h"

#include "access/transam.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "parser/parse_func.h"
#include "projection.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/regproc.h"
#include "utils/varlena.h"

PG_FUNCTION_INFO_V1(acme_outbox_projection_rebuild);
PG_FUNCTION_INFO_V1(acme_outbox_projection_seen);

#define SEED_BATCH_ROWS 1000

/* Columns of a seed that returns rows; 0: there is none. */
typedef struct SeedColumns
{
	int			key;
	int			fields;
	int			event_at;
	int			event_id;
} SeedColumns;

static void
seed_error(const char *problem, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_OX_PROJECTION_SEED),
			 errmsg("%s", problem),
			 hint ? errhint("%s", hint) : 0));
}

/* "schema.f" or "schema.f()", as a call. */
static char *
seed_call(const char *seed)
{
	char	   *name = pstrdup(seed);
	int			len = strlen(name);
	List	   *names;
	Oid			function;

	if (len > 2 && strcmp(name + len - 2, "()") == 0)
		name[len - 2] = '\0';
	names = stringToQualifiedNameList(name);
	function = LookupFuncName(names, 0, NULL, true);
	if (!OidIsValid(function) || get_func_prokind(function) != PROKIND_FUNCTION)
		seed_error("the seed is not a function without arguments",
				   "Name it schema.function.");
	return psprintf("SELECT * FROM %s()",
					quote_qualified_identifier(get_namespace_name(get_func_namespace(function)),
											   get_func_name(function)));
}

static int
seed_column(TupleDesc desc, const char *name, Oid type, Oid or_type)
{
	int			column = SPI_fnumber(desc, name);
	Oid			found;

	if (column <= 0)
		return 0;
	found = SPI_gettypeid(desc, column);
	if (found != type && found != or_type)
		seed_error(psprintf("column \"%s\" of the seed has type %s", name, format_type_be(found)),
				   psprintf("It must be %s.", format_type_be(type)));
	return column;
}

/* False: the seed returns no rows to project, it calls project() itself. */
static bool
seed_columns(TupleDesc desc, SeedColumns *columns)
{
	columns->key = seed_column(desc, "key", JSONBOID, JSONBOID);
	columns->fields = seed_column(desc, "fields", JSONBOID, JSONBOID);
	columns->event_at = seed_column(desc, "event_at", TIMESTAMPTZOID, TIMESTAMPTZOID);
	columns->event_id = seed_column(desc, "event_id", TEXTOID, UUIDOID);
	if (columns->key == 0 && columns->fields == 0 && columns->event_at == 0)
		return false;
	if (columns->key == 0 || columns->fields == 0 || columns->event_at == 0)
		seed_error("the seed's rows lack a column",
				   "They have key jsonb, fields jsonb, event_at timestamptz, and maybe event_id.");
	return true;
}

static void
project_seed_row(Oid target, const SeedColumns *columns, HeapTuple row, TupleDesc desc)
{
	bool		no_key;
	bool		no_fields;
	bool		no_time;
	Datum		key = SPI_getbinval(row, desc, columns->key, &no_key);
	Datum		fields = SPI_getbinval(row, desc, columns->fields, &no_fields);
	Datum		event_at = SPI_getbinval(row, desc, columns->event_at, &no_time);
	char	   *id = columns->event_id > 0 ? SPI_getvalue(row, desc, columns->event_id) : NULL;

	if (no_time)
		seed_error("event_at of one of the seed's rows is null", NULL);
	(void) project_row(target, no_key ? NULL : DatumGetJsonbP(key),
					   no_fields ? NULL : DatumGetJsonbP(fields),
					   DatumGetTimestampTz(event_at), id);
}

/* One batch; memory of the rows' conversion goes after each. */
static void
project_batch(Oid target, const SeedColumns *columns)
{
	SPITupleTable *rows = SPI_tuptable;
	uint64		n = SPI_processed;
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "seed row",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(context);

	for (uint64 i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		project_seed_row(target, columns, rows->vals[i], rows->tupdesc);
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
	SPI_freetuptable(rows);
}

static void
run_seed(Oid target, const char *call)
{
	SPIPlanPtr	plan = SPI_prepare(call, 0, NULL);
	Portal		portal = SPI_cursor_open(NULL, plan, NULL, NULL, false);
	SeedColumns columns;
	bool		projects;

	projects = seed_columns(portal->tupDesc, &columns);
	for (;;)
	{
		SPI_cursor_fetch(portal, true, SEED_BATCH_ROWS);
		if (SPI_processed == 0)
			break;
		if (projects)
			project_batch(target, &columns);
		else
			SPI_freetuptable(SPI_tuptable);
	}
	SPI_cursor_close(portal);
}

static void
run_seed_as_rebuild(Oid target, const char *call)
{
	projection_seeded = 0;
	projection_rebuilding = target;
	PG_TRY();
	{
		run_seed(target, call);
	}
	PG_FINALLY();
	{
		projection_rebuilding = InvalidOid;
	}
	PG_END_TRY();
}

static uint64
remove_unseen(const char *name, TimestampTz as_of)
{
	Oid			type = TIMESTAMPTZOID;
	Datum		value = TimestampTzGetDatum(as_of);
	char	   *sql = psprintf("DELETE FROM %s AS t WHERE NOT " ACME_OUTBOX_SCHEMA
							   ".projection_seen(t.xmin) AND (t." COLUMN_EVENT_AT " IS NULL"
							   " OR t." COLUMN_EVENT_AT " OPERATOR(pg_catalog.<) $1)", name);

	if (SPI_execute_with_args(sql, 1, &type, &value, NULL, false, 0) != SPI_OK_DELETE)
		elog(ERROR, "could not remove rows");
	return SPI_processed;
}

static void
stop_writers(const char *name)
{
	char	   *sql = psprintf("LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE", name);

	if (SPI_execute(sql, false, 0) != SPI_OK_UTILITY)
		elog(ERROR, "could not lock the table");
}

static void
check_call(FunctionCallInfo fcinfo)
{
	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_OX_PROJECTION_TARGET),
				 errmsg("target is null")));
	if (PG_ARGISNULL(1))
		seed_error("the seed is null", "Name it schema.function.");
	if (OidIsValid(projection_rebuilding))
		seed_error("a rebuild is under way in this session", NULL);
	if (IsolationUsesXactSnapshot())
		seed_error("a rebuild needs READ COMMITTED",
				   "It must see what was committed while it waited for the table.");
}

/* projection_rebuild(target regclass, seed text, as_of) RETURNS (seeded, removed) */
Datum
acme_outbox_projection_rebuild(PG_FUNCTION_ARGS)
{
	TimestampTz as_of = PG_ARGISNULL(2) ? GetCurrentTimestamp() : PG_GETARG_TIMESTAMPTZ(2);
	TupleDesc	desc;
	Datum		values[2];
	bool		nulls[2] = {false, false};
	char	   *name;
	char	   *call;

	check_call(fcinfo);
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "projection_rebuild must return a row");
	call = seed_call(text_to_cstring(PG_GETARG_TEXT_PP(1)));
	name = projection_name(PG_GETARG_OID(0));

	SPI_connect();
	stop_writers(name);
	run_seed_as_rebuild(PG_GETARG_OID(0), call);
	values[0] = Int64GetDatum(projection_seeded);
	values[1] = Int64GetDatum((int64) remove_unseen(name, as_of));
	SPI_finish();
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}

/* projection_seen(xmin xid) RETURNS boolean: did this transaction write the row? */
Datum
acme_outbox_projection_seen(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(TransactionIdIsCurrentTransactionId(PG_GETARG_TRANSACTIONID(0)));
}
