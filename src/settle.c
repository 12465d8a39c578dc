/*
 * settle.c
 *		Records what the broker did with the entries of a claim (P 1 phase 3, G 6).
 *
 * The claim row is locked first, which serialises settle with a takeover.  An entry
 * is changed only while it is PUBLISHING under this very claim: whoever moved it in
 * between wins, and the difference is returned.  An entry that another session holds
 * locked is not waited for; it stays in the claim and is returned as LOCKED.  So is one
 * that somebody changed after it was read here: it may still be the claim's, and would be
 * in flight for ever if it left it.
 *
 * The common outcome, PUBLISHED, is one change for all rows; the others are worked
 * out here, row by row, because each has its own wait.  Settling twice is safe: an
 * entry that already is what was asked for counts as settled.
 *
 * An event with a redaction rule is rewritten when it is over, PUBLISHED or ARCHIVED,
 * and not before: a retry must send it whole.  Of its errors only the code is kept.
 */
#include "acme_outbox.h"

#include "catalog/pg_type.h"
#include "counters.h"
#include "entries.h"
#include "entry_update.h"
#include "executor/spi.h"
#include "keyorder.h"
#include "plans.h"
#include "redaction.h"
#include "settle.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/timestamp.h"

static KeptPlan claim_row_plan = {
	"SELECT ids FROM acme_outbox.outbox_claim WHERE claim_id = $1 AND epoch = $2 FOR UPDATE",
	2, {INT8OID, INT8OID}
};

static KeptPlan shrink_claim_plan = {
	"UPDATE acme_outbox.outbox_claim SET ids = $2 WHERE claim_id = $1",
	2, {INT8OID, INT8ARRAYOID}
};

static KeptPlan close_claim_plan = {
	"DELETE FROM acme_outbox.outbox_claim WHERE claim_id = $1",
	1, {INT8OID}
};

static KeptPlan lock_plan = {
	"SELECT 1 FROM ONLY acme_outbox.outbox_entry WHERE ctid = $1 AND claim_id = $2"
	" AND status = 'PUBLISHING' FOR NO KEY UPDATE SKIP LOCKED",
	2, {TIDOID, INT8OID}
};

static KeptPlan published_plan = {
	"UPDATE ONLY acme_outbox.outbox_entry SET status = 'PUBLISHED', claim_id = NULL,"
	" published_at = clock_timestamp(), lanes_done = lanes_done | $3, last_error = NULL"
	" WHERE ctid = ANY ($1) AND claim_id = $2 AND status = 'PUBLISHING' RETURNING id",
	3, {TIDARRAYOID, INT8OID, INT2OID}
};

static KeptPlan published_redacted_plan = {
	"UPDATE ONLY acme_outbox.outbox_entry SET status = 'PUBLISHED', claim_id = NULL,"
	" published_at = clock_timestamp(), lanes_done = lanes_done | $3, last_error = NULL,"
	" payload = $4, redacted = true"
	" WHERE ctid = $1 AND claim_id = $2 AND status = 'PUBLISHING'",
	4, {TIDOID, INT8OID, INT2OID, TEXTOID}
};

#define ONE_PLAN_ARGS 11

static KeptPlan one_plan = {
	"UPDATE ONLY acme_outbox.outbox_entry SET claim_id = NULL,"
	" status = $3::text::acme_outbox.entry_status, next_attempt_at = $4,"
	" hold_reason = $5::text::acme_outbox.hold_reason, attempts = $6, holds = $7,"
	" failed_at = $8, lanes_done = lanes_done | $9,"
	" last_error = coalesce($10, last_error), payload = coalesce($11, payload),"
	" redacted = redacted OR $11 IS NOT NULL"
	" WHERE ctid = $1 AND claim_id = $2 AND status = 'PUBLISHING'",
	ONE_PLAN_ARGS, {TIDOID, INT8OID, TEXTOID, TIMESTAMPTZOID, TEXTOID, INT2OID, INT2OID,
	TIMESTAMPTZOID, INT2OID, TEXTOID, TEXTOID}
};

/* ---- reading ---- */

/* Locks the claim; NULL when it is gone (settled before, or taken over). */
ArrayType *
settle_lock_claim(int64 claim_id, int64 epoch)
{
	Datum		args[] = {Int64GetDatum(claim_id), Int64GetDatum(epoch)};
	bool		isnull;

	if (plan_run(&claim_row_plan, args, NULL, SPI_OK_SELECT) == 0)
		return NULL;
	return DatumGetArrayTypeP(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc,
											1, &isnull));
}

