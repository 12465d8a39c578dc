/*
 * outcome.c
 *		What an outcome makes of an entry (P 1.1, G 6; docs/design.md 6).
 *
 * The state machine's edges that leave PUBLISHING, in one place.  Only REJECTED, the
 * message's own fault, is charged an attempt.  What the topology or a full queue did
 * to it waits by a count of its own, and an unknown outcome is due at once.  An entry
 * that was claimed as FAILED, for its dead-letter copy, stays FAILED until the copy
 * is confirmed.  Nor does it block its key once the business lane has it.
 */
#include "acme_outbox.h"

#include "outcome.h"
#include "utils/fmgrprotos.h"

static const char *const outcome_names[OUTCOME_COUNT] = {
	"PUBLISHED", "REJECTED", "UNROUTABLE", "NACKED", "RELEASED", "ARCHIVED"
};

const char *
outcome_name(Outcome outcome)
{
	return outcome_names[outcome];
}

Outcome
outcome_parse(Datum label)
{
	char	   *name = DatumGetCString(DirectFunctionCall1(enum_out, label));

	for (int i = 0; i < OUTCOME_COUNT; i++)
		if (strcmp(outcome_names[i], name) == 0)
			return (Outcome) i;
	elog(ERROR, "unrecognized outcome: %s", name);
}

/* Nothing more will be sent of an entry after it. */
bool
outcome_is_final(Outcome outcome, bool was_failed)
{
	return outcome == OUTCOME_ARCHIVED || (outcome == OUTCOME_PUBLISHED && !was_failed);
}

/*
 * The status an entry has after the outcome; PENDING stands for a rejected one as
 * well, which may have become FAILED.
 */
const char *
outcome_status(Outcome outcome, bool was_failed)
{
	if (outcome_is_final(outcome, was_failed))
		return outcome_names[outcome];
	return was_failed ? "FAILED" : "PENDING";
}

static void
wait_for(NewState *state, const char *reason, TimestampTz at)
{
	state->status = "PENDING";
	state->reason = reason;
	state->next_attempt_at = at;
}

static bool
blocks_key(const EntryHistory *past, const Policy *policy)
{
	return policy->failed_key_policy == FAILED_KEY_BLOCK && !past->arrived;
}

/* The message's own fault: charged (G 6.2). */
static void
state_rejected(const EntryHistory *past, const Policy *policy, TimestampTz now, NewState *state)
{
	state->attempts = past->attempts + 1;
	if (state->attempts < policy->max_attempts)
	{
		wait_for(state, "RETRY", now + policy_backoff(policy->backoff_base, policy->backoff_cap,
													  state->attempts));
		return;
	}
	state->status = "FAILED";
	state->failed_at = now;
	if (blocks_key(past, policy))
		state->next_attempt_at = DT_NOEND;
}

/* The topology or the queue refused it: not charged, its own count of waits. */
static void
state_held(const EntryHistory *past, const char *reason, TimestampTz now, NewState *state)
{
	state->holds = Min(past->holds + 1, PG_INT16_MAX);
	wait_for(state, reason, now + policy_backoff((int64) guc_hold_backoff_base * 1000,
												 (int64) guc_hold_backoff_cap * 1000,
												 state->holds));
}

/* Claimed as FAILED: it is FAILED again, whatever happened to its copy. */
static void
state_failed_again(Outcome outcome, const EntryHistory *past, const Policy *policy,
				   TimestampTz now, NewState *state)
{
	state->status = "FAILED";
	state->failed_at = now;
	state->reason = NULL;
	if (blocks_key(past, policy))
		state->next_attempt_at = DT_NOEND;
	else if (outcome != OUTCOME_RELEASED)
	{
		state->holds = Min(past->holds + 1, PG_INT16_MAX);
		state->next_attempt_at = now + policy_backoff((int64) guc_hold_backoff_base * 1000,
													  (int64) guc_hold_backoff_cap * 1000,
													  state->holds);
	}
}

/* The one place that says what an outcome makes of an entry. */
void
outcome_next_state(Outcome outcome, const EntryHistory *past, const Policy *policy,
				   TimestampTz now, NewState *state)
{
	memset(state, 0, sizeof(*state));
	state->attempts = past->attempts;
	state->holds = past->holds;
	if (outcome == OUTCOME_ARCHIVED)
		state->status = "ARCHIVED";
	else if (past->was_failed)
		state_failed_again(outcome, past, policy, now, state);
	else if (outcome == OUTCOME_REJECTED)
		state_rejected(past, policy, now, state);
	else if (outcome == OUTCOME_UNROUTABLE)
		state_held(past, "UNROUTABLE", now, state);
	else if (outcome == OUTCOME_NACKED)
		state_held(past, "NACKED", now, state);
	else
		wait_for(state, "RETRY", now);	/* RELEASED */
}
