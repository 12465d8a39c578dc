/*
 * plans.c
 *		SQL statements planned once per session.
 *
 * A KeptPlan names its statement and parameter types; it is prepared at first use and
 * kept.  The entry becomes valid only when the plan is saved, so an error in
 * between leaves nothing half made.  PostgreSQL replans by itself when a table
 * changes.  All run at the caller's snapshot rules (read_only = false).
 *
 * A plan made for an empty table would read all of it, and be kept while the table
 * grows, until the next ANALYZE.  So plans are made with sequential scans disabled.
 */
#include "acme_outbox.h"

#include "plans.h"
#include "utils/guc.h"
#include "utils/plancache.h"
#include "utils/resowner.h"

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

static bool
is_planned(SPIPlanPtr plan)
{
	CachedPlanSource *source = linitial(SPI_plan_get_plan_sources(plan));

	return source->is_valid && source->gplan != NULL && source->gplan->is_valid;
}

/* plan_by_index: to be called before each execution; plans what is not, or not any more. */
void
plan_by_index(SPIPlanPtr plan)
{
	int			level;

	if (is_planned(plan))
		return;
	level = NewGUCNestLevel();
	(void) set_config_option("enable_seqscan", "off", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	ReleaseCachedPlan(SPI_plan_get_cached_plan(plan), CurrentResourceOwner);
	AtEOXact_GUC(true, level);
}

/* plan_run: runs the statement inside the caller's SPI connection; returns rows processed. */
uint64
plan_run(KeptPlan *plan, Datum *values, const char *nulls, int expected)
{
	int			result;

	if (plan->kept == NULL)
		prepare(plan);
	plan_by_index(plan->kept);
	result = SPI_execute_plan(plan->kept, values, nulls, false, 0);
	if (result != expected)
		elog(ERROR, "unexpected result of \"%s\": %s", plan->sql,
			 SPI_result_code_string(result));
	return SPI_processed;
}
