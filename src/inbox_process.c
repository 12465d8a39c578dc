/*
 * inbox_process.c
 *		Guard, handler and parking in one call; one message, or a batch.
 *
 * inbox_process() lets a failing handler fail.  The inbox_try_* functions report it
 * instead, with subtransactions:
 *
 * The guards of the whole batch come first, in the order of their event ids, outside
 * any subtransaction: two batches that overlap, whatever their order, wait for each
 * other at most once.  Then the handlers run in the order given, all in one
 * subtransaction.  Where one fails, all is rolled back; what came before it runs again
 * (and is committed), the failed one is reported, and what comes after it runs next.
 * Each failure so costs one more subtransaction and no message runs more often than
 * there are failures behind it.  The guards of what did not succeed are deleted.
 *
 * A deferred constraint would fail at COMMIT, when nobody can say whose fault it was.
 * So deferred constraints are checked at each subtransaction's end, within another one
 * that is rolled back: they stay deferred, and a handler finds them as it expects.  If
 * the check fails, the messages are bisected.
 *
 * More than MAX_COMMITTED subtransactions would make snapshots slow for everybody: the
 * rest is "later".
 */
#include "acme_outbox.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "consumed.h"
#include "funcapi.h"
#include "handler.h"
#include "inbox.h"
#include "jsontext.h"
#include "message.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/resowner.h"

PG_FUNCTION_INFO_V1(acme_outbox_inbox_process);
PG_FUNCTION_INFO_V1(acme_outbox_inbox_process_text);
PG_FUNCTION_INFO_V1(acme_outbox_inbox_process_jsonb);
PG_FUNCTION_INFO_V1(acme_outbox_inbox_try_process);
PG_FUNCTION_INFO_V1(acme_outbox_inbox_try_process_text);
PG_FUNCTION_INFO_V1(acme_outbox_inbox_try_process_jsonb);
PG_FUNCTION_INFO_V1(acme_outbox_inbox_try_process_batch);
PG_FUNCTION_INFO_V1(acme_outbox_inbox_try_process_batch_json);
PG_FUNCTION_INFO_V1(acme_outbox_inbox_try_process_batch_literal);
PG_FUNCTION_INFO_V1(acme_outbox_inbox_try_process_batch_jsonb);

/* half of what a backend remembers of its subtransactions in shared memory */
#define MAX_COMMITTED 32

typedef enum Outcome
{
	OUTCOME_PENDING,			/* to be run */
	OUTCOME_APPLIED,
	OUTCOME_DUPLICATE,
	OUTCOME_PARKED,
	OUTCOME_FAILED,
	OUTCOME_INVALID,
	OUTCOME_LATER
} Outcome;

static const char *const outcome_names[] = {
	"later", "applied", "duplicate", "parked", "failed", "invalid", "later"
};

/* The types of envelope and message; json is read as text. */
typedef enum ArgumentTypes
{
	ARGS_TEXT_JSONB,
	ARGS_TEXT,
	ARGS_JSONB
} ArgumentTypes;

typedef struct Delivery
{
	Jsonb	   *envelope;
	Jsonb	   *message;
	const char *event_id;
	Outcome		outcome;
	const ErrorData *error;		/* of a failed one */
} Delivery;

typedef struct Batch
{
	Inbox	   *inbox;
	Handler    *handler;
	const char *consumer;
	Delivery   *deliveries;
	int			n;
	int			committed;		/* subtransactions */
} Batch;

/* a unit of a batch: [at, end) run in one subtransaction */
typedef struct Unit
{
	Batch	   *batch;
	int			at;				/* the message being handled; end: none */
	int			end;
} Unit;

/*
 * Reading the arguments
 */

static void
read_delivery(Delivery *delivery, Datum envelope, bool isnull, bool is_jsonb)
{
	delivery->outcome = OUTCOME_INVALID;
	if (isnull)
		return;
	delivery->envelope = is_jsonb ? DatumGetJsonbP(envelope) :
		jsontext_parse(DatumGetTextPP(envelope));
	if (delivery->envelope == NULL)
		return;
	delivery->event_id = envelope_event_id(delivery->envelope);
	if (delivery->event_id != NULL)
		delivery->outcome = OUTCOME_PENDING;
}

