/*
 * plans.c
 *		SQL statements planned once per session.
 *
 * A KeptPlan names its statement and parameter types; it is prepared at first use and
 * kept.  The entry becomes valid only when the plan is saved, so an error in
 * between leaves nothing half made.  PostgreSQL replans by itself when a table
 * changes.  All run at the caller's snapshot rules (read_only = false).
 */
#include "acme_outbox.h"

#include "plans.h"

static void
prepare(KeptPlan *plan)
{
	SPIPlanPtr	prepared = SPI_prepare_cursor(plan->sql, plan->nparams, plan->types,
											  CURSOR_OPT_GENERIC_PLAN);

	if (prepared == NULL)
		elog(ERROR, "could not prepare \"%s\": %s", plan->sql,
			 SPI_result_code_string(SPI_result));
	if (SPI_keepplan(prepared) != 0)
		elog(ERROR, "could not keep the plan of \"%s\"", plan->sql);
	plan->kept = prepared;
}

/* plan_run: runs the statement inside the caller's SPI connection; returns rows processed. */
uint64
plan_run(KeptPlan *plan, Datum *values, const char *nulls, int expected)
{
	int			result;

	if (plan->kept == NULL)
		prepare(plan);
	result = SPI_execute_plan(plan->kept, values, nulls, false, 0);
	if (result != expected)
		elog(ERROR, "unexpected result of \"%s\": %s", plan->sql,
			 SPI_result_code_string(result));
	return SPI_processed;
}
