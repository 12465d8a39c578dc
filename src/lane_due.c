/*
 * lane_due.c
 *		The lane of waiting entries whose time has come (docs/design.md 4.2).
 *
 * Rows of a key are taken as a run, from its lowest waiting id upwards; a row without
 * key, or one that has arrived and lacks only its audit copy, by itself.
 *
 * A scheduled row is in neither index of the waiting rows, so that any number of them,
 * of one key or of many, costs nobody a look.  When it is due and the cursor has passed
 * it, a claim admits it before it takes S: from then on it waits in its key's order.  One
 * that the cursor has not passed is found by the late or fresh lane in its turn.
 *
 * Under an old snapshot of some other session the entries of rows that waited stay in
 * the index, and no look can remove them.  The lane would pass all of them at every claim.
 * So a session remembers up to which time it found nothing left, and looks from there on.
 * What became due before, because somebody committed late or set the time by hand, is
 * found by a full look now and then; until then it waits, and so does its key.
 */
#include "acme_outbox.h"

#include "access/stratnum.h"
#include "catalog/pg_type.h"
#include "claim.h"
#include "executor/spi.h"
#include "plans.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/timestamp.h"

/* scheduled rows admitted, and looked at for it, by one claim */
#define ADMITTED_AT_ONCE 10000

/* who writes a time and commits this much later is not overlooked */
#define LATE_COMMIT_US USECS_PER_SEC

/* of due_first: no row */
#define NOTHING_FOUND DT_NOEND

/* full looks are this far apart, and take at most one part in so many of the time */
#define FULL_LOOK_US (10 * USECS_PER_SEC)
#define FULL_LOOK_SHARE 50

static KeptPlan admit_plan = {
	"UPDATE ONLY acme_outbox.outbox_entry SET hold_reason = 'DUE' WHERE ctid = ANY (ARRAY("
	"SELECT ctid FROM ONLY acme_outbox.outbox_entry WHERE ctid = ANY ($1)"
	" AND status = 'PENDING' AND hold_reason = 'SCHEDULED' FOR NO KEY UPDATE SKIP LOCKED))",
	1, {TIDARRAYOID}
};

/* What this session knows of an origin: before that time there was nothing left. */
typedef struct Known
{
	char		origin[MAX_SHORT_STRING + 1];
	int64		nothing_before; /* TimestampTz */
	int64		full_look_at;
} Known;

static Known known_due;
static Known known_scheduled;

/* ---- looking from where there was something ---- */

static int64
look_begin(Look *look, const Known *known, const char *origin, int64 now)
{
	look->origin = origin;
	look->began = GetCurrentTimestamp();
	look->first = NOTHING_FOUND;
	look->full = strcmp(known->origin, origin) != 0 || now >= known->full_look_at ||
		now < known->nothing_before;
	return look->full ? DT_NOBEGIN : known->nothing_before - LATE_COMMIT_US;
}

static void
look_found(Look *look, TupleTableSlot *slot)
{
	look->first = Min(look->first, entry_int64(slot, ENTRY_NEXT_ATTEMPT_AT));
}

/*
 * The first row found counts as left even if it was taken: the claim may yet fail.  Rows
 * come in the order of their time, so nothing was found before it.
 */
static void
look_end(Look *look, Known *known, int64 now, bool reached_end)
{
	int64		took = GetCurrentTimestamp() - look->began;

	if (look->first == NOTHING_FOUND && !reached_end)
		return;
	known->nothing_before = Min(look->first, now);
	if (look->full)
	{
		strlcpy(known->origin, look->origin, sizeof(known->origin));
		known->full_look_at = now + Max(FULL_LOOK_US, took * FULL_LOOK_SHARE);
	}
}

/* ---- scheduled rows ---- */

/* Only a full look passes more than a bounded number of rows the cursor has not passed. */
static int
find_due_scheduled(Claim *claim, const char *origin, ItemPointerData *tids)
{
	int64		now = claim->order.now;
	Look		look;
	EntryCondition due[] = {
		{2, BTGreaterEqualStrategyNumber, F_TIMESTAMPTZ_GE,
		TimestampTzGetDatum(look_begin(&look, &known_scheduled, origin, now))},
		{2, BTLessEqualStrategyNumber, F_TIMESTAMPTZ_LE, TimestampTzGetDatum(now)},
	};
	EntryScan	scan;
	int			looks = look.full ? PG_INT32_MAX : ADMITTED_AT_ONCE;
	int			n = 0;

	entry_scan_begin(&scan, &claim->table, INDEX_SCHEDULED, due, lengthof(due));
	while (n < ADMITTED_AT_ONCE && entry_scan_next_within(&scan, &looks))
	{
		if (entry_enum(scan.slot, ENTRY_STATUS) != claim->table.status_pending)
			continue;
		look_found(&look, scan.slot);
		if (cursor_has_passed(&claim->cursor, scan.slot))
			tids[n++] = scan.slot->tts_tid;
	}
	entry_scan_end(&scan);
	look_end(&look, &known_scheduled, now, n < ADMITTED_AT_ONCE && looks >= 0);
	return n;
}

