/*
 * entry_update.c
 *		Changes many rows of outbox_entry alike: the two updates of every entry's life.
 *
 * Claim marks a batch PUBLISHING, settle marks it PUBLISHED.  Both have just read
 * the rows under a snapshot that is still registered, so the version at that ctid
 * is there, and is what was read; the update itself tells if it is not the newest
 * any more.  What the executor would add is a second and a third reading of each
 * row and the projection of all its columns, as much again as the update.
 *
 * The triggers of the extension are for changes by hand: their conditions are
 * false for these two.  If an administrator gave the table a trigger, a rule, a
 * policy, a check, a column or a NOT NULL, the caller's kept plan does it instead.
 */
#include "acme_outbox.h"

#include "access/htup_details.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_trigger.h"
#include "compat.h"
#include "entry_update.h"
#include "executor/executor.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

bool
entry_update_begin(EntryUpdate *update, EntryTable *table)
{
	if (!entries_plain(table->heap, TRIGGER_TYPE_UPDATE))
		return false;
	/* subscribers must be able to tell which row it is */
	CheckCmdReplicaIdentity(table->heap, CMD_UPDATE);
	MemSet(update, 0, sizeof(*update));
	update->table = table;
	update->old = table_slot_create(table->heap, NULL);
	update->new = MakeSingleTupleTableSlot(RelationGetDescr(table->heap), &TTSOpsHeapTuple);
	return true;
}

void
entry_update_set(EntryUpdate *update, AttrNumber column, Datum value)
{
	update->values[column - 1] = value;
	update->nulls[column - 1] = false;
	update->changed[column - 1] = true;
}

void
entry_update_set_null(EntryUpdate *update, AttrNumber column)
{
	update->nulls[column - 1] = true;
	update->changed[column - 1] = true;
}

/* Only a row that found no room in its page needs new index entries. */
static void
add_index_entries(EntryUpdate *update)
{
	if (update->estate == NULL)
	{
		update->estate = CreateExecutorState();
		update->target = makeNode(ResultRelInfo);
		InitResultRelInfo(update->target, update->table->heap, 0, NULL, 0);
		ExecOpenIndices(update->target, false);
	}
	compat_insert_index_tuples(update->target, update->new, update->estate);
	ResetPerTupleExprContext(update->estate);
}

bool
entry_update_row(EntryUpdate *update, ItemPointer tid)
{
	Relation	heap = update->table->heap;
	TM_FailureData failure;
	LockTupleMode lock_mode;
	TM_Result	result;
	bool		left_page;

	if (!table_tuple_fetch_row_version(heap, tid, SnapshotAny, update->old))
		return false;
	ExecStoreHeapTuple(heap_modify_tuple(ExecFetchSlotHeapTuple(update->old, false, NULL),
										 RelationGetDescr(heap), update->values,
										 update->nulls, update->changed),
					   update->new, true);
	result = table_tuple_update(heap, tid, update->new, GetCurrentCommandId(true),
								update->table->snapshot, InvalidSnapshot, true,
								&failure, &lock_mode, &left_page);
	ExecClearTuple(update->old);
	if (result != TM_Ok)
		return false;
	if (left_page)
		add_index_entries(update);
	ExecClearTuple(update->new);
	return true;
}

void
entry_update_end(EntryUpdate *update)
{
	if (update->estate != NULL)
	{
		ExecCloseIndices(update->target);
		FreeExecutorState(update->estate);
	}
	ExecDropSingleTupleTableSlot(update->old);
	ExecDropSingleTupleTableSlot(update->new);
	CommandCounterIncrement();
}
