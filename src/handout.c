/*
 * handout.c
 *		The rows that a claim hands to the relay.
 *
 * A row is copied once, from the scan that found it, into the form in which it is
 * returned.  If one of them cannot be marked, because someone changed it in between,
 * the whole claim fails, and none is handed out.
 *
 * For an event with a redaction rule the audit lane gets a text of its own, and a
 * dead-letter copy nothing but that.
 */
#include "acme_outbox.h"

#include "access/htup_details.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "entries.h"
#include "handout.h"
#include "plans.h"
#include "random_bytes.h"
#include "redaction.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"

/* columns of claimed_entry (sql/40_relay.sql) */
enum
{
	OUT_CLAIM_ID, OUT_ID, OUT_EVENT_ID, OUT_ENTRY_TYPE, OUT_EVENT_NAME, OUT_TOPIC,
	OUT_ROUTING_KEY, OUT_MESSAGE_KEY, OUT_TENANT_ID, OUT_TRACE_ID, OUT_TRACEPARENT,
	OUT_HEADERS, OUT_PAYLOAD, OUT_CREATED_AT, OUT_ATTEMPTS, OUT_LANES_DONE,
	OUT_MANDATORY, OUT_LAST_ERROR, OUT_AUDIT_PAYLOAD, OUT_COLUMNS
};

/* where each comes from; 0: made here */
static const AttrNumber source[OUT_COLUMNS] = {
	[OUT_ID] = ENTRY_ID,
	[OUT_EVENT_ID] = ENTRY_EVENT_ID,
	[OUT_ENTRY_TYPE] = ENTRY_TYPE,
	[OUT_EVENT_NAME] = ENTRY_EVENT_NAME,
	[OUT_TOPIC] = ENTRY_TOPIC,
	[OUT_ROUTING_KEY] = ENTRY_ROUTING_KEY,
	[OUT_MESSAGE_KEY] = ENTRY_MESSAGE_KEY,
	[OUT_TENANT_ID] = ENTRY_TENANT_ID,
	[OUT_TRACE_ID] = ENTRY_TRACE_ID,
	[OUT_TRACEPARENT] = ENTRY_TRACEPARENT,
	[OUT_HEADERS] = ENTRY_HEADERS,
	[OUT_PAYLOAD] = ENTRY_PAYLOAD,
	[OUT_CREATED_AT] = ENTRY_CREATED_AT,
	[OUT_ATTEMPTS] = ENTRY_ATTEMPTS,
	[OUT_LANES_DONE] = ENTRY_LANES_DONE,
	[OUT_LAST_ERROR] = ENTRY_LAST_ERROR,
};

static KeptPlan optional_topics_plan = {
	"SELECT coalesce(array_agg(topic), '{}') FROM acme_outbox.topic_policy WHERE NOT mandatory",
	0, {0}
};

static int64
new_claim_id(void)
{
	int64		id;

	random_bytes(&id, sizeof(id));
	return (id & PG_INT64_MAX) | 1;
}

void
handout_begin(Handout *handout, TupleDesc desc, int room, bool for_dead_letters)
{
	bool		isnull;

	handout->desc = desc;
	handout->claim_id = new_claim_id();
	handout->rows = palloc(sizeof(HandoutRow) * room);
	handout->count = 0;
	handout->room = room;
	handout->for_dead_letters = for_dead_letters;
	plan_run(&optional_topics_plan, NULL, NULL, SPI_OK_SELECT);
	handout->optional_topics = DatumGetArrayTypeP(SPI_getbinval(SPI_tuptable->vals[0],
																SPI_tuptable->tupdesc, 1, &isnull));
}

static bool
is_mandatory(const Handout *handout, Datum topic)
{
	Datum	   *topics;
	int			n;

	if (ARR_NDIM(handout->optional_topics) == 0)
		return true;
	deconstruct_array(handout->optional_topics, TEXTOID, -1, false, TYPALIGN_INT,
					  &topics, NULL, &n);
	for (int i = 0; i < n; i++)
		if (DatumGetBool(DirectFunctionCall2Coll(texteq, DEFAULT_COLLATION_OID,
												 topics[i], topic)))
			return false;
	return true;
}

static Datum
jsonb_as_text(Datum value)
{
	Jsonb	   *jb = DatumGetJsonbP(value);

	return CStringGetTextDatum(JsonbToCString(NULL, &jb->root, VARSIZE(jb)));
}

/* What the lanes may not carry is cut out of the copy that they get. */
static void
redact(const Handout *handout, Datum *values, bool *nulls)
{
	List	   *paths = NIL;
	text	   *redacted;

	nulls[OUT_AUDIT_PAYLOAD] = true;
	if (redaction_has_rules())
		paths = redaction_paths(TextDatumGetCString(values[OUT_EVENT_NAME]));
	if (paths == NIL)
		return;
	values[OUT_PAYLOAD] = PointerGetDatum(DatumGetTextPP(values[OUT_PAYLOAD]));
	redacted = redaction_apply(paths, DatumGetTextPP(values[OUT_PAYLOAD]));
	nulls[OUT_AUDIT_PAYLOAD] = false;
	values[OUT_AUDIT_PAYLOAD] = redacted ? PointerGetDatum(redacted) : values[OUT_PAYLOAD];
	if (handout->for_dead_letters)
		values[OUT_PAYLOAD] = values[OUT_AUDIT_PAYLOAD];
}

void
handout_add(Handout *handout, TupleTableSlot *slot)
{
	Datum		values[OUT_COLUMNS];
	bool		nulls[OUT_COLUMNS] = {false};
	HandoutRow *added = &handout->rows[handout->count++];

	Assert(handout->count <= handout->room);
	for (int i = 0; i < OUT_COLUMNS; i++)
		if (source[i] != 0)
			values[i] = slot_getattr(slot, source[i], &nulls[i]);
	values[OUT_CLAIM_ID] = Int64GetDatum(handout->claim_id);
	values[OUT_ATTEMPTS] = Int32GetDatum(DatumGetInt16(values[OUT_ATTEMPTS]));
	if (!nulls[OUT_HEADERS])
		values[OUT_HEADERS] = jsonb_as_text(values[OUT_HEADERS]);
	values[OUT_MANDATORY] = BoolGetDatum(is_mandatory(handout, values[OUT_TOPIC]));
	redact(handout, values, nulls);
	added->id = DatumGetInt64(values[OUT_ID]);
	added->row = heap_form_tuple(handout->desc, values, nulls);
}

static int
compare_rows(const void *a, const void *b)
{
	return int64_compare(&((const HandoutRow *) a)->id, &((const HandoutRow *) b)->id);
}

/* In id order. */
void
handout_return(Handout *handout, Tuplestorestate *result)
{
	qsort(handout->rows, handout->count, sizeof(HandoutRow), compare_rows);
	for (int i = 0; i < handout->count; i++)
		tuplestore_puttuple(result, handout->rows[i].row);
}
