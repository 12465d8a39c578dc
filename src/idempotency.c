/*
 * idempotency.c
 *		HTTP idempotency keys (P 2.2): begin, complete, abandon.
 *
 * A request's row is found by (tenant, endpoint, key).  begin() writes it in flight,
 * complete() adds the response, later requests replay that.  A row past its time
 * counts as absent, whether or not retention has deleted it.
 *
 * begin() never waits for the request that came first.  Whoever executes holds a lock
 * table entry under the key's hash until its transaction ends; who does not get it at
 * once reads what is committed, and without a live row the answer is in_flight.  Keys
 * with one hash can so only meet a needless in_flight; the unique key still decides.
 * The lock is let go again by whoever does not execute.
 *
 * Each execution has an id of its own, the row's.  It fences an execution that went on
 * past its in-flight time while another one began: complete() and abandon() only change
 * the row of their own execution.  Whoever does not pass it is the one that began in this
 * transaction, else the only one there was (executions = 1).
 */
#include "acme_outbox.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "common/cryptohash.h"
#include "common/hashfn.h"
#include "common/sha2.h"
#include "context.h"
#include "counters.h"
#include "funcapi.h"
#include "guc.h"
#include "idempotency.h"
#include "inbox.h"
#include "jsontext.h"
#include "miscadmin.h"
#include "plan_cache.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"
#include "utils/rls.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

PG_FUNCTION_INFO_V1(acme_outbox_idempotency_begin);
PG_FUNCTION_INFO_V1(acme_outbox_idempotency_begin_json);
PG_FUNCTION_INFO_V1(acme_outbox_idempotency_begin_jsonb);
PG_FUNCTION_INFO_V1(acme_outbox_idempotency_complete);
PG_FUNCTION_INFO_V1(acme_outbox_idempotency_complete_text);
PG_FUNCTION_INFO_V1(acme_outbox_idempotency_abandon);

/* objsubid of our lock tags; 1 and 2 are the advisory lock functions', 3 claim's */
#define KEY_LOCK_SUBID 4

#define HASH_HEX_LENGTH (PG_SHA256_DIGEST_LENGTH * 2)
#define HTTP_CONFLICT 409

/* executions that one transaction can complete without naming them */
#define OWN_EXECUTIONS 8

/* a session seldom uses more than one */
#define MAX_SCHEMAS 50

/* how often begin looks again when the row changed under it */
#define BEGIN_ATTEMPTS 3

typedef enum Decision
{
	DECISION_EXECUTE,
	DECISION_REPLAY,
	DECISION_REUSE,
	DECISION_IN_FLIGHT,
	DECISION_BYPASS
} Decision;

/* What a request is known by. */
typedef struct Request
{
	const char *tenant;
	const char *endpoint;
	const char *key;
	char		hash[HASH_HEX_LENGTH + 1];
	TimestampTz now;
	TimestampTz expires_at;
	TimestampTz in_flight_until;
	uint64		lock_hash;
} Request;

/* What begin answers. */
typedef struct Answer
{
	Decision	decision;
	int			status;
	Jsonb	   *response;		/* NULL: none */
	pg_uuid_t	execution;
} Answer;

/* A row of idempotency_key as find_plan returns it. */
typedef struct Found
{
	pg_uuid_t	id;
	bool		same_request;
	bool		completed;
	bool		expired;
	Jsonb	   *stored;			/* NULL: none */
} Found;

/* The statements of one schema's table. */
typedef struct Statements
{
	char		schema[NAMEDATALEN];	/* first: the cache's key */
	KeptPlan	find;
	KeptPlan	insert;
	KeptPlan	reclaim;
	KeptPlan	complete;
	KeptPlan	completed;
	KeptPlan	abandon;
} Statements;

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

/* What this transaction began: complete() need not be told. */
static struct
{
	LocalTransactionId lxid;
	int			next;
	uint64		lock_hash[OWN_EXECUTIONS];
	pg_uuid_t	execution[OWN_EXECUTIONS];
} own;

/*
 * The table in use
 */

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
	Statements *kept = entry;

	plan_forget(&kept->find);
	plan_forget(&kept->insert);
	plan_forget(&kept->reclaim);
	plan_forget(&kept->complete);
	plan_forget(&kept->completed);
	plan_forget(&kept->abandon);
}

