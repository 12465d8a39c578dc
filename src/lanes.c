/*
 * lanes.c
 *		Where a claim looks for entries: skipped, late, fresh (docs/design.md 4).
 *
 * All lanes read under the claim's snapshot S and offer each row they find to
 * claim_offer, which decides between take, hold, skip and stop.
 *
 * Order matters.  Skipped comes first, since a row that is still locked blocks its key
 * for all others.  Due (lane_due.c) runs before late and fresh, so that a waiting row is
 * either taken with this claim or blocks what follows.  Late is handled in id order, and
 * fresh opens only when late is exhausted under S itself: otherwise a late row of a
 * key could be overtaken.
 */
#include "acme_outbox.h"

#include "access/stratnum.h"
#include "claim.h"
#include "guc.h"
#include "utils/fmgroids.h"
#include "utils/timestamp.h"

/*
 * Not waiting, not handled by anyone: what skipped, late and fresh look for.  Nor does
 * a scheduled row wait any more whose time came before the cursor did: taken earlier, it
 * would overtake an unclaimed row of its key with a lower id.
 */
static bool
is_untouched(Claim *claim, TupleTableSlot *slot)
{
	if (entry_enum(slot, ENTRY_STATUS) != claim->table.status_pending)
		return false;
	return entry_is_null(slot, ENTRY_NEXT_ATTEMPT_AT) ||
		(entry_int64(slot, ENTRY_NEXT_ATTEMPT_AT) <= claim->order.now &&
		 entry_enum(slot, ENTRY_HOLD_REASON) == claim->table.hold_scheduled &&
		 !cursor_has_passed(&claim->start, slot));
}

/* False: the batch is full, or one more locked row could not be remembered. */
static bool
offer_untouched(Claim *claim, TupleTableSlot *slot)
{
	char	   *key = entry_string(slot, ENTRY_MESSAGE_KEY);
	int64		id = entry_int64(slot, ENTRY_ID);
	Offer		offer = claim_offer(claim, slot, keyorder_must_wait(&claim->order, key, id));

	if (offer == OFFER_LOCKED)
	{
		if (claim->skipped.count >= guc_skipped_rows)
			return false;
		row_list_add(&claim->skipped, slot);
		keyorder_block(&claim->order, key, id);
	}
	/* under S it does not wait yet: a run must not pass it */
	if (offer == OFFER_HELD)
		keyorder_block(&claim->order, key, id);
	return offer != OFFER_NO_ROOM;
}

/* ---- skipped ---- */

/* Locked still, or no room: it stays remembered, and its key waits for it. */
static void
offer_again(Claim *claim, TupleTableSlot *slot)
{
	char	   *key = entry_string(slot, ENTRY_MESSAGE_KEY);
	int64		id = entry_int64(slot, ENTRY_ID);
	Offer		offer = claim_offer(claim, slot, keyorder_must_wait(&claim->order, key, id));

	if (offer == OFFER_LOCKED || offer == OFFER_NO_ROOM)
		row_list_add(&claim->skipped, slot);
	/* held: under S it does not wait yet, and a run must not pass it either */
	if (offer != OFFER_TAKEN)
		keyorder_block(&claim->order, key, id);
}

/*
 * Rows that an earlier claim could not lock.  One that was finished or deleted by
 * whoever held it is dropped; the trigger on such changes woke its key.
 */
void
lane_skipped(Claim *claim)
{
	EntryScan	finder;

	if (claim->cursor.nskipped == 0)
		return;
	entry_finder_begin(&finder, &claim->table);
	for (int i = 0; i < claim->cursor.nskipped; i++)
	{
		if (entry_find(&finder, claim->cursor.skipped[i]) &&
			is_untouched(claim, finder.slot))
			offer_again(claim, finder.slot);
		else
			claim->keys_freed = true;
	}
	entry_scan_end(&finder);
	if (claim->skipped.count != claim->cursor.nskipped)
		claim->cursor_moved = true;
}

/* ---- late ---- */

typedef struct LateRows
{
	int64	   *ids;
	int			count;
	int			room;
	int			limit;			/* the lowest so many ids are wanted */
} LateRows;

/* Keeps the lowest ids; twice the limit is gathered before each cut. */
static void
late_add(LateRows *late, TupleTableSlot *slot)
{
	if (late->count == late->room)
	{
		qsort(late->ids, late->count, sizeof(int64), int64_compare);
		late->count = late->limit;
	}
	late->ids[late->count++] = entry_int64(slot, ENTRY_ID);
}

