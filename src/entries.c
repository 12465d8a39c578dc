/*
 * entries.c
 *		Reads outbox_entry by named index, without asking the planner.
 *
 * What to scan, and in which order, is decided here and not by statistics: the
 * claim must cost the same on the first day and after a bad ANALYZE.  Scans only
 * read; every change addresses rows by ctid (entry_update.c, or a kept plan).  All
 * scans of one EntryTable share one registered snapshot.
 */
#include "acme_outbox.h"

#include "access/detoast.h"
#include "access/htup_details.h"
#include "access/relscan.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_am.h"
#include "catalog/pg_enum.h"
#include "catalog/pg_index.h"
#include "catalog/pg_type.h"
#include "entries.h"
#include "miscadmin.h"
#include "rewrite/prs2lock.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#define MAX_CONDITIONS 4

/* a finder steps over so many ids before it descends anew */
#define FINDER_STEPS 8

/* what a claimed row costs in the relay besides its payload */
#define ENTRY_OVERHEAD_BYTES 256

#define MAX_KEYS 3

/* The indexes that are read, as sql/10_tables.sql makes them. */
typedef struct OwnIndex
{
	const char *name;
	bool		partial;
	int			nkeys;
	AttrNumber	keys[MAX_KEYS];
} OwnIndex;

static const OwnIndex own_indexes[] = {
	{INDEX_PKEY, false, 2, {ENTRY_ORIGIN, ENTRY_ID}},
	{INDEX_XID, false, 3, {ENTRY_ORIGIN, ENTRY_XID, ENTRY_ID}},
	{INDEX_DUE, true, 2, {ENTRY_ORIGIN, ENTRY_NEXT_ATTEMPT_AT}},
	{INDEX_WAITING_KEY, true, 3, {ENTRY_ORIGIN, ENTRY_MESSAGE_KEY, ENTRY_ID}},
	{INDEX_SCHEDULED, true, 2, {ENTRY_ORIGIN, ENTRY_NEXT_ATTEMPT_AT}},
	{INDEX_FAILED, true, 2, {ENTRY_ORIGIN, ENTRY_FAILED_AT}},
};

Oid
entries_relation(const char *name)
{
	Oid			schema = get_namespace_oid(ACME_OUTBOX_SCHEMA, false);
	Oid			oid = get_relname_relid(name, schema);

	if (!OidIsValid(oid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation \"" ACME_OUTBOX_SCHEMA ".%s\" does not exist", name),
				 errhint("Restore it as CREATE EXTENSION acme_outbox makes it.")));
	return oid;
}

Oid
entries_enum_value(const char *type_name, const char *label)
{
	Oid			schema = get_namespace_oid(ACME_OUTBOX_SCHEMA, false);
	Oid			type = GetSysCacheOid2(TYPENAMENSP, Anum_pg_type_oid,
									   CStringGetDatum(type_name),
									   ObjectIdGetDatum(schema));
	Oid			value = GetSysCacheOid2(ENUMTYPOIDNAME, Anum_pg_enum_oid,
										ObjectIdGetDatum(type),
										CStringGetDatum(label));

	if (!OidIsValid(value))
		elog(ERROR, "enum value %s.%s does not exist", type_name, label);
	return value;
}

static bool
is_own(const Trigger *trigger)
{
	/* sql/30_triggers.sql; for changes by hand, false for what the extension does */
	static const char *const own[] = {
		"entry_requeued", "entry_given_up", "entry_over", "entry_finished", "entry_deleted"
	};

	for (int i = 0; i < lengthof(own); i++)
		if (strcmp(trigger->tgname, own[i]) == 0)
			return true;
	return false;
}

