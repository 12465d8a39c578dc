/*
 * parked.c
 *		Parking: a message delivered fine that the domain cannot accept (P 2).
 *
 * A parked message is a row of parked_message, written in the transaction that would
 * have made the change; the event stays recorded as processed, so that a redelivery is
 * a duplicate.  park() is for handlers: it writes the row and marks the message being
 * handled; the handler should then return.  park_message() is for everybody else, and
 * records the event itself.
 *
 * "guarded" remembers that the row's own transaction recorded the event as processed.
 * Then that record is no sign of a change, and a replay may make it.
 */
#include "acme_outbox.h"

#include "access/xact.h"
#include "context.h"
#include "counters.h"
#include "envelope.h"
#include "inbox.h"
#include "jsontext.h"
#include "message.h"
#include "parked.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(acme_outbox_park);
PG_FUNCTION_INFO_V1(acme_outbox_park_message);
PG_FUNCTION_INFO_V1(acme_outbox_park_message_jsonb);

/* parameters of INBOX_PARK */
enum
{
	P_ID, P_TENANT, P_CONSUMER, P_EVENT_ID, P_EVENT_TYPE, P_ENTITY_TYPE, P_ENTITY_ID,
	P_REASON, P_PAYLOAD, P_MESSAGE, P_GUARDED, P_COUNT
};

/* [A-Z_]+: a label of metrics, never a sentence */
static void
check_reason(const char *reason)
{
	if (reason == NULL || reason[0] == '\0' || strlen(reason) > MAX_SHORT_STRING ||
		strspn(reason, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") != strlen(reason))
		ereport(ERROR,
				(errcode(ERRCODE_OX_PARK),
				 errmsg("invalid reason"),
				 errdetail("A reason is made of the letters A to Z and underscores."),
				 errhint("UNRESOLVABLE_ENTITY and INVALID_STATE are the usual ones.")));
}

static void
check_entity(const char *what, const char *value)
{
	if (value != NULL && strlen(value) > MAX_SHORT_STRING)
		ereport(ERROR,
				(errcode(ERRCODE_OX_PARK),
				 errmsg("%s is longer than %d bytes", what, MAX_SHORT_STRING)));
}

static void
check_parking(const ParkedMessage *parked)
{
	check_reason(parked->reason);
	check_entity("entity type", parked->entity_type);
	check_entity("entity id", parked->entity_id);
}

static void
put_text(Datum *values, char *nulls, int i, const char *value)
{
	nulls[i] = value == NULL ? 'n' : ' ';
	if (value != NULL)
		values[i] = CStringGetTextDatum(value);
}

static void
put_jsonb(Datum *values, char *nulls, int i, Jsonb *value)
{
	nulls[i] = value == NULL ? 'n' : ' ';
	values[i] = PointerGetDatum(value);
}

/* What P calls the event type: the name. */
static const char *
event_type(Jsonb *envelope)
{
	const char *name = envelope_string(envelope, "body", "eventName");

	return name != NULL ? name : envelope_string(envelope, "body", "eventType");
}

/* Writes the row; returns its id. */
static pg_uuid_t *
insert_row(Inbox *inbox, const ParkedMessage *parked)
{
	pg_uuid_t  *id = palloc(sizeof(pg_uuid_t));
	Datum		values[P_COUNT];
	char		nulls[P_COUNT];

	envelope_new_event_id(id, GetCurrentTimestamp());
	memset(nulls, ' ', sizeof(nulls));
	values[P_ID] = UUIDPGetDatum(id);
	put_text(values, nulls, P_TENANT, context_tenant());
	put_text(values, nulls, P_CONSUMER, parked->consumer);
	put_text(values, nulls, P_EVENT_ID, parked->event_id);
	put_text(values, nulls, P_EVENT_TYPE, event_type(parked->envelope));
	put_text(values, nulls, P_ENTITY_TYPE, parked->entity_type);
	put_text(values, nulls, P_ENTITY_ID, parked->entity_id);
	put_text(values, nulls, P_REASON, parked->reason);
	put_jsonb(values, nulls, P_PAYLOAD, parked->envelope);
	put_jsonb(values, nulls, P_MESSAGE, parked->message);
	values[P_GUARDED] = BoolGetDatum(parked->guarded);
	SPI_connect();
	inbox_run(inbox, INBOX_PARK, values, nulls, SPI_OK_INSERT);
	SPI_finish();
	counters_add(COUNTER_PARKED, 1, parked->consumer, event_type(parked->envelope),
				 parked->reason);
	return id;
}

/* park(reason text, entity_type text, entity_id text) RETURNS uuid */
Datum
acme_outbox_park(PG_FUNCTION_ARGS)
{
	Handling   *handling = message_current();
	ParkedMessage parked = {
		.reason = inbox_arg(fcinfo, 0),
		.entity_type = inbox_arg(fcinfo, 1),
		.entity_id = inbox_arg(fcinfo, 2),
		.guarded = true
	};
	pg_uuid_t  *id;

	check_parking(&parked);
	if (handling == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OX_PARK),
				 errmsg("no message is being handled"),
				 errhint("Outside a handler use acme_outbox.park_message.")));
	if (handling->parked_in != InvalidSubTransactionId)
		ereport(ERROR,
				(errcode(ERRCODE_OX_PARK),
				 errmsg("the message is parked already"),
				 errhint("Return from the handler after parking.")));
	parked.consumer = handling->consumer;
	parked.event_id = handling->event_id;
	parked.envelope = handling->envelope;
	parked.message = handling->message;
	id = insert_row(inbox_current(), &parked);
	handling->parked_in = GetCurrentSubTransactionId();
	PG_RETURN_UUID_P(id);
}