static void
make_statements(Statements *kept)
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
check_tenant(Oid table, const Request *request)
{
	if (request->tenant[0] == '\0' && context_tenant() == NULL &&
		check_enable_rls(table, InvalidOid, true) == RLS_ENABLED)
		context_tenant_missing();
}

/* Statements for the table of acme_outbox.inbox_schema; raises if there is none. */
static Statements *
statements(const Request *request)
{
	static PlanCache cache = {
		"acme_outbox idempotency keys", NAMEDATALEN, sizeof(Statements), MAX_SCHEMAS,
		free_statements
	};
	NameData	schema;
	Statements *kept;

	namestrcpy(&schema, guc_inbox_schema[0] != '\0' ? guc_inbox_schema : ACME_OUTBOX_SCHEMA);
	check_tenant(inbox_table(NameStr(schema), "idempotency_key"), request);
	kept = plan_cache_enter(&cache, NameStr(schema));
	if (kept->abandon.sql == NULL)
		make_statements(kept);
	return kept;
}

static void
key_args(Datum *args, const Request *request)
{
	args[0] = CStringGetTextDatum(request->tenant);
	args[1] = CStringGetTextDatum(request->endpoint);
	args[2] = CStringGetTextDatum(request->key);
}

static Datum
result(int column, bool *isnull)
{
	return SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, column, isnull);
}

/*
 * Arguments
 */

static void
argument_error(const char *name, const char *problem, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_OX_IDEMPOTENCY_ARGUMENT),
			 errmsg("%s is %s", name, problem),
			 hint ? errhint("%s", hint) : 0));
}

static void
check_name(const char *name, const char *value)
{
	if (value == NULL || value[0] == '\0')
		argument_error(name, value == NULL ? "null" : "empty",
					   strcmp(name, "key") == 0 ?
					   "A request without an Idempotency-Key has the key NULL." : NULL);
	if (strlen(value) > MAX_SHORT_STRING)
		argument_error(name, psprintf("longer than %d bytes", MAX_SHORT_STRING), NULL);
}

static const char *
arg_string(FunctionCallInfo fcinfo, int i)
{
	return PG_ARGISNULL(i) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(i));
}

/* The argument, else the transaction's tenant; '' is none. */
static const char *
tenant_of(FunctionCallInfo fcinfo, int i)
{
	const char *tenant = arg_string(fcinfo, i);

	if (tenant == NULL)
		tenant = GetConfigOption("acme_outbox.tenant_id", true, false);
	if (tenant != NULL && strlen(tenant) > MAX_SHORT_STRING)
		argument_error("tenant_id", psprintf("longer than %d bytes", MAX_SHORT_STRING), NULL);
	return tenant != NULL ? tenant : "";
}

/* Only the table's own names go in; NUL ends each, so no two keys read the same. */
static uint64
lock_hash(const char *schema, const Request *request)
{
	StringInfoData name;

	initStringInfo(&name);
	appendBinaryStringInfo(&name, schema, strlen(schema) + 1);
	appendBinaryStringInfo(&name, request->tenant, strlen(request->tenant) + 1);
	appendBinaryStringInfo(&name, request->endpoint, strlen(request->endpoint) + 1);
	appendBinaryStringInfo(&name, request->key, strlen(request->key));
	return hash_bytes_extended((unsigned char *) name.data, name.len, 0);
}

static void
read_key(FunctionCallInfo fcinfo, int tenant_arg, Request *request)
{
	request->endpoint = arg_string(fcinfo, 0);
	request->key = arg_string(fcinfo, 1);
	request->tenant = tenant_of(fcinfo, tenant_arg);
	check_name("endpoint", request->endpoint);
	check_name("key", request->key);
}

static TimestampTz
time_after(TimestampTz now, FunctionCallInfo fcinfo, int i, const char *name)
{
	TimestampTz at;

	if (PG_ARGISNULL(i))
		argument_error(name, "null", NULL);
	at = DatumGetTimestampTz(DirectFunctionCall2(timestamptz_pl_interval,
												 TimestampTzGetDatum(now),
												 PG_GETARG_DATUM(i)));
	if (at <= now)
		argument_error(name, "not positive", NULL);
	return at;
}

