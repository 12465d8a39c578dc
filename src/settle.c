/*
 * settle.c
 *		Records what the broker did with the entries of a claim (P 1 phase 3, G 6).
 *
 * The claim row is locked first, which serialises settle with a takeover.  An entry
 * is changed only while it is PUBLISHING under this very claim: whoever moved it in
 * between wins, and the difference is returned.  An entry that another session holds
 * locked is not waited for; it stays in the claim and is returned as LOCKED.
 *
 * The common outcome, PUBLISHED, is one UPDATE for all rows; the others are worked
 * out here, row by row, because each has its own wait.  Settling twice is safe: an
 * entry that already is what was asked for counts as settled.
 */
#include "acme_outbox.h"

#include "catalog/pg_type.h"
#include "entries.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "guc.h"
#include "keyorder.h"
#include "lease.h"
#include "mb/pg_wchar.h"
#include "plans.h"
#include "policy.h"
#include "settle.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

PG_FUNCTION_INFO_V1(acme_outbox_settle);

#define LANE_BUSINESS 1
#define MAX_ERROR_BYTES 1000

/* In the order of the enum's labels (sql/10_tables.sql). */
typedef enum Outcome
{
	OUTCOME_PUBLISHED, OUTCOME_REJECTED, OUTCOME_UNROUTABLE, OUTCOME_NACKED,
	OUTCOME_RELEASED, OUTCOME_ARCHIVED, OUTCOME_COUNT
} Outcome;

static const char *const outcome_names[OUTCOME_COUNT] = {
	"PUBLISHED", "REJECTED", "UNROUTABLE", "NACKED", "RELEASED", "ARCHIVED"
};

/* What a row is found to be; everything but FOUND_OURS is not settled. */
typedef enum Found
{
	FOUND_OURS,					/* PUBLISHING under this claim, and not locked */
	FOUND_MOVED,
	FOUND_GONE,
	FOUND_LOCKED
} Found;

typedef struct SettleRow
{
	int64		id;
	Outcome		outcome;
	int16		lanes;
	const char *error;
	/* as read */
	Found		found;
	const char *status;
	ItemPointerData tid;
	char	   *key;
	char	   *topic;
	int			attempts;
	int			holds;
	bool		was_failed;		/* claimed by claim_failed */
	/* what was done */
	bool		changed;
	bool		key_is_free;	/* it is out of its key's way for good */
} SettleRow;

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
	"SELECT 1 FROM acme_outbox.outbox_entry WHERE ctid = $1 AND claim_id = $2"
	" AND status = 'PUBLISHING' FOR NO KEY UPDATE SKIP LOCKED",
	2, {TIDOID, INT8OID}
};

static KeptPlan published_plan = {
	"UPDATE acme_outbox.outbox_entry SET status = 'PUBLISHED', claim_id = NULL,"
	" published_at = clock_timestamp(), lanes_done = lanes_done | $3"
	" WHERE ctid = ANY ($1) AND claim_id = $2 AND status = 'PUBLISHING' RETURNING id",
	3, {TIDARRAYOID, INT8OID, INT2OID}
};

static KeptPlan one_plan = {
	"UPDATE acme_outbox.outbox_entry SET claim_id = NULL,"
	" status = $3::text::acme_outbox.entry_status, next_attempt_at = $4,"
	" hold_reason = $5::text::acme_outbox.hold_reason, attempts = $6, holds = $7,"
	" failed_at = $8, lanes_done = lanes_done | $9,"
	" last_error = coalesce($10, last_error)"
	" WHERE ctid = $1 AND claim_id = $2 AND status = 'PUBLISHING'",
	10, {TIDOID, INT8OID, TEXTOID, TIMESTAMPTZOID, TEXTOID, INT2OID, INT2OID,
	TIMESTAMPTZOID, INT2OID, TEXTOID}
};

/* ---- reading ---- */

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

static void
read_row(EntryTable *table, TupleTableSlot *slot, int64 claim_id, SettleRow *row)
{
	bool		isnull;

	row->tid = slot->tts_tid;
	row->key = entry_string(slot, ENTRY_MESSAGE_KEY);
	row->topic = entry_string(slot, ENTRY_TOPIC);
	row->attempts = DatumGetInt16(slot_getattr(slot, ENTRY_ATTEMPTS, &isnull));
	row->holds = DatumGetInt16(slot_getattr(slot, ENTRY_HOLDS, &isnull));
	row->was_failed = !entry_is_null(slot, ENTRY_FAILED_AT);
	if (!is_ours(table, slot, claim_id))
	{
		row->found = FOUND_MOVED;
		row->status = status_name(entry_enum(slot, ENTRY_STATUS));
	}
	else if (entry_maybe_locked(slot) && !try_lock(row, claim_id))
		row->found = FOUND_LOCKED;
	else
		row->found = FOUND_OURS;
}

