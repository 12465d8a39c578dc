/*
 * pause.c
 *		What an operator has paused of an origin.
 *
 * Where the whole origin is paused, a claim hands out nothing.  Of a paused topic it
 * marks the entries it meets PAUSED, without a time: they block their keys as any waiting
 * entry does, and cost nothing more.
 *
 * resume() only notes that the topic is resumed.  The marked entries are let go by the
 * claims that follow, so many by each; claims of an origin take turns, so none is marked
 * behind the back of the one that finds no more and removes the note.
 */
#include "acme_outbox.h"

#include "access/stratnum.h"
#include "catalog/pg_type.h"
#include "pause.h"
#include "plans.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/timestamp.h"

#define LET_GO_AT_ONCE 10000

static KeptPlan read_plan = {
	"SELECT topic, resumed FROM acme_outbox.outbox_pause WHERE origin = $1",
	1, {TEXTOID}
};

static KeptPlan let_go_plan = {
	"UPDATE ONLY acme_outbox.outbox_entry SET next_attempt_at = clock_timestamp(),"
	" hold_reason = 'RETRY' WHERE ctid = ANY (ARRAY("
	"SELECT ctid FROM ONLY acme_outbox.outbox_entry WHERE ctid = ANY ($1)"
	" AND status = 'PENDING' AND hold_reason = 'PAUSED' FOR NO KEY UPDATE SKIP LOCKED))",
	1, {TIDARRAYOID}
};

static KeptPlan forget_plan = {
	"DELETE FROM acme_outbox.outbox_pause WHERE origin = $1 AND resumed AND topic = ANY ($2)",
	2, {TEXTOID, TEXTARRAYOID}
};

/* Inside an SPI connection, as the next. */
void
pause_read(const char *origin, Paused *paused)
{
	Datum		arg = CStringGetTextDatum(origin);

	memset(paused, 0, sizeof(*paused));
	plan_run(&read_plan, &arg, NULL, SPI_OK_SELECT);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		bool		isnull;
		HeapTuple	row = SPI_tuptable->vals[i];
		char	   *topic = SPI_getvalue(row, SPI_tuptable->tupdesc, 1);

		if (topic == NULL)
			paused->all = true;
		else if (DatumGetBool(SPI_getbinval(row, SPI_tuptable->tupdesc, 2, &isnull)))
			paused->resumed = lappend(paused->resumed, topic);
		else
			paused->topics = lappend(paused->topics, topic);
	}
}

static bool
names_topic(const List *topics, TupleTableSlot *slot)
{
	char	   *topic;
	ListCell   *cell;

	if (topics == NIL)
		return false;
	topic = entry_string(slot, ENTRY_TOPIC);
	foreach(cell, topics)
		if (strcmp(lfirst(cell), topic) == 0)
			return true;
	return false;
}

bool
pause_holds(const Paused *paused, TupleTableSlot *slot)
{
	return names_topic(paused->topics, slot);
}

/* Only of the topics that were read: of another, entries may still be marked. */
static void
forget_resumed(const char *origin, const List *topics)
{
	Datum	   *names = palloc(sizeof(Datum) * list_length(topics));
	Datum		args[2];
	int			n = 0;
	ListCell   *cell;

	foreach(cell, topics)
		names[n++] = CStringGetTextDatum(lfirst(cell));
	args[0] = CStringGetTextDatum(origin);
	args[1] = PointerGetDatum(construct_array(names, n, TEXTOID, -1, false, TYPALIGN_INT));
	plan_run(&forget_plan, args, NULL, SPI_OK_DELETE);
}

static int
find_marked(const Paused *paused, EntryTable *table, ItemPointerData *tids)
{
	EntryCondition for_ever = {2, BTEqualStrategyNumber, F_TIMESTAMPTZ_EQ,
	TimestampTzGetDatum(DT_NOEND)};
	EntryScan	scan;
	int			n = 0;

	entry_scan_begin(&scan, table, INDEX_DUE, &for_ever, 1);
	while (n < LET_GO_AT_ONCE && entry_scan_next(&scan))
		if (entry_enum(scan.slot, ENTRY_STATUS) == table->status_pending &&
			entry_enum(scan.slot, ENTRY_HOLD_REASON) == table->hold_paused &&
			names_topic(paused->resumed, scan.slot))
			tids[n++] = scan.slot->tts_tid;
	entry_scan_end(&scan);
	return n;
}

/* Entries of resumed topics become due; true if there were any: S must be taken anew. */
bool
pause_let_go(const char *origin, const Paused *paused, EntryTable *table)
{
	ItemPointerData *tids;
	Datum		arg;
	int			n;
	uint64		let_go = 0;

	if (paused->resumed == NIL)
		return false;
	tids = palloc(sizeof(ItemPointerData) * LET_GO_AT_ONCE);
	n = find_marked(paused, table, tids);
	arg = PointerGetDatum(tid_array(tids, n));
	if (n > 0)
		let_go = plan_run(&let_go_plan, &arg, NULL, SPI_OK_UPDATE);
	if (n < LET_GO_AT_ONCE && let_go == n)	/* none was left out for a lock */
		forget_resumed(origin, paused->resumed);
	pfree(tids);
	return n > 0;
}
