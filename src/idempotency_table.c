/*
 * idempotency_table.c
 *		The rows of idempotency_key, and the statements that read and write them.
 *
 * A service's table is in its inbox's schema, so each schema has statements of its own,
 * planned once per session.  They run with the caller's rights.  A row is claimed either
 * by inserting it or by taking one whose time is over; whoever loses the race for it is
 * told so by "false", and looks again.
 */
#include "acme_outbox.h"

#include "catalog/pg_type.h"
#include "context.h"
#include "guc.h"
#include "idempotency_internal.h"
#include "inbox.h"
#include "plan_cache.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/rls.h"

/* a session seldom uses more than one */
#define MAX_SCHEMAS 50

#define EQ " OPERATOR(pg_catalog.=) "
#define OF_KEY " WHERE tenant_id" EQ "$1 AND endpoint" EQ "$2 AND key" EQ "$3"
#define IS_EXPIRED \
	" CASE WHEN completed_at IS NULL THEN in_flight_until ELSE expires_at END" \
	" OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp()"
#define OF_EXECUTION \
	" AND CASE WHEN $4 IS NULL THEN executions" EQ "1 ELSE id" EQ "$4 END"

static const char find_sql[] =
"SELECT id, payload_hash" EQ "$4, completed_at IS NOT NULL," IS_EXPIRED ","
" stored_response FROM %s.idempotency_key" OF_KEY;

static const char insert_sql[] =
"INSERT INTO %s.idempotency_key (tenant_id, endpoint, key, payload_hash, created_at,"
" expires_at, in_flight_until) VALUES ($1, $2, $3, $4, $5, $6, $7)"
" ON CONFLICT (tenant_id, endpoint, key) DO NOTHING RETURNING id";

static const char reclaim_sql[] =
"UPDATE %1$s.idempotency_key SET id = pg_catalog.gen_random_uuid(), payload_hash = $2,"
" stored_response = NULL, completed_at = NULL, created_at = $3, expires_at = $4,"
" in_flight_until = $5, executions = CASE WHEN completed_at IS NULL"
" THEN executions OPERATOR(pg_catalog.+) 1 ELSE 1 END"
" WHERE id" EQ "(SELECT id FROM %1$s.idempotency_key WHERE id" EQ "$1 AND" IS_EXPIRED
" FOR UPDATE SKIP LOCKED) RETURNING id";

static const char complete_sql[] =
"UPDATE %s.idempotency_key SET completed_at = pg_catalog.clock_timestamp(),"
" stored_response = $5" OF_KEY " AND completed_at IS NULL" OF_EXECUTION;

static const char completed_sql[] =
"SELECT completed_at IS NOT NULL, stored_response" EQ "$5 AND ($4 IS NULL OR id" EQ "$4)"
" FROM %s.idempotency_key" OF_KEY;

static const char abandon_sql[] =
"DELETE FROM %s.idempotency_key" OF_KEY " AND completed_at IS NULL" OF_EXECUTION;

static void
make_plan(KeptPlan *plan, const char *format, const char *schema, int nparams,
		  const Oid *types)
{
	plan->nparams = nparams;
	memcpy(plan->types, types, sizeof(Oid) * nparams);
	plan->sql = MemoryContextStrdup(TopMemoryContext, psprintf(format, schema));
}

static void
free_statements(void *entry)
{
	IdempotencyTable *kept = entry;

	plan_forget(&kept->find);
	plan_forget(&kept->insert);
	plan_forget(&kept->reclaim);
	plan_forget(&kept->complete);
	plan_forget(&kept->completed);
	plan_forget(&kept->abandon);
}

static void
make_statements(IdempotencyTable *kept)
{
	static const Oid on_key[] = {TEXTOID, TEXTOID, TEXTOID, TEXTOID, TIMESTAMPTZOID,
	TIMESTAMPTZOID, TIMESTAMPTZOID};
	static const Oid on_id[] = {UUIDOID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID,
	TIMESTAMPTZOID};
	static const Oid on_execution[] = {TEXTOID, TEXTOID, TEXTOID, UUIDOID, JSONBOID};
	const char *quoted = quote_identifier(kept->schema);

	make_plan(&kept->find, find_sql, quoted, 4, on_key);
	make_plan(&kept->insert, insert_sql, quoted, 7, on_key);
	make_plan(&kept->reclaim, reclaim_sql, quoted, 5, on_id);
	make_plan(&kept->complete, complete_sql, quoted, 5, on_execution);
	make_plan(&kept->completed, completed_sql, quoted, 5, on_execution);
	make_plan(&kept->abandon, abandon_sql, quoted, 4, on_execution);
}

