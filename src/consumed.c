/*
 * consumed.c
 *		Which version of which event each consumer was sent, and when last.
 *
 * When may version 1 of an event be retired?  When nobody was sent it for long enough
 * (P ADR-0036, G 8), which counters that begin anew with each start of the server cannot
 * tell.  So once a minute a duty adds what was counted since to the table
 * consumed_version; a crash takes at most that minute along.  The view consumed_versions
 * shows the table and what is not in it yet.
 *
 * How much of a set was stored is a number of the set, changed when the storing
 * transaction commits.  A lock on the table keeps two from storing the same.  The table
 * has a bound: beyond MAX_VERSIONS rows those go that were sent longest ago.
 */
#include "acme_outbox.h"

#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "consumed.h"
#include "counters.h"
#include "funcapi.h"
#include "message.h"
#include "miscadmin.h"
#include "plans.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(acme_outbox_save_consumed);

#define MAX_VERSIONS 10000

static KeptPlan save_plan = {
	"INSERT INTO acme_outbox.consumed_version AS v"
	" (consumer, event_name, schema_version, handled, last_at) VALUES ($1, $2, $3, $4, $5)"
	" ON CONFLICT (consumer, event_name, schema_version) DO UPDATE"
	" SET handled = v.handled + excluded.handled,"
	" last_at = greatest(v.last_at, excluded.last_at)"
	" RETURNING xmax = 0",
	5, {TEXTOID, TEXTOID, TEXTOID, INT8OID, TIMESTAMPTZOID}
};

static KeptPlan bound_plan = {
	"DELETE FROM acme_outbox.consumed_version WHERE ctid = ANY (ARRAY("
	" SELECT ctid FROM acme_outbox.consumed_version"
	" ORDER BY last_at DESC, consumer, event_name, schema_version OFFSET $1))",
	1, {INT4OID}
};

/*
 * consumed_count
 *		Counts a message that a consumer was sent, and what became of it.  Without an
 *		envelope nobody knows what it was.
 */
void
consumed_count(const char *consumer, Jsonb *envelope, const char *outcome)
{
	const char *name = NULL;
	const char *version = NULL;

	if (!counter_sets_attached())
		return;
	if (envelope != NULL)
	{
		name = envelope_string(envelope, "body", "eventName");
		version = envelope_string(envelope, "header", "schemaVersion");
	}
	counters_add(COUNTER_CONSUMED, 1, consumer, name, version, outcome);
	if (strcmp(outcome, "duplicate") == 0)
		counters_add(COUNTER_REDELIVERED, 1, consumer);
}

/* Stores what is new of a set; true: its row is new. */
static bool
save_set(const CounterSet *set, int64 n)
{
	const char *consumer = set->key.labels;
	const char *name = consumer + strlen(consumer) + 1;
	const char *version = name + strlen(name) + 1;
	Datum		args[] = {CStringGetTextDatum(consumer), CStringGetTextDatum(name),
		CStringGetTextDatum(version), Int64GetDatum(n),
	TimestampTzGetDatum(set->last_at)};
	bool		isnull;

	plan_run(&save_plan, args, NULL, SPI_OK_INSERT_RETURNING);
	return DatumGetBool(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc,
									  1, &isnull));
}

/* A message without a name has no version to be retired. */
static bool
is_named(const CounterSet *set)
{
	return set->key.kind == COUNTER_CONSUMED &&
		set->key.labels[strlen(set->key.labels) + 1] != '\0';
}

static DutyReport
save(void)
{
	DutyReport	report = {DUTY_DONE, 0};
	CounterSet *sets;
	int			n = counter_sets_read(MyDatabaseId, &sets);
	bool		grown = false;

	for (int i = 0; i < n; i++)
	{
		int64		unsaved;

		if (!is_named(&sets[i]))
			continue;
		unsaved = sets[i].count - sets[i].saved - counters_saved_here(&sets[i].key);
		if (unsaved <= 0)
			continue;
		if (!counters_note_saved(&sets[i].key, unsaved))
		{
			report.result = DUTY_MORE;
			break;
		}
		grown |= save_set(&sets[i], unsaved);
		report.affected++;
	}
	if (grown)
	{
		Datum		args[] = {Int32GetDatum(MAX_VERSIONS)};

		plan_run(&bound_plan, args, NULL, SPI_OK_DELETE);
	}
	return report;
}

/* consumed_duty: what run_due_duties() calls; affected counts sets stored. */
DutyReport
consumed_duty(void)
{
	DutyReport	contended = {DUTY_CONTENDED, 0};
	Oid			table;

	table = get_relname_relid("consumed_version",
							  get_namespace_oid(ACME_OUTBOX_SCHEMA, false));
	if (!ConditionalLockRelationOid(table, ShareRowExclusiveLock))
		return contended;
	return save();
}

/*
 * save_consumed() RETURNS (result text, affected bigint)
 */
Datum
acme_outbox_save_consumed(PG_FUNCTION_ARGS)
{
	TupleDesc	desc;
	DutyReport	report;
	Datum		values[2];
	bool		nulls[2] = {false, false};
	int			guc_level;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	guc_level = duty_begin();
	report = consumed_duty();
	duty_end(guc_level);
	values[0] = CStringGetTextDatum(duty_result_name(report.result));
	values[1] = Int64GetDatum(report.affected);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}