/* Did this very transaction record the event as processed? */
static bool
recorded_here(Inbox *inbox, const char *consumer, const char *event_id)
{
	Datum		args[] = {CStringGetTextDatum(consumer), CStringGetTextDatum(event_id)};
	bool		isnull;
	bool		here;

	SPI_connect();
	inbox_run(inbox, INBOX_GUARD_TIME, args, NULL, SPI_OK_SELECT);
	here = SPI_processed == 1 &&
		DatumGetBool(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull));
	SPI_finish();
	return here;
}

static pg_uuid_t *
park_message(FunctionCallInfo fcinfo, Jsonb *envelope)
{
	Inbox	   *inbox;
	ParkedMessage parked = {
		.consumer = inbox_arg(fcinfo, 0),
		.envelope = envelope,
		.reason = inbox_arg(fcinfo, 2),
		.entity_type = inbox_arg(fcinfo, 3),
		.entity_id = inbox_arg(fcinfo, 4)
	};

	if (envelope == NULL || (parked.event_id = envelope_event_id(envelope)) == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OX_ENVELOPE),
				 errmsg("message is not JSON, or has no header.eventId of 1 to 255 bytes")));
	inbox_check_names(parked.consumer, parked.event_id);
	check_parking(&parked);
	inbox = inbox_current();
	parked.guarded = inbox_accept(inbox, parked.consumer, parked.event_id) ||
		recorded_here(inbox, parked.consumer, parked.event_id);
	return insert_row(inbox, &parked);
}

/*
 * park_message(consumer text, envelope text, reason text, entity_type text,
 *				entity_id text) RETURNS uuid
 */
Datum
acme_outbox_park_message(PG_FUNCTION_ARGS)
{
	bool		invalid;

	PG_RETURN_UUID_P(park_message(fcinfo, jsontext_arg(fcinfo, 1, false, &invalid)));
}

Datum
acme_outbox_park_message_jsonb(PG_FUNCTION_ARGS)
{
	PG_RETURN_UUID_P(park_message(fcinfo, PG_ARGISNULL(1) ? NULL : PG_GETARG_JSONB_P(1)));
}
