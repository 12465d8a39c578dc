/*
 * counters_list.c
 *		Shows the counters: functions behind metrics() and consumed_versions.
 */
#include "acme_outbox.h"

#include "counters.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(acme_outbox_counters);
PG_FUNCTION_INFO_V1(acme_outbox_counters_about);

typedef struct CounterName
{
	const char *name;
	const char *labels[COUNTER_LABELS];
} CounterName;

static const CounterName names[COUNTER_KINDS] = {
	[COUNTER_PUBLISHED] = {"acme_outbox_published_entries_total", {"origin", "topic"}},
	[COUNTER_SETTLED] = {"acme_outbox_settled_entries_total", {"origin", "outcome"}},
	[COUNTER_STUCK] = {"acme_outbox_relay_stuck_publishing_total", {"event_type"}},
	[COUNTER_CONSUMED] = {"acme_outbox_consumed_messages_total",
	{"consumer", "event_name", "schema_version", "outcome"}},
	[COUNTER_PARKED] = {"acme_outbox_parked_messages_total",
	{"consumer", "event_type", "reason"}},
	[COUNTER_REDELIVERED] = {"acme_outbox_consumer_redeliveries_total", {"consumer"}},
	[COUNTER_IDEMPOTENCY] = {"acme_outbox_idempotency_decisions_total", {"decision"}},
	[COUNTER_PROJECTED] = {"acme_outbox_projected_events_total", {"target", "outcome"}},
};

static void
push_string(JsonbParseState **state, JsonbIteratorToken token, const char *string)
{
	JsonbValue	value = {.type = jbvString};

	value.val.string.val = (char *) string;
	value.val.string.len = strlen(string);
	pushJsonbValue(state, token, &value);
}

static Jsonb *
labels_of(const CounterKey *key)
{
	JsonbParseState *state = NULL;
	const char *label = key->labels;

	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	for (int i = 0; i < COUNTER_LABELS && names[key->kind].labels[i] != NULL; i++)
	{
		push_string(&state, WJB_KEY, names[key->kind].labels[i]);
		push_string(&state, WJB_VALUE, label);
		label += strlen(label) + 1;
	}
	return JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, NULL));
}

/*
 * counters() RETURNS TABLE (name text, labels jsonb, value bigint, unsaved bigint,
 *		last_at timestamptz)
 */
Datum
acme_outbox_counters(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	CounterSet *sets;
	int			n;

	InitMaterializedSRF(fcinfo, 0);
	n = counter_sets_read(MyDatabaseId, &sets);
	for (int i = 0; i < n; i++)
	{
		Datum		values[5];
		bool		nulls[5] = {false};

		values[0] = CStringGetTextDatum(names[sets[i].key.kind].name);
		values[1] = JsonbPGetDatum(labels_of(&sets[i].key));
		values[2] = Int64GetDatum(sets[i].count);
		values[3] = Int64GetDatum(sets[i].count - sets[i].saved);
		values[4] = TimestampTzGetDatum(sets[i].last_at);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	PG_RETURN_NULL();
}

/*
 * counters_about() RETURNS (since timestamptz, used integer, size integer, overflow bigint)
 */
Datum
acme_outbox_counters_about(PG_FUNCTION_ARGS)
{
	TupleDesc	desc;
	CounterTable about;
	Datum		values[4];
	bool		nulls[4] = {false};

	if (!counter_sets_attached())
		PG_RETURN_NULL();
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	counter_sets_about(&about);
	values[0] = TimestampTzGetDatum(about.since);
	values[1] = Int32GetDatum(about.used);
	values[2] = Int32GetDatum(about.size);
	values[3] = Int64GetDatum(about.overflow);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}