/* Why a message is invalid; says nothing of what it holds. */
static const char *
invalid_reason(const Delivery *delivery)
{
	return delivery->envelope == NULL ? "message is null or not JSON" :
		"message has no header.eventId of 1 to 255 bytes";
}

static void
begin_batch(Batch *batch, FunctionCallInfo fcinfo, Delivery *deliveries, int n)
{
	batch->consumer = inbox_arg(fcinfo, 0);
	inbox_check_names(batch->consumer, "-");
	batch->handler = handler_find(inbox_arg(fcinfo, 2));
	batch->inbox = inbox_current();
	batch->deliveries = deliveries;
	batch->n = n;
	batch->committed = 0;
}

static void
argument_error(const char *problem)
{
	ereport(ERROR,
			(errcode(ERRCODE_OX_INBOX_ARGUMENT),
			 errmsg("%s", problem)));
}

static void
read_single(FunctionCallInfo fcinfo, Batch *batch, Delivery *delivery, ArgumentTypes types)
{
	bool		invalid;

	memset(delivery, 0, sizeof(Delivery));
	begin_batch(batch, fcinfo, delivery, 1);
	read_delivery(delivery, PG_ARGISNULL(1) ? 0 : PG_GETARG_DATUM(1),
				  PG_ARGISNULL(1), types == ARGS_JSONB);
	delivery->message = jsontext_arg(fcinfo, 3, types != ARGS_TEXT, &invalid);
	if (invalid)
		argument_error("message is not JSON");
}

/* The elements of an array argument; false: it is null. */
static bool
read_array(FunctionCallInfo fcinfo, int i, Oid type, Datum **elements, bool **nulls, int *n)
{
	ArrayType  *array;

	*n = 0;
	if (PG_ARGISNULL(i))
		return false;
	array = PG_GETARG_ARRAYTYPE_P(i);
	deconstruct_array(array, type, -1, false, TYPALIGN_INT, elements, nulls, n);
	return true;
}

static Datum
parse_text_array(Datum literal)
{
	FmgrInfo	array_input;

	fmgr_info(F_ARRAY_IN, &array_input);
	return InputFunctionCall(&array_input, DatumGetCString(literal), TEXTOID, -1);
}

/* An array in the form of its literal becomes the argument. */
static void
read_literal(FunctionCallInfo fcinfo, int i)
{
	Datum		array;

	if (PG_ARGISNULL(i))
		return;
	if (!jsontext_quietly(parse_text_array,
						  CStringGetDatum(text_to_cstring(PG_GETARG_TEXT_PP(i))), &array))
		argument_error("envelopes is not an array");
	fcinfo->args[i].value = array;
}

static void
read_batch(FunctionCallInfo fcinfo, Batch *batch, Oid element)
{
	Datum	   *envelopes;
	Datum	   *messages;
	bool	   *nulls;
	bool	   *message_nulls;
	int			n;
	int			n_messages;

	if (!read_array(fcinfo, 1, element, &envelopes, &nulls, &n))
		argument_error("envelopes is null");
	begin_batch(batch, fcinfo, palloc0(sizeof(Delivery) * Max(n, 1)), n);
	for (int i = 0; i < n; i++)
		read_delivery(&batch->deliveries[i], envelopes[i], nulls[i], element == JSONBOID);
	if (!read_array(fcinfo, 3, JSONBOID, &messages, &message_nulls, &n_messages))
		return;
	if (n_messages != n)
		argument_error("envelopes and messages differ in length");
	for (int i = 0; i < n; i++)
		if (!message_nulls[i])
			batch->deliveries[i].message = DatumGetJsonbP(messages[i]);
}

/*
 * Guards
 */

static int
compare_by_id(const void *a, const void *b)
{
	const Delivery *one = *(Delivery *const *) a;
	const Delivery *other = *(Delivery *const *) b;
	int			order = strcmp(one->event_id, other->event_id);

	/* of several copies the first one given comes first */
	return order != 0 ? order : (one < other ? -1 : one > other);
}

