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
 * The origin's lock is an entry of the lock table, not a row lock, so that a claim
 * that finds nothing assigns no xid and writes no WAL.
 */
#include "acme_outbox.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "claim.h"
#include "commands/async.h"
#include "duties.h"
#include "entry_update.h"
#include "funcapi.h"
#include "guc.h"
#include "lease.h"
#include "miscadmin.h"
#include "plans.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/sinvaladt.h"
#include "takeover.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
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

/* objsubid of our lock tags; 1 and 2 are the advisory lock functions' */
#define ORIGIN_LOCK_SUBID 3

static KeptPlan origin_plan = {
	"SELECT origin_no FROM acme_outbox.outbox_origin WHERE origin = $1",
	1, {TEXTOID}
};

/* only a transaction that is older than the takeover */
static KeptPlan end_holder_plan = {
	"SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a, acme_outbox.relay_lease l"
	" WHERE a.pid = $1 AND l.epoch = $2 AND a.xact_start < l.acquired_at",
	2, {INT4OID, INT8OID}
};

static KeptPlan lock_plan = {
	"SELECT 1 FROM acme_outbox.outbox_entry WHERE ctid = $1 FOR NO KEY UPDATE SKIP LOCKED",
	1, {TIDOID}
};

#define MARK_ENTRIES(next_attempt_at) \
	"UPDATE acme_outbox.outbox_entry SET status = 'PUBLISHING', claim_id = $2," \
	" next_attempt_at = " next_attempt_at ", hold_reason = NULL" \
	" WHERE ctid = ANY ($1) AND status = "
#define MARK_TYPES {TIDARRAYOID, INT8OID}

static KeptPlan mark_pending_plan = {
	MARK_ENTRIES("NULL") "'PENDING'", 2, MARK_TYPES
};

/* One that blocks its key goes on doing so while its copy is under way. */
static KeptPlan mark_failed_plan = {
	MARK_ENTRIES("CASE WHEN next_attempt_at = 'infinity' THEN next_attempt_at END")
	"'FAILED'", 2, MARK_TYPES
};

static KeptPlan hold_plan = {
	"UPDATE acme_outbox.outbox_entry SET next_attempt_at = 'infinity', hold_reason = 'KEY'"
	" WHERE ctid = ANY ($1) AND status = 'PENDING' RETURNING id",
	1, {TIDARRAYOID}
};

static KeptPlan claim_row_plan = {
	"INSERT INTO acme_outbox.outbox_claim (claim_id, origin, epoch, claimed_by, claimed_at, ids)"
	" VALUES ($1, $2, $3, $4, clock_timestamp(), $5)",
	5, {INT8OID, TEXTOID, INT8OID, TEXTOID, INT8ARRAYOID}
};

/* ---- rows offered by the lanes ---- */

void
row_list_init(RowList *list, int room)
{
	list->room = Max(room, 1);
	list->count = 0;
	list->tids = palloc(sizeof(ItemPointerData) * list->room);
	list->ids = palloc(sizeof(int64) * list->room);
}

static void
row_list_add_row(RowList *list, ItemPointer tid, int64 id)
{
	if (list->count == list->room)
	{
		list->room *= 2;
		list->tids = repalloc(list->tids, sizeof(ItemPointerData) * list->room);
		list->ids = repalloc(list->ids, sizeof(int64) * list->room);
	}
	list->tids[list->count] = *tid;
	list->ids[list->count++] = id;
}

void
row_list_add(RowList *list, TupleTableSlot *slot)
{
	row_list_add_row(list, &slot->tts_tid, entry_int64(slot, ENTRY_ID));
}

static bool
row_list_contains(const RowList *list, int64 id)
{
	int			i;

	for (i = 0; i < list->count; i++)
		if (list->ids[i] == id)
			return true;
	return false;
}

bool
claim_is_full(const Claim *claim)
{
	return claim->rows_left == 0 || claim->bytes_left <= 0 || claim->holds_left == 0;
}

/* Only a row whose header is not clean costs an attempt to lock it. */
static bool
is_locked(TupleTableSlot *slot)
{
	Datum		tid = PointerGetDatum(&slot->tts_tid);

	return entry_maybe_locked(slot) &&
		plan_run(&lock_plan, &tid, NULL, SPI_OK_SELECT) == 0;
}

static Offer
hold_back(Claim *claim, TupleTableSlot *slot)
{
	if (claim->holds_left == 0)
		return OFFER_NO_ROOM;
	if (is_locked(slot))
		return OFFER_LOCKED;
	row_list_add(&claim->held, slot);
	claim->holds_left--;
	return OFFER_HELD;
}

