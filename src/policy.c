/*
 * policy.c
 *		Retry rules of a topic: its topic_policy row over the settings (G 6.2).
 */
#include "acme_outbox.h"

#include "catalog/pg_type.h"
#include "plans.h"
#include "policy.h"
#include "utils/builtins.h"

/* a shift beyond this has long passed every cap (G 6.2) */
#define MAX_BACKOFF_SHIFT 30

static KeptPlan policy_plan = {
	"SELECT max_attempts, (extract(epoch FROM backoff_base) * 1000000)::bigint,"
	" (extract(epoch FROM backoff_cap) * 1000000)::bigint, failed_key_policy::text"
	" FROM acme_outbox.topic_policy WHERE topic = $1",
	1, {TEXTOID}
};

static int64
column_or(int column, int64 fallback)
{
	bool		isnull;
	Datum		value = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc,
									  column, &isnull);

	if (isnull)
		return fallback;
	return column == 1 ? DatumGetInt32(value) : DatumGetInt64(value);
}

/* Inside an SPI connection. */
void
policy_of_topic(const char *topic, Policy *policy)
{
	Datum		arg = CStringGetTextDatum(topic);
	char	   *failed_key;

	policy->max_attempts = guc_max_attempts;
	policy->backoff_base = (int64) guc_backoff_base * 1000;
	policy->backoff_cap = (int64) guc_backoff_cap * 1000;
	policy->failed_key_policy = (FailedKeyPolicy) guc_failed_key_policy;
	if (plan_run(&policy_plan, &arg, NULL, SPI_OK_SELECT) == 0)
		return;

	policy->max_attempts = (int) column_or(1, policy->max_attempts);
	policy->backoff_base = column_or(2, policy->backoff_base);
	policy->backoff_cap = column_or(3, policy->backoff_cap);
	failed_key = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 4);
	if (failed_key != NULL)
		policy->failed_key_policy = strcmp(failed_key, "block") == 0 ?
			FAILED_KEY_BLOCK : FAILED_KEY_CONTINUE;
}

/* base, doubled with each further count, at most cap */
int64
policy_backoff(int64 base, int64 cap, int count)
{
	int			shift = Min(Max(count - 1, 0), MAX_BACKOFF_SHIFT);

	if (base > cap >> shift)
		return cap;
	return Min(base << shift, cap);
}