/* The deliveries to be guarded, sorted by id; further copies become duplicates. */
static int
sort_pending(Batch *batch, Delivery **sorted)
{
	int			n = 0;
	int			distinct = 0;

	for (int i = 0; i < batch->n; i++)
		if (batch->deliveries[i].outcome == OUTCOME_PENDING)
			sorted[n++] = &batch->deliveries[i];
	qsort(sorted, n, sizeof(Delivery *), compare_by_id);
	for (int i = 0; i < n; i++)
	{
		if (distinct > 0 &&
			strcmp(sorted[distinct - 1]->event_id, sorted[i]->event_id) == 0)
			sorted[i]->outcome = OUTCOME_DUPLICATE;
		else
			sorted[distinct++] = sorted[i];
	}
	return distinct;
}

static Datum
ids_of(Delivery **deliveries, int n)
{
	Datum	   *ids = palloc(sizeof(Datum) * Max(n, 1));

	for (int i = 0; i < n; i++)
		ids[i] = CStringGetTextDatum(deliveries[i]->event_id);
	return PointerGetDatum(construct_array(ids, n, TEXTOID, -1, false, TYPALIGN_INT));
}

/* Those whose guard was there already are duplicates; both lists are sorted. */
static void
mark_duplicates(Delivery **sorted, int n)
{
	uint64		row = 0;

	for (int i = 0; i < n; i++)
	{
		char	   *inserted = row < SPI_processed ?
		SPI_getvalue(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, 1) : NULL;

		if (inserted != NULL && strcmp(inserted, sorted[i]->event_id) == 0)
			row++;
		else
			sorted[i]->outcome = OUTCOME_DUPLICATE;
	}
	if (row != SPI_processed)
		elog(ERROR, "guards were not recorded in order");
}

static void
take_guards(Batch *batch)
{
	Delivery  **sorted = palloc(sizeof(Delivery *) * Max(batch->n, 1));
	int			n = sort_pending(batch, sorted);
	Datum		args[2];

	if (n == 0)
		return;
	args[0] = CStringGetTextDatum(batch->consumer);
	args[1] = ids_of(sorted, n);
	SPI_connect();
	inbox_run(batch->inbox, INBOX_ACCEPT_ALL, args, NULL, SPI_OK_INSERT_RETURNING);
	mark_duplicates(sorted, n);
	SPI_finish();
}

/* What was not done may be delivered again. */
static void
drop_guards(Batch *batch)
{
	Delivery  **undone = palloc(sizeof(Delivery *) * Max(batch->n, 1));
	Datum		args[2];
	int			n = 0;

	for (int i = 0; i < batch->n; i++)
	{
		Outcome		outcome = batch->deliveries[i].outcome;

		if (outcome == OUTCOME_FAILED || outcome == OUTCOME_LATER)
			undone[n++] = &batch->deliveries[i];
	}
	if (n == 0)
		return;
	args[0] = CStringGetTextDatum(batch->consumer);
	args[1] = ids_of(undone, n);
	SPI_connect();
	inbox_run(batch->inbox, INBOX_FORGET, args, NULL, SPI_OK_DELETE);
	SPI_finish();
}

/*
 * Handlers
 */

static Outcome
deliver(const Batch *batch, const Delivery *delivery)
{
	Handling	handling = {
		.consumer = batch->consumer,
		.event_id = delivery->event_id,
		.envelope = delivery->envelope,
		.message = delivery->message
	};

	return handler_run(batch->handler, &handling) ? OUTCOME_PARKED : OUTCOME_APPLIED;
}

/* Raises what COMMIT would raise; the constraints stay deferred. */
static void
check_deferred(void)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *volatile error = NULL;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		/* SET CONSTRAINTS ALL IMMEDIATE */
		AfterTriggerSetState(makeNode(ConstraintsSetStmt));
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
	}
	PG_END_TRY();
	RollbackAndReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	if (error != NULL)
		ReThrowError(error);
}