/* SHA-256 in hexadecimal: the table's payload_hash. */
static void
hash_bytes_hex(const char *bytes, int len, char *hex)
{
	static const char digits[] = "0123456789abcdef";
	uint8		digest[PG_SHA256_DIGEST_LENGTH];
	pg_cryptohash_ctx *ctx = pg_cryptohash_create(PG_SHA256);

	if (pg_cryptohash_init(ctx) < 0 ||
		pg_cryptohash_update(ctx, (const uint8 *) bytes, len) < 0 ||
		pg_cryptohash_final(ctx, digest, sizeof(digest)) < 0)
		elog(ERROR, "could not compute SHA-256: %s", pg_cryptohash_error(ctx));
	pg_cryptohash_free(ctx);
	for (int i = 0; i < PG_SHA256_DIGEST_LENGTH; i++)
	{
		hex[i * 2] = digits[digest[i] >> 4];
		hex[i * 2 + 1] = digits[digest[i] & 15];
	}
	hex[HASH_HEX_LENGTH] = '\0';
}

static void
hash_jsonb(Jsonb *value, char *hex)
{
	char	   *text = JsonbToCString(NULL, &value->root, VARSIZE(value));

	hash_bytes_hex(text, strlen(text), hex);
}

/*
 * begin
 */

static void
set_key_tag(LOCKTAG *tag, uint64 hash)
{
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, (uint32) (hash >> 32), (uint32) hash,
						 KEY_LOCK_SUBID);
}

static bool
find(Statements *table, const Request *request, Found *found)
{
	Datum		args[4];
	Datum		stored;
	bool		isnull;

	key_args(args, request);
	args[3] = CStringGetTextDatum(request->hash);
	if (plan_run(&table->find, args, NULL, SPI_OK_SELECT) == 0)
		return false;
	found->id = *DatumGetUUIDP(result(1, &isnull));
	found->same_request = DatumGetBool(result(2, &isnull));
	found->completed = DatumGetBool(result(3, &isnull));
	found->expired = DatumGetBool(result(4, &isnull));
	stored = result(5, &isnull);
	found->stored = isnull ? NULL : DatumGetJsonbP(stored);
	return true;
}

static bool
claim_absent(Statements *table, const Request *request, pg_uuid_t *execution)
{
	Datum		args[7];
	bool		isnull;

	key_args(args, request);
	args[3] = CStringGetTextDatum(request->hash);
	args[4] = TimestampTzGetDatum(request->now);
	args[5] = TimestampTzGetDatum(request->expires_at);
	args[6] = TimestampTzGetDatum(request->in_flight_until);
	if (plan_run(&table->insert, args, NULL, SPI_OK_INSERT_RETURNING) == 0)
		return false;
	*execution = *DatumGetUUIDP(result(1, &isnull));
	return true;
}

/* False where retention or a late complete() has the row, or was faster. */
static bool
claim_expired(Statements *table, const Request *request, const Found *found,
			  pg_uuid_t *execution)
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
	*execution = *DatumGetUUIDP(result(1, &isnull));
	return true;
}

/* The stored response is {"status": ..., "body": ...}, without body where it is NULL. */
static void
read_stored(Jsonb *stored, Answer *answer)
{
	JsonbValue	value;

	if (stored == NULL || !JB_ROOT_IS_OBJECT(stored))
		return;
	if (getKeyJsonValueFromContainer(&stored->root, "status", 6, &value) != NULL &&
		value.type == jbvNumeric)
		answer->status = DatumGetInt32(DirectFunctionCall1(numeric_int4,
														   NumericGetDatum(value.val.numeric)));
	if (getKeyJsonValueFromContainer(&stored->root, "body", 4, &value) != NULL)
		answer->response = JsonbValueToJsonb(&value);
}

/* What a live row answers: another request first, then whether it is through. */
static void
answer_from_row(const Found *found, Answer *answer)
{
	if (!found->same_request)
		answer->decision = DECISION_REUSE;
	else if (!found->completed)
		answer->decision = DECISION_IN_FLIGHT;
	else
	{
		answer->decision = DECISION_REPLAY;
		read_stored(found->stored, answer);
	}
}

/* With the key's lock (may_execute), or what can be said without. */
static void
decide(Statements *table, const Request *request, bool may_execute, Answer *answer)
{
	Found		found;

	for (int i = 0; i < BEGIN_ATTEMPTS; i++)
	{
		bool		exists = find(table, request, &found);

		if (exists && !found.expired)
		{
			answer_from_row(&found, answer);
			return;
		}
		if (!may_execute)
			break;
		if (exists ? claim_expired(table, request, &found, &answer->execution) :
			claim_absent(table, request, &answer->execution))
		{
			answer->decision = DECISION_EXECUTE;
			return;
		}
	}
	answer->decision = DECISION_IN_FLIGHT;
}