/* A column that the extension leaves null at times must not be. */
static bool
demands_value(TupleDesc desc)
{
	static const AttrNumber may_be_null[] = {
		ENTRY_CLAIM_ID, ENTRY_PUBLISHED_AT, ENTRY_NEXT_ATTEMPT_AT, ENTRY_FAILED_AT,
		ENTRY_HOLD_REASON, ENTRY_ROUTING_KEY, ENTRY_MESSAGE_KEY, ENTRY_TENANT_ID,
		ENTRY_TRACEPARENT, ENTRY_HEADERS, ENTRY_PAYLOAD_HASH, ENTRY_LAST_ERROR
	};

	for (int i = 0; i < lengthof(may_be_null); i++)
		if (TupleDescAttr(desc, may_be_null[i] - 1)->attnotnull)
			return true;
	return false;
}

/*
 * Is the table as the extension made it, so that a change of this kind
 * (TRIGGER_TYPE_...) needs nothing of the executor?  Not if an administrator gave it
 * a trigger, a rule, a policy, a check, a column or a NOT NULL, or made it a partition.
 */
bool
entries_plain(Relation heap, int16 event)
{
	const TupleConstr *constraints = RelationGetDescr(heap)->constr;
	const TriggerDesc *triggers = heap->trigdesc;

	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
		if ((triggers->triggers[i].tgtype & event) != 0 && !is_own(&triggers->triggers[i]))
			return false;
	return heap->rd_rel->relkind == RELKIND_RELATION && !heap->rd_rel->relispartition &&
		RelationGetNumberOfAttributes(heap) == ENTRY_LAST_ERROR &&
		!demands_value(RelationGetDescr(heap)) &&
		!heap->rd_rel->relrowsecurity && heap->rd_rules == NULL &&
		(constraints == NULL || constraints->num_check == 0);
}

void
entries_open(EntryTable *table, const char *origin)
{
	table->heap = table_open(entries_relation("outbox_entry"), RowExclusiveLock);
	table->origin = CStringGetTextDatum(origin);
	table->snapshot = NULL;
	table->status_pending = entries_enum_value("entry_status", "PENDING");
	table->status_publishing = entries_enum_value("entry_status", "PUBLISHING");
	table->status_published = entries_enum_value("entry_status", "PUBLISHED");
	table->status_failed = entries_enum_value("entry_status", "FAILED");
	table->hold_key = entries_enum_value("hold_reason", "KEY");
	table->hold_scheduled = entries_enum_value("hold_reason", "SCHEDULED");
	table->hold_paused = entries_enum_value("hold_reason", "PAUSED");
}

/* A new snapshot that also sees what this transaction did so far. */
void
entries_take_snapshot(EntryTable *table)
{
	if (table->snapshot != NULL)
		UnregisterSnapshot(table->snapshot);
	CommandCounterIncrement();
	table->snapshot = RegisterSnapshot(GetLatestSnapshot());
}

void
entries_close(EntryTable *table)
{
	if (table->snapshot != NULL)
		UnregisterSnapshot(table->snapshot);
	table->snapshot = NULL;
	table_close(table->heap, NoLock);
}

static void
init_key(ScanKey key, Relation index, const EntryCondition *condition)
{
	ScanKeyEntryInitialize(key, 0, condition->column, condition->strategy,
						   InvalidOid,
						   index->rd_indcollation[condition->column - 1],
						   condition->procedure, condition->value);
}

static bool
is_as_made(Relation index, Relation heap)
{
	Form_pg_index form = index->rd_index;
	const OwnIndex *own = own_indexes;

	while (strcmp(own->name, RelationGetRelationName(index)) != 0)
		own++;
	return form->indrelid == RelationGetRelid(heap) &&
		index->rd_rel->relam == BTREE_AM_OID && form->indnkeyatts == own->nkeys &&
		memcmp(form->indkey.values, own->keys, sizeof(AttrNumber) * own->nkeys) == 0 &&
		own->partial != heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL);
}

/*
 * An index that lacks entries, or has others, would hide rows from the lanes for ever.  The
 * planner would not take it either.
 */
