/*
 * claim_mark.c
 *		Writes down what a claim decided: the marks on its rows, its row, its position.
 *
 * All of it happens after the lanes, by ctid, one change for each kind of mark.
 */
#include "acme_outbox.h"

#include "catalog/pg_type.h"
#include "claim.h"
#include "entry_update.h"
#include "plans.h"
#include "utils/builtins.h"

#define MARK_ENTRIES(next_attempt_at) \
	"UPDATE ONLY acme_outbox.outbox_entry SET status = 'PUBLISHING', claim_id = $2," \
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

#define HOLD_ENTRIES(reason) \
	"UPDATE ONLY acme_outbox.outbox_entry SET next_attempt_at = 'infinity', hold_reason = " reason \
	" WHERE ctid = ANY ($1) AND status = 'PENDING' RETURNING id"

static KeptPlan hold_plan = {
	HOLD_ENTRIES("'KEY'"), 1, {TIDARRAYOID}
};

static KeptPlan pause_plan = {
	HOLD_ENTRIES("'PAUSED'"), 1, {TIDARRAYOID}
};

static KeptPlan claim_row_plan = {
	"INSERT INTO acme_outbox.outbox_claim (claim_id, origin, epoch, claimed_by, claimed_at, ids)"
	" VALUES ($1, $2, $3, $4, clock_timestamp(), $5)",
	5, {INT8OID, TEXTOID, INT8OID, TEXTOID, INT8ARRAYOID}
};

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

	for (uint64 i = 0; i < SPI_processed; i++)
		ids[i] = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc,
											 1, &isnull));
	*n = (int) SPI_processed;
	qsort(ids, *n, sizeof(int64), int64_compare);
	return ids;
}

/*
 * A row to be held that someone changed between S and our update was not marked.  The
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

static int
mark_rows(Claim *claim)
{
	EntryUpdate update;

	if (claim->handout.for_dead_letters)
		return mark_by_plan(claim, &mark_failed_plan);
	if (entry_update_begin(&update, &claim->table))
		return mark_directly(claim, &update);
	return mark_by_plan(claim, &mark_pending_plan);
}

/* Marks the taken rows PUBLISHING and returns them, in id order. */
void
claim_mark_taken(Claim *claim, const Lease *lease, Tuplestorestate *result)
{
	RowList    *taken = &claim->taken;

	if (taken->count == 0)
		return;
	if (mark_rows(claim) < taken->count)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("entries were changed while they were claimed"),
				 errdetail("Handing out the others could let one overtake an earlier one of its key."),
				 errhint("Claim again.")));
	qsort(taken->ids, taken->count, sizeof(int64), int64_compare);
	write_claim_row(claim, lease, taken->ids, taken->count);
	handout_return(&claim->handout, result);
}

static void
mark_list(Claim *claim, const RowList *list, KeptPlan *mark)
{
	Datum		tids;
	int64	   *ids;
	int			n;

	if (list->count == 0)
		return;
	tids = PointerGetDatum(tid_array(list->tids, list->count));
	plan_run(mark, &tids, NULL, SPI_OK_UPDATE_RETURNING);
	ids = returned_ids(&n);
	remember_missed(claim, list, ids, n);
}

/* Those that wait for their key, or until their topic is resumed. */
void
claim_mark_held(Claim *claim)
{
	mark_list(claim, &claim->held, &hold_plan);
	mark_list(claim, &claim->held_paused, &pause_plan);
}

void
claim_move_cursor(Claim *claim, const Lease *lease)
{
	if (!claim->cursor_moved && claim->taken.count == 0 &&
		claim->held.count == 0 && claim->held_paused.count == 0)
		return;
	claim->cursor.skipped = claim->skipped.ids;
	claim->cursor.nskipped = claim->skipped.count;
	qsort(claim->cursor.skipped, claim->cursor.nskipped, sizeof(int64), int64_compare);
	cursor_write(lease->origin, &claim->cursor);
}