/* Where this transaction's execution of a key is kept; NULL: it has none. */
static pg_uuid_t *
own_execution(const Request *request)
{
	if (own.lxid != MyProc->lxid)
		return NULL;
	for (int i = Min(own.next, OWN_EXECUTIONS) - 1; i >= 0; i--)
		if (own.lock_hash[i] == request->lock_hash)
			return &own.execution[i];
	return NULL;
}

/* A key that was begun before, and rolled back to a savepoint, is begun anew. */
static void
remember_own(const Request *request, const pg_uuid_t *execution)
{
	pg_uuid_t  *kept;

	if (own.lxid != MyProc->lxid)
		own.next = 0;
	own.lxid = MyProc->lxid;
	kept = own_execution(request);
	if (kept == NULL)
	{
		own.lock_hash[own.next % OWN_EXECUTIONS] = request->lock_hash;
		kept = &own.execution[own.next % OWN_EXECUTIONS];
		own.next++;
	}
	*kept = *execution;
}

/*
 * A tenant given as argument is the transaction's for the length of the call, where it
 * has none: the policy of a table that requires tenants asks for it.
 */
static int
enter_tenant(const Request *request)
{
	const char *current = GetConfigOption("acme_outbox.tenant_id", true, false);
	int			level;

	if (request->tenant[0] == '\0' || (current != NULL && current[0] != '\0'))
		return 0;
	level = NewGUCNestLevel();
	(void) set_config_option("acme_outbox.tenant_id", request->tenant, PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	return level;
}

static void
leave_tenant(int level)
{
	if (level > 0)
		AtEOXact_GUC(true, level);
}

static void
begin(Request *request, Answer *answer)
{
	MemoryContext caller = CurrentMemoryContext;
	Statements *table = statements(request);
	int			level = enter_tenant(request);
	LOCKTAG		tag;
	bool		locked;

	request->lock_hash = lock_hash(table->schema, request);
	set_key_tag(&tag, request->lock_hash);
	locked = LockAcquire(&tag, ExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL;

	SPI_connect();
	decide(table, request, locked, answer);
	if (answer->response != NULL)
	{
		MemoryContext spi = MemoryContextSwitchTo(caller);

		answer->response = (Jsonb *) PG_DETOAST_DATUM_COPY(JsonbPGetDatum(answer->response));
		MemoryContextSwitchTo(spi);
	}
	SPI_finish();

	if (answer->decision == DECISION_EXECUTE)
		remember_own(request, &answer->execution);
	else if (locked)
		(void) LockRelease(&tag, ExclusiveLock, false);
	leave_tenant(level);
}

static const char *
decision_name(Decision decision)
{
	switch (decision)
	{
		case DECISION_EXECUTE:
			return "execute";
		case DECISION_REPLAY:
			return "replay";
		case DECISION_REUSE:
			return "reuse";
		case DECISION_IN_FLIGHT:
			return "in_flight";
		case DECISION_BYPASS:
			return "bypass";
	}
	pg_unreachable();
}

/* P's names for the two conflicts. */
static const char *
decision_code(Decision decision)
{
	if (decision == DECISION_REUSE)
		return "IDEMPOTENCY_KEY_REUSE";
	if (decision == DECISION_IN_FLIGHT)
		return "IDEMPOTENCY_KEY_IN_FLIGHT";
	return NULL;
}

static TupleDesc
result_descriptor(FunctionCallInfo fcinfo)
{
	MemoryContext caller;
	TupleDesc	desc;

	if (fcinfo->flinfo->fn_extra != NULL)
		return fcinfo->flinfo->fn_extra;
	caller = MemoryContextSwitchTo(fcinfo->flinfo->fn_mcxt);
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "idempotency_begin must return a row");
	desc = BlessTupleDesc(CreateTupleDescCopy(desc));
	MemoryContextSwitchTo(caller);
	fcinfo->flinfo->fn_extra = desc;
	return desc;
}

static Datum
answer_tuple(FunctionCallInfo fcinfo, Answer *answer)
{
	Datum		values[5] = {0};
	bool		nulls[5] = {false, true, true, true, true};
	const char *code = decision_code(answer->decision);

	values[0] = CStringGetTextDatum(decision_name(answer->decision));
	if (code != NULL)
	{
		values[1] = CStringGetTextDatum(code);
		answer->status = HTTP_CONFLICT;
	}
	nulls[1] = code == NULL;
	values[2] = Int32GetDatum(answer->status);
	nulls[2] = answer->status == 0;
	values[3] = JsonbPGetDatum(answer->response);
	nulls[3] = answer->response == NULL;
	values[4] = UUIDPGetDatum(&answer->execution);
	nulls[4] = answer->decision != DECISION_EXECUTE;
	return HeapTupleGetDatum(heap_form_tuple(result_descriptor(fcinfo), values, nulls));
}

typedef enum BodyKind
{
	BODY_BYTES,					/* text, bytea */
	BODY_JSON,
	BODY_JSONB
} BodyKind;

/* NULL: the argument is. */
static Jsonb *
arg_json(FunctionCallInfo fcinfo, int i, bool is_jsonb, const char *name)
{
	bool		invalid;
	Jsonb	   *value = jsontext_arg(fcinfo, i, is_jsonb, &invalid);

	if (invalid)
		argument_error(name, "not JSON", NULL);
	return value;
}

/* A request without a body hashes as no bytes. */
static void
hash_request(FunctionCallInfo fcinfo, int i, BodyKind kind, char *hex)
{
	if (PG_ARGISNULL(i))
		hash_bytes_hex("", 0, hex);
	else if (kind == BODY_BYTES)
	{
		text	   *bytes = PG_GETARG_TEXT_PP(i);

		hash_bytes_hex(VARDATA_ANY(bytes), VARSIZE_ANY_EXHDR(bytes), hex);
	}
	else
		hash_jsonb(arg_json(fcinfo, i, kind == BODY_JSONB, "request"), hex);
}

/* idempotency_begin(endpoint, key, request, ttl, in_flight_ttl, tenant_id) */
static Datum
begin_call(FunctionCallInfo fcinfo, BodyKind kind)
{
	Request		request = {0};
	Answer		answer = {.decision = DECISION_BYPASS};

	if (!PG_ARGISNULL(1))
	{
		read_key(fcinfo, 5, &request);
		request.now = GetCurrentTimestamp();
		request.expires_at = time_after(request.now, fcinfo, 3, "ttl");
		request.in_flight_until = time_after(request.now, fcinfo, 4, "in_flight_ttl");
		hash_request(fcinfo, 2, kind, request.hash);
		begin(&request, &answer);
	}
	counters_add(COUNTER_IDEMPOTENCY, 1, decision_name(answer.decision));
	PG_RETURN_DATUM(answer_tuple(fcinfo, &answer));
}

Datum
acme_outbox_idempotency_begin(PG_FUNCTION_ARGS)
{
	return begin_call(fcinfo, BODY_BYTES);
}

Datum
acme_outbox_idempotency_begin_json(PG_FUNCTION_ARGS)
{
	return begin_call(fcinfo, BODY_JSON);
}

Datum
acme_outbox_idempotency_begin_jsonb(PG_FUNCTION_ARGS)
{
	return begin_call(fcinfo, BODY_JSONB);
}

/*
 * complete, abandon
 */

/* Arguments common to both: endpoint, key, tenant at i, execution after it. */
static Statements *
execution_args(FunctionCallInfo fcinfo, int tenant_arg, Request *request,
			   Datum *args, char *nulls)
{
	Statements *table;
	pg_uuid_t  *execution;

	read_key(fcinfo, tenant_arg, request);
	table = statements(request);
	request->lock_hash = lock_hash(table->schema, request);
	execution = PG_ARGISNULL(tenant_arg + 1) ? own_execution(request) :
		PG_GETARG_UUID_P(tenant_arg + 1);
	key_args(args, request);
	args[3] = UUIDPGetDatum(execution);
	nulls[3] = execution == NULL ? 'n' : ' ';
	return table;
}

static Jsonb *
stored_response(int status, Jsonb *body)
{
	JsonbParseState *state = NULL;
	JsonbValue	key = {.type = jbvString};
	JsonbValue	value;

	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	key.val.string.val = "status";
	key.val.string.len = 6;
	pushJsonbValue(&state, WJB_KEY, &key);
	value.type = jbvNumeric;
	value.val.numeric = int64_to_numeric(status);
	pushJsonbValue(&state, WJB_VALUE, &value);
	if (body != NULL)
	{
		key.val.string.val = "body";
		key.val.string.len = 4;
		pushJsonbValue(&state, WJB_KEY, &key);
		if (JB_ROOT_IS_SCALAR(body))
			(void) JsonbExtractScalar(&body->root, &value);
		else
		{
			value.type = jbvBinary;
			value.val.binary.data = &body->root;
			value.val.binary.len = VARSIZE(body) - VARHDRSZ;
		}
		pushJsonbValue(&state, WJB_VALUE, &value);
	}
	return JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, NULL));
}

