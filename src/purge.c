/*
 * purge.c
 *		Retention: deletes what was kept long enough.
 *
 * Published entries are found by walking an origin's ids upwards, batch by batch,
 * until the first entry that is too young.  Only PUBLISHED ones are deleted; FAILED
 * and ARCHIVED stay, and nothing undelivered is ever touched.
 *
 * Where a walk stopped is remembered in purge_position, and the next one goes on
 * from there: rows deleted before leave dead index entries at the low end, and an
 * old snapshot keeps them there, so starting over each time would cost more and
 * more.  Once an hour (or after the retention, if that is shorter) a walk that is
 * through starts over, for what was published late.
 *
 * What the inboxes of services remember is inbox_purge.c, their idempotency keys
 * idempotency_purge.c; what projections deleted projection_tombstone.c.
 */
#include "acme_outbox.h"

#include "catalog/pg_type.h"
#include "cursor.h"
#include "duties.h"
#include "funcapi.h"
#include "guc.h"
#include "idempotency.h"
#include "inbox_purge.h"
#include "plans.h"
#include "projection.h"
#include "utils/builtins.h"

PG_FUNCTION_INFO_V1(acme_outbox_purge);

/* after so many seconds a walk starts over */
#define START_OVER_S 3600

static KeptPlan seed_plan = {
	"INSERT INTO acme_outbox.purge_position (origin) SELECT $1 WHERE NOT EXISTS"
	" (SELECT FROM acme_outbox.purge_position WHERE origin = $1) ON CONFLICT DO NOTHING",
	1, {TEXTOID}
};

static KeptPlan take_plan = {
	"SELECT id FROM acme_outbox.purge_position WHERE origin = $1 FOR UPDATE SKIP LOCKED",
	1, {TEXTOID}
};

/* $2 id reached, $3 seconds after which a finished walk starts over; NULL: unfinished */
#define IS_OVER " coalesce(started_at < clock_timestamp() - $3 * interval '1 second', false)"

static KeptPlan move_plan = {
	"UPDATE acme_outbox.purge_position SET"
	" id = CASE WHEN" IS_OVER " THEN -9223372036854775808 ELSE $2 END,"
	" started_at = CASE WHEN" IS_OVER " THEN clock_timestamp() ELSE started_at END"
	" WHERE origin = $1",
	3, {TEXTOID, INT8OID, INT4OID}
};

/*
 * One batch: $1 origin, $2 id to start after, $3 rows, $4 seconds kept.  Returns
 * the last id that was old enough, whether the walk can go on, rows to delete and
 * rows deleted.
 */
static KeptPlan entries_plan = {
	"WITH walked AS MATERIALIZED ("
	" SELECT e.ctid AS tid, e.id, e.status, e.published_at,"
	" e.created_at < clock_timestamp() - $4 * interval '1 second' AS old"
	" FROM ONLY acme_outbox.outbox_entry e WHERE e.origin = $1 AND e.id > $2"
	" ORDER BY e.origin, e.id LIMIT $3),"
	" reached AS MATERIALIZED ("
	" SELECT w.* FROM walked w WHERE w.id < coalesce("
	" (SELECT min(y.id) FROM walked y WHERE NOT y.old), 9223372036854775807)),"
	" victims AS MATERIALIZED ("
	" SELECT r.tid FROM reached r WHERE r.status = 'PUBLISHED'"
	" AND r.published_at < clock_timestamp() - $4 * interval '1 second'),"
	" deleted AS ("
	" DELETE FROM ONLY acme_outbox.outbox_entry WHERE ctid = ANY (ARRAY("
	" SELECT e.ctid FROM ONLY acme_outbox.outbox_entry e"
	" WHERE e.ctid = ANY (ARRAY(SELECT tid FROM victims)) AND e.status = 'PUBLISHED'"
	" FOR UPDATE SKIP LOCKED)) RETURNING 1)"
	" SELECT (SELECT max(id) FROM reached),"
	" (SELECT count(*) FROM reached) = $3,"
	" (SELECT count(*) FROM victims), (SELECT count(*) FROM deleted)",
	4, {TEXTOID, INT8OID, INT4OID, INT4OID}
};

