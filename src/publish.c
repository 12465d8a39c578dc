/*
 * publish.c
 *		Writes an event or job into the outbox, in the caller's transaction (P 1, G 4).
 *
 * The one door into outbox_entry.  Everything is checked before anything is
 * stored, then one row is inserted (entry_insert.c); no lock is shared with another
 * publisher and nothing is notified.  The row carries the top-level transaction's
 * xid, by which the claim finds it however late it commits (docs/design.md 4).
 *
 * An event id given by the caller makes publishing repeatable: the same id with
 * the same content is a no-op; with another topic, aggregate, name, payload and so on
 * it is an error, since one id must not name two events.  What only accompanies
 * the event (headers, trace, locale, schedule) is not compared: the first wins.
 */
#include "acme_outbox.h"

#include "access/transam.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "common/cryptohash.h"
#include "common/sha2.h"
#include "counters.h"
#include "entry_insert.h"
#include "envelope.h"
#include "executor/spi.h"
#include "guc.h"
#include "headers.h"
#include "miscadmin.h"
#include "plans.h"
#include "publish.h"
#include "trace.h"
#include "utils/builtins.h"
#include "utils/xid8.h"
#include "wake.h"

static KeptPlan same_event_plan = {
	"SELECT topic = $2 AND routing_key IS NOT DISTINCT FROM $3"
	" AND event_name = $4 AND payload_hash IS NOT DISTINCT FROM $5"
	" AND message_key IS NOT DISTINCT FROM $7"
	" AND tenant_id IS NOT DISTINCT FROM $8 AND (entry_type = 'JOB') = $9"
	" FROM ONLY acme_outbox.outbox_entry WHERE event_id = $1 AND origin = $6",
	9, {UUIDOID, TEXTOID, TEXTOID, TEXTOID, BYTEAOID, TEXTOID, TEXTOID, TEXTOID, BOOLOID}
};

/* Who the event comes from is never an argument (G 3.2). */
const char *
publish_origin(void)
{
	const char *origin = guc_origin;

	if (origin[0] == '\0')
	{
		if (guc_require_origin)
			ereport(ERROR,
					(errcode(ERRCODE_OX_ORIGIN),
					 errmsg("acme_outbox.origin is not set"),
					 errdetail("acme_outbox.require_origin is on."),
					 errhint("An administrator names the service: ALTER ROLE role SET acme_outbox.origin = 'service'")));
		origin = GetUserNameFromId(GetSessionUserId(), false);
	}
	if (strlen(origin) > MAX_SHORT_STRING)
		ereport(ERROR,
				(errcode(ERRCODE_OX_ORIGIN),
				 errmsg("acme_outbox.origin is longer than %d bytes", MAX_SHORT_STRING)));
	return origin;
}

static void
check_routing(const PublishRequest *request)
{
	if (request->topic == NULL || request->topic[0] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_OX_ROUTING),
				 errmsg("topic is %s", request->topic ? "empty" : "null"),
				 errdetail("The topic is the exchange the event is published to."),
				 errhint("The default exchange is named amq.default in permissions and cannot be a topic.")));
	if (strlen(request->topic) > MAX_SHORT_STRING)
		ereport(ERROR,
				(errcode(ERRCODE_OX_ROUTING),
				 errmsg("topic is longer than %d bytes", MAX_SHORT_STRING)));
	if (request->routing_key && strlen(request->routing_key) > MAX_SHORT_STRING)
		ereport(ERROR,
				(errcode(ERRCODE_OX_ROUTING),
				 errmsg("routing key is longer than %d bytes", MAX_SHORT_STRING)));
}

static void
check_short(const char *name, const char *value)
{
	if (value != NULL && strlen(value) > MAX_SHORT_STRING)
		ereport(ERROR,
				(errcode(ERRCODE_OX_ARGUMENT),
				 errmsg("%s is longer than %d bytes", name, MAX_SHORT_STRING)));
}

