/*
 * policy.h
 *		Retry rules of a topic.
 */
#ifndef ACME_OUTBOX_POLICY_H
#define ACME_OUTBOX_POLICY_H

#include "guc.h"

/* times in microseconds, as in TimestampTz */
typedef struct Policy
{
	int			max_attempts;
	int64		backoff_base;
	int64		backoff_cap;
	FailedKeyPolicy failed_key_policy;
} Policy;

extern void policy_of_topic(const char *topic, Policy *policy);
extern int64 policy_backoff(int64 base, int64 cap, int count);

#endif							/* ACME_OUTBOX_POLICY_H */