static bool
try_lock(SettleRow *row, int64 claim_id)
{
	Datum		args[] = {PointerGetDatum(&row->tid), Int64GetDatum(claim_id)};

	return plan_run(&lock_plan, args, NULL, SPI_OK_SELECT) == 1;
}

static const char *
status_name(Oid status)
{
	return DatumGetCString(DirectFunctionCall1(enum_out, ObjectIdGetDatum(status)));
}

static bool
is_ours(EntryTable *table, TupleTableSlot *slot, int64 claim_id)
{
	return entry_enum(slot, ENTRY_STATUS) == table->status_publishing &&
		!entry_is_null(slot, ENTRY_CLAIM_ID) &&
		entry_int64(slot, ENTRY_CLAIM_ID) == claim_id;
}

/* What an event's rules ask for: of its errors a code, of its payload the rest. */
static void
redact(TupleTableSlot *slot, SettleRow *row)
{
	List	   *paths = redaction_paths(entry_string(slot, ENTRY_EVENT_NAME));
	Datum		payload;
	bool		isnull;

	if (paths == NIL)
		return;
	payload = slot_getattr(slot, ENTRY_PAYLOAD, &isnull);
	if (outcome_is_final(row->outcome, row->past.was_failed))
		row->redacted = redaction_apply(paths, DatumGetTextPP(payload));
	row->error = redaction_error(row->error);
}

static void
read_row(EntryTable *table, TupleTableSlot *slot, int64 claim_id, SettleRow *row)
{
	row->tid = slot->tts_tid;
	row->key = entry_string(slot, ENTRY_MESSAGE_KEY);
	row->topic = entry_string(slot, ENTRY_TOPIC);
	row->lanes_done = entry_int16(slot, ENTRY_LANES_DONE);
	row->past.attempts = entry_int16(slot, ENTRY_ATTEMPTS);
	row->past.holds = entry_int16(slot, ENTRY_HOLDS);
	row->past.was_failed = !entry_is_null(slot, ENTRY_FAILED_AT);
	row->past.arrived = entry_has_arrived(slot) || (row->lanes & LANE_BUSINESS) != 0;
	if (!is_ours(table, slot, claim_id))
	{
		row->found = FOUND_MOVED;
		row->status = status_name(entry_enum(slot, ENTRY_STATUS));
	}
	else if (entry_maybe_locked(slot) && !try_lock(row, claim_id))
		row->found = FOUND_LOCKED;
	else
		row->found = FOUND_OURS;
	if (row->found == FOUND_OURS && redaction_has_rules())
		redact(slot, row);
}

static void
find_rows(EntryTable *table, int64 claim_id, SettleRow *rows, int n)
{
	EntryScan	finder;

	entry_finder_begin(&finder, table);
	for (int i = 0; i < n; i++)
	{
		rows[i].status = "PUBLISHING";
		if (entry_find(&finder, rows[i].id))
			read_row(table, finder.slot, claim_id, &rows[i]);
		else
		{
			rows[i].found = FOUND_GONE;
			rows[i].status = "GONE";
		}
	}
	entry_scan_end(&finder);
}

/* Changed, or not what was read any more: then it is to be looked at again. */
static void
note_change(SettleRow *row, bool changed)
{
	row->changed = changed;
	if (!changed)
		row->found = FOUND_LOCKED;
}

/* ---- PUBLISHED, all at once ---- */

static int
compare_rows(const void *a, const void *b)
{
	int64		x = ((const SettleRow *) a)->id;
	int64		y = ((const SettleRow *) b)->id;

	return x < y ? -1 : x > y ? 1 : 0;
}

void
settle_sort(SettleRow *rows, int n)
{
	qsort(rows, n, sizeof(SettleRow), compare_rows);
}

static bool
is_published_with(const SettleRow *row, int16 lanes)
{
	return row->found == FOUND_OURS && row->outcome == OUTCOME_PUBLISHED &&
		!row->past.was_failed && row->lanes == lanes && row->redacted == NULL;
}

static void
note_published(SettleRow *rows, int n)
{
	bool		isnull;

	for (uint64 i = 0; i < SPI_processed; i++)
	{
		SettleRow	wanted = {.id = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[i],
																SPI_tuptable->tupdesc, 1, &isnull))};
		SettleRow  *row = bsearch(&wanted, rows, n, sizeof(SettleRow), compare_rows);

		row->changed = row->key_is_free = true;
	}
}

