/*
 * reap.c
 *		The reaper: what a dead relay left behind (P 1.1).
 *
 * PUBLISHING is a safe stuck state, and the reaper a safety net over it: nothing it
 * does can cause a duplicate.  It warns about entries that have been PUBLISHING for
 * too long.  Only under stale_claim_policy = strand, and only where no live lease
 * stands behind the claim, it ends them as FAILED; under reclaim the next relay
 * takes them over (docs/design.md 5).  As settle and takeover do, it locks the claim
 * first and changes only rows that are still PUBLISHING in it.
 *
 * It also sweeps keys whose entries all wait for each other with none in flight (keyorder.c).
 * That should not happen (docs/design.md 4.2); if it does, they would wait for ever.
 */
#include "acme_outbox.h"

#include "catalog/pg_type.h"
#include "counters.h"
#include "duties.h"
#include "funcapi.h"
#include "guc.h"
#include "keyorder.h"
#include "plans.h"
#include "utils/builtins.h"

PG_FUNCTION_INFO_V1(acme_outbox_reap);

/* claims failed, and rows looked at for lost claims, in one call */
#define CLAIMS_AT_ONCE 100
#define ROWS_LOOKED_AT 10000

typedef struct Reaping
{
	DutyResult	result;
	int64		warned;
	int64		failed;
	int64		woken;
} Reaping;

#define STUCK_ENTRIES \
	" FROM acme_outbox.outbox_claim c" \
	" LEFT JOIN acme_outbox.relay_lease l ON l.origin = c.origin" \
	" CROSS JOIN LATERAL (SELECT r.status, r.claim_id, r.event_name" \
	" FROM ONLY acme_outbox.outbox_entry r" \
	" WHERE r.origin = c.origin AND r.id = ANY (c.ids) OFFSET 0) e" \
	" WHERE c.claimed_at <= clock_timestamp() - $1 * interval '1 second'" \
	" AND e.status = 'PUBLISHING' AND e.claim_id = c.claim_id"

/* per origin with claims older than $1 seconds: how many, how old, whose, alive? */
static KeptPlan stuck_plan = {
	"SELECT c.origin, count(*),"
	" date_trunc('second', clock_timestamp() - min(c.claimed_at))::text,"
	" (array_agg(c.claimed_by ORDER BY c.claimed_at))[1],"
	" bool_or(coalesce(l.epoch = c.epoch AND l.expires_at > clock_timestamp(), false))"
	STUCK_ENTRIES " GROUP BY c.origin ORDER BY c.origin",
	1, {INT4OID}
};

static KeptPlan stuck_types_plan = {
	"SELECT e.event_name, count(*)" STUCK_ENTRIES " GROUP BY e.event_name",
	1, {INT4OID}
};

/* PUBLISHING rows without a claim, among the $2 lowest and highest ids */
static KeptPlan lost_plan = {
	"SELECT count(*), min(e.id) FROM ("
	"(SELECT id, status, claim_id FROM ONLY acme_outbox.outbox_entry"
	" WHERE origin = $1 ORDER BY origin, id LIMIT $2)"
	" UNION (SELECT id, status, claim_id FROM ONLY acme_outbox.outbox_entry"
	" WHERE origin = $1 ORDER BY origin DESC, id DESC LIMIT $2)) e"
	" WHERE e.status = 'PUBLISHING' AND NOT EXISTS"
	" (SELECT FROM acme_outbox.outbox_claim c WHERE c.claim_id = e.claim_id)",
	2, {TEXTOID, INT4OID}
};

/* claims older than $1 seconds with no live lease behind them */
static KeptPlan stranded_plan = {
	"SELECT c.claim_id, c.origin,"
	" date_trunc('second', clock_timestamp() - c.claimed_at)::text, c.claimed_by"
	" FROM acme_outbox.outbox_claim c"
	" LEFT JOIN acme_outbox.relay_lease l ON l.origin = c.origin"
	" WHERE c.claimed_at <= clock_timestamp() - $1 * interval '1 second'"
	" AND NOT coalesce(l.epoch = c.epoch AND l.expires_at > clock_timestamp(), false)"
	" ORDER BY c.claimed_at LIMIT $2",
	2, {INT4OID, INT4OID}
};

static KeptPlan lock_claim_plan = {
	"SELECT FROM acme_outbox.outbox_claim WHERE claim_id = $1 FOR UPDATE SKIP LOCKED",
	1, {INT8OID}
};

