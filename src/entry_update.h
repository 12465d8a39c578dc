/*
 * entry_update.h
 *		Changes many rows of outbox_entry alike.
 */
#ifndef ACME_OUTBOX_ENTRY_UPDATE_H
#define ACME_OUTBOX_ENTRY_UPDATE_H

#include "entries.h"
#include "nodes/execnodes.h"

typedef struct EntryUpdate
{
	EntryTable *table;
	TupleTableSlot *old;
	TupleTableSlot *new;
	Datum		values[ENTRY_LAST_ERROR];
	bool		nulls[ENTRY_LAST_ERROR];
	bool		changed[ENTRY_LAST_ERROR];
	/* only for a row that left its page */
	EState	   *estate;
	ResultRelInfo *target;
} EntryUpdate;

/* False: the table is not as the extension made it; let the executor do it. */
extern bool entry_update_begin(EntryUpdate *update, EntryTable *table);
extern void entry_update_set(EntryUpdate *update, AttrNumber column, Datum value);
extern void entry_update_set_null(EntryUpdate *update, AttrNumber column);

/* False: someone changed the row since the table's snapshot. */
extern bool entry_update_row(EntryUpdate *update, ItemPointer tid);
extern void entry_update_end(EntryUpdate *update);

#endif							/* ACME_OUTBOX_ENTRY_UPDATE_H */
