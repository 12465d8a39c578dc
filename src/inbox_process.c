/*
 * inbox_process.c
 *		The SQL functions that handle messages: guard, handler and parking in one call.
 *
 * inbox_process() lets a failing handler fail.  The inbox_try_* functions report it
 * instead, of one message or of each of a batch; inbox_batch.c has how.
 *
 * To these an envelope that cannot be read is an outcome as well, "invalid": an error
 * would make the good messages beside it wait.  What is wrong with the call itself raises.
 */
#include "acme_outbox.h"

#include "catalog/pg_type.h"
#include "funcapi.h"
#include "inbox_batch.h"
#include "jsontext.h"
#include "message.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"

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

/* The types of envelope and message; json is read as text. */
typedef enum ArgumentTypes
{
	ARGS_TEXT_JSONB,
	ARGS_TEXT,
	ARGS_JSONB
} ArgumentTypes;

/*
 * Reading the arguments
 */

static void
read_delivery(Delivery *delivery, Datum envelope, bool isnull, bool is_jsonb)
{
	delivery->outcome = MESSAGE_INVALID;
	if (isnull)
		return;
	delivery->envelope = is_jsonb ? DatumGetJsonbP(envelope) :
		jsontext_parse(DatumGetTextPP(envelope));
	if (delivery->envelope == NULL)
		return;
	delivery->event_id = envelope_event_id(delivery->envelope);
	if (delivery->event_id != NULL)
		delivery->outcome = MESSAGE_PENDING;
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
 * The SQL functions
 */

static Datum
process(FunctionCallInfo fcinfo, ArgumentTypes types)
{
	Batch		batch;
	Delivery	delivery;

	read_single(fcinfo, &batch, &delivery, types);
	if (delivery.outcome == MESSAGE_INVALID)
		ereport(ERROR,
				(errcode(ERRCODE_OX_ENVELOPE),
				 errmsg("%s", invalid_reason(&delivery)),
				 errhint("The sender renders messages with acme_outbox.publish or acme_outbox.envelope.")));
	if (inbox_accept(batch.inbox, batch.consumer, delivery.event_id))
		delivery.outcome = inbox_batch_deliver(&batch, &delivery);
	else
		delivery.outcome = MESSAGE_DUPLICATE;
	inbox_batch_count(&batch, &delivery);
	PG_RETURN_TEXT_P(cstring_to_text(message_outcome_name(delivery.outcome)));
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

	set_text(values, nulls, 0, message_outcome_name(delivery->outcome));
	set_text(values, nulls, 1, NULL);
	set_text(values, nulls, 2, NULL);
	set_text(values, nulls, 3, NULL);
	if (delivery->outcome == MESSAGE_INVALID)
	{
		set_text(values, nulls, 1, unpack_sql_state(ERRCODE_OX_ENVELOPE));
		set_text(values, nulls, 2, invalid_reason(delivery));
	}
	else if (delivery->outcome == MESSAGE_FAILED)
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
	inbox_batch_run(&batch);
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
	inbox_batch_run(&batch);
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