/* $1 rows, $2 seconds kept; ids and times run together */
static KeptPlan actions_plan = {
	"DELETE FROM acme_outbox.operator_action WHERE id IN ("
	" SELECT a.id FROM (SELECT id, acted_at FROM acme_outbox.operator_action"
	" ORDER BY id LIMIT $1) o JOIN acme_outbox.operator_action a ON a.id = o.id"
	" WHERE o.acted_at < clock_timestamp() - $2 * interval '1 second'"
	" FOR UPDATE OF a SKIP LOCKED)",
	2, {INT4OID, INT4OID}
};

/* $1 rows, $2 newest rows kept per origin */
static KeptPlan cursors_plan = {
	"DELETE FROM acme_outbox.outbox_cursor WHERE ctid = ANY (ARRAY("
	" SELECT c.ctid FROM acme_outbox.outbox_origin o CROSS JOIN LATERAL ("
	" SELECT n.position FROM acme_outbox.outbox_cursor n WHERE n.origin = o.origin"
	" ORDER BY n.origin DESC, n.position DESC OFFSET $2 LIMIT 1) n"
	" JOIN acme_outbox.outbox_cursor c ON c.origin = o.origin AND c.position <= n.position"
	" LIMIT $1 FOR UPDATE OF c SKIP LOCKED))",
	2, {INT4OID, INT4OID}
};

typedef struct Purging
{
	DutyReport	published;
	DutyReport	actions;
	DutyReport	cursors;
	DutyReport	processed;
	DutyReport	attempts;
	DutyReport	keys;
	DutyReport	tombstones;
} Purging;

static void
worse(DutyReport *report, DutyResult result)
{
	report->result = Max(report->result, result);
}

static bool
result_flag(int column)
{
	bool		isnull;

	return DatumGetBool(SPI_getbinval(SPI_tuptable->vals[0],
									  SPI_tuptable->tupdesc, column, &isnull));
}

static int64
result_int64(int column, int64 if_null)
{
	bool		isnull;
	Datum		value = SPI_getbinval(SPI_tuptable->vals[0],
									  SPI_tuptable->tupdesc, column, &isnull);

	return isnull ? if_null : DatumGetInt64(value);
}

/* One batch from *position on; true if the walk can go on. */
static bool
purge_batch(DutyReport *report, Datum origin, int64 *position)
{
	Datum		args[] = {origin, Int64GetDatum(*position),
	Int32GetDatum(guc_duty_batch_rows), Int32GetDatum(guc_retention_published)};
	int64		deleted;

	plan_run(&entries_plan, args, NULL, SPI_OK_SELECT);
	deleted = result_int64(4, 0);
	report->affected += deleted;
	if (deleted < result_int64(3, 0))
		worse(report, DUTY_CONTENDED);
	*position = result_int64(1, *position);
	return result_flag(2);
}

/* Walks one origin for at most DUTY_BATCHES batches. */
static void
purge_origin(DutyReport *report, const char *origin)
{
	Datum		args[] = {CStringGetTextDatum(origin), 0,
	Int32GetDatum(Min(guc_retention_published, START_OVER_S))};
	int64		position;
	bool		more = true;

	plan_run(&seed_plan, args, NULL, SPI_OK_INSERT);
	if (plan_run(&take_plan, args, NULL, SPI_OK_SELECT) == 0)
	{
		worse(report, DUTY_CONTENDED);
		return;
	}
	position = result_int64(1, PG_INT64_MIN);
	for (int i = 0; i < DUTY_BATCHES && more; i++)
		more = purge_batch(report, args[0], &position);
	if (more)
		worse(report, DUTY_MORE);
	args[1] = Int64GetDatum(position);
	plan_run(&move_plan, args, more ? "  n" : NULL, SPI_OK_UPDATE);
}