/* the claim's rows, at most $3, become FAILED; of a blocked key they go on waiting */
static KeptPlan fail_plan = {
	"UPDATE ONLY acme_outbox.outbox_entry e SET status = 'FAILED', claim_id = NULL,"
	" failed_at = coalesce(e.failed_at, clock_timestamp()), hold_reason = NULL,"
	" next_attempt_at = CASE WHEN e.message_key IS NOT NULL AND e.lanes_done & 1 = 0 AND coalesce("
	" (SELECT t.failed_key_policy::text FROM acme_outbox.topic_policy t"
	" WHERE t.topic = e.topic), $4) = 'block' THEN timestamptz 'infinity' END,"
	" last_error = 'stranded in PUBLISHING for ' || $5 ||"
	" ', never confirmed; reaper' || coalesce('; before that: ' || left(e.last_error, 900), '')"
	" WHERE e.ctid = ANY (ARRAY("
	" SELECT r.ctid FROM ONLY acme_outbox.outbox_entry r WHERE r.origin = $2"
	" AND r.id = ANY (ARRAY(SELECT unnest(c.ids) FROM acme_outbox.outbox_claim c"
	" WHERE c.claim_id = $1)) AND r.status = 'PUBLISHING' AND r.claim_id = $1"
	" ORDER BY r.origin, r.id LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED))",
	5, {INT8OID, TEXTOID, INT4OID, TEXTOID, TEXTOID}
};

/* what is left of the claim; it goes when nothing is */
static KeptPlan shrink_plan = {
	"UPDATE acme_outbox.outbox_claim c SET ids = ARRAY("
	" SELECT r.id FROM ONLY acme_outbox.outbox_entry r"
	" WHERE r.origin = c.origin AND r.id = ANY (c.ids)"
	" AND r.status = 'PUBLISHING' AND r.claim_id = c.claim_id"
	" ORDER BY r.origin, r.id)"
	" WHERE c.claim_id = $1",
	1, {INT8OID}
};

static KeptPlan close_plan = {
	"DELETE FROM acme_outbox.outbox_claim WHERE claim_id = $1 AND cardinality(ids) = 0",
	1, {INT8OID}
};

static int64
column_int64(uint64 row, int column)
{
	bool		isnull;

	return DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[row],
									   SPI_tuptable->tupdesc, column, &isnull));
}

static char *
column_string(uint64 row, int column)
{
	return SPI_getvalue(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, column);
}

/* What an operator does next about stuck entries. */
static const char *
next_step(bool alive)
{
	if (alive)
		return "The relay holds its lease but does not settle them: see its log, restart it.";
	if (guc_stale_claim_policy == STALE_CLAIM_RECLAIM)
		return "No relay holds the lease: start one, it sends them again.";
	if (guc_reaper_fail_after > 0)
		return "They will be FAILED after acme_outbox.reaper_fail_after; find out whether they arrived before you retry them.";
	return "Find out whether they arrived; set those that did to PUBLISHED and those that did not to PENDING.";
}

/* Every run counts what is stuck then: a rate above nothing says that something is. */
static void
count_stuck(void)
{
	Datum		args[] = {Int32GetDatum(guc_reaper_warn_after)};
	uint64		n = plan_run(&stuck_types_plan, args, NULL, SPI_OK_SELECT);

	for (uint64 i = 0; i < n; i++)
		counters_add(COUNTER_STUCK, column_int64(i, 2), column_string(i, 1));
}

static void
warn_stuck(Reaping *reaping)
{
	Datum		args[] = {Int32GetDatum(guc_reaper_warn_after)};
	uint64		n = plan_run(&stuck_plan, args, NULL, SPI_OK_SELECT);

	for (uint64 i = 0; i < n; i++)
	{
		int64		entries = column_int64(i, 2);
		bool		isnull;
		bool		alive = DatumGetBool(SPI_getbinval(SPI_tuptable->vals[i],
													   SPI_tuptable->tupdesc,
													   5, &isnull));

		reaping->warned += entries;
		ereport(WARNING,
				(errmsg_plural("%lld entry of origin \"%s\" is stuck in PUBLISHING",
							   "%lld entries of origin \"%s\" are stuck in PUBLISHING",
							   entries, (long long) entries, column_string(i, 1)),
				 errdetail("The oldest was claimed %s ago by relay \"%s\".",
						   column_string(i, 3), column_string(i, 4)),
				 errhint("%s", next_step(alive))));
	}
	if (n > 0)
		count_stuck();
}

/* Only a change by hand makes such rows; nothing in the extension can end them. */
static void
warn_lost(Reaping *reaping, const char *origin)
{
	Datum		args[] = {CStringGetTextDatum(origin), Int32GetDatum(ROWS_LOOKED_AT)};
	int64		entries;

	plan_run(&lost_plan, args, NULL, SPI_OK_SELECT);
	entries = column_int64(0, 1);
	if (entries == 0)
		return;
	reaping->warned += entries;
	ereport(WARNING,
			(errmsg_plural("%lld entry of origin \"%s\" is PUBLISHING without a claim",
						   "%lld entries of origin \"%s\" are PUBLISHING without a claim",
						   entries, (long long) entries, origin),
			 errdetail("The lowest id is %s.  Somebody changed the outbox's tables by hand.",
					   column_string(0, 2)),
			 errhint("Find out whether they arrived; set those that did to PUBLISHED and those that did not to PENDING.")));
}