static void
settle_published_directly(EntryTable *table, EntryUpdate *update, SettleRow *rows, int n)
{
	entry_update_set(update, ENTRY_STATUS, ObjectIdGetDatum(table->status_published));
	entry_update_set(update, ENTRY_PUBLISHED_AT, TimestampTzGetDatum(GetCurrentTimestamp()));
	entry_update_set_null(update, ENTRY_CLAIM_ID);
	entry_update_set_null(update, ENTRY_LAST_ERROR);
	for (int i = 0; i < n; i++)
	{
		SettleRow  *row = &rows[i];

		if (!is_published_with(row, row->lanes))
			continue;
		entry_update_set(update, ENTRY_LANES_DONE,
						 Int16GetDatum(row->lanes_done | row->lanes));
		note_change(row, entry_update_row(update, &row->tid));
		row->key_is_free = row->changed;
	}
	entry_update_end(update);
}

static void
settle_published_with(int64 claim_id, SettleRow *rows, int n, int16 lanes)
{
	ItemPointerData *tids = palloc(sizeof(ItemPointerData) * n);
	Datum		args[3];
	int			count = 0;

	for (int i = 0; i < n; i++)
		if (is_published_with(&rows[i], lanes))
			tids[count++] = rows[i].tid;
	args[0] = PointerGetDatum(tid_array(tids, count));
	args[1] = Int64GetDatum(claim_id);
	args[2] = Int16GetDatum(lanes);
	plan_run(&published_plan, args, NULL, SPI_OK_UPDATE_RETURNING);
	note_published(rows, n);
}

/* Through the executor: an UPDATE per value of lanes, hardly ever more than one. */
static void
settle_published_by_plan(int64 claim_id, SettleRow *rows, int n)
{
	for (int i = 0; i < n; i++)
		if (!rows[i].changed && is_published_with(&rows[i], rows[i].lanes))
		{
			settle_published_with(claim_id, rows, n, rows[i].lanes);
			note_change(&rows[i], rows[i].changed);
		}
}

static void
settle_published(EntryTable *table, int64 claim_id, SettleRow *rows, int n)
{
	EntryUpdate update;

	if (entry_update_begin(&update, table))
		settle_published_directly(table, &update, rows, n);
	else
		settle_published_by_plan(claim_id, rows, n);
}

/* With a new payload each; only for events with a redaction rule. */
static void
settle_published_redacted(int64 claim_id, SettleRow *row)
{
	Datum		args[] = {PointerGetDatum(&row->tid), Int64GetDatum(claim_id),
	Int16GetDatum(row->lanes), PointerGetDatum(row->redacted)};

	note_change(row, plan_run(&published_redacted_plan, args, NULL, SPI_OK_UPDATE) == 1);
	row->key_is_free = row->changed;
}

/* ---- the other outcomes, one by one ---- */

static bool
write_state(int64 claim_id, const SettleRow *row, const NewState *state)
{
	char		nulls[ONE_PLAN_ARGS];
	Datum		args[ONE_PLAN_ARGS] = {0};

	memset(nulls, ' ', sizeof(nulls));
	args[0] = PointerGetDatum(&row->tid);
	args[1] = Int64GetDatum(claim_id);
	args[2] = CStringGetTextDatum(state->status);
	args[3] = TimestampTzGetDatum(state->next_attempt_at);
	nulls[3] = state->next_attempt_at ? ' ' : 'n';
	if (state->reason)
		args[4] = CStringGetTextDatum(state->reason);
	nulls[4] = state->reason ? ' ' : 'n';
	args[5] = Int16GetDatum(state->attempts);
	args[6] = Int16GetDatum(state->holds);
	args[7] = TimestampTzGetDatum(state->failed_at);
	nulls[7] = state->failed_at ? ' ' : 'n';
	args[8] = Int16GetDatum(row->lanes);
	if (row->error)
		args[9] = CStringGetTextDatum(row->error);
	nulls[9] = row->error ? ' ' : 'n';
	args[10] = PointerGetDatum(row->redacted);
	nulls[10] = row->redacted ? ' ' : 'n';
	return plan_run(&one_plan, args, nulls, SPI_OK_UPDATE) == 1;
}

/* The relay logs what the server tells it. */
static void
report_given_up(const SettleRow *row)
{
	ereport(WARNING,
			(errmsg_plural("an entry of topic \"%s\" was given up after %d attempt",
						   "an entry of topic \"%s\" was given up after %d attempts",
						   row->past.attempts + 1, row->topic, row->past.attempts + 1),
			 errdetail("Its id is " INT64_FORMAT "; last error: %s", row->id,
					   row->error ? row->error : "not given"),
			 errhint("See acme_outbox.outbox_failed; mend the cause, then call acme_outbox.retry_failed().")));
}

