/*
 * cursor.c
 *		What has been claimed of an origin so far (docs/design.md 4).
 *
 * The cursor means: every row visible in `seen` with id <= last_id has been
 * claimed, or waits, or is in `skipped`.  Whole snapshots are kept, not only the
 * xids in progress: a transaction that began after the snapshot is not in that list
 * and still can hold a lower id.
 *
 * Rows are inserted, never updated, and the newest counts: under an old snapshot an
 * updated row grows a chain of versions that every claim would have to follow.
 */
#include "acme_outbox.h"

#include "access/transam.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "cursor.h"
#include "entries.h"
#include "lib/stringinfo.h"
#include "plans.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

static KeptPlan read_plan = {
	"SELECT position, last_id, seen::text, pass::text, pass_id, skipped, orphans_to"
	" FROM acme_outbox.outbox_cursor WHERE origin = $1 ORDER BY position DESC LIMIT 1",
	1, {TEXTOID}
};

static KeptPlan write_plan = {
	"INSERT INTO acme_outbox.outbox_cursor (origin, position, last_id, seen, pass, pass_id,"
	" skipped, orphans_to)"
	" VALUES ($1, $2, $3, $4::pg_snapshot, $5::pg_snapshot, $6, $7, $8)",
	8, {TEXTOID, INT8OID, INT8OID, TEXTOID, TEXTOID, INT8OID, INT8ARRAYOID, INT8OID}
};

static KeptPlan trim_plan = {
	"DELETE FROM acme_outbox.outbox_cursor WHERE origin = $1 AND position <= $2",
	2, {TEXTOID, INT8OID}
};

static int
compare_xids(const void *a, const void *b)
{
	uint64		x = *(const uint64 *) a;
	uint64		y = *(const uint64 *) b;

	return x < y ? -1 : x > y ? 1 : 0;
}

/* A 32-bit xid of the snapshot in 64 bits; it is never ahead of the next one. */
static uint64
widen(TransactionId xid, FullTransactionId next)
{
	uint32		epoch = EpochFromFullTransactionId(next);

	if (xid > XidFromFullTransactionId(next))
		epoch--;
	return ((uint64) epoch << 32) | xid;
}

/*
 * The snapshot as a set of xids.  A snapshot never lists its owner, so our own
 * transaction is added as in progress: what it publishes after this claim must be
 * found by a later one.
 */
XidSet *
xid_set_current(Snapshot snapshot)
{
	XidSet	   *set = palloc(sizeof(XidSet));
	FullTransactionId next = ReadNextFullTransactionId();
	FullTransactionId own = GetTopFullTransactionIdIfAny();
	uint32		i;

	set->xmin = widen(snapshot->xmin, next);
	set->xmax = widen(snapshot->xmax, next);
	set->xip = palloc(sizeof(uint64) * (snapshot->xcnt + 1));
	set->nxip = 0;
	for (i = 0; i < snapshot->xcnt; i++)
		set->xip[set->nxip++] = widen(snapshot->xip[i], next);
	if (FullTransactionIdIsValid(own) && U64FromFullTransactionId(own) < set->xmax)
	{
		set->xip[set->nxip++] = U64FromFullTransactionId(own);
		set->xmin = Min(set->xmin, U64FromFullTransactionId(own));
	}
	qsort(set->xip, set->nxip, sizeof(uint64), compare_xids);
	return set;
}

bool
xid_set_sees(const XidSet *set, uint64 xid)
{
	if (xid < set->xmin)
		return true;
	if (xid >= set->xmax)
		return false;
	return set->nxip == 0 ||
		bsearch(&xid, set->xip, set->nxip, sizeof(uint64), compare_xids) == NULL;
}

/* pg_snapshot's text form: xmin:xmax:xip,xip,... */
static Datum
xid_set_text(const XidSet *set)
{
	StringInfoData s;

	initStringInfo(&s);
	appendStringInfo(&s, UINT64_FORMAT ":" UINT64_FORMAT ":", set->xmin, set->xmax);
	for (int i = 0; i < set->nxip; i++)
		appendStringInfo(&s, i ? "," UINT64_FORMAT : UINT64_FORMAT, set->xip[i]);
	return CStringGetTextDatum(s.data);
}