static void
find_rows(EntryTable *table, int64 claim_id, SettleRow *rows, int n)
{
	EntryScan	finder;
	int			i;

	entry_finder_begin(&finder, table);
	for (i = 0; i < n; i++)
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

/* ---- PUBLISHED, all at once ---- */

static int
compare_rows(const void *a, const void *b)
{
	int64		x = ((const SettleRow *) a)->id;
	int64		y = ((const SettleRow *) b)->id;

	return x < y ? -1 : x > y ? 1 : 0;
}

static bool
is_published_with(const SettleRow *row, int16 lanes)
{
	return row->found == FOUND_OURS && row->outcome == OUTCOME_PUBLISHED &&
		!row->was_failed && row->lanes == lanes;
}

static void
note_published(SettleRow *rows, int n)
{
	uint64		i;
	bool		isnull;

	for (i = 0; i < SPI_processed; i++)
	{
		SettleRow	wanted = {.id = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[i],
																SPI_tuptable->tupdesc, 1, &isnull))};
		SettleRow  *row = bsearch(&wanted, rows, n, sizeof(SettleRow), compare_rows);

		row->changed = row->key_is_free = true;
	}
}

static void
settle_published_with(int64 claim_id, SettleRow *rows, int n, int16 lanes)
{
	ItemPointerData *tids = palloc(sizeof(ItemPointerData) * n);
	Datum		args[3];
	int			count = 0;
	int			i;

	for (i = 0; i < n; i++)
		if (is_published_with(&rows[i], lanes))
			tids[count++] = rows[i].tid;
	args[0] = PointerGetDatum(tid_array(tids, count));
	args[1] = Int64GetDatum(claim_id);
	args[2] = Int16GetDatum(lanes);
	plan_run(&published_plan, args, NULL, SPI_OK_UPDATE_RETURNING);
	note_published(rows, n);
}

/* One UPDATE per value of lanes; there is hardly ever more than one. */
static void
settle_published(int64 claim_id, SettleRow *rows, int n)
{
	int			i;

	for (i = 0; i < n; i++)
		if (!rows[i].changed && is_published_with(&rows[i], rows[i].lanes))
		{
			settle_published_with(claim_id, rows, n, rows[i].lanes);
			if (!rows[i].changed)
				rows[i].found = FOUND_MOVED;
		}
}

/* ---- the other outcomes, one by one ---- */

typedef struct NewState
{
	const char *status;
	const char *reason;			/* NULL: does not wait */
	TimestampTz next_attempt_at;	/* 0: not set */
	TimestampTz failed_at;		/* 0: not set */
	int			attempts;
	int			holds;
} NewState;

static void
wait_for(NewState *state, const char *reason, TimestampTz at)
{
	state->status = "PENDING";
	state->reason = reason;
	state->next_attempt_at = at;
}

/* The message's own fault: charged (G 6.2). */
static void
state_rejected(const SettleRow *row, const Policy *policy, TimestampTz now, NewState *state)
{
	state->attempts = row->attempts + 1;
	if (state->attempts < policy->max_attempts)
	{
		wait_for(state, "RETRY", now + policy_backoff(policy->backoff_base, policy->backoff_cap,
													  state->attempts));
		return;
	}
	state->status = "FAILED";
	state->failed_at = now;
	if (policy->failed_key_policy == FAILED_KEY_BLOCK)
		state->next_attempt_at = DT_NOEND;
}

/* The topology or the queue refused it: not charged, its own count of waits. */
static void
state_held(const SettleRow *row, const char *reason, TimestampTz now, NewState *state)
{
	state->holds = Min(row->holds + 1, PG_INT16_MAX);
	wait_for(state, reason, now + policy_backoff((int64) guc_hold_backoff_base * 1000,
												 (int64) guc_hold_backoff_cap * 1000,
												 state->holds));
}

/* Claimed as FAILED: it is FAILED again, whatever happened to its copy. */
static void
state_failed_again(const SettleRow *row, const Policy *policy, TimestampTz now,
				   NewState *state)
{
	state->status = "FAILED";
	state->failed_at = now;
	state->reason = NULL;
	if (policy->failed_key_policy == FAILED_KEY_BLOCK)
		state->next_attempt_at = DT_NOEND;
	else if (row->outcome != OUTCOME_RELEASED)
	{
		state->holds = Min(row->holds + 1, PG_INT16_MAX);
		state->next_attempt_at = now + policy_backoff((int64) guc_hold_backoff_base * 1000,
													  (int64) guc_hold_backoff_cap * 1000,
													  state->holds);
	}
}

