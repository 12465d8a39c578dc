/*
 * inbox_batch.c
 *		Guards and handlers of a batch: each message has an outcome, none is lost or
 *		handled twice, and a failing handler fails alone.
 *
 * The guards of the whole batch come first, in the order of their event ids, outside
 * any subtransaction: two batches that overlap, whatever their order, wait for each
 * other at most once.  Then the handlers run in the order given, all in one
 * subtransaction.  Where one fails, all is rolled back; what came before it runs again
 * (and is committed), the failed one is reported, and what comes after it runs next.
 * Each failure so costs one more subtransaction and no message runs more often than
 * there are failures behind it.  The guards of what did not succeed are deleted.
 *
 * A deferred constraint would fail at COMMIT, when nobody can say whose fault it was.
 * So deferred constraints are checked at each subtransaction's end, within another one
 * that is rolled back: they stay deferred, and a handler finds them as it expects.  If
 * the check fails, the messages are bisected.
 *
 * More than MAX_COMMITTED subtransactions would make snapshots slow for everybody: the
 * rest is "later".
 */
#include "acme_outbox.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "consumed.h"
#include "inbox_batch.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/resowner.h"

/* half of what a backend remembers of its subtransactions in shared memory */
#define MAX_COMMITTED 32

/* A unit of a batch: [at, end) run in one subtransaction */
typedef struct Unit
{
	Batch	   *batch;
	int			at;				/* the message being handled; end: none */
	int			end;
} Unit;

const char *
message_outcome_name(MessageOutcome outcome)
{
	switch (outcome)
	{
		case MESSAGE_APPLIED:
			return "applied";
		case MESSAGE_DUPLICATE:
			return "duplicate";
		case MESSAGE_PARKED:
			return "parked";
		case MESSAGE_FAILED:
			return "failed";
		case MESSAGE_INVALID:
			return "invalid";
		case MESSAGE_PENDING:
		case MESSAGE_LATER:
			return "later";
	}
	pg_unreachable();
}

/*
 * Guards
 */

static int
compare_by_id(const void *a, const void *b)
{
	const Delivery *one = *(Delivery *const *) a;
	const Delivery *other = *(Delivery *const *) b;
	int			order = strcmp(one->event_id, other->event_id);

	/* of several copies the first one given comes first */
	return order != 0 ? order : (one < other ? -1 : one > other);
}

/* The deliveries to be guarded, sorted by id; further copies become duplicates. */
static int
sort_pending(Batch *batch, Delivery **sorted)
{
	int			n = 0;
	int			distinct = 0;

	for (int i = 0; i < batch->n; i++)
		if (batch->deliveries[i].outcome == MESSAGE_PENDING)
			sorted[n++] = &batch->deliveries[i];
	qsort(sorted, n, sizeof(Delivery *), compare_by_id);
	for (int i = 0; i < n; i++)
	{
		if (distinct > 0 &&
			strcmp(sorted[distinct - 1]->event_id, sorted[i]->event_id) == 0)
			sorted[i]->outcome = MESSAGE_DUPLICATE;
		else
			sorted[distinct++] = sorted[i];
	}
	return distinct;
}

static Datum
ids_of(Delivery **deliveries, int n)
{
	Datum	   *ids = palloc(sizeof(Datum) * Max(n, 1));

	for (int i = 0; i < n; i++)
		ids[i] = CStringGetTextDatum(deliveries[i]->event_id);
	return PointerGetDatum(construct_array(ids, n, TEXTOID, -1, false, TYPALIGN_INT));
}

/* Those whose guard was there already are duplicates; both lists are sorted. */
static void
mark_duplicates(Delivery **sorted, int n)
{
	uint64		row = 0;

	for (int i = 0; i < n; i++)
	{
		char	   *inserted = row < SPI_processed ?
		SPI_getvalue(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, 1) : NULL;

		if (inserted != NULL && strcmp(inserted, sorted[i]->event_id) == 0)
			row++;
		else
			sorted[i]->outcome = MESSAGE_DUPLICATE;
	}
	if (row != SPI_processed)
		elog(ERROR, "guards were not recorded in order");
}

static void
take_guards(Batch *batch)
{
	Delivery  **sorted = palloc(sizeof(Delivery *) * Max(batch->n, 1));
	int			n = sort_pending(batch, sorted);
	Datum		args[2];

	if (n == 0)
		return;
	args[0] = CStringGetTextDatum(batch->consumer);
	args[1] = ids_of(sorted, n);
	SPI_connect();
	inbox_run(batch->inbox, INBOX_ACCEPT_ALL, args, NULL, SPI_OK_INSERT_RETURNING);
	mark_duplicates(sorted, n);
	SPI_finish();
}