/*
 * The policy of a table that requires tenants is asked for each row, so it says nothing
 * where there is none to look at: nobody must be told "in flight" for lack of a tenant.
 */
static void
check_tenant(Oid table, const IdempotencyRequest *request)
{
	if (request->tenant[0] == '\0' && context_tenant() == NULL &&
		check_enable_rls(table, InvalidOid, true) == RLS_ENABLED)
		context_tenant_missing();
}

/* idempotency_table: that of acme_outbox.inbox_schema; raises if there is none. */
IdempotencyTable *
idempotency_table(const IdempotencyRequest *request)
{
	static PlanCache cache = {
		"acme_outbox idempotency keys", NAMEDATALEN, sizeof(IdempotencyTable), MAX_SCHEMAS,
		free_statements
	};
	NameData	schema;
	IdempotencyTable *kept;

	namestrcpy(&schema, guc_inbox_schema[0] != '\0' ? guc_inbox_schema : ACME_OUTBOX_SCHEMA);
	check_tenant(inbox_table(NameStr(schema), "idempotency_key"), request);
	kept = plan_cache_enter(&cache, NameStr(schema));
	if (kept->abandon.sql == NULL)
		make_statements(kept);
	return kept;
}

/* idempotency_key_args: the first three of every statement but reclaim. */
void
idempotency_key_args(Datum *args, const IdempotencyRequest *request)
{
	args[0] = CStringGetTextDatum(request->tenant);
	args[1] = CStringGetTextDatum(request->endpoint);
	args[2] = CStringGetTextDatum(request->key);
}

/* idempotency_column: of the statement's first row. */
Datum
idempotency_column(int column, bool *isnull)
{
	return SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, column, isnull);
}

/* idempotency_find: the request's row, whatever its time; false: there is none. */
bool
idempotency_find(IdempotencyTable *table, const IdempotencyRequest *request,
				 IdempotencyRow *found)
{
	Datum		args[4];
	Datum		stored;
	bool		isnull;

	idempotency_key_args(args, request);
	args[3] = CStringGetTextDatum(request->hash);
	if (plan_run(&table->find, args, NULL, SPI_OK_SELECT) == 0)
		return false;
	found->id = *DatumGetUUIDP(idempotency_column(1, &isnull));
	found->same_request = DatumGetBool(idempotency_column(2, &isnull));
	found->completed = DatumGetBool(idempotency_column(3, &isnull));
	found->expired = DatumGetBool(idempotency_column(4, &isnull));
	stored = idempotency_column(5, &isnull);
	found->stored = isnull ? NULL : DatumGetJsonbP(stored);
	return true;
}

/* idempotency_claim_absent: inserts the row; false where another was faster. */
bool
idempotency_claim_absent(IdempotencyTable *table, const IdempotencyRequest *request,
						 pg_uuid_t *execution)
{
	Datum		args[7];
	bool		isnull;

	idempotency_key_args(args, request);
	args[3] = CStringGetTextDatum(request->hash);
	args[4] = TimestampTzGetDatum(request->now);
	args[5] = TimestampTzGetDatum(request->expires_at);
	args[6] = TimestampTzGetDatum(request->in_flight_until);
	if (plan_run(&table->insert, args, NULL, SPI_OK_INSERT_RETURNING) == 0)
		return false;
	*execution = *DatumGetUUIDP(idempotency_column(1, &isnull));
	return true;
}

/*
 * idempotency_claim_expired
 *		Makes an expired row this request's.  False where retention or a late complete() has
 *		the row, or another was faster.
 */
bool
idempotency_claim_expired(IdempotencyTable *table, const IdempotencyRequest *request,
						  const IdempotencyRow *found, pg_uuid_t *execution)
{
	Datum		args[5];
	bool		isnull;

	args[0] = UUIDPGetDatum(&found->id);
	args[1] = CStringGetTextDatum(request->hash);
	args[2] = TimestampTzGetDatum(request->now);
	args[3] = TimestampTzGetDatum(request->expires_at);
	args[4] = TimestampTzGetDatum(request->in_flight_until);
	if (plan_run(&table->reclaim, args, NULL, SPI_OK_UPDATE_RETURNING) == 0)
		return false;
	*execution = *DatumGetUUIDP(idempotency_column(1, &isnull));
	return true;
}