/* Nothing was completed: is that because it was before, by the same call? */
static void
check_completed(Statements *table, Datum *args, const char *nulls)
{
	bool		isnull;

	if (plan_run(&table->completed, args, nulls, SPI_OK_SELECT) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OX_NOT_IN_FLIGHT),
				 errmsg("no request of this key is in flight"),
				 errdetail("idempotency_begin was not called, was rolled back, or the request was abandoned or purged."),
				 errhint("Pass endpoint, key and tenant as to idempotency_begin.")));
	if (DatumGetBool(result(1, &isnull)))
	{
		if (DatumGetBool(result(2, &isnull)) && !isnull)
			return;
		ereport(ERROR,
				(errcode(ERRCODE_OX_NOT_IN_FLIGHT),
				 errmsg("the request was completed before"),
				 errdetail("Completing it again is accepted only with the same response, by the same execution.")));
	}
	ereport(ERROR,
			(errcode(ERRCODE_OX_EXECUTION),
			 errmsg("another execution of the request began"),
			 errdetail("This one was in flight longer than its in_flight_ttl%s.",
					   nulls[3] == 'n' ? ", or did not say which one it is" : ""),
			 errhint("Roll back what this execution did. Pass the execution that idempotency_begin returned, and an in_flight_ttl longer than a request takes.")));
}

