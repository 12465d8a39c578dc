/*
 * claim.c
 *		Hands a batch of entries to the relay: the snapshot cursor (docs/design.md 4).
 *
 * One claim, one short READ COMMITTED transaction, one snapshot S:
 *
 *	 1. lock the origin, fence by epoch, release what older epochs left open;
 *	 2. take S, read the cursor, let the lanes offer rows (lanes.c);
 *	 3. mark them PUBLISHING under a random claim id, hold back the ones whose key
 *	    must wait, write the cursor and the claim row.
 *
 * The caller commits and only then sends.  The commit is always flushed: that also
 * hardens every asynchronously committed publisher whose row was visible in S,
 * before its event leaves.
 *
 * The steps are in files of their own: origin_lock.c, takeover.c, the lanes (lanes.c,
 * lane_due.c), what becomes of their rows (offer.c), and what is written (claim_mark.c).
 */
#include "acme_outbox.h"

#include "access/xact.h"
#include "claim.h"
#include "commands/async.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "guc.h"
#include "max_rows.h"
#include "miscadmin.h"
#include "origin_lock.h"
#include "takeover.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"
#include "wake.h"

PG_FUNCTION_INFO_V1(acme_outbox_claim);
PG_FUNCTION_INFO_V1(acme_outbox_claim_failed);

#define MAX_CLAIM_ROWS 10000

/* rows held back by one claim; beyond it the relay is asked to claim again */
#define MAX_HELD_ROWS 10000

/* rows that the fresh lane passes over in one claim, on its way over an old table */
#define MAX_LOOKS 200000

/* how often an idle relay looks for keys that missed their wake-up */
#define SWEEP_INTERVAL_US (10 * USECS_PER_SEC)

/* ---- before the lanes ---- */

static void
check_arguments(int max_rows, int64 max_bytes)
{
	(void) max_rows_check(max_rows, MAX_CLAIM_ROWS);
	if (max_bytes < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_bytes is " INT64_FORMAT, max_bytes),
				 errdetail("It is at least 1."),
				 errhint("One entry is handed out however large it is.")));
}

/*
 * READ COMMITTED, because S must be taken after the origin's lock.  The commit must
 * be flushed, whatever the session prefers.
 */