static XidSet *
xid_set_parse(const char *s)
{
	XidSet	   *set;
	char	   *end;

	if (s == NULL)
		return NULL;
	set = palloc(sizeof(XidSet));
	set->nxip = 0;
	set->xip = palloc(sizeof(uint64) * (strlen(s) / 2 + 1));
	set->xmin = strtou64(s, &end, 10);
	set->xmax = strtou64(end + 1, &end, 10);
	while (*end != '\0' && end[1] != '\0')
		set->xip[set->nxip++] = strtou64(end + 1, &end, 10);
	return set;
}

/* No late or fresh lane will come by the row any more. */
bool
cursor_has_passed(const Cursor *cursor, TupleTableSlot *slot)
{
	return entry_int64(slot, ENTRY_ID) <= cursor->last_id &&
		xid_set_sees(cursor->seen, (uint64) entry_int64(slot, ENTRY_XID));
}

/* Before the first row: the fresh lane passes over the whole table once. */
static void
cursor_start(const XidSet *now, Cursor *cursor)
{
	cursor->is_new = cursor->has_orphans = true;
	cursor->last_id = cursor->orphans_to = PG_INT64_MIN;
	cursor->seen = (XidSet *) now;
}

void
cursor_read(const char *origin, const XidSet *now, Cursor *cursor)
{
	Datum		args[] = {CStringGetTextDatum(origin)};
	HeapTuple	row;
	TupleDesc	desc;
	bool		isnull;

	memset(cursor, 0, sizeof(*cursor));
	if (plan_run(&read_plan, args, NULL, SPI_OK_SELECT) == 0)
	{
		cursor_start(now, cursor);
		return;
	}
	row = SPI_tuptable->vals[0];
	desc = SPI_tuptable->tupdesc;
	cursor->position = DatumGetInt64(SPI_getbinval(row, desc, 1, &isnull));
	cursor->last_id = DatumGetInt64(SPI_getbinval(row, desc, 2, &isnull));
	cursor->seen = xid_set_parse(SPI_getvalue(row, desc, 3));
	cursor->pass = xid_set_parse(SPI_getvalue(row, desc, 4));
	cursor->pass_id = DatumGetInt64(SPI_getbinval(row, desc, 5, &isnull));
	cursor->skipped = int64_array_values(DatumGetArrayTypeP(SPI_getbinval(row, desc, 6, &isnull)),
										 &cursor->nskipped);
	cursor->orphans_to = DatumGetInt64(SPI_getbinval(row, desc, 7, &isnull));
	cursor->has_orphans = !isnull;
}

void
cursor_write(const char *origin, const Cursor *cursor)
{
	int64		position = cursor->position + 1;
	char		nulls[] = "        ";
	Datum		args[8];

	args[0] = CStringGetTextDatum(origin);
	args[1] = Int64GetDatum(position);
	args[2] = Int64GetDatum(cursor->last_id);
	args[3] = xid_set_text(cursor->seen);
	args[4] = cursor->pass ? xid_set_text(cursor->pass) : (Datum) 0;
	args[5] = Int64GetDatum(cursor->pass_id);
	args[6] = PointerGetDatum(int64_array(cursor->skipped, cursor->nskipped));
	if (cursor->pass == NULL)
		nulls[4] = nulls[5] = 'n';
	args[7] = Int64GetDatum(cursor->orphans_to);
	nulls[7] = cursor->has_orphans ? ' ' : 'n';
	plan_run(&write_plan, args, nulls, SPI_OK_INSERT);

	if (position % CURSOR_ROWS_KEPT == 0)
	{
		args[1] = Int64GetDatum(position - CURSOR_ROWS_KEPT);
		plan_run(&trim_plan, args, NULL, SPI_OK_DELETE);
	}
}