/* Runs a unit's messages, in order; the work of inbox_protected(). */
static void
run_unit(void *argument)
{
	Unit	   *unit = argument;
	Delivery   *deliveries = unit->batch->deliveries;

	for (; unit->at < unit->end; unit->at++)
	{
		CHECK_FOR_INTERRUPTS();
		if (deliveries[unit->at].outcome == OUTCOME_PENDING)
			deliveries[unit->at].outcome = deliver(unit->batch, &deliveries[unit->at]);
	}
	check_deferred();
}

static bool
has_pending(const Batch *batch, int from, int end)
{
	for (int i = from; i < end; i++)
		if (batch->deliveries[i].outcome == OUTCOME_PENDING)
			return true;
	return false;
}

/* After a rollback: what ran in the unit did not. */
static void
undo_outcomes(Batch *batch, const Outcome *before, int from, int end)
{
	for (int i = from; i < end; i++)
		batch->deliveries[i].outcome = before[i - from];
}

/* One subtransaction over [from, end); false: it failed, where unit->at says. */
static bool
try_unit(Batch *batch, int from, int end, Unit *unit, ErrorData **error)
{
	Outcome    *before = palloc(sizeof(Outcome) * (end - from));
	bool		done;

	*unit = (Unit) {batch, from, end};
	for (int i = from; i < end; i++)
		before[i - from] = batch->deliveries[i].outcome;
	done = inbox_protected(run_unit, unit, error);
	if (done)
		batch->committed++;
	else
		undo_outcomes(batch, before, from, end);
	pfree(before);
	return done;
}

static void
mark_failed(Delivery *delivery, const ErrorData *error)
{
	delivery->outcome = OUTCOME_FAILED;
	delivery->error = error;
}

/*
 * Runs messages [from, end) in as few subtransactions as their failures allow.  A unit
 * that failed at a message is split there; one that failed at its end, in a deferred
 * constraint, in the middle.  The left part is run first.
 */
static void
run_range(Batch *batch, int from, int end)
{
	Unit		unit;
	ErrorData  *error;

	while (batch->committed < MAX_COMMITTED && has_pending(batch, from, end))
	{
		if (try_unit(batch, from, end, &unit, &error))
			return;
		if (unit.at < end)
		{
			mark_failed(&batch->deliveries[unit.at], error);
			run_range(batch, from, unit.at);
			from = unit.at + 1;
		}
		else if (end - from == 1)
			mark_failed(&batch->deliveries[from], error);
		else
		{
			int			middle = from + (end - from) / 2;

			run_range(batch, from, middle);
			from = middle;
		}
	}
}

/* What is "later" was not handled, and comes again. */
static void
count_delivery(const Batch *batch, const Delivery *delivery)
{
	if (delivery->outcome != OUTCOME_LATER)
		consumed_count(batch->consumer, delivery->envelope, outcome_names[delivery->outcome]);
}

static void
run_batch(Batch *batch)
{
	take_guards(batch);
	run_range(batch, 0, batch->n);
	for (int i = 0; i < batch->n; i++)
		if (batch->deliveries[i].outcome == OUTCOME_PENDING)
			batch->deliveries[i].outcome = OUTCOME_LATER;
	drop_guards(batch);
	for (int i = 0; i < batch->n; i++)
		count_delivery(batch, &batch->deliveries[i]);
}

/*
 * The SQL functions
 */

static Datum
process(FunctionCallInfo fcinfo, ArgumentTypes types)
{
	Batch		batch;
	Delivery	delivery;

	read_single(fcinfo, &batch, &delivery, types);
	if (delivery.outcome == OUTCOME_INVALID)
		ereport(ERROR,
				(errcode(ERRCODE_OX_ENVELOPE),
				 errmsg("%s", invalid_reason(&delivery)),
				 errhint("The sender renders messages with acme_outbox.publish or acme_outbox.envelope.")));
	if (inbox_accept(batch.inbox, batch.consumer, delivery.event_id))
		delivery.outcome = deliver(&batch, &delivery);
	else
		delivery.outcome = OUTCOME_DUPLICATE;
	count_delivery(&batch, &delivery);
	PG_RETURN_TEXT_P(cstring_to_text(outcome_names[delivery.outcome]));
}

