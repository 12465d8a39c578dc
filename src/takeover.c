/*
 * takeover.c
 *		What a relay that is gone left in flight (P 1.1, G 5.1).
 *
 * The first claims under a new epoch look for open claims of older ones.  Under
 * stale_claim_policy = reclaim their entries are released: due at once, nothing
 * charged.  Under strand they stay PUBLISHING until the reaper fails them.  Either
 * way the keys of what is still open are blocked, so that nothing overtakes it.
 *
 * A database that was restored holds entries in flight and no claims at all.  They are
 * released before anything is claimed, so that nothing of their keys overtakes them: a
 * bounded number by each claim, the cursor remembers how far.
 *
 * Settle locks the claim row before its entries, and so does this: an old relay's
 * late settle comes wholly before or finds its claim gone.
 */
#include "acme_outbox.h"

#include "catalog/pg_type.h"
#include "guc.h"
#include "plans.h"
#include "settle.h"
#include "takeover.h"
#include "access/stratnum.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"

/* orphans released, and rows looked at for them, by one claim */
#define ORPHANS_AT_ONCE 5000
#define ORPHAN_LOOKS 100000

static KeptPlan stale_plan = {
	"SELECT claim_id, ids FROM acme_outbox.outbox_claim WHERE origin = $1 AND epoch < $2"
	" ORDER BY claim_id FOR UPDATE SKIP LOCKED",
	2, {TEXTOID, INT8OID}
};

static KeptPlan left_open_plan = {
	"SELECT coalesce(array_agg(u.id), '{}') FROM acme_outbox.outbox_claim c, unnest(c.ids) AS u(id)"
	" WHERE c.origin = $1 AND c.epoch < $2",
	2, {TEXTOID, INT8OID}
};

static KeptPlan done_plan = {
	"UPDATE acme_outbox.relay_lease SET takeover_pending = false"
	" WHERE origin = $1 AND epoch = $2",
	2, {TEXTOID, INT8OID}
};

/* PUBLISHING without an open claim: only in a database restored from a dump. */
static KeptPlan orphans_plan = {
	"UPDATE ONLY acme_outbox.outbox_entry e SET claim_id = NULL,"
	" status = CASE WHEN $2 AND failed_at IS NULL THEN 'PENDING'::acme_outbox.entry_status"
	" ELSE 'FAILED'::acme_outbox.entry_status END,"
	" next_attempt_at = CASE WHEN $2 AND failed_at IS NULL THEN clock_timestamp() END,"
	" hold_reason = CASE WHEN $2 AND failed_at IS NULL THEN 'RETRY'::acme_outbox.hold_reason END,"
	" failed_at = CASE WHEN $2 THEN failed_at ELSE coalesce(failed_at, clock_timestamp()) END,"
	" last_error = CASE WHEN $2 THEN last_error"
	" ELSE 'stranded in PUBLISHING, outcome not known' END"
	" WHERE ctid = ANY ($1) AND status = 'PUBLISHING' AND NOT EXISTS"
	" (SELECT FROM acme_outbox.outbox_claim c WHERE c.claim_id = e.claim_id)",
	2, {TIDARRAYOID, BOOLOID}
};

static void
release_stale_claims(const Lease *lease, Datum *args)
{
	SPITupleTable *claims;
	bool		isnull;

	plan_run(&stale_plan, args, NULL, SPI_OK_SELECT);
	claims = SPI_tuptable;
	for (uint64 i = 0; i < claims->numvals; i++)
	{
		int64		claim_id = DatumGetInt64(SPI_getbinval(claims->vals[i], claims->tupdesc,
														   1, &isnull));
		Datum		ids = SPI_getbinval(claims->vals[i], claims->tupdesc, 2, &isnull);

		settle_release(lease->origin, claim_id, DatumGetArrayTypeP(ids));
	}
}

/* Returns the ids that are still open under older epochs; usually none. */
ArrayType *
takeover_release(const Lease *lease)
{
	Datum		args[] = {CStringGetTextDatum(lease->origin), Int64GetDatum(lease->epoch)};
	ArrayType  *left_open;
	bool		isnull;

	if (!lease->takeover_pending)
		return construct_empty_array(INT8OID);
	if (guc_stale_claim_policy == STALE_CLAIM_RECLAIM)
		release_stale_claims(lease, args);
	plan_run(&left_open_plan, args, NULL, SPI_OK_SELECT);
	left_open = DatumGetArrayTypeP(SPI_getbinval(SPI_tuptable->vals[0],
												 SPI_tuptable->tupdesc, 1, &isnull));
	if (ARR_NDIM(left_open) == 0)
		plan_run(&done_plan, args, NULL, SPI_OK_UPDATE);
	return left_open;
}

/* The next rows in flight above cursor->orphans_to; moves it, and tells when it is over. */
static int
find_orphans(EntryTable *table, Cursor *cursor, ItemPointerData *tids)
{
	EntryCondition above = {2, BTGreaterStrategyNumber, F_INT8GT,
	Int64GetDatum(cursor->orphans_to)};
	EntryScan	scan;
	int			looks = ORPHAN_LOOKS;
	int			n = 0;

	cursor->has_orphans = false;
	entry_scan_begin(&scan, table, INDEX_PKEY, &above, 1);
	while (entry_scan_next(&scan))
	{
		if (entry_enum(scan.slot, ENTRY_STATUS) == table->status_publishing)
			tids[n++] = scan.slot->tts_tid;
		cursor->orphans_to = entry_int64(scan.slot, ENTRY_ID);
		if (n == ORPHANS_AT_ONCE || --looks == 0)
		{
			cursor->has_orphans = true;
			break;
		}
	}
	entry_scan_end(&scan);
	return n;
}

/* Returns how many were released; cursor->has_orphans: there may be more. */
uint64
takeover_release_orphans(EntryTable *table, Cursor *cursor)
{
	ItemPointerData *tids = palloc(sizeof(ItemPointerData) * ORPHANS_AT_ONCE);
	int			n = find_orphans(table, cursor, tids);
	Datum		args[] = {PointerGetDatum(tid_array(tids, n)),
	BoolGetDatum(guc_stale_claim_policy == STALE_CLAIM_RECLAIM)};

	return n > 0 ? plan_run(&orphans_plan, args, NULL, SPI_OK_UPDATE) : 0;
}

void
takeover_block_keys(KeyOrder *order, const ArrayType *left_open)
{
	int			n;
	int64	   *ids = int64_array_values((ArrayType *) left_open, &n);
	EntryScan	finder;

	if (n == 0)
		return;
	entry_finder_begin(&finder, order->table);
	for (int i = 0; i < n; i++)
		if (entry_find(&finder, ids[i]) &&
			entry_enum(finder.slot, ENTRY_STATUS) == order->table->status_publishing &&
			!entry_has_arrived(finder.slot))
			keyorder_block(order, entry_string(finder.slot, ENTRY_MESSAGE_KEY), PG_INT64_MIN);
	entry_scan_end(&finder);
}
