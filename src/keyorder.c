/*
 * keyorder.c
 *		Which entries must wait for an earlier one of their key (docs/design.md 4.2).
 *
 * The index outbox_entry_waiting_key holds just the waiting rows, by key and id; what is
 * scheduled for later is not in it.
 * A row must wait while a row of its key with a lower id waits and is not taken by the
 * same claim, is locked by someone, or is in flight under another epoch.
 *
 * Every held row has such a cause, and whoever ends a cause for good wakes the
 * key: its lowest waiting row, if held only by its key, becomes due.  The claim's due
 * lane then takes the whole run that follows, so one update wakes any number of rows.
 * A wake that met a locked row, or was lost otherwise, is made up for by a sweep, which
 * the reaper and an idle claim do now and then.
 *
 * On the normal path no row waits, and none of this costs more than one look into an
 * empty index per claim.  Where another session's old snapshot keeps the entries of rows
 * that waited, it costs a look per key.
 */
#include "acme_outbox.h"

#include "access/stratnum.h"
#include "catalog/pg_type.h"
#include "keyorder.h"
#include "plans.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/timestamp.h"

/* index entries looked at to find out whether anything waits */
#define WAITING_LOOKS 100

static KeptPlan wake_plan = {
	"UPDATE ONLY acme_outbox.outbox_entry SET next_attempt_at = $2"
	" WHERE ctid = ANY (ARRAY(SELECT ctid FROM ONLY acme_outbox.outbox_entry WHERE ctid = $1"
	" AND status = 'PENDING' AND hold_reason = 'KEY' FOR NO KEY UPDATE SKIP LOCKED))",
	2, {TIDOID, TIMESTAMPTZOID}
};

/*
 * May keyed rows of the origin wait? (message_key > '' excludes NULL keys)  A bounded look:
 * among many entries of dead rows it stays undecided, and each key is asked for itself.
 */
static bool
may_wait(EntryTable *table)
{
	EntryCondition keyed = {2, BTGreaterStrategyNumber, F_TEXT_GT,
	CStringGetTextDatum("")};
	EntryScan	scan;
	int			looks = WAITING_LOOKS;
	bool		found;

	entry_scan_begin(&scan, table, INDEX_WAITING_KEY, &keyed, 1);
	found = entry_scan_next_within(&scan, &looks);
	entry_scan_end(&scan);
	return found || looks < 0;
}