/* At least one row is taken, however large. */
Offer
claim_offer(Claim *claim, TupleTableSlot *slot, bool must_wait)
{
	int64		bytes;

	if (must_wait)
		return hold_back(claim, slot);
	bytes = (int64) entry_bytes(slot);
	if (claim->rows_left == 0 ||
		(bytes > claim->bytes_left && claim->taken.count > 0))
		return OFFER_NO_ROOM;
	if (is_locked(slot))
		return OFFER_LOCKED;
	row_list_add(&claim->taken, slot);
	handout_add(&claim->handout, slot);
	claim->rows_left--;
	claim->bytes_left -= bytes;
	return OFFER_TAKEN;
}

/* ---- before the lanes ---- */

static void
check_arguments(int max_rows, int64 max_bytes)
{
	if (max_rows < 1 || max_rows > MAX_CLAIM_ROWS || max_bytes < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_rows is from 1 to %d and max_bytes at least 1",
						MAX_CLAIM_ROWS)));
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

static bool
origin_tag(const char *origin, LOCKTAG *tag)
{
	Datum		arg = CStringGetTextDatum(origin);
	bool		isnull;
	Oid			relation;
	int32		number;

	if (plan_run(&origin_plan, &arg, NULL, SPI_OK_SELECT) == 0)
		return false;
	number = DatumGetInt32(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc,
										 1, &isnull));
	relation = get_relname_relid("outbox_origin", get_namespace_oid(ACME_OUTBOX_SCHEMA, false));
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, relation, (uint32) number, ORIGIN_LOCK_SUBID);
	return true;
}

/*
 * A relay that was frozen, or cut off, in the middle of receiving a claim leaves a
 * session that waits for it to read on, with the origin locked.  When its lease was
 * taken over, that session is ended: nothing it could still do would count.
 */
static void
end_old_holder(const LOCKTAG *tag, const Lease *lease)
{
	VirtualTransactionId *holders = GetLockConflicts(tag, ExclusiveLock, NULL);
	PGPROC	   *holder;
	Datum		args[2];

	if (!VirtualTransactionIdIsValid(holders[0]) ||
		(holder = BackendIdGetProc(holders[0].backendId)) == NULL)
		return;
	args[0] = Int32GetDatum(holder->pid);
	args[1] = Int64GetDatum(lease->epoch);
	if (plan_run(&end_holder_plan, args, NULL, SPI_OK_SELECT) > 0)
		ereport(WARNING,
				(errmsg("ended session %d, which still held origin \"%s\" after its relay lost the lease",
						holder->pid, lease->origin)));
}

/* False: a peer holds it, nothing to do this cycle. */
static bool
lock_origin(const char *origin, int64 epoch, Lease *lease)
{
	LOCKTAG		tag;

	if (!origin_tag(origin, &tag))
	{
		lease_require(origin, epoch, lease);
		return false;
	}
	if (LockAcquire(&tag, ExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL)
	{
		lease_require(origin, epoch, lease);
		return true;
	}
	lease_require(origin, epoch, lease);
	if (lease->takeover_pending)
		end_old_holder(&tag, lease);
	return false;
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
	row_list_init(&claim->skipped, 16);
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
write_claim_row(const Claim *claim, const Lease *lease, const int64 *ids, int n)
{
	Datum		args[] = {Int64GetDatum(claim->handout.claim_id),
		CStringGetTextDatum(lease->origin), Int64GetDatum(lease->epoch),
	CStringGetTextDatum(lease->relay), PointerGetDatum(int64_array(ids, n))};

	plan_run(&claim_row_plan, args, NULL, SPI_OK_INSERT);
}

/* The ids that an UPDATE ... RETURNING id returned, sorted. */
static int64 *
returned_ids(int *n)
{
	int64	   *ids = palloc(sizeof(int64) * Max(SPI_processed, 1));
	bool		isnull;
	uint64		i;

	for (i = 0; i < SPI_processed; i++)
		ids[i] = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc,
											 1, &isnull));
	*n = (int) SPI_processed;
	qsort(ids, *n, sizeof(int64), int64_compare);
	return ids;
}

/*
 * A row that was changed by someone between S and our update was not marked.  The
 * cursor has passed it, so it is remembered and looked at again.
 */
static void
remember_missed(Claim *claim, const RowList *wanted, const int64 *got, int n)
{
	int			w;

	if (wanted->count == n)
		return;
	for (w = 0; w < wanted->count; w++)
		if (bsearch(&wanted->ids[w], got, n, sizeof(int64), int64_compare) == NULL &&
			!row_list_contains(&claim->skipped, wanted->ids[w]))
			row_list_add_row(&claim->skipped, &wanted->tids[w], wanted->ids[w]);
	claim->cursor_moved = true;
}

/* Through the executor; returns how many. */
static int
mark_by_plan(Claim *claim, KeptPlan *mark)
{
	Datum		args[] = {PointerGetDatum(tid_array(claim->taken.tids, claim->taken.count)),
	Int64GetDatum(claim->handout.claim_id)};

	return (int) plan_run(mark, args, NULL, SPI_OK_UPDATE);
}

