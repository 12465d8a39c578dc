/*
 * inbox_purge.c
 *		Retention of the inboxes: processed events and attempts of every service.
 *
 * Deletes bounded batches, SKIP LOCKED, as each table's owner: a service's own triggers
 * must not run with the worker's rights.  An inbox that cannot be purged gives a WARNING
 * and does not keep the others from it.  Parked messages stay.
 */
#include "acme_outbox.h"

#include "guc.h"
#include "inbox.h"
#include "inbox_purge.h"

typedef struct InboxPurge
{
	const char *schema;
	const char *table;
	InboxStatement statement;
	int			keep;
	Inbox	   *inbox;
	DutyReport	report;
} InboxPurge;

/* Runs as the table's owner. */
static void
delete_batches(void *argument)
{
	InboxPurge *purge = argument;
	Datum		args[] = {Int32GetDatum(guc_duty_batch_rows), Int32GetDatum(purge->keep)};
	uint64		deleted = guc_duty_batch_rows;

	SPI_connect();
	for (int i = 0; i < DUTY_BATCHES && deleted >= guc_duty_batch_rows; i++)
	{
		deleted = inbox_run(purge->inbox, purge->statement, args, NULL, SPI_OK_DELETE);
		purge->report.affected += deleted;
	}
	SPI_finish();
	if (deleted >= guc_duty_batch_rows)
		purge->report.result = DUTY_MORE;
}

static void
purge_table(void *argument)
{
	InboxPurge *purge = argument;

	purge->inbox = inbox_find(purge->schema);
	inbox_as_owner(inbox_table_owner(purge->inbox, purge->table), delete_batches, purge);
}

static void
purge_one(InboxPurge *purge, DutyReport *total)
{
	ErrorData  *error;

	purge->report = (DutyReport) {DUTY_DONE, 0};
	if (!inbox_protected(purge_table, purge, &error))
	{
		bool		contended = error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE;

		purge->report = (DutyReport) {contended ? DUTY_CONTENDED : DUTY_FAILED, 0};
		if (!contended)
			ereport(WARNING,
					(errcode(error->sqlerrcode),
					 errmsg("retention of inbox \"%s\" failed: %s", purge->schema,
							error->message)));
	}
	total->affected += purge->report.affected;
	total->result = Max(total->result, purge->report.result);
}

/*
 * inbox_purge
 *		One call's share of every inbox; inside duty_begin() and duty_end().
 */
void
inbox_purge(DutyReport *processed, DutyReport *attempts)
{
	InboxPurge	purge;
	ListCell   *cell;

	foreach(cell, inbox_schemas())
	{
		purge.schema = lfirst(cell);
		purge.table = "processed_event";
		purge.statement = INBOX_PURGE_PROCESSED;
		purge.keep = guc_retention_processed;
		if (purge.keep > 0)
			purge_one(&purge, processed);
		purge.table = "consumer_attempt";
		purge.statement = INBOX_PURGE_ATTEMPTS;
		purge.keep = guc_retention_attempts;
		if (purge.keep > 0)
			purge_one(&purge, attempts);
	}
}