static void
warn_failed(int64 entries, const char *origin, const char *age, const char *relay)
{
	ereport(WARNING,
			(errmsg_plural("%lld stranded entry of origin \"%s\" is FAILED now",
						   "%lld stranded entries of origin \"%s\" are FAILED now",
						   entries, (long long) entries, origin),
			 errdetail("Relay \"%s\" claimed %s ago and lost its lease before it said what became of the claim.",
					   relay, age),
			 errhint("Find out whether the entries arrived before you retry them.")));
}

/* Ends one stranded claim, or as much of it as the bound and other locks allow. */
static void
fail_claim(Reaping *reaping, int64 claim_id, const char *origin, const char *age,
		   const char *relay)
{
	int			room = guc_duty_batch_rows - (int) reaping->failed;
	Datum		args[] = {Int64GetDatum(claim_id), CStringGetTextDatum(origin),
		Int32GetDatum(room),
		CStringGetTextDatum(guc_failed_key_policy == FAILED_KEY_BLOCK ?
							"block" : "continue"),
	CStringGetTextDatum(age)};
	int64		failed;

	if (plan_run(&lock_claim_plan, args, NULL, SPI_OK_SELECT) == 0)
	{
		reaping->result = DUTY_CONTENDED;
		return;
	}
	failed = plan_run(&fail_plan, args, NULL, SPI_OK_UPDATE);
	reaping->failed += failed;
	if (failed > 0)
		warn_failed(failed, origin, age, relay);
	plan_run(&shrink_plan, args, NULL, SPI_OK_UPDATE);
	if (plan_run(&close_plan, args, NULL, SPI_OK_DELETE) == 0)
		reaping->result = Max(reaping->result,
							  failed == room ? DUTY_MORE : DUTY_CONTENDED);
}

static void
fail_stranded(Reaping *reaping)
{
	Datum		args[] = {Int32GetDatum(guc_reaper_fail_after),
	Int32GetDatum(CLAIMS_AT_ONCE)};
	uint64		n = plan_run(&stranded_plan, args, NULL, SPI_OK_SELECT);
	SPITupleTable *claims = SPI_tuptable;

	for (uint64 i = 0; i < n; i++)
	{
		bool		isnull;

		if (reaping->failed >= guc_duty_batch_rows)
		{
			reaping->result = Max(reaping->result, DUTY_MORE);
			return;
		}
		fail_claim(reaping,
				   DatumGetInt64(SPI_getbinval(claims->vals[i], claims->tupdesc,
											   1, &isnull)),
				   SPI_getvalue(claims->vals[i], claims->tupdesc, 2),
				   SPI_getvalue(claims->vals[i], claims->tupdesc, 3),
				   SPI_getvalue(claims->vals[i], claims->tupdesc, 4));
	}
	if (n == CLAIMS_AT_ONCE && reaping->failed > 0)
		reaping->result = Max(reaping->result, DUTY_MORE);
}

static void
wake_keys(Reaping *reaping, const char *origin)
{
	int64		woken = keyorder_sweep(origin, guc_duty_batch_rows);

	reaping->woken += woken;
	if (woken == guc_duty_batch_rows)
		reaping->result = Max(reaping->result, DUTY_MORE);
}

/* The reaper, inside duty_begin() and duty_end(). */
static Reaping
reap(void)
{
	static const char *const tables[] = {
		"outbox_entry", "outbox_claim", "outbox_cursor", "relay_lease",
	"topic_policy"};
	Reaping		reaping = {DUTY_DONE, 0, 0, 0};
	ListCell   *origin;

	if (!duty_lock_tables(tables, lengthof(tables)))
	{
		reaping.result = DUTY_CONTENDED;
		return reaping;
	}
	if (guc_stale_claim_policy == STALE_CLAIM_STRAND && guc_reaper_fail_after > 0)
		fail_stranded(&reaping);
	if (reaping.result == DUTY_MORE)
		return reaping;			/* warn once, when all are failed */
	warn_stuck(&reaping);
	foreach(origin, duty_origins())
	{
		warn_lost(&reaping, lfirst(origin));
		wake_keys(&reaping, lfirst(origin));
	}
	return reaping;
}

/* reap_duty: what run_due_duties() calls; affected counts changed rows. */
DutyReport
reap_duty(void)
{
	Reaping		reaping = reap();
	DutyReport	report = {reaping.result, reaping.failed + reaping.woken};

	return report;
}

/*
 * reap() RETURNS TABLE (result text, warned bigint, failed bigint, woken bigint)
 */
Datum
acme_outbox_reap(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int			guc_level;
	Reaping		reaping;
	Datum		values[4];
	bool		nulls[4] = {false, false, false, false};

	InitMaterializedSRF(fcinfo, 0);
	guc_level = duty_begin();
	reaping = reap();
	duty_end(guc_level);
	values[0] = CStringGetTextDatum(duty_result_name(reaping.result));
	values[1] = Int64GetDatum(reaping.warned);
	values[2] = Int64GetDatum(reaping.failed);
	values[3] = Int64GetDatum(reaping.woken);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	PG_RETURN_NULL();
}
