/*
 * publish_api.c
 *		The SQL functions publish, enqueue_job, envelope and publish_row.
 *
 * They read their arguments into a PublishRequest or an Envelope; the rules are in
 * publish.c and envelope.c.  Each has one C entry point per payload representation:
 * text and json are the same bytes, jsonb is rendered first.
 */
#include "acme_outbox.h"

#include "access/table.h"
#include "autocommit.h"
#include "catalog/namespace.h"
#include "commands/trigger.h"
#include "envelope.h"
#include "executor/executor.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "publish.h"
#include "trace.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

PG_FUNCTION_INFO_V1(acme_outbox_publish);
PG_FUNCTION_INFO_V1(acme_outbox_publish_jsonb);
PG_FUNCTION_INFO_V1(acme_outbox_enqueue_job);
PG_FUNCTION_INFO_V1(acme_outbox_enqueue_job_jsonb);
PG_FUNCTION_INFO_V1(acme_outbox_envelope);
PG_FUNCTION_INFO_V1(acme_outbox_envelope_jsonb);
PG_FUNCTION_INFO_V1(acme_outbox_publish_row);

/* argument positions of publish */
enum
{
	PUB_TOPIC, PUB_ROUTING_KEY, PUB_AGGREGATE, PUB_EVENT_NAME, PUB_PAYLOAD, PUB_KIND,
	PUB_COMMON
};

/* argument positions of enqueue_job */
enum
{
	JOB_TOPIC, JOB_ROUTING_KEY, JOB_NAME, JOB_PAYLOAD, JOB_AGGREGATE, JOB_COMMON
};

/* positions after PUB_COMMON or JOB_COMMON */
enum
{
	COM_TRACE_ID, COM_TRACEPARENT, COM_SCHEMA_VERSION, COM_LOCALE, COM_HEADERS,
	COM_TENANT_ID, COM_NOT_BEFORE, COM_EVENT_ID, COM_OPTIONS
};

/* argument positions of envelope */
enum
{
	ENV_AGGREGATE, ENV_EVENT_NAME, ENV_PAYLOAD, ENV_KIND, ENV_TRACE_ID,
	ENV_SCHEMA_VERSION, ENV_LOCALE, ENV_EVENT_ID
};

static const char *
arg_string(FunctionCallInfo fcinfo, int i)
{
	return PG_ARGISNULL(i) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(i));
}

/* The payload as bytes; NULL where the argument is. */
static const char *
arg_payload(FunctionCallInfo fcinfo, int i, bool is_jsonb, int *len)
{
	text	   *bytes;

	if (PG_ARGISNULL(i))
		return NULL;
	if (is_jsonb)
	{
		Jsonb	   *jb = PG_GETARG_JSONB_P(i);
		char	   *rendered = JsonbToCString(NULL, &jb->root, VARSIZE(jb));

		*len = strlen(rendered);
		return rendered;
	}
	bytes = PG_GETARG_TEXT_PP(i);
	*len = VARSIZE_ANY_EXHDR(bytes);
	return VARDATA_ANY(bytes);
}

static void
read_common(FunctionCallInfo fcinfo, int base, PublishRequest *request)
{
	request->trace_id = arg_string(fcinfo, base + COM_TRACE_ID);
	request->traceparent = arg_string(fcinfo, base + COM_TRACEPARENT);
	request->schema_version = arg_string(fcinfo, base + COM_SCHEMA_VERSION);
	request->locale = arg_string(fcinfo, base + COM_LOCALE);
	if (!PG_ARGISNULL(base + COM_HEADERS))
		request->headers = PG_GETARG_JSONB_P(base + COM_HEADERS);
	request->tenant_id = arg_string(fcinfo, base + COM_TENANT_ID);
	request->has_not_before = !PG_ARGISNULL(base + COM_NOT_BEFORE);
	if (request->has_not_before)
		request->not_before = PG_GETARG_TIMESTAMPTZ(base + COM_NOT_BEFORE);
	if (!PG_ARGISNULL(base + COM_EVENT_ID))
		request->event_id = PG_GETARG_UUID_P(base + COM_EVENT_ID);
	if (!PG_ARGISNULL(base + COM_OPTIONS))
		request->options = PG_GETARG_JSONB_P(base + COM_OPTIONS);
}

static Datum
publish(FunctionCallInfo fcinfo, bool is_jsonb)
{
	PublishRequest request = {0};
	pg_uuid_t  *id;

	request.topic = arg_string(fcinfo, PUB_TOPIC);
	request.routing_key = arg_string(fcinfo, PUB_ROUTING_KEY);
	request.aggregate = arg_string(fcinfo, PUB_AGGREGATE);
	request.event_name = arg_string(fcinfo, PUB_EVENT_NAME);
	request.payload = arg_payload(fcinfo, PUB_PAYLOAD, is_jsonb, &request.payload_len);
	request.kind = arg_string(fcinfo, PUB_KIND);
	read_common(fcinfo, PUB_COMMON, &request);
	id = publish_entry(&request);
	autocommit_check(fcinfo->flinfo);	/* of an event that was accepted */
	PG_RETURN_UUID_P(id);
}

Datum
acme_outbox_publish(PG_FUNCTION_ARGS)
{
	return publish(fcinfo, false);
}

Datum
acme_outbox_publish_jsonb(PG_FUNCTION_ARGS)
{
	return publish(fcinfo, true);
}