static void
check_index(Relation index, Relation heap)
{
	if (!index->rd_index->indisvalid)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("index \"%s\" is not valid", RelationGetRelationName(index)),
				 errdetail("It is being built, or that failed; entries may be missing in it."),
				 errhint("If nobody is building it: REINDEX INDEX " ACME_OUTBOX_SCHEMA ".%s",
						 RelationGetRelationName(index))));
	if (!is_as_made(index, heap))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("index \"%s\" is not the extension's", RelationGetRelationName(index)),
				 errdetail("Its table, columns or predicate are others."),
				 errhint("Restore it as CREATE EXTENSION acme_outbox makes it.")));
}

/* REINDEX CONCURRENTLY may give the name to another index at any moment. */
static Relation
open_index(EntryTable *table, const char *name)
{
	for (;;)
	{
		Relation	index = index_open(entries_relation(name), AccessShareLock);

		if (strcmp(RelationGetRelationName(index), name) == 0)
		{
			check_index(index, table->heap);
			return index;
		}
		index_close(index, AccessShareLock);
	}
}

static void
open_scan(EntryScan *scan, EntryTable *table, const char *index_name, int nkeys)
{
	scan->table = table;
	scan->index = open_index(table, index_name);
	scan->slot = table_slot_create(table->heap, NULL);
	scan->desc = index_beginscan(table->heap, scan->index, table->snapshot, nkeys, 0);
}

static void
start_scan(EntryScan *scan, const EntryCondition *conditions, int n)
{
	EntryCondition of_origin = {1, BTEqualStrategyNumber, F_TEXTEQ, scan->table->origin};
	ScanKeyData keys[MAX_CONDITIONS + 1];

	Assert(n <= MAX_CONDITIONS);
	init_key(&keys[0], scan->index, &of_origin);
	for (int i = 0; i < n; i++)
		init_key(&keys[i + 1], scan->index, &conditions[i]);
	index_rescan(scan->desc, keys, n + 1, NULL, 0);
}

void
entry_scan_begin(EntryScan *scan, EntryTable *table, const char *index_name,
				 const EntryCondition *conditions, int n)
{
	open_scan(scan, table, index_name, n + 1);
	start_scan(scan, conditions, n);
}

bool
entry_scan_next(EntryScan *scan)
{
	CHECK_FOR_INTERRUPTS();
	return index_getnext_slot(scan->desc, ForwardScanDirection, scan->slot);
}

/*
 * The same over at most *looks entries of the index, which counts those of dead rows too:
 * under an old snapshot they are all that is there, and stay.  *looks is negative when it
 * gave up before the end.
 */
bool
entry_scan_next_within(EntryScan *scan, int *looks)
{
	CHECK_FOR_INTERRUPTS();
	while ((*looks)-- > 0)
	{
		if (index_getnext_tid(scan->desc, ForwardScanDirection) == NULL)
		{
			*looks = 0;
			return false;
		}
		if (index_fetch_heap(scan->desc, scan->slot))
			return true;
	}
	return false;
}

void
entry_scan_end(EntryScan *scan)
{
	index_endscan(scan->desc);
	ExecDropSingleTupleTableSlot(scan->slot);
	index_close(scan->index, AccessShareLock);
}

/*
 * For many look-ups by id, best in ascending order.  The ids of a claim are nearly
 * contiguous, so the next row of the scan mostly is the next one wanted; only a gap
 * is worth a new descent of the index.
 */
void
entry_finder_begin(EntryScan *finder, EntryTable *table)
{
	open_scan(finder, table, INDEX_PKEY, 2);
	finder->positioned = false;
}

/* Goes forward to the first row at or after the id; true if it is the id's. */
static bool
advance_to(EntryScan *finder, int64 id)
{
	finder->sought = id;
	while (entry_scan_next(finder))
	{
		finder->positioned = true;
		finder->at = entry_int64(finder->slot, ENTRY_ID);
		if (finder->at >= id)
			return finder->at == id;
	}
	finder->positioned = false;
	return false;
}

