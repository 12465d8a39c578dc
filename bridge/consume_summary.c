/*
 * consume_summary.c
 *		The counters, logged now and then and in the end.
 */
#include "consume_internal.h"

#include <string.h>

#include "log.h"

void
consume_log_summary(struct consume *c, const char *message,
					const uint64_t *counts, msec_t elapsed)
{
	uint64_t	handled = counts[COUNT_APPLIED] + counts[COUNT_DUPLICATE] +
		counts[COUNT_PARKED];

	log_info(message, LOG_NUM("applied", counts[COUNT_APPLIED]),
			 LOG_NUM("duplicate", counts[COUNT_DUPLICATE]),
			 LOG_NUM("parked", counts[COUNT_PARKED]),
			 LOG_NUM("failed", counts[COUNT_FAILED]),
			 LOG_NUM("dead_lettered", counts[COUNT_DEAD_LETTERED]),
			 LOG_NUM("unacknowledged", c->deliveries.count),
			 LOG_NUM("waiting", c->deliveries.in_state[DELIVERY_WAITING]),
			 LOG_NUM("uncopied", consume_uncopied(c)),
			 LOG_NUM("rate", elapsed > 0 ?
					 (int64_t) handled * 1000 / elapsed : 0),
			 LOG_TEXT("state", consume_state_name(c)));
}

void
consume_keep_summary(struct consume *c, msec_t now)
{
	if (now > 0 && now < c->summary_at)
		return;
	for (int i = 0; i < COUNTERS; i++)
		c->totals[i] += c->counts[i];
	if (now > 0)
		consume_log_summary(c, "summary", c->counts, now - c->summary_since);
	memset(c->counts, 0, sizeof(c->counts));
	c->summary_since = now;
	c->summary_at = now + consume_span(c, SET_SUMMARY_INTERVAL);
}