/* What was not done may be delivered again. */
static void
drop_guards(Batch *batch)
{
	Delivery  **undone = palloc(sizeof(Delivery *) * Max(batch->n, 1));
	Datum		args[2];
	int			n = 0;

	for (int i = 0; i < batch->n; i++)
	{
		MessageOutcome outcome = batch->deliveries[i].outcome;

		if (outcome == MESSAGE_FAILED || outcome == MESSAGE_LATER)
			undone[n++] = &batch->deliveries[i];
	}
	if (n == 0)
		return;
	args[0] = CStringGetTextDatum(batch->consumer);
	args[1] = ids_of(undone, n);
	SPI_connect();
	inbox_run(batch->inbox, INBOX_FORGET, args, NULL, SPI_OK_DELETE);
	SPI_finish();
}

/*
 * Handlers
 */

/* inbox_batch_deliver: lets the handler have one message; what it raises is raised. */
MessageOutcome
inbox_batch_deliver(const Batch *batch, const Delivery *delivery)
{
	Handling	handling = {
		.consumer = batch->consumer,
		.event_id = delivery->event_id,
		.envelope = delivery->envelope,
		.message = delivery->message
	};

	return handler_run(batch->handler, &handling) ? MESSAGE_PARKED : MESSAGE_APPLIED;
}

/* Raises what COMMIT would raise; the constraints stay deferred. */
static void
check_deferred(void)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *volatile error = NULL;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		/* SET CONSTRAINTS ALL IMMEDIATE */
		AfterTriggerSetState(makeNode(ConstraintsSetStmt));
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
	}
	PG_END_TRY();
	RollbackAndReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	if (error != NULL)
		ReThrowError(error);
}

/* Runs a unit's messages, in order; the work of inbox_protected(). */
static void
run_unit(void *argument)
{
	Unit	   *unit = argument;
	Delivery   *deliveries = unit->batch->deliveries;

	for (; unit->at < unit->end; unit->at++)
	{
		CHECK_FOR_INTERRUPTS();
		if (deliveries[unit->at].outcome == MESSAGE_PENDING)
			deliveries[unit->at].outcome = inbox_batch_deliver(unit->batch, &deliveries[unit->at]);
	}
	check_deferred();
}

static bool
has_pending(const Batch *batch, int from, int end)
{
	for (int i = from; i < end; i++)
		if (batch->deliveries[i].outcome == MESSAGE_PENDING)
			return true;
	return false;
}

/* After a rollback: what ran in the unit did not. */
static void
undo_outcomes(Batch *batch, const MessageOutcome *before, int from, int end)
{
	for (int i = from; i < end; i++)
		batch->deliveries[i].outcome = before[i - from];
}

/* One subtransaction over [from, end); false: it failed, where unit->at says. */
static bool
try_unit(Batch *batch, int from, int end, Unit *unit, ErrorData **error)
{
	MessageOutcome *before = palloc(sizeof(MessageOutcome) * (end - from));
	bool		done;

	*unit = (Unit) {batch, from, end};
	for (int i = from; i < end; i++)
		before[i - from] = batch->deliveries[i].outcome;
	done = inbox_protected(run_unit, unit, error);
	if (done)
		batch->committed++;
	else
		undo_outcomes(batch, before, from, end);
	pfree(before);
	return done;
}

static void
mark_failed(Delivery *delivery, const ErrorData *error)
{
	delivery->outcome = MESSAGE_FAILED;
	delivery->error = error;
}

/*
 * Runs messages [from, end) in as few subtransactions as their failures allow.  A unit
 * that failed at a message is split there; one that failed at its end, in a deferred
 * constraint, in the middle.  The left part is run first.
 */
static void
run_range(Batch *batch, int from, int end)
{
	Unit		unit;
	ErrorData  *error;

	while (batch->committed < MAX_COMMITTED && has_pending(batch, from, end))
	{
		if (try_unit(batch, from, end, &unit, &error))
			return;
		if (unit.at < end)
		{
			mark_failed(&batch->deliveries[unit.at], error);
			run_range(batch, from, unit.at);
			from = unit.at + 1;
		}
		else if (end - from == 1)
			mark_failed(&batch->deliveries[from], error);
		else
		{
			int			middle = from + (end - from) / 2;

			run_range(batch, from, middle);
			from = middle;
		}
	}
}

/* inbox_batch_count: what is "later" was not handled, and comes again. */
void
inbox_batch_count(const Batch *batch, const Delivery *delivery)
{
	if (delivery->outcome != MESSAGE_LATER)
		consumed_count(batch->consumer, delivery->envelope, message_outcome_name(delivery->outcome));
}

/*
 * inbox_batch_run
 *		Handles what is PENDING; each message of the batch has its outcome then.
 */
void
inbox_batch_run(Batch *batch)
{
	take_guards(batch);
	run_range(batch, 0, batch->n);
	for (int i = 0; i < batch->n; i++)
		if (batch->deliveries[i].outcome == MESSAGE_PENDING)
			batch->deliveries[i].outcome = MESSAGE_LATER;
	drop_guards(batch);
	for (int i = 0; i < batch->n; i++)
		inbox_batch_count(batch, &batch->deliveries[i]);
}
