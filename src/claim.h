/*
 * claim.h
 *		What a claim gathers, shared by its lanes.
 */
#ifndef ACME_OUTBOX_CLAIM_H
#define ACME_OUTBOX_CLAIM_H

#include "cursor.h"
#include "entries.h"
#include "handout.h"
#include "keyorder.h"
#include "lease.h"
#include "pause.h"

typedef struct RowList
{
	ItemPointerData *tids;
	int64	   *ids;
	int			count;
	int			room;
} RowList;

/* A look for rows in the order of their time, from where there was something last time. */
typedef struct Look
{
	const char *origin;
	bool		full;			/* from the beginning of time */
	int64		began;
	int64		first;			/* time of the first row that was there */
} Look;

/* One claim under way. */
typedef struct Claim
{
	EntryTable	table;
	XidSet	   *now;			/* the snapshot S as xids */
	Paused		paused;
	Cursor		cursor;
	Cursor		start;			/* the cursor as it was read */
	bool		cursor_moved;
	bool		keys_freed;		/* something that held rows back ended unseen */
	KeyOrder	order;
	EntryScan	due;			/* where the due lane is */
	bool		due_exhausted;
	Look		due_look;
	int			rows_left;
	int64		bytes_left;
	int			holds_left;
	int			looks_left;		/* rows the fresh lane may pass over */
	RowList		taken;			/* become PUBLISHING */
	Handout		handout;		/* the same, as they are returned */
	RowList		held;			/* wait for their key */
	RowList		held_paused;	/* wait until their topic is resumed */
	RowList		skipped;		/* locked; remembered in the cursor */
} Claim;

/* What became of a row that a lane offered. */
typedef enum Offer
{
	OFFER_TAKEN,
	OFFER_HELD,
	OFFER_LOCKED,
	OFFER_NO_ROOM				/* the batch is full: stop before this row */
} Offer;

extern void row_list_init(RowList *list, int room);
extern void row_list_add(RowList *list, TupleTableSlot *slot);
extern void row_list_add_row(RowList *list, ItemPointer tid, int64 id);
extern bool row_list_contains(const RowList *list, int64 id);

extern bool claim_is_full(const Claim *claim);
extern Offer claim_offer(Claim *claim, TupleTableSlot *slot, bool must_wait);

extern void lane_skipped(Claim *claim);
extern bool lane_due_admit(Claim *claim, const char *origin);
extern void lane_due_begin(Claim *claim, const char *origin);
extern void lane_due(Claim *claim, int max_rows);
extern void lane_due_end(Claim *claim);
extern bool lane_late(Claim *claim);
extern void lane_fresh(Claim *claim);

extern void claim_mark_taken(Claim *claim, const Lease *lease, Tuplestorestate *result);
extern void claim_mark_held(Claim *claim);
extern void claim_move_cursor(Claim *claim, const Lease *lease);

#endif							/* ACME_OUTBOX_CLAIM_H */