static void
check_transaction(void)
{
	PreventCommandIfReadOnly("claim()");
	if (IsolationUsesXactSnapshot())
		ereport(ERROR,
				(errcode(ERRCODE_OX_CLAIM_CONTEXT),
				 errmsg("claim must run at isolation level READ COMMITTED"),
				 errhint("Call it as a single statement outside a transaction block.")));
	if (synchronous_commit < SYNCHRONOUS_COMMIT_REMOTE_FLUSH)
		(void) set_config_option("synchronous_commit", "on", PGC_USERSET,
								 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
}

static void
claim_begin(Claim *claim, const Lease *lease, TupleDesc desc, int max_rows,
			int64 max_bytes, bool for_dead_letters)
{
	memset(claim, 0, sizeof(*claim));
	claim->rows_left = max_rows;
	claim->bytes_left = max_bytes;
	claim->holds_left = MAX_HELD_ROWS;
	claim->looks_left = MAX_LOOKS;
	row_list_init(&claim->taken, max_rows);
	row_list_init(&claim->held, 16);
	row_list_init(&claim->held_paused, 16);
	row_list_init(&claim->skipped, 16);
	pause_read(lease->origin, &claim->paused);
	entries_open(&claim->table, lease->origin);
	handout_begin(&claim->handout, desc, max_rows, for_dead_letters);
}

/* Under S: the cursor, and whose keys are in flight elsewhere. */
static void
claim_look(Claim *claim, const Lease *lease, const ArrayType *left_open)
{
	entries_take_snapshot(&claim->table);
	claim->now = xid_set_current(claim->table.snapshot);
	cursor_read(lease->origin, claim->now, &claim->cursor);
	claim->start = claim->cursor;
	keyorder_begin(&claim->order, &claim->table, GetCurrentTimestamp());
	takeover_block_keys(&claim->order, left_open);
}

/* ---- after the lanes ---- */

static void
report_full_lists(const Claim *claim, const Lease *lease)
{
	if (claim->skipped.count >= guc_skipped_rows)
		ereport(WARNING,
				(errmsg("origin \"%s\" does not go on: %d of its entries are locked by other sessions",
						lease->origin, claim->skipped.count),
				 errhint("Find the sessions that hold row locks on acme_outbox.outbox_entry in pg_locks, or raise acme_outbox.skipped_rows.")));
	/* much looked at or held back, none handed out: have the relay come again at once */
	if ((claim->holds_left == 0 || claim->looks_left < 0) && claim->taken.count == 0)
		Async_Notify("acme_outbox", lease->origin);
}

/*
 * A wake that found the row locked by someone, or its cause ended by a prepared
 * transaction, is made up for when the relay is idle, now and then.
 */
static bool
sweep_is_due(const Claim *claim)
{
	static int64 last_sweep = 0;

	if (claim->taken.count > 0 || claim->order.now - last_sweep < SWEEP_INTERVAL_US)
		return false;
	last_sweep = claim->order.now;
	return true;
}

/*
 * Whoever ended what held rows back woke their key, but perhaps before an earlier
 * claim of ours held them.  Rare, so the whole origin is looked at.
 */
static void
wake_freed_keys(const Claim *claim, const Lease *lease)
{
	if (claim->order.any_waiting && (claim->keys_freed || sweep_is_due(claim)) &&
		keyorder_sweep(lease->origin, MAX_HELD_ROWS) > 0 && claim->taken.count == 0)
		Async_Notify("acme_outbox", lease->origin);
}

/* ---- the two functions ---- */

/* At most half of a batch is due rows, unless there are no others (design 4). */
static void
look_in_lanes(Claim *claim, const Lease *lease, int max_rows)
{
	lane_skipped(claim);
	lane_due_begin(claim, lease->origin);
	lane_due(claim, Max(max_rows / 2, 1));
	if (lane_late(claim))
		lane_fresh(claim);
	lane_due(claim, max_rows);
	lane_due_end(claim);
}

/*
 * Before the first claim in a restored database.  False: there are more; the relay is
 * asked to come again at once.
 */
static bool
release_orphans(Claim *claim, const Lease *lease, const ArrayType *left_open)
{
	Cursor		cursor = claim->cursor;

	if (takeover_release_orphans(&claim->table, &cursor) > 0)
		claim_look(claim, lease, left_open);
	if (cursor.has_orphans)
	{
		cursor_write(lease->origin, &cursor);
		Async_Notify("acme_outbox", lease->origin);
		return false;
	}
	claim->cursor_moved = !claim->cursor.is_new;
	claim->cursor.has_orphans = false;
	return true;
}

/* What waits no longer of itself, and is in its key's way from now on: true if any. */
static bool
admit(Claim *claim, const char *origin)
{
	bool		resumed = pause_let_go(origin, &claim->paused, &claim->table);
	bool		scheduled = !claim->cursor.is_new && lane_due_admit(claim, origin);

	return resumed || scheduled;
}

static void
claim_pending(ReturnSetInfo *rsinfo, const Lease *lease, int max_rows, int64 max_bytes)
{
	ArrayType  *left_open = takeover_release(lease);
	Claim		claim;

	wake_claim_begins(lease->origin);
	claim_begin(&claim, lease, rsinfo->setDesc, max_rows, max_bytes, false);
	claim_look(&claim, lease, left_open);
	if (claim.paused.all ||
		(claim.cursor.has_orphans && !release_orphans(&claim, lease, left_open)))
	{
		entries_close(&claim.table);
		return;
	}
	if (admit(&claim, lease->origin))
		claim_look(&claim, lease, left_open);

	/* the old relay's last settle may have woken a key before we held its rows */
	claim.keys_freed = lease->takeover_pending && ARR_NDIM(left_open) == 0;
	look_in_lanes(&claim, lease, max_rows);

	claim_mark_taken(&claim, lease, rsinfo->setResult);
	if (claim.taken.count > 0)
		wake_claim_found(lease->origin);
	claim_mark_held(&claim);
	claim_move_cursor(&claim, lease);
	report_full_lists(&claim, lease);
	wake_freed_keys(&claim, lease);
	entries_close(&claim.table);
}

/* The dead-letter lane: FAILED entries, oldest failure first (G 6.3). */
static void
claim_failed(ReturnSetInfo *rsinfo, const Lease *lease, int max_rows)
{
	Claim		claim;
	EntryScan	scan;
	int64		now = GetCurrentTimestamp();

	claim_begin(&claim, lease, rsinfo->setDesc, max_rows, PG_INT64_MAX, true);
	entries_take_snapshot(&claim.table);
	entry_scan_begin(&scan, &claim.table, INDEX_FAILED, NULL, 0);
	while (!claim.paused.all && !claim_is_full(&claim) && entry_scan_next(&scan))
	{
		int64		next = entry_int64(scan.slot, ENTRY_NEXT_ATTEMPT_AT);

		if (entry_enum(scan.slot, ENTRY_STATUS) == claim.table.status_failed &&
			(entry_is_null(scan.slot, ENTRY_NEXT_ATTEMPT_AT) || next <= now ||
			 next == DT_NOEND) &&
			!pause_holds(&claim.paused, scan.slot))
			(void) claim_offer(&claim, scan.slot, false);
	}
	entry_scan_end(&scan);
	claim_mark_taken(&claim, lease, rsinfo->setResult);
	entries_close(&claim.table);
}

/* Locks and fences; false: another session of this origin claims right now. */
static bool
enter(FunctionCallInfo fcinfo, int max_rows, int64 max_bytes, Lease *lease)
{
	const char *origin;

	lease_check_arguments(fcinfo);
	origin = text_to_cstring(PG_GETARG_TEXT_PP(0));
	check_arguments(max_rows, max_bytes);
	check_transaction();
	InitMaterializedSRF(fcinfo, 0);
	SPI_connect();
	lease_check_grant(origin);
	return origin_lock(origin, PG_GETARG_INT64(1), lease);
}

Datum
acme_outbox_claim(PG_FUNCTION_ARGS)
{
	Lease		lease;

	if (enter(fcinfo, PG_GETARG_INT32(2), PG_GETARG_INT64(3), &lease))
		claim_pending((ReturnSetInfo *) fcinfo->resultinfo, &lease, PG_GETARG_INT32(2),
					  PG_GETARG_INT64(3));
	SPI_finish();
	PG_RETURN_NULL();
}

Datum
acme_outbox_claim_failed(PG_FUNCTION_ARGS)
{
	Lease		lease;

	if (enter(fcinfo, PG_GETARG_INT32(2), PG_INT64_MAX, &lease))
		claim_failed((ReturnSetInfo *) fcinfo->resultinfo, &lease, PG_GETARG_INT32(2));
	SPI_finish();
	PG_RETURN_NULL();
}