static int
arg_status(FunctionCallInfo fcinfo, int i)
{
	if (PG_ARGISNULL(i))
		argument_error("status", "null", NULL);
	if (PG_GETARG_INT32(i) < 100 || PG_GETARG_INT32(i) > 599)
		argument_error("status", "not an HTTP status", "It is from 100 to 599.");
	return PG_GETARG_INT32(i);
}

/* idempotency_complete(endpoint, key, status, response, tenant_id, execution) */
static void
complete_call(FunctionCallInfo fcinfo, bool is_jsonb)
{
	Statements *table;
	Request		request = {0};
	Datum		args[5];
	char		nulls[] = "     ";
	int			status;
	int			level;

	if (PG_ARGISNULL(1))
		return;					/* begin answered bypass */
	table = execution_args(fcinfo, 4, &request, args, nulls);
	status = arg_status(fcinfo, 2);
	args[4] = JsonbPGetDatum(stored_response(status,
											 arg_json(fcinfo, 3, is_jsonb, "response")));
	level = enter_tenant(&request);
	SPI_connect();
	if (plan_run(&table->complete, args, nulls, SPI_OK_UPDATE) == 0)
		check_completed(table, args, nulls);
	SPI_finish();
	leave_tenant(level);
}

Datum
acme_outbox_idempotency_complete(PG_FUNCTION_ARGS)
{
	complete_call(fcinfo, true);
	PG_RETURN_VOID();
}

Datum
acme_outbox_idempotency_complete_text(PG_FUNCTION_ARGS)
{
	complete_call(fcinfo, false);
	PG_RETURN_VOID();
}

/* idempotency_abandon(endpoint, key, tenant_id, execution) RETURNS boolean */
Datum
acme_outbox_idempotency_abandon(PG_FUNCTION_ARGS)
{
	Statements *table;
	Request		request = {0};
	Datum		args[5];
	char		nulls[] = "     ";
	uint64		abandoned;
	int			level;

	if (PG_ARGISNULL(1))
		PG_RETURN_BOOL(false);
	table = execution_args(fcinfo, 2, &request, args, nulls);
	level = enter_tenant(&request);
	SPI_connect();
	abandoned = plan_run(&table->abandon, args, nulls, SPI_OK_DELETE);
	SPI_finish();
	leave_tenant(level);
	PG_RETURN_BOOL(abandoned > 0);
}