static void
purge_published(DutyReport *report)
{
	ListCell   *origin;

	if (guc_retention_published == 0)
		return;
	foreach(origin, duty_origins())
		purge_origin(report, lfirst(origin));
}

/* Deletes rows of a small table with a plan that takes ($1 rows, $2 keep). */
static void
purge_table(DutyReport *report, KeptPlan *plan, int keep)
{
	Datum		args[] = {Int32GetDatum(guc_duty_batch_rows), Int32GetDatum(keep)};

	for (int i = 0; i < DUTY_BATCHES; i++)
	{
		uint64		deleted = plan_run(plan, args, NULL, SPI_OK_DELETE);

		report->affected += deleted;
		if (deleted < guc_duty_batch_rows)
			return;
	}
	worse(report, DUTY_MORE);
}

/* Retention, inside duty_begin() and duty_end(). */
static Purging
purge(void)
{
	static const char *const tables[] = {
		"outbox_entry", "operator_action", "outbox_cursor", "outbox_origin",
	"purge_position", "projection_tombstone"};
	Purging		purging = {{DUTY_DONE, 0}, {DUTY_DONE, 0}, {DUTY_DONE, 0},
	{DUTY_DONE, 0}, {DUTY_DONE, 0}, {DUTY_DONE, 0}, {DUTY_DONE, 0}};

	if (!duty_lock_tables(tables, lengthof(tables)))
	{
		purging.published.result = DUTY_CONTENDED;
		purging.actions.result = DUTY_CONTENDED;
		purging.cursors.result = DUTY_CONTENDED;
		purging.processed.result = DUTY_CONTENDED;
		purging.attempts.result = DUTY_CONTENDED;
		purging.keys.result = DUTY_CONTENDED;
		purging.tombstones.result = DUTY_CONTENDED;
		return purging;
	}
	purge_published(&purging.published);
	if (guc_retention_actions > 0)
		purge_table(&purging.actions, &actions_plan, guc_retention_actions);
	purge_table(&purging.cursors, &cursors_plan, CURSOR_ROWS_KEPT);
	inbox_purge(&purging.processed, &purging.attempts);
	purging.keys = idempotency_purge();
	purging.tombstones = tombstone_purge();
	return purging;
}

/* purge_duty: what run_due_duties() calls; all of them as one. */
DutyReport
purge_duty(void)
{
	Purging		purging = purge();
	DutyReport	report = purging.published;

	report.affected += purging.actions.affected + purging.cursors.affected +
		purging.processed.affected + purging.attempts.affected +
		purging.keys.affected + purging.tombstones.affected;
	worse(&report, purging.actions.result);
	worse(&report, purging.cursors.result);
	worse(&report, purging.processed.result);
	worse(&report, purging.attempts.result);
	worse(&report, purging.keys.result);
	worse(&report, purging.tombstones.result);
	return report;
}

static void
put_report(ReturnSetInfo *rsinfo, const char *what, const DutyReport *report)
{
	Datum		values[3];
	bool		nulls[3] = {false, false, false};

	values[0] = CStringGetTextDatum(what);
	values[1] = CStringGetTextDatum(duty_result_name(report->result));
	values[2] = Int64GetDatum(report->affected);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/*
 * purge() RETURNS TABLE (what text, result text, affected bigint)
 */
Datum
acme_outbox_purge(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int			guc_level;
	Purging		purging;

	InitMaterializedSRF(fcinfo, 0);
	guc_level = duty_begin();
	purging = purge();
	duty_end(guc_level);
	put_report(rsinfo, "published", &purging.published);
	put_report(rsinfo, "actions", &purging.actions);
	put_report(rsinfo, "cursors", &purging.cursors);
	put_report(rsinfo, "processed", &purging.processed);
	put_report(rsinfo, "attempts", &purging.attempts);
	put_report(rsinfo, "keys", &purging.keys);
	put_report(rsinfo, "tombstones", &purging.tombstones);
	PG_RETURN_NULL();
}
