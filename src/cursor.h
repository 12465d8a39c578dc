/*
 * cursor.h
 *		What has been claimed of an origin so far.
 */
#ifndef ACME_OUTBOX_CURSOR_H
#define ACME_OUTBOX_CURSOR_H

#include "executor/tuptable.h"
#include "utils/snapshot.h"

/* newest rows kept per origin; claim trims every so many positions, retention what is left */
#define CURSOR_ROWS_KEPT 100

/* A pg_snapshot in C: xip is sorted. */
typedef struct XidSet
{
	uint64		xmin;
	uint64		xmax;
	int			nxip;
	uint64	   *xip;
} XidSet;

typedef struct Cursor
{
	bool		is_new;			/* the origin had none */
	bool		has_orphans;	/* entries in flight without a claim may be left ... */
	int64		orphans_to;		/* ... above this id */
	int64		position;
	int64		last_id;		/* see sql/10_tables.sql for the meanings */
	XidSet	   *seen;
	XidSet	   *pass;			/* NULL: no late pass under way */
	int64		pass_id;
	int64	   *skipped;		/* sorted by id */
	int			nskipped;
} Cursor;

extern XidSet *xid_set_current(Snapshot snapshot);
extern bool xid_set_sees(const XidSet *set, uint64 xid);

extern bool cursor_has_passed(const Cursor *cursor, TupleTableSlot *slot);
extern void cursor_read(const char *origin, const XidSet *now, Cursor *cursor);
extern void cursor_write(const char *origin, const Cursor *cursor);

#endif							/* ACME_OUTBOX_CURSOR_H */