static void
settle_one(int64 claim_id, SettleRow *row, TimestampTz now)
{
	Policy		policy;
	NewState	state;

	policy_of_topic(row->topic, &policy);
	outcome_next_state(row->outcome, &row->past, &policy, now, &state);
	note_change(row, write_state(claim_id, row, &state));
	if (row->changed && strcmp(state.status, "FAILED") == 0 && !row->past.was_failed)
		report_given_up(row);
	row->key_is_free = row->changed &&
		(row->past.arrived || (strcmp(state.status, "PENDING") != 0 &&
							   state.next_attempt_at != DT_NOEND));
}

static void
settle_others(int64 claim_id, SettleRow *rows, int n)
{
	TimestampTz now = GetCurrentTimestamp();

	for (int i = 0; i < n; i++)
	{
		SettleRow  *row = &rows[i];

		if (row->found != FOUND_OURS || row->changed)
			continue;
		if (row->outcome == OUTCOME_PUBLISHED && !row->past.was_failed)
			settle_published_redacted(claim_id, row);
		else
			settle_one(claim_id, row, now);
	}
}

/* ---- afterwards ---- */

/* Out of its key's way: by this settle, or by whoever moved it before. */
static bool
frees_key(const SettleRow *row)
{
	if (row->key == NULL)
		return false;
	return row->key_is_free ||
		(row->found == FOUND_MOVED && strcmp(row->status, "PENDING") != 0 &&
		 strcmp(row->status, "PUBLISHING") != 0);
}

/* Once a key: each look passes the index entries of rows that just stopped waiting. */
static void
wake_keys(EntryTable *table, const SettleRow *rows, int n)
{
	KeyOrder	order;

	entries_take_snapshot(table);
	keyorder_begin(&order, table, GetCurrentTimestamp());
	for (int i = 0; order.any_waiting && i < n; i++)
	{
		KeyState   *state;

		if (!frees_key(&rows[i]))
			continue;
		state = keyorder_state(&order, rows[i].key);
		if (!state->probed)
			keyorder_wake(table, rows[i].key, order.now);
		state->probed = true;
	}
}

/* What is left of the claim: ids not mentioned, and those locked by others. */
static void
shrink_claim(int64 claim_id, ArrayType *claim_ids, const SettleRow *rows, int n)
{
	int			count;
	int64	   *ids = int64_array_values(claim_ids, &count);
	int			left = 0;
	Datum		args[2];

	for (int i = 0; i < count; i++)
	{
		SettleRow	wanted = {.id = ids[i]};
		const SettleRow *row = bsearch(&wanted, rows, n, sizeof(SettleRow), compare_rows);

		if (row == NULL || row->found == FOUND_LOCKED)
			ids[left++] = ids[i];
	}
	args[0] = Int64GetDatum(claim_id);
	args[1] = PointerGetDatum(int64_array(ids, left));
	if (left == 0)
		plan_run(&close_claim_plan, args, NULL, SPI_OK_DELETE);
	else if (left < count)
		plan_run(&shrink_claim_plan, args, NULL, SPI_OK_UPDATE);
}

static void
count_outcomes(const char *origin, const SettleRow *rows, int n)
{
	int64		counts[OUTCOME_COUNT] = {0};

	for (int i = 0; i < n; i++)
		if (rows[i].changed)
			counts[rows[i].outcome]++;
	for (int i = 0; i < OUTCOME_COUNT; i++)
		counters_add(COUNTER_SETTLED, counts[i], origin, outcome_name(i));
}

/*
 * The claim row is locked by the caller, claim_ids is NULL if there is none any
 * more; rows are sorted by id.
 */
void
settle_rows(const char *origin, int64 claim_id, ArrayType *claim_ids,
			SettleRow *rows, int n)
{
	EntryTable	table;

	entries_open(&table, origin);
	entries_take_snapshot(&table);
	find_rows(&table, claim_id, rows, n);
	settle_published(&table, claim_id, rows, n);
	settle_others(claim_id, rows, n);
	if (claim_ids != NULL)
		shrink_claim(claim_id, claim_ids, rows, n);
	wake_keys(&table, rows, n);
	count_outcomes(origin, rows, n);
	entries_close(&table);
}

/* A takeover's half: everything of the claim is RELEASED. */
void
settle_release(const char *origin, int64 claim_id, ArrayType *ids)
{
	int			n;
	int64	   *values = int64_array_values(ids, &n);
	SettleRow  *rows = palloc0(sizeof(SettleRow) * Max(n, 1));

	for (int i = 0; i < n; i++)
	{
		rows[i].id = values[i];
		rows[i].outcome = OUTCOME_RELEASED;
	}
	settle_sort(rows, n);
	settle_rows(origin, claim_id, ids, rows, n);
}

