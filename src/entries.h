/*
 * entries.h
 *		Reads outbox_entry by named index, without asking the planner.
 */
#ifndef ACME_OUTBOX_ENTRIES_H
#define ACME_OUTBOX_ENTRIES_H

#include "access/genam.h"
#include "access/skey.h"
#include "executor/tuptable.h"
#include "utils/relcache.h"
#include "utils/array.h"
#include "utils/snapshot.h"

/* columns of outbox_entry, in table order (sql/10_tables.sql) */
enum
{
	ENTRY_XID = 1, ENTRY_ID, ENTRY_CLAIM_ID, ENTRY_PUBLISHED_AT,
	ENTRY_NEXT_ATTEMPT_AT, ENTRY_FAILED_AT, ENTRY_CREATED_AT, ENTRY_EVENT_ID,
	ENTRY_STATUS, ENTRY_HOLD_REASON, ENTRY_TYPE, ENTRY_ATTEMPTS, ENTRY_HOLDS,
	ENTRY_LANES_DONE, ENTRY_REDACTED, ENTRY_ORIGIN, ENTRY_TOPIC, ENTRY_ROUTING_KEY,
	ENTRY_MESSAGE_KEY, ENTRY_EVENT_NAME, ENTRY_TENANT_ID, ENTRY_TRACE_ID,
	ENTRY_TRACEPARENT, ENTRY_HEADERS, ENTRY_PAYLOAD, ENTRY_PAYLOAD_HASH,
	ENTRY_LAST_ERROR
};

#define INDEX_PKEY "outbox_entry_pkey"			/* origin, id */
#define INDEX_XID "outbox_entry_xid"			/* origin, xid, id */
#define INDEX_DUE "outbox_entry_due"			/* origin, next_attempt_at */
#define INDEX_WAITING_KEY "outbox_entry_waiting_key"	/* origin, message_key, id */
#define INDEX_SCHEDULED "outbox_entry_scheduled" /* origin, next_attempt_at */
#define INDEX_FAILED "outbox_entry_failed"		/* origin, failed_at */

/* The table, one origin of it, one snapshot. */
typedef struct EntryTable
{
	Relation	heap;
	Datum		origin;			/* text */
	Snapshot	snapshot;
	/* enum values by OID */
	Oid			status_pending;
	Oid			status_publishing;
	Oid			status_published;
	Oid			status_failed;
	Oid			hold_key;
	Oid			hold_scheduled;
	Oid			hold_paused;
} EntryTable;

/* column of the index, operator, value; the origin's equality is implied */
typedef struct EntryCondition
{
	AttrNumber	column;
	StrategyNumber strategy;
	RegProcedure procedure;
	Datum		value;
} EntryCondition;

typedef struct EntryScan
{
	EntryTable *table;
	Relation	index;
	IndexScanDesc desc;
	TupleTableSlot *slot;
	/* of a finder: what it looked for last, and the row in the slot, if any */
	int64		sought;
	int64		at;
	bool		positioned;
} EntryScan;

extern Oid	entries_relation(const char *name);
extern Oid	entries_enum_value(const char *type_name, const char *label);
extern bool entries_plain(Relation heap, int16 event);
extern void entries_open(EntryTable *table, const char *origin);
extern void entries_take_snapshot(EntryTable *table);
extern void entries_close(EntryTable *table);

extern void entry_scan_begin(EntryScan *scan, EntryTable *table,
							 const char *index_name,
							 const EntryCondition *conditions, int n);
extern bool entry_scan_next(EntryScan *scan);
extern bool entry_scan_next_within(EntryScan *scan, int *looks);
extern void entry_scan_end(EntryScan *scan);

extern void entry_finder_begin(EntryScan *finder, EntryTable *table);
extern bool entry_find(EntryScan *finder, int64 id);

extern int64 entry_int64(TupleTableSlot *slot, AttrNumber column);
extern int16 entry_int16(TupleTableSlot *slot, AttrNumber column);
extern Oid	entry_enum(TupleTableSlot *slot, AttrNumber column);
extern bool entry_is_null(TupleTableSlot *slot, AttrNumber column);
extern char *entry_string(TupleTableSlot *slot, AttrNumber column);
extern Size entry_bytes(TupleTableSlot *slot);
extern bool entry_maybe_locked(TupleTableSlot *slot);
extern bool entry_has_arrived(TupleTableSlot *slot);

extern ArrayType *tid_array(const ItemPointerData *tids, int n);
extern ArrayType *int64_array(const int64 *values, int n);
extern int64 *int64_array_values(ArrayType *array, int *n);
extern int	int64_compare(const void *a, const void *b);

#endif							/* ACME_OUTBOX_ENTRIES_H */
