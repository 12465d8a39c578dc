/*
 * idempotency_purge.c
 *		Retention of idempotency keys: expired requests of every inbox (P 2.2).
 *
 * A completed request goes once its ttl is over, one in flight only when its in-flight time
 * is over too.  Nothing depends on it: begin() takes an expired row as absent.
 *
 * Bounded, SKIP LOCKED, as each table's owner, an inbox that fails apart.  A row that is
 * being claimed again is locked and passed over; one that was claimed since the batch's
 * snapshot is looked at again when its lock is taken, is not expired any more, and stays.
 */
#include "acme_outbox.h"

#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "guc.h"
#include "idempotency.h"
#include "inbox.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#define KEYS_TABLE "idempotency_key"

typedef struct KeyPurge
{
	const char *schema;
	DutyReport	report;
} KeyPurge;

/* Runs as the table's owner, with pg_catalog alone in the path. */
static void
delete_batches(void *argument)
{
	KeyPurge   *purge = argument;
	Oid			type = INT4OID;
	Datum		rows = Int32GetDatum(guc_duty_batch_rows);
	const char *table = quote_qualified_identifier(purge->schema, KEYS_TABLE);
	char	   *sql = psprintf("DELETE FROM %s WHERE ctid = ANY (ARRAY("
							   " SELECT k.ctid FROM %s k WHERE k.expires_at <= clock_timestamp()"
							   " AND (k.completed_at IS NOT NULL"
							   " OR k.in_flight_until <= clock_timestamp())"
							   " ORDER BY k.expires_at LIMIT $1 FOR UPDATE SKIP LOCKED))",
							   table, table);
	uint64		deleted = guc_duty_batch_rows;

	SPI_connect();
	for (int i = 0; i < DUTY_BATCHES && deleted >= guc_duty_batch_rows; i++)
	{
		if (SPI_execute_with_args(sql, 1, &type, &rows, NULL, false, 0) != SPI_OK_DELETE)
			elog(ERROR, "could not delete expired keys");
		deleted = SPI_processed;
		purge->report.affected += deleted;
	}
	SPI_finish();
	if (deleted >= guc_duty_batch_rows)
		purge->report.result = DUTY_MORE;
}

static void
purge_table(void *argument)
{
	KeyPurge   *purge = argument;

	inbox_as_owner(inbox_table_owner(inbox_find(purge->schema), KEYS_TABLE),
				   delete_batches, purge);
}

static bool
has_table(const char *schema)
{
	Oid			namespace = get_namespace_oid(schema, true);

	return OidIsValid(namespace) && OidIsValid(get_relname_relid(KEYS_TABLE, namespace));
}

static void
purge_inbox(KeyPurge *purge)
{
	ErrorData  *error;
	bool		contended;

	if (!has_table(purge->schema) || inbox_protected(purge_table, purge, &error))
		return;
	contended = error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE;
	purge->report = (DutyReport) {contended ? DUTY_CONTENDED : DUTY_FAILED, 0};
	if (!contended)
		ereport(WARNING,
				(errcode(error->sqlerrcode),
				 errmsg("retention of idempotency keys of inbox \"%s\" failed: %s",
						purge->schema, error->message)));
}

/* One call's share of every inbox; inside duty_begin() and duty_end(). */
DutyReport
idempotency_purge(void)
{
	DutyReport	total = {DUTY_DONE, 0};
	ListCell   *cell;

	foreach(cell, inbox_schemas())
	{
		KeyPurge	purge = {lfirst(cell), {DUTY_DONE, 0}};

		purge_inbox(&purge);
		total.affected += purge.report.affected;
		total.result = Max(total.result, purge.report.result);
	}
	return total;
}