static int
mark_directly(Claim *claim, EntryUpdate *update)
{
	int			marked = 0;

	entry_update_set(update, ENTRY_STATUS, ObjectIdGetDatum(claim->table.status_publishing));
	entry_update_set(update, ENTRY_CLAIM_ID, Int64GetDatum(claim->handout.claim_id));
	entry_update_set_null(update, ENTRY_NEXT_ATTEMPT_AT);
	entry_update_set_null(update, ENTRY_HOLD_REASON);
	while (marked < claim->taken.count &&
		   entry_update_row(update, &claim->taken.tids[marked]))
		marked++;
	entry_update_end(update);
	return marked;
}

/* Marks the taken rows PUBLISHING and returns them, in id order. */
static void
mark_taken(Claim *claim, const Lease *lease, KeptPlan *mark, Tuplestorestate *result)
{
	RowList    *taken = &claim->taken;
	EntryUpdate update;
	int			marked;

	if (taken->count == 0)
		return;
	if (mark == &mark_pending_plan && entry_update_begin(&update, &claim->table))
		marked = mark_directly(claim, &update);
	else
		marked = mark_by_plan(claim, mark);
	if (marked < taken->count)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("entries were changed while they were claimed"),
				 errdetail("Handing out the others could let one overtake an earlier one of its key."),
				 errhint("Claim again.")));
	qsort(taken->ids, taken->count, sizeof(int64), int64_compare);
	write_claim_row(claim, lease, taken->ids, taken->count);
	handout_return(&claim->handout, taken->ids, taken->count, result);
}

static void
mark_held(Claim *claim)
{
	Datum		tids;
	int64	   *ids;
	int			n;

	if (claim->held.count == 0)
		return;
	tids = PointerGetDatum(tid_array(claim->held.tids, claim->held.count));
	plan_run(&hold_plan, &tids, NULL, SPI_OK_UPDATE_RETURNING);
	ids = returned_ids(&n);
	remember_missed(claim, &claim->held, ids, n);
}

static void
move_cursor(Claim *claim, const Lease *lease)
{
	if (!claim->cursor_moved && claim->taken.count == 0 && claim->held.count == 0)
		return;
	claim->cursor.skipped = claim->skipped.ids;
	claim->cursor.nskipped = claim->skipped.count;
	qsort(claim->cursor.skipped, claim->cursor.nskipped, sizeof(int64), int64_compare);
	cursor_write(lease->origin, &claim->cursor);
}

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
		reap_wake_keys(lease->origin, MAX_HELD_ROWS) > 0 && claim->taken.count == 0)
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

static void
claim_pending(ReturnSetInfo *rsinfo, const Lease *lease, int max_rows, int64 max_bytes)
{
	ArrayType  *left_open = takeover_release(lease);
	Claim		claim;

	wake_claim_begins(lease->origin);
	claim_begin(&claim, lease, rsinfo->setDesc, max_rows, max_bytes, false);
	claim_look(&claim, lease, left_open);
	if (claim.cursor.has_orphans && !release_orphans(&claim, lease, left_open))
	{
		entries_close(&claim.table);
		return;
	}

	if (!claim.cursor.is_new && lane_due_admit(&claim, lease->origin))
		claim_look(&claim, lease, left_open);

	/* the old relay's last settle may have woken a key before we held its rows */
	claim.keys_freed = lease->takeover_pending && ARR_NDIM(left_open) == 0;
	look_in_lanes(&claim, lease, max_rows);

	mark_taken(&claim, lease, &mark_pending_plan, rsinfo->setResult);
	if (claim.taken.count > 0)
		wake_claim_found(lease->origin);
	mark_held(&claim);
	move_cursor(&claim, lease);
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
	while (!claim_is_full(&claim) && entry_scan_next(&scan))
	{
		int64		next = entry_int64(scan.slot, ENTRY_NEXT_ATTEMPT_AT);

		if (entry_enum(scan.slot, ENTRY_STATUS) == claim.table.status_failed &&
			(entry_is_null(scan.slot, ENTRY_NEXT_ATTEMPT_AT) || next <= now ||
			 next == DT_NOEND))
			(void) claim_offer(&claim, scan.slot, false);
	}
	entry_scan_end(&scan);
	mark_taken(&claim, lease, &mark_failed_plan, rsinfo->setResult);
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
	return lock_origin(origin, PG_GETARG_INT64(1), lease);
}

Datum
acme_outbox_claim(PG_FUNCTION_ARGS)
{
	Lease		lease;

	if (enter(fcinfo, PG_GETARG_INT32(2), PG_GETARG_INT64(3), &lease))
		claim_pending((ReturnSetInfo *) fcinfo->resultinfo, &lease, PG_GETARG_INT32(2), PG_GETARG_INT64(3));
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
