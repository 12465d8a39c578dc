/*
 * relay_summary.c
 *		The counters, logged now and then and in the end.
 */
#include "relay_internal.h"

#include <string.h>

#include "log.h"
#include "telemetry.h"

void
relay_log_summary(struct relay *r, const char *message, const uint64_t *counts,
				  msec_t elapsed)
{
	log_info(message,
			 LOG_NUM("published", counts[OUTCOME_PUBLISHED]),
			 LOG_NUM("returned", counts[OUTCOME_UNROUTABLE]),
			 LOG_NUM("nacked", counts[OUTCOME_NACKED]),
			 LOG_NUM("released", counts[OUTCOME_RELEASED]),
			 LOG_NUM("rejected", counts[OUTCOME_REJECTED]),
			 LOG_NUM("archived", counts[OUTCOME_ARCHIVED]),
			 LOG_NUM("in_flight", relay_unconfirmed(r)),
			 LOG_NUM("waiting", r->claims.waiting),
			 LOG_NUM("rate", elapsed > 0 ? (int64_t)
					 counts[OUTCOME_PUBLISHED] * 1000 / elapsed : 0),
			 LOG_TEXT("state", relay_state_name(r)));
}

void
relay_keep_summary(struct relay *r, msec_t now)
{
	for (int i = 0; i < OUTCOMES; i++)
	{
		uint64_t	decided = r->claims.counts[i] + r->failed.counts[i];

		r->counts[i] += decided;
		r->totals[i] += decided;
		telemetry_count_is(i, r->totals[i]);
		r->claims.counts[i] = r->failed.counts[i] = 0;
	}
	if (now < r->summary_at)
		return;
	relay_log_summary(r, "summary", r->counts, now - r->summary_since);
	memset(r->counts, 0, sizeof(r->counts));
	r->summary_since = now;
	r->summary_at = now + relay_span(r, SET_SUMMARY_INTERVAL);
}