static void
late_scan(Claim *claim, const EntryCondition *conditions, int n, int max_rows,
		  LateRows *late)
{
	EntryScan	scan;
	int			found = 0;

	entry_scan_begin(&scan, &claim->table, INDEX_XID, conditions, n);
	while (found < max_rows && entry_scan_next(&scan))
	{
		uint64		xid = (uint64) entry_int64(scan.slot, ENTRY_XID);

		claim->cursor_moved = true;
		if (xid_set_sees(claim->cursor.pass, xid) && is_untouched(claim, scan.slot))
		{
			late_add(late, scan.slot);
			found++;
		}
	}
	entry_scan_end(&scan);
}

/* Rows of one transaction that was in progress in `seen`: in id order by the index. */
static void
late_of_xid(Claim *claim, uint64 xid, LateRows *late)
{
	EntryCondition conditions[] = {
		{2, BTEqualStrategyNumber, F_XID8EQ, UInt64GetDatum(xid)},
		{3, BTGreaterStrategyNumber, F_INT8GT, Int64GetDatum(claim->cursor.pass_id)},
		{3, BTLessEqualStrategyNumber, F_INT8LE, Int64GetDatum(claim->cursor.last_id)},
	};

	late_scan(claim, conditions, lengthof(conditions), late->limit, late);
}

/* Rows of transactions that `seen` did not know yet: all must be looked at. */
static void
late_of_newer(Claim *claim, LateRows *late)
{
	EntryCondition conditions[] = {
		{2, BTGreaterEqualStrategyNumber, F_XID8GE, UInt64GetDatum(claim->cursor.seen->xmax)},
		{2, BTLessStrategyNumber, F_XID8LT, UInt64GetDatum(claim->cursor.pass->xmax)},
		{3, BTGreaterStrategyNumber, F_INT8GT, Int64GetDatum(claim->cursor.pass_id)},
		{3, BTLessEqualStrategyNumber, F_INT8LE, Int64GetDatum(claim->cursor.last_id)},
	};

	late_scan(claim, conditions, lengthof(conditions), INT_MAX, late);
}

/* The pass's next rows, lowest ids first; `more` when there are others beyond. */
static void
late_gather(Claim *claim, LateRows *late, bool *more)
{
	late->limit = claim->rows_left + 1;
	late->room = 2 * late->limit;
	late->ids = palloc(sizeof(int64) * late->room);
	late->count = 0;
	for (int i = 0; i < claim->cursor.seen->nxip; i++)
	{
		uint64		xid = claim->cursor.seen->xip[i];

		if (xid_set_sees(claim->cursor.pass, xid))
			late_of_xid(claim, xid, late);
	}
	late_of_newer(claim, late);
	qsort(late->ids, late->count, sizeof(int64), int64_compare);
	*more = late->count > late->limit - 1;
	late->count = Min(late->count, late->limit - 1);
}

/* False: stopped before a row for lack of room. */
static bool
late_offer_all(Claim *claim, const LateRows *late)
{
	EntryScan	finder;
	bool		going = true;

	entry_finder_begin(&finder, &claim->table);
	for (int i = 0; i < late->count; i++)
	{
		if (entry_find(&finder, late->ids[i]))
			going = offer_untouched(claim, finder.slot);
		if (!going)
			break;
		claim->cursor.pass_id = late->ids[i];
	}
	entry_scan_end(&finder);
	return going;
}

/* One pass on from where it stopped; true when it is exhausted. */
static bool
late_pass(Claim *claim)
{
	bool		more = true;

	while (more)
	{
		LateRows	late;

		if (claim_is_full(claim))
			return false;
		late_gather(claim, &late, &more);
		if (!late_offer_all(claim, &late))
			return false;
	}
	return true;
}

/*
 * Rows with id <= last_id that were not visible in `seen`.  An exhausted pass makes
 * its own snapshot the new `seen`; true when that is S: fresh may follow.
 */
bool
lane_late(Claim *claim)
{
	Cursor	   *cursor = &claim->cursor;
	bool		under_current;

	do
	{
		under_current = cursor->pass == NULL;
		if (under_current)
		{
			cursor->pass = claim->now;
			cursor->pass_id = PG_INT64_MIN;
		}
		if (!late_pass(claim))
			return false;
		cursor->seen = cursor->pass;
		cursor->pass = NULL;
	} while (!under_current);
	return true;
}

/* ---- fresh ---- */

/* Everything above last_id, in id order. */
void
lane_fresh(Claim *claim)
{
	EntryCondition above = {2, BTGreaterStrategyNumber, F_INT8GT,
	Int64GetDatum(claim->cursor.last_id)};
	EntryScan	scan;

	entry_scan_begin(&scan, &claim->table, INDEX_PKEY, &above, 1);
	while (!claim_is_full(claim) && claim->looks_left-- > 0 && entry_scan_next(&scan))
	{
		if (is_untouched(claim, scan.slot) && !offer_untouched(claim, scan.slot))
			break;
		claim->cursor.last_id = entry_int64(scan.slot, ENTRY_ID);
		claim->cursor_moved = true;
	}
	entry_scan_end(&scan);
}