/* The one place that says what an outcome makes of an entry. */
static void
next_state(const SettleRow *row, const Policy *policy, TimestampTz now, NewState *state)
{
	state->attempts = row->attempts;
	state->holds = row->holds;
	if (row->outcome == OUTCOME_ARCHIVED)
		state->status = "ARCHIVED";
	else if (row->was_failed)
		state_failed_again(row, policy, now, state);
	else if (row->outcome == OUTCOME_REJECTED)
		state_rejected(row, policy, now, state);
	else if (row->outcome == OUTCOME_UNROUTABLE)
		state_held(row, "UNROUTABLE", now, state);
	else if (row->outcome == OUTCOME_NACKED)
		state_held(row, "NACKED", now, state);
	else
		wait_for(state, "RETRY", now);	/* RELEASED */
}

static bool
write_state(int64 claim_id, const SettleRow *row, const NewState *state)
{
	char		nulls[] = "          ";
	Datum		args[10] = {0};

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
	return plan_run(&one_plan, args, nulls, SPI_OK_UPDATE) == 1;
}

static void
settle_one(int64 claim_id, SettleRow *row, TimestampTz now)
{
	Policy		policy;
	NewState	state = {0};

	policy_of_topic(row->topic, &policy);
	next_state(row, &policy, now, &state);
	row->changed = write_state(claim_id, row, &state);
	if (!row->changed)
		row->found = FOUND_MOVED;
	row->key_is_free = row->changed && strcmp(state.status, "PENDING") != 0 &&
		state.next_attempt_at != DT_NOEND;
}