/* No option exists yet; an unrecognized one must not be ignored silently. */
static void
check_options(Jsonb *options)
{
	if (options == NULL)
		return;
	if (!JB_ROOT_IS_OBJECT(options))
		ereport(ERROR,
				(errcode(ERRCODE_OX_ARGUMENT),
				 errmsg("options is not a JSON object")));
	if (JB_ROOT_COUNT(options) > 0)
		ereport(ERROR,
				(errcode(ERRCODE_OX_ARGUMENT),
				 errmsg("unrecognized option"),
				 errdetail("This version has no options.")));
}

static void
check_schedule(const PublishRequest *request)
{
	if (request->has_not_before && TIMESTAMP_NOT_FINITE(request->not_before))
		ereport(ERROR,
				(errcode(ERRCODE_OX_ARGUMENT),
				 errmsg("not_before is not a finite time")));
}

static void
check_request(const PublishRequest *request)
{
	check_routing(request);
	check_short("tenant_id", request->tenant_id);
	if (request->headers)
		headers_check(request->headers);
	check_options(request->options);
	check_schedule(request);
}

/* Of the kind, the schema version and the payload: what the message says. */
static bytea *
content_hash(const PublishRequest *request)
{
	bytea	   *hash = palloc(VARHDRSZ + PG_SHA256_DIGEST_LENGTH);
	pg_cryptohash_ctx *ctx = pg_cryptohash_create(PG_SHA256);

	if (pg_cryptohash_init(ctx) < 0 ||
		pg_cryptohash_update(ctx, (const uint8 *) request->kind, strlen(request->kind) + 1) < 0 ||
		pg_cryptohash_update(ctx, (const uint8 *) request->schema_version,
							 strlen(request->schema_version) + 1) < 0 ||
		pg_cryptohash_update(ctx, (const uint8 *) request->payload, request->payload_len) < 0 ||
		pg_cryptohash_final(ctx, (uint8 *) VARDATA(hash), PG_SHA256_DIGEST_LENGTH) < 0)
		elog(ERROR, "could not compute SHA-256: %s", pg_cryptohash_error(ctx));
	pg_cryptohash_free(ctx);
	SET_VARSIZE(hash, VARHDRSZ + PG_SHA256_DIGEST_LENGTH);
	return hash;
}

static void
set_text(NewEntry *entry, int column, const char *value)
{
	entry->nulls[column] = value ? ' ' : 'n';
	if (value != NULL)
		entry->values[column] = CStringGetTextDatum(value);
}

/* Checks what goes into the envelope, and renders it. */
static text *
make_envelope(const PublishRequest *request, const Trace *trace,
			  const char *origin, const pg_uuid_t *event_id, TimestampTz now)
{
	StringInfoData out;
	Envelope	envelope = {
		.event_id = *event_id,
		.trace_id = trace->trace_id,
		.schema_version = request->schema_version,
		.origin = origin,
		.created_at = now,
		.locale = request->locale,
		.aggregate = request->aggregate,
		.event_name = request->event_name,
		.kind = request->kind,
		.payload = request->payload,
		.payload_len = request->payload_len,
	};

	envelope_check(&envelope);
	initStringInfo(&out);
	appendStringInfoSpaces(&out, VARHDRSZ);
	envelope_render(&out, &envelope);
	SET_VARSIZE(out.data, out.len);
	return (text *) out.data;
}

/* The id is taken: is it by the very same event? (safe to repeat) */
static void
check_same_event(const NewEntry *entry)
{
	static const int columns[] = {NEW_EVENT_ID, NEW_TOPIC, NEW_ROUTING_KEY, NEW_EVENT_NAME,
	NEW_PAYLOAD_HASH, NEW_ORIGIN, NEW_MESSAGE_KEY, NEW_TENANT_ID, NEW_JOB};
	Datum		args[lengthof(columns)];
	char		nulls[lengthof(columns)];
	bool		isnull;

	for (int i = 0; i < lengthof(columns); i++)
	{
		args[i] = entry->values[columns[i]];
		nulls[i] = entry->nulls[columns[i]];
	}
	plan_run(&same_event_plan, args, nulls, SPI_OK_SELECT);
	if (SPI_processed == 1 &&
		DatumGetBool(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc,
								   1, &isnull)))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_OX_EVENT_ID_REUSE),
			 errmsg("event id %s is in use by another event",
					DatumGetCString(DirectFunctionCall1(uuid_out, args[0]))),
			 errdetail("The same id is accepted again only with the same topic, routing key, aggregate, event name, kind, schema version, tenant and payload."),
			 errhint("Give each event an id of its own, or leave event_id out.")));
}