/* The row is in finder->slot until the next look-up or entry_scan_end. */
bool
entry_find(EntryScan *finder, int64 id)
{
	EntryCondition from_id = {2, BTGreaterEqualStrategyNumber, F_INT8GE, Int64GetDatum(id)};

	if (finder->positioned && id == finder->at)
		return true;
	if (finder->positioned && id > finder->sought && id < finder->at)
		return false;
	if (!(finder->positioned && id > finder->at && id - finder->at <= FINDER_STEPS))
		start_scan(finder, &from_id, 1);
	return advance_to(finder, id);
}

int64
entry_int64(TupleTableSlot *slot, AttrNumber column)
{
	bool		isnull;

	return DatumGetInt64(slot_getattr(slot, column, &isnull));
}

int16
entry_int16(TupleTableSlot *slot, AttrNumber column)
{
	bool		isnull;

	return DatumGetInt16(slot_getattr(slot, column, &isnull));
}

Oid
entry_enum(TupleTableSlot *slot, AttrNumber column)
{
	bool		isnull;
	Datum		value = slot_getattr(slot, column, &isnull);

	return isnull ? InvalidOid : DatumGetObjectId(value);
}

bool
entry_is_null(TupleTableSlot *slot, AttrNumber column)
{
	bool		isnull;

	(void) slot_getattr(slot, column, &isnull);
	return isnull;
}

char *
entry_string(TupleTableSlot *slot, AttrNumber column)
{
	bool		isnull;
	Datum		value = slot_getattr(slot, column, &isnull);

	return isnull ? NULL : TextDatumGetCString(value);
}

/* The row's size in the relay, without reading a payload that is stored apart. */
Size
entry_bytes(TupleTableSlot *slot)
{
	bool		isnull;
	Datum		payload = slot_getattr(slot, ENTRY_PAYLOAD, &isnull);

	return toast_raw_datum_size(payload) + ENTRY_OVERHEAD_BYTES;
}

/*
 * Nobody has locked or replaced the row, as far as its header tells without a look
 * at the transaction: false is certain at this moment, true needs a real attempt.
 */
bool
entry_maybe_locked(TupleTableSlot *slot)
{
	HeapTuple	tuple = ExecFetchSlotHeapTuple(slot, false, NULL);

	return (tuple->t_data->t_infomask & HEAP_XMAX_INVALID) == 0;
}

/*
 * The business lane has it, only another lane is missing: for its key's order it is over.
 */
bool
entry_has_arrived(TupleTableSlot *slot)
{
	return (entry_int16(slot, ENTRY_LANES_DONE) & LANE_BUSINESS) != 0;
}

ArrayType *
tid_array(const ItemPointerData *tids, int n)
{
	Datum	   *values = palloc(sizeof(Datum) * Max(n, 1));

	for (int i = 0; i < n; i++)
		values[i] = PointerGetDatum(&tids[i]);
	return construct_array(values, n, TIDOID, sizeof(ItemPointerData), false,
						   TYPALIGN_SHORT);
}

ArrayType *
int64_array(const int64 *values, int n)
{
	Datum	   *datums = palloc(sizeof(Datum) * Max(n, 1));

	for (int i = 0; i < n; i++)
		datums[i] = Int64GetDatum(values[i]);
	return construct_array(datums, n, INT8OID, sizeof(int64), FLOAT8PASSBYVAL,
						   TYPALIGN_DOUBLE);
}

/* Its elements as C values; nulls are not expected by any caller. */
int64 *
int64_array_values(ArrayType *array, int *n)
{
	Datum	   *datums;
	bool	   *nulls;
	int64	   *values;

	deconstruct_array(array, INT8OID, sizeof(int64), FLOAT8PASSBYVAL,
					  TYPALIGN_DOUBLE, &datums, &nulls, n);
	values = palloc(sizeof(int64) * Max(*n, 1));
	for (int i = 0; i < *n; i++)
	{
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("array of ids must not contain nulls")));
		values[i] = DatumGetInt64(datums[i]);
	}
	return values;
}

/* For qsort and bsearch. */
int
int64_compare(const void *a, const void *b)
{
	int64		x = *(const int64 *) a;
	int64		y = *(const int64 *) b;

	return x < y ? -1 : x > y ? 1 : 0;
}