void
keyorder_begin(KeyOrder *order, EntryTable *table, int64 now)
{
	HASHCTL		ctl = {0};

	ctl.keysize = sizeof(((KeyState *) 0)->key);
	ctl.entrysize = sizeof(KeyState);
	ctl.hcxt = CurrentMemoryContext;
	order->table = table;
	order->now = now;
	order->keys = hash_create("acme_outbox keys", 256, &ctl,
							  HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
	order->any_waiting = may_wait(table);
	order->any_blocked = false;
}

KeyState *
keyorder_state(KeyOrder *order, const char *key)
{
	bool		found;
	KeyState   *state = hash_search(order->keys, key, HASH_ENTER, &found);

	if (!found)
	{
		state->barrier = NOTHING_BLOCKS;
		state->first_waiting = NOTHING_BLOCKS;
		state->probed = state->run_taken = state->run_cut = false;
	}
	return state;
}

/* Rows of the key after id must wait: that row is locked or in flight elsewhere. */
void
keyorder_block(KeyOrder *order, const char *key, int64 id)
{
	KeyState   *state;

	if (key == NULL)
		return;
	state = keyorder_state(order, key);
	state->barrier = Min(state->barrier, id);
	order->any_blocked = true;
}

void
keyorder_scan_begin(EntryScan *scan, EntryTable *table, const char *key)
{
	EntryCondition of_key = {2, BTEqualStrategyNumber, F_TEXTEQ,
	CStringGetTextDatum(key)};

	entry_scan_begin(scan, table, INDEX_WAITING_KEY, &of_key, 1);
}

WaitKind
keyorder_classify(EntryTable *table, TupleTableSlot *slot, int64 now)
{
	Oid			status = entry_enum(slot, ENTRY_STATUS);
	Oid			reason = entry_enum(slot, ENTRY_HOLD_REASON);
	int64		due = entry_int64(slot, ENTRY_NEXT_ATTEMPT_AT);

	if (entry_has_arrived(slot))
		return WAIT_ASIDE;

	/*
	 * FAILED under failed_key_policy = block stays here until it is resolved, also
	 * while it is claimed for a copy; a held row given up by hand, without
	 * failed_at, does not.
	 */
	if ((status == table->status_failed || status == table->status_publishing) &&
		due == DT_NOEND && !entry_is_null(slot, ENTRY_FAILED_AT))
		return WAIT_NOT_DUE;
	if (status != table->status_pending)
		return WAIT_ASIDE;
	if (due <= now || (due == DT_NOEND && reason == table->hold_key))
		return WAIT_READY;
	return WAIT_NOT_DUE;
}

static void
probe(KeyOrder *order, KeyState *state)
{
	EntryScan	scan;

	keyorder_scan_begin(&scan, order->table, state->key);
	while (entry_scan_next(&scan))
	{
		if (keyorder_classify(order->table, scan.slot, order->now) == WAIT_ASIDE)
			continue;
		state->first_waiting = entry_int64(scan.slot, ENTRY_ID);
		break;
	}
	entry_scan_end(&scan);
	state->probed = true;
}

/* For rows that do not wait yet: the skipped, late and fresh lanes. */
bool
keyorder_must_wait(KeyOrder *order, const char *key, int64 id)
{
	KeyState   *state;

	if (key == NULL || !(order->any_waiting || order->any_blocked))
		return false;
	state = keyorder_state(order, key);
	if (order->any_waiting && !state->probed)
		probe(order, state);
	return id > state->barrier || id > state->first_waiting;
}

/*
 * A row of the key is out of the way for good: lets the lowest waiting one go, if
 * only its key holds it.  Inside an SPI connection; true if a row was woken.
 */
bool
keyorder_wake(EntryTable *table, const char *key, int64 now)
{
	EntryScan	scan;
	ItemPointerData tid;
	bool		held = false;

	keyorder_scan_begin(&scan, table, key);
	while (entry_scan_next(&scan))
	{
		WaitKind	kind = keyorder_classify(table, scan.slot, now);

		if (kind == WAIT_ASIDE)
			continue;
		held = kind == WAIT_READY &&
			entry_int64(scan.slot, ENTRY_NEXT_ATTEMPT_AT) == DT_NOEND;
		tid = scan.slot->tts_tid;
		break;
	}
	entry_scan_end(&scan);

	if (held)
	{
		Datum		args[] = {PointerGetDatum(&tid), TimestampTzGetDatum(now)};

		return plan_run(&wake_plan, args, NULL, SPI_OK_UPDATE) == 1;
	}
	return false;
}

/*
 * Lowest waiting row of each key that holds rows back ($1 origin, at most $2 rows),
 * where that row is held only by its key and no row of the key is in flight or skipped:
 * due.  Starts from the held rows, a bounded number of them.
 */
static KeptPlan sweep_plan = {
	"WITH waiting (key) AS MATERIALIZED ("
	" SELECT DISTINCT h.message_key FROM ("
	" SELECT e.message_key FROM ONLY acme_outbox.outbox_entry e"
	" WHERE e.origin = $1 AND e.next_attempt_at = 'infinity'"
	" AND e.hold_reason IS DISTINCT FROM 'SCHEDULED'"
	" AND e.status = 'PENDING' AND e.hold_reason = 'KEY' LIMIT 10000) h),"
	" busy_key (key) AS MATERIALIZED ("
	" SELECT e.message_key FROM ONLY acme_outbox.outbox_entry e WHERE e.origin = $1"
	" AND e.id = ANY (ARRAY("
	" SELECT unnest(c.ids) FROM acme_outbox.outbox_claim c WHERE c.origin = $1"
	" UNION ALL SELECT unnest(s.skipped) FROM ("
	" SELECT u.skipped FROM acme_outbox.outbox_cursor u WHERE u.origin = $1"
	" ORDER BY u.origin DESC, u.position DESC LIMIT 1) s))"
	" AND e.message_key IS NOT NULL AND e.lanes_done & 1 = 0 AND (e.status = 'PUBLISHING'"
	" OR e.status = 'PENDING' AND e.next_attempt_at IS NULL)),"
	" first AS ("
	" SELECT f.* FROM waiting w CROSS JOIN LATERAL ("
	" SELECT e.ctid AS tid, e.status, e.hold_reason, e.next_attempt_at"
	" FROM ONLY acme_outbox.outbox_entry e"
	" WHERE e.origin = $1 AND e.message_key = w.key AND e.next_attempt_at IS NOT NULL"
	" AND (e.status = 'PENDING'"
	" OR e.status = 'FAILED' AND e.next_attempt_at = 'infinity' AND e.failed_at IS NOT NULL)"
	" AND e.hold_reason IS DISTINCT FROM 'SCHEDULED' AND e.lanes_done & 1 = 0"
	" ORDER BY e.origin, e.message_key, e.id LIMIT 1) f"
	" WHERE w.key NOT IN (SELECT b.key FROM busy_key b))"
	" UPDATE ONLY acme_outbox.outbox_entry SET next_attempt_at = clock_timestamp()"
	" WHERE ctid = ANY (ARRAY("
	" SELECT r.ctid FROM ONLY acme_outbox.outbox_entry r"
	" WHERE r.ctid = ANY (ARRAY("
	" SELECT f.tid FROM first f WHERE f.status = 'PENDING' AND f.hold_reason = 'KEY'"
	" AND f.next_attempt_at = 'infinity' LIMIT $2))"
	" AND r.status = 'PENDING' AND r.hold_reason = 'KEY' AND r.next_attempt_at = 'infinity'"
	" FOR NO KEY UPDATE SKIP LOCKED))",
	2, {TEXTOID, INT4OID}
};

/*
 * keyorder_sweep
 *		The safety net under all wakes: returns how many keys it woke, max_keys at most.
 *		Inside an SPI connection.
 */
int64
keyorder_sweep(const char *origin, int max_keys)
{
	Datum		args[] = {CStringGetTextDatum(origin), Int32GetDatum(max_keys)};

	return plan_run(&sweep_plan, args, NULL, SPI_OK_UPDATE);
}