static Datum
enqueue_job(FunctionCallInfo fcinfo, bool is_jsonb)
{
	PublishRequest request = {.job = true, .kind = "COMMAND"};
	pg_uuid_t  *id;

	request.topic = arg_string(fcinfo, JOB_TOPIC);
	request.routing_key = arg_string(fcinfo, JOB_ROUTING_KEY);
	request.aggregate = arg_string(fcinfo, JOB_AGGREGATE);
	request.event_name = arg_string(fcinfo, JOB_NAME);
	request.payload = arg_payload(fcinfo, JOB_PAYLOAD, is_jsonb, &request.payload_len);
	read_common(fcinfo, JOB_COMMON, &request);
	id = publish_entry(&request);
	autocommit_check(fcinfo->flinfo);
	PG_RETURN_UUID_P(id);
}

Datum
acme_outbox_enqueue_job(PG_FUNCTION_ARGS)
{
	return enqueue_job(fcinfo, false);
}

Datum
acme_outbox_enqueue_job_jsonb(PG_FUNCTION_ARGS)
{
	return enqueue_job(fcinfo, true);
}

/* Renders what publish would store, and stores nothing. */
static Datum
envelope(FunctionCallInfo fcinfo, bool is_jsonb)
{
	TimestampTz now = GetCurrentTimestamp();
	Envelope	made = {0};
	Trace		trace;
	StringInfoData out;

	made.aggregate = arg_string(fcinfo, ENV_AGGREGATE);
	made.event_name = arg_string(fcinfo, ENV_EVENT_NAME);
	made.payload = arg_payload(fcinfo, ENV_PAYLOAD, is_jsonb, &made.payload_len);
	made.kind = arg_string(fcinfo, ENV_KIND);
	made.schema_version = arg_string(fcinfo, ENV_SCHEMA_VERSION);
	made.locale = arg_string(fcinfo, ENV_LOCALE);
	made.origin = publish_origin();
	made.created_at = now;
	trace_resolve(&trace, arg_string(fcinfo, ENV_TRACE_ID), NULL);
	made.trace_id = trace.trace_id;
	if (PG_ARGISNULL(ENV_EVENT_ID))
		envelope_new_event_id(&made.event_id, now);
	else
		made.event_id = *PG_GETARG_UUID_P(ENV_EVENT_ID);
	envelope_check(&made);

	initStringInfo(&out);
	envelope_render(&out, &made);
	PG_RETURN_TEXT_P(cstring_to_text_with_len(out.data, out.len));
}

Datum
acme_outbox_envelope(PG_FUNCTION_ARGS)
{
	return envelope(fcinfo, false);
}

Datum
acme_outbox_envelope_jsonb(PG_FUNCTION_ARGS)
{
	return envelope(fcinfo, true);
}

static HeapTuple
changed_row(TriggerData *trigger)
{
	if (TRIGGER_FIRED_BY_UPDATE(trigger->tg_event))
		return trigger->tg_newtuple;
	return trigger->tg_trigtuple;
}

static void
check_row_trigger(FunctionCallInfo fcinfo, TriggerData *trigger)
{
	if (!CALLED_AS_TRIGGER(fcinfo) ||
		!TRIGGER_FIRED_FOR_ROW(trigger->tg_event) ||
		!TRIGGER_FIRED_AFTER(trigger->tg_event) ||
		trigger->tg_trigger->tgnargs != 4)
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("publish_row must be an AFTER trigger for each row with four arguments"),
				 errhint("CREATE TRIGGER ... AFTER INSERT ON table FOR EACH ROW EXECUTE FUNCTION acme_outbox.publish_row('topic', 'routing key', 'EventName', 'id_column')")));
}

static char *
row_identity(TriggerData *trigger, HeapTuple row)
{
	TupleDesc	desc = RelationGetDescr(trigger->tg_relation);
	const char *column = trigger->tg_trigger->tgargs[3];
	int			number = SPI_fnumber(desc, column);

	if (number <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("column \"%s\" of relation \"%s\" does not exist", column,
						RelationGetRelationName(trigger->tg_relation)),
				 errdetail("It is the fourth argument of publish_row, the aggregate's id.")));
	return SPI_getvalue(row, desc, number);
}

/*
 * Not SECURITY DEFINER: rendering the row may call a cast function of its types, which
 * must run as whoever changed the row.  Only the INSERT is done as the owner.
 */
static void
publish_as_owner(PublishRequest *request)
{
	Oid			schema = get_namespace_oid(ACME_OUTBOX_SCHEMA, false);
	Relation	table = table_open(get_relname_relid("outbox_entry", schema), RowExclusiveLock);
	Oid			user;
	int			context;

	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(table->rd_rel->relowner, context | SECURITY_LOCAL_USERID_CHANGE);
	publish_entry(request);
	SetUserIdAndSecContext(user, context);
	table_close(table, NoLock);
}

Datum
acme_outbox_publish_row(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;
	PublishRequest request = {.kind = "EVENT", .schema_version = "1.0.0"};
	HeapTuple	row;
	Datum		json;

	check_row_trigger(fcinfo, trigger);
	row = changed_row(trigger);
	json = DirectFunctionCall1(row_to_json,
							   heap_copy_tuple_as_datum(row, RelationGetDescr(trigger->tg_relation)));
	request.topic = trigger->tg_trigger->tgargs[0];
	request.routing_key = trigger->tg_trigger->tgargs[1];
	request.event_name = trigger->tg_trigger->tgargs[2];
	request.aggregate = row_identity(trigger, row);
	request.payload = VARDATA_ANY(DatumGetPointer(json));
	request.payload_len = VARSIZE_ANY_EXHDR(DatumGetPointer(json));
	publish_as_owner(&request);
	PG_RETURN_POINTER(NULL);
}
