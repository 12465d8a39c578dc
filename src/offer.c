/*
 * offer.c
 *		What becomes of a row that a lane offers: taken, held back, or locked.
 *
 * Nothing is changed here.  Rows are gathered in lists, and claim_mark.c writes each list
 * in one go.
 */
#include "acme_outbox.h"

#include "catalog/pg_type.h"
#include "claim.h"
#include "plans.h"

static KeptPlan lock_plan = {
	"SELECT 1 FROM ONLY acme_outbox.outbox_entry WHERE ctid = $1 FOR NO KEY UPDATE SKIP LOCKED",
	1, {TIDOID}
};

void
row_list_init(RowList *list, int room)
{
	list->room = Max(room, 1);
	list->count = 0;
	list->tids = palloc(sizeof(ItemPointerData) * list->room);
	list->ids = palloc(sizeof(int64) * list->room);
}

void
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

bool
row_list_contains(const RowList *list, int64 id)
{
	for (int i = 0; i < list->count; i++)
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
hold_back(Claim *claim, RowList *list, TupleTableSlot *slot)
{
	if (claim->holds_left == 0)
		return OFFER_NO_ROOM;
	if (is_locked(slot))
		return OFFER_LOCKED;
	row_list_add(list, slot);
	claim->holds_left--;
	return OFFER_HELD;
}

/* At least one row is taken, however large. */
Offer
claim_offer(Claim *claim, TupleTableSlot *slot, bool must_wait)
{
	int64		bytes;

	if (must_wait)
		return hold_back(claim, &claim->held, slot);
	if (pause_holds(&claim->paused, slot))
		return hold_back(claim, &claim->held_paused, slot);
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