/* inbox_process(consumer, envelope text, handler, message) RETURNS text */
Datum
acme_outbox_inbox_process(PG_FUNCTION_ARGS)
{
	return process(fcinfo, ARGS_TEXT_JSONB);
}

Datum
acme_outbox_inbox_process_text(PG_FUNCTION_ARGS)
{
	return process(fcinfo, ARGS_TEXT);
}

Datum
acme_outbox_inbox_process_jsonb(PG_FUNCTION_ARGS)
{
	return process(fcinfo, ARGS_JSONB);
}

static void
set_text(Datum *values, bool *nulls, int i, const char *value)
{
	nulls[i] = value == NULL;
	if (value != NULL)
		values[i] = CStringGetTextDatum(value);
}

/* outcome, sqlstate, message, context into four columns; no DETAIL: it shows rows */
static void
put_outcome(Datum *values, bool *nulls, const Delivery *delivery)
{
	const ErrorData *error = delivery->error;

	set_text(values, nulls, 0, outcome_names[delivery->outcome]);
	set_text(values, nulls, 1, NULL);
	set_text(values, nulls, 2, NULL);
	set_text(values, nulls, 3, NULL);
	if (delivery->outcome == OUTCOME_INVALID)
	{
		set_text(values, nulls, 1, unpack_sql_state(ERRCODE_OX_ENVELOPE));
		set_text(values, nulls, 2, invalid_reason(delivery));
	}
	else if (delivery->outcome == OUTCOME_FAILED)
	{
		set_text(values, nulls, 1, unpack_sql_state(error->sqlerrcode));
		set_text(values, nulls, 2, error->message);
		set_text(values, nulls, 3, error->context);
	}
}

static Datum
try_process(FunctionCallInfo fcinfo, ArgumentTypes types)
{
	Batch		batch;
	Delivery	delivery;
	TupleDesc	desc;
	Datum		values[4];
	bool		nulls[4];

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	read_single(fcinfo, &batch, &delivery, types);
	run_batch(&batch);
	put_outcome(values, nulls, &delivery);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}

/*
 * inbox_try_process(consumer, envelope text, handler, message)
 *		RETURNS (outcome, sqlstate, message, context)
 */
Datum
acme_outbox_inbox_try_process(PG_FUNCTION_ARGS)
{
	return try_process(fcinfo, ARGS_TEXT_JSONB);
}

Datum
acme_outbox_inbox_try_process_text(PG_FUNCTION_ARGS)
{
	return try_process(fcinfo, ARGS_TEXT);
}

Datum
acme_outbox_inbox_try_process_jsonb(PG_FUNCTION_ARGS)
{
	return try_process(fcinfo, ARGS_JSONB);
}

static Datum
try_process_batch(FunctionCallInfo fcinfo, Oid element)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Batch		batch;

	InitMaterializedSRF(fcinfo, 0);
	read_batch(fcinfo, &batch, element);
	run_batch(&batch);
	for (int i = 0; i < batch.n; i++)
	{
		Datum		values[5];
		bool		nulls[5] = {false};

		values[0] = Int32GetDatum(i + 1);
		put_outcome(values + 1, nulls + 1, &batch.deliveries[i]);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	PG_RETURN_NULL();
}

/*
 * inbox_try_process_batch(consumer, envelopes text[], handler, messages jsonb[])
 *		RETURNS TABLE (ordinal, outcome, sqlstate, message, context)
 */
Datum
acme_outbox_inbox_try_process_batch(PG_FUNCTION_ARGS)
{
	return try_process_batch(fcinfo, TEXTOID);
}

/* The same for envelopes text: an array's literal. */
Datum
acme_outbox_inbox_try_process_batch_literal(PG_FUNCTION_ARGS)
{
	read_literal(fcinfo, 1);
	return try_process_batch(fcinfo, TEXTOID);
}

Datum
acme_outbox_inbox_try_process_batch_json(PG_FUNCTION_ARGS)
{
	return try_process_batch(fcinfo, JSONOID);
}

Datum
acme_outbox_inbox_try_process_batch_jsonb(PG_FUNCTION_ARGS)
{
	return try_process_batch(fcinfo, JSONBOID);
}