/* True: some wait in their key's order now, and a new S is needed to see them. */
bool
lane_due_admit(Claim *claim, const char *origin)
{
	ItemPointerData *tids = palloc(sizeof(ItemPointerData) * ADMITTED_AT_ONCE);
	int			n = find_due_scheduled(claim, origin, tids);
	Datum		arg;

	if (n > 0)
	{
		arg = PointerGetDatum(tid_array(tids, n));
		plan_run(&admit_plan, &arg, NULL, SPI_OK_UPDATE);
	}
	pfree(tids);
	return n > 0;
}

/* ---- the rows of a key ---- */

/* Refused before: it goes alone, and the rest of its key when it has arrived. */
static bool
is_on_trial(TupleTableSlot *slot)
{
	return entry_int16(slot, ENTRY_ATTEMPTS) > 0 || entry_int16(slot, ENTRY_HOLDS) > 0;
}

/*
 * Takes the run of a key: from its lowest waiting row upwards, as long as rows are
 * due or held only by their key, up to one that is on trial.
 */
static void
take_run(Claim *claim, KeyState *state, int *budget)
{
	EntryScan	scan;
	bool		ended = false;

	state->run_taken = state->probed = true;
	keyorder_scan_begin(&scan, &claim->table, state->key);
	while (entry_scan_next(&scan))
	{
		int64		id = entry_int64(scan.slot, ENTRY_ID);
		WaitKind	kind = keyorder_classify(&claim->table, scan.slot, claim->order.now);

		if (kind == WAIT_ASIDE)
			continue;
		state->first_waiting = id;
		if (ended || kind == WAIT_NOT_DUE || id > state->barrier)
			break;
		state->run_cut = *budget == 0 ||
			claim_offer(claim, scan.slot, false) != OFFER_TAKEN;
		if (state->run_cut)
			break;
		(*budget)--;
		state->first_waiting = NOTHING_BLOCKS;
		ended = is_on_trial(scan.slot);
	}
	entry_scan_end(&scan);
}

/* One due row; false when the batch is full. */
static bool
offer_due(Claim *claim, TupleTableSlot *slot, int *budget)
{
	char	   *key = entry_string(slot, ENTRY_MESSAGE_KEY);
	int64		id = entry_int64(slot, ENTRY_ID);
	KeyState   *state;

	if (key == NULL || entry_has_arrived(slot))
	{
		Offer		offer = claim_offer(claim, slot, false);

		if (offer == OFFER_TAKEN)
			(*budget)--;
		return offer != OFFER_NO_ROOM;
	}
	state = keyorder_state(&claim->order, key);
	if (!state->run_taken)
		take_run(claim, state, budget);
	if (id < state->first_waiting || state->run_cut)
		return true;			/* taken with its run, or due again next time */
	return claim_offer(claim, slot, true) != OFFER_NO_ROOM;
}

/* ---- the lane ---- */

void
lane_due_begin(Claim *claim, const char *origin)
{
	int64		now = claim->order.now;
	EntryCondition due[] = {
		{2, BTGreaterEqualStrategyNumber, F_TIMESTAMPTZ_GE,
		TimestampTzGetDatum(look_begin(&claim->due_look, &known_due, origin, now))},
		{2, BTLessEqualStrategyNumber, F_TIMESTAMPTZ_LE, TimestampTzGetDatum(now)},
	};

	entry_scan_begin(&claim->due, &claim->table, INDEX_DUE, due, lengthof(due));
}

/* Waiting rows whose time has come, on from where the last call stopped. */
void
lane_due(Claim *claim, int max_rows)
{
	EntryScan  *scan = &claim->due;
	int			budget = max_rows;

	while (budget > 0 && !claim_is_full(claim) && !claim->due_exhausted)
	{
		/* an index scan that is asked again after its end begins anew */
		if (!entry_scan_next(scan))
			claim->due_exhausted = true;
		else if (entry_enum(scan->slot, ENTRY_STATUS) == claim->table.status_pending)
		{
			look_found(&claim->due_look, scan->slot);
			if (!offer_due(claim, scan->slot, &budget))
				break;
		}
	}
}

void
lane_due_end(Claim *claim)
{
	entry_scan_end(&claim->due);
	look_end(&claim->due_look, &known_due, claim->order.now, claim->due_exhausted);
}
