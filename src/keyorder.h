/*
 * keyorder.h
 *		Which entries must wait for an earlier one of their key.
 */
#ifndef ACME_OUTBOX_KEYORDER_H
#define ACME_OUTBOX_KEYORDER_H

#include "entries.h"
#include "utils/hsearch.h"

#define NOTHING_BLOCKS PG_INT64_MAX

/* What one claim knows of the keys it met. */
typedef struct KeyOrder
{
	EntryTable *table;
	HTAB	   *keys;
	int64		now;			/* TimestampTz of the claim */
	bool		any_waiting;	/* the origin may have waiting keyed rows */
	bool		any_blocked;	/* keyorder_block() was called */
} KeyOrder;

typedef struct KeyState
{
	char		key[256];
	int64		barrier;		/* rows with a higher id must wait */
	int64		first_waiting;	/* lowest waiting row not taken; if probed */
	bool		probed;
	bool		run_taken;		/* the due lane has been here */
	bool		run_cut;		/* ... and stopped for lack of room */
} KeyState;

/* What the due lane may do with a waiting row. */
typedef enum WaitKind
{
	WAIT_READY,					/* due, or held only by its key */
	WAIT_NOT_DUE,				/* blocks what comes after it */
	WAIT_ASIDE					/* arrived, or not ours: blocks nobody */
} WaitKind;

extern void keyorder_begin(KeyOrder *order, EntryTable *table, int64 now);
extern KeyState *keyorder_state(KeyOrder *order, const char *key);
extern void keyorder_block(KeyOrder *order, const char *key, int64 id);
extern bool keyorder_must_wait(KeyOrder *order, const char *key, int64 id);
extern void keyorder_scan_begin(EntryScan *scan, EntryTable *table, const char *key);
extern WaitKind keyorder_classify(EntryTable *table, TupleTableSlot *slot, int64 now);
extern bool keyorder_wake(EntryTable *table, const char *key, int64 now);
extern int64 keyorder_sweep(const char *origin, int max_keys);

#endif							/* ACME_OUTBOX_KEYORDER_H */