static void
fill_entry(NewEntry *entry, const PublishRequest *request, const Trace *trace,
		   const char *origin, pg_uuid_t *event_id, text *envelope, TimestampTz now)
{
	bool		scheduled = request->has_not_before && request->not_before > now;

	memset(entry->nulls, ' ', sizeof(entry->nulls));
	entry->values[NEW_XID] = FullTransactionIdGetDatum(GetTopFullTransactionId());
	entry->values[NEW_CREATED_AT] = TimestampTzGetDatum(now);
	entry->values[NEW_EVENT_ID] = UUIDPGetDatum(event_id);
	entry->values[NEW_JOB] = BoolGetDatum(request->job);
	set_text(entry, NEW_ORIGIN, origin);
	set_text(entry, NEW_TOPIC, request->topic);
	set_text(entry, NEW_ROUTING_KEY, request->routing_key);
	set_text(entry, NEW_MESSAGE_KEY, request->aggregate);
	set_text(entry, NEW_EVENT_NAME, request->event_name);
	set_text(entry, NEW_TENANT_ID, request->tenant_id);
	set_text(entry, NEW_TRACE_ID, trace->trace_id);
	set_text(entry, NEW_TRACEPARENT, trace->traceparent);
	entry->nulls[NEW_HEADERS] = request->headers ? ' ' : 'n';
	entry->values[NEW_HEADERS] = PointerGetDatum(request->headers);
	entry->values[NEW_PAYLOAD] = PointerGetDatum(envelope);
	entry->nulls[NEW_PAYLOAD_HASH] = request->event_id ? ' ' : 'n';
	if (request->event_id)
		entry->values[NEW_PAYLOAD_HASH] = PointerGetDatum(content_hash(request));
	entry->nulls[NEW_NOT_BEFORE] = scheduled ? ' ' : 'n';
	entry->values[NEW_NOT_BEFORE] = TimestampTzGetDatum(request->not_before);
}

/*
 * False: it was stored before, and need not be again.  Only an id that the caller
 * gave can be taken.
 */
static bool
store(NewEntry *entry, bool id_was_given)
{
	bool		stored = true;

	if (!id_was_given)
	{
		entry_insert(entry);
		return true;
	}
	SPI_connect();
	if (!entry_insert_once(entry))
	{
		check_same_event(entry);
		stored = false;
	}
	SPI_finish();
	return stored;
}

pg_uuid_t *
publish_entry(PublishRequest *request)
{
	TimestampTz now = GetCurrentTimestamp();
	const char *origin;
	pg_uuid_t  *event_id;
	text	   *envelope;
	Trace		trace;
	NewEntry	entry = {0};

	if (request->tenant_id && request->tenant_id[0] == '\0')
		request->tenant_id = NULL;
	else if (request->tenant_id == NULL && guc_tenant_id[0] != '\0')
		request->tenant_id = guc_tenant_id;
	if (request->locale == NULL && guc_locale[0] != '\0')
		request->locale = guc_locale;
	if (request->aggregate && request->aggregate[0] == '\0')
		request->aggregate = NULL;
	check_request(request);
	origin = publish_origin();
	trace_resolve(&trace, request->trace_id, request->traceparent);

	event_id = palloc(sizeof(pg_uuid_t));
	if (request->event_id)
		*event_id = *request->event_id;
	else
		envelope_new_event_id(event_id, now);

	envelope = make_envelope(request, &trace, origin, event_id, now);

	fill_entry(&entry, request, &trace, origin, event_id, envelope, now);
	if (store(&entry, request->event_id != NULL))
		counters_add(COUNTER_PUBLISHED, 1, origin, request->topic);
	wake_note_published(origin);
	return event_id;
}
