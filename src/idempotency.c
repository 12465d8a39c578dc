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
 *
 * idempotency_request.c reads and checks the arguments, idempotency_table.c has the rows.
 */
#include "acme_outbox.h"

#include "access/htup_details.h"
#include "counters.h"
#include "funcapi.h"
#include "idempotency_internal.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "utils/builtins.h"
#include "utils/guc.h"

PG_FUNCTION_INFO_V1(acme_outbox_idempotency_begin);
PG_FUNCTION_INFO_V1(acme_outbox_idempotency_begin_json);
PG_FUNCTION_INFO_V1(acme_outbox_idempotency_begin_jsonb);
PG_FUNCTION_INFO_V1(acme_outbox_idempotency_complete);
PG_FUNCTION_INFO_V1(acme_outbox_idempotency_complete_text);
PG_FUNCTION_INFO_V1(acme_outbox_idempotency_abandon);

#define HTTP_CONFLICT 409

/* executions that one transaction can complete without naming them */
#define OWN_EXECUTIONS 8

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

/* What begin answers. */
typedef struct Answer
{
	Decision	decision;
	int			status;
	Jsonb	   *response;		/* NULL: none */
	pg_uuid_t	execution;
} Answer;

/* What this transaction began: complete() need not be told. */
static struct
{
	LocalTransactionId lxid;
	int			next;
	uint64		lock_hash[OWN_EXECUTIONS];
	pg_uuid_t	execution[OWN_EXECUTIONS];
} own;

/*
 * begin
 */

static void
set_key_tag(LOCKTAG *tag, uint64 hash)
{
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, (uint32) (hash >> 32), (uint32) hash,
						 LOCK_OF_IDEMPOTENCY_KEY);
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
answer_from_row(const IdempotencyRow *found, Answer *answer)
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
decide(IdempotencyTable *table, const IdempotencyRequest *request, bool may_execute, Answer *answer)
{
	IdempotencyRow		found;

	for (int i = 0; i < BEGIN_ATTEMPTS; i++)
	{
		bool		exists = idempotency_find(table, request, &found);

		if (exists && !found.expired)
		{
			answer_from_row(&found, answer);
			return;
		}
		if (!may_execute)
			break;
		if (exists ? idempotency_claim_expired(table, request, &found, &answer->execution) :
			idempotency_claim_absent(table, request, &answer->execution))
		{
			answer->decision = DECISION_EXECUTE;
			return;
		}
	}
	answer->decision = DECISION_IN_FLIGHT;
}

/* Where this transaction's execution of a key is kept; NULL: it has none. */
static pg_uuid_t *
own_execution(const IdempotencyRequest *request)
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
remember_own(const IdempotencyRequest *request, const pg_uuid_t *execution)
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
enter_tenant(const IdempotencyRequest *request)
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
begin(IdempotencyRequest *request, Answer *answer)
{
	MemoryContext caller = CurrentMemoryContext;
	IdempotencyTable *table = idempotency_table(request);
	int			level = enter_tenant(request);
	LOCKTAG		tag;
	bool		locked;

	request->lock_hash = idempotency_lock_hash(table->schema, request);
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

/* idempotency_begin(endpoint, key, request, ttl, in_flight_ttl, tenant_id) */
static Datum
begin_call(FunctionCallInfo fcinfo, BodyKind kind)
{
	IdempotencyRequest		request = {0};
	Answer		answer = {.decision = DECISION_BYPASS};

	if (!PG_ARGISNULL(1))
	{
		idempotency_read_key(fcinfo, 5, &request);
		request.now = GetCurrentTimestamp();
		request.expires_at = idempotency_time_after(request.now, fcinfo, 3, "ttl");
		request.in_flight_until = idempotency_time_after(request.now, fcinfo, 4, "in_flight_ttl");
		idempotency_hash_request(fcinfo, 2, kind, request.hash);
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
static IdempotencyTable *
execution_args(FunctionCallInfo fcinfo, int tenant_arg, IdempotencyRequest *request,
			   Datum *args, char *nulls)
{
	IdempotencyTable *table;
	pg_uuid_t  *execution;

	idempotency_read_key(fcinfo, tenant_arg, request);
	table = idempotency_table(request);
	request->lock_hash = idempotency_lock_hash(table->schema, request);
	execution = PG_ARGISNULL(tenant_arg + 1) ? own_execution(request) :
		PG_GETARG_UUID_P(tenant_arg + 1);
	idempotency_key_args(args, request);
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
check_completed(IdempotencyTable *table, Datum *args, const char *nulls)
{
	bool		isnull;

	if (plan_run(&table->completed, args, nulls, SPI_OK_SELECT) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OX_NOT_IN_FLIGHT),
				 errmsg("no request of this key is in flight"),
				 errdetail("idempotency_begin was not called, was rolled back, or the request was abandoned or purged."),
				 errhint("Pass endpoint, key and tenant as to idempotency_begin.")));
	if (DatumGetBool(idempotency_column(1, &isnull)))
	{
		if (DatumGetBool(idempotency_column(2, &isnull)) && !isnull)
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

/* idempotency_complete(endpoint, key, status, response, tenant_id, execution) */
static void
complete_call(FunctionCallInfo fcinfo, bool is_jsonb)
{
	IdempotencyTable *table;
	IdempotencyRequest		request = {0};
	Datum		args[5];
	char		nulls[] = "     ";
	int			status;
	int			level;

	if (PG_ARGISNULL(1))
		return;					/* begin answered bypass */
	table = execution_args(fcinfo, 4, &request, args, nulls);
	status = idempotency_arg_status(fcinfo, 2);
	args[4] = JsonbPGetDatum(stored_response(status,
											 idempotency_arg_json(fcinfo, 3, is_jsonb, "response")));
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
	IdempotencyTable *table;
	IdempotencyRequest		request = {0};
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