static void
settle_others(int64 claim_id, SettleRow *rows, int n)
{
	TimestampTz now = GetCurrentTimestamp();
	int			i;

	for (i = 0; i < n; i++)
		if (rows[i].found == FOUND_OURS && !rows[i].changed)
			settle_one(claim_id, &rows[i], now);
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

static void
wake_keys(EntryTable *table, const SettleRow *rows, int n)
{
	TimestampTz now = GetCurrentTimestamp();
	int			i;

	entries_take_snapshot(table);
	if (!keyorder_any_waiting(table))
		return;
	for (i = 0; i < n; i++)
		if (frees_key(&rows[i]))
			keyorder_wake(table, rows[i].key, now);
}

/* What is left of the claim: ids not mentioned, and those locked by others. */
static void
shrink_claim(int64 claim_id, ArrayType *claim_ids, const SettleRow *rows, int n)
{
	int			count;
	int64	   *ids = int64_array_values(claim_ids, &count);
	int			left = 0;
	int			i;
	Datum		args[2];

	for (i = 0; i < count; i++)
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

/* The claim row is locked by the caller; rows are sorted by id. */
static void
settle_rows(const char *origin, int64 claim_id, ArrayType *claim_ids,
			SettleRow *rows, int n)
{
	EntryTable	table;

	entries_open(&table, origin);
	entries_take_snapshot(&table);
	find_rows(&table, claim_id, rows, n);
	settle_published(claim_id, rows, n);
	settle_others(claim_id, rows, n);
	if (claim_ids != NULL)
		shrink_claim(claim_id, claim_ids, rows, n);
	wake_keys(&table, rows, n);
	entries_close(&table);
}

/* A takeover's half: everything of the claim is RELEASED. */
void
settle_release(const char *origin, int64 claim_id, ArrayType *ids)
{
	int			n;
	int64	   *values = int64_array_values(ids, &n);
	SettleRow  *rows = palloc0(sizeof(SettleRow) * Max(n, 1));
	int			i;

	for (i = 0; i < n; i++)
	{
		rows[i].id = values[i];
		rows[i].outcome = OUTCOME_RELEASED;
	}
	qsort(rows, n, sizeof(SettleRow), compare_rows);
	settle_rows(origin, claim_id, ids, rows, n);
}

/* ---- the SQL function ---- */

static void
bad_arguments(const char *problem)
{
	ereport(ERROR,
			(errcode(ERRCODE_OX_SETTLE_ARGUMENT),
			 errmsg("invalid arguments of settle"),
			 errdetail("%s", problem)));
}

static Datum *
array_elements(FunctionCallInfo fcinfo, int arg, bool **nulls, int *n)
{
	ArrayType  *array = PG_GETARG_ARRAYTYPE_P(arg);
	Datum	   *values;
	int16		len;
	bool		byval;
	char		align;

	get_typlenbyvalalign(ARR_ELEMTYPE(array), &len, &byval, &align);
	deconstruct_array(array, ARR_ELEMTYPE(array), len, byval, align, &values, nulls, n);
	return values;
}

static Outcome
parse_outcome(Datum value)
{
	char	   *name = DatumGetCString(DirectFunctionCall1(enum_out, value));
	int			i;

	for (i = 0; i < OUTCOME_COUNT; i++)
		if (strcmp(outcome_names[i], name) == 0)
			return (Outcome) i;
	elog(ERROR, "unrecognized outcome: %s", name);
}

static int16
default_lanes(Outcome outcome)
{
	return outcome == OUTCOME_PUBLISHED ? LANE_BUSINESS : 0;
}

static const char *
clip_error(Datum value)
{
	char	   *error = TextDatumGetCString(value);

	error[pg_mbcliplen(error, strlen(error), MAX_ERROR_BYTES)] = '\0';
	return error;
}

static SettleRow *
read_arguments(FunctionCallInfo fcinfo, int *n)
{
	bool	   *id_nulls, *outcome_nulls, *lane_nulls, *error_nulls;
	int			n_outcomes, n_lanes, n_errors, i;
	Datum	   *ids = array_elements(fcinfo, 2, &id_nulls, n);
	Datum	   *outcomes = array_elements(fcinfo, 3, &outcome_nulls, &n_outcomes);
	Datum	   *lanes = array_elements(fcinfo, 4, &lane_nulls, &n_lanes);
	Datum	   *errors = array_elements(fcinfo, 5, &error_nulls, &n_errors);
	SettleRow  *rows = palloc0(sizeof(SettleRow) * Max(*n, 1));

	if (n_outcomes != *n || n_lanes != *n || n_errors != *n)
		bad_arguments("The arrays differ in length.");
	for (i = 0; i < *n; i++)
	{
		if (id_nulls[i] || outcome_nulls[i])
			bad_arguments("An id or outcome is null.");
		rows[i].id = DatumGetInt64(ids[i]);
		rows[i].outcome = parse_outcome(outcomes[i]);
		rows[i].lanes = lane_nulls[i] ? default_lanes(rows[i].outcome) :
			DatumGetInt16(lanes[i]);
		rows[i].error = error_nulls[i] ? NULL : clip_error(errors[i]);
	}
	qsort(rows, *n, sizeof(SettleRow), compare_rows);
	for (i = 1; i < *n; i++)
		if (rows[i].id == rows[i - 1].id)
			bad_arguments("An id is given twice.");
	return rows;
}

/* RELEASED and the waits leave the row PENDING; the others name their status. */
static const char *
expected_status(const SettleRow *row)
{
	if (row->outcome == OUTCOME_PUBLISHED || row->outcome == OUTCOME_ARCHIVED)
		return outcome_names[row->outcome];
	return row->was_failed ? "FAILED" : "PENDING";
}

static void
report_difference(Tuplestorestate *result, TupleDesc desc, const SettleRow *row)
{
	const char *found = row->found == FOUND_LOCKED ? "LOCKED" : row->status;
	Datum		values[3];
	bool		nulls[3] = {false, false, false};

	if (row->changed || strcmp(found, expected_status(row)) == 0)
		return;
	values[0] = Int64GetDatum(row->id);
	values[1] = CStringGetTextDatum(expected_status(row));
	values[2] = CStringGetTextDatum(found);
	tuplestore_putvalues(result, desc, values, nulls);
}

/* Locks the claim; NULL when it is gone (settled before, or taken over). */
static ArrayType *
lock_claim(int64 claim_id, int64 epoch)
{
	Datum		args[] = {Int64GetDatum(claim_id), Int64GetDatum(epoch)};
	bool		isnull;

	if (plan_run(&claim_row_plan, args, NULL, SPI_OK_SELECT) == 0)
		return NULL;
	return DatumGetArrayTypeP(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc,
											1, &isnull));
}

Datum
acme_outbox_settle(PG_FUNCTION_ARGS)
{
	int64		epoch = PG_GETARG_INT64(0);
	int64		claim_id = PG_GETARG_INT64(1);
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	ArrayType  *claim_ids;
	SettleRow  *rows;
	Lease		lease;
	int			n;
	int			i;

	rows = read_arguments(fcinfo, &n);
	InitMaterializedSRF(fcinfo, 0);
	SPI_connect();
	lease_of_epoch(epoch, &lease);
	lease_check_grant(lease.origin);
	claim_ids = lock_claim(claim_id, epoch);
	settle_rows(lease.origin, claim_id, claim_ids, rows, n);
	for (i = 0; i < n; i++)
		report_difference(rsinfo->setResult, rsinfo->setDesc, &rows[i]);
	SPI_finish();
	PG_RETURN_NULL();
}
