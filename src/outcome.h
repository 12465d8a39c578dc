/*
 * outcome.h
 *		What the broker did with an entry, and what that makes of it.
 */
#ifndef ACME_OUTBOX_OUTCOME_H
#define ACME_OUTBOX_OUTCOME_H

#include "policy.h"
#include "utils/timestamp.h"

/* In the order of the enum's labels (sql/10_tables.sql). */
typedef enum Outcome
{
	OUTCOME_PUBLISHED,			/* confirmed, and not returned */
	OUTCOME_REJECTED,			/* the message's own fault */
	OUTCOME_UNROUTABLE,			/* no binding, no exchange */
	OUTCOME_NACKED,				/* not taken now */
	OUTCOME_RELEASED,			/* outcome not known */
	OUTCOME_ARCHIVED,			/* its dead-letter copy is confirmed */
	OUTCOME_COUNT
} Outcome;

/* What of an entry's past decides its future. */
typedef struct EntryHistory
{
	int			attempts;
	int			holds;
	bool		was_failed;		/* claimed by claim_failed */
	bool		arrived;		/* the business lane has it; blocks no key */
} EntryHistory;

typedef struct NewState
{
	const char *status;
	const char *reason;			/* NULL: does not wait */
	TimestampTz next_attempt_at;	/* 0: not set */
	TimestampTz failed_at;		/* 0: not set */
	int			attempts;
	int			holds;
} NewState;

extern const char *outcome_name(Outcome outcome);
extern Outcome outcome_parse(Datum label);
extern const char *outcome_status(Outcome outcome, bool was_failed);
extern bool outcome_is_final(Outcome outcome, bool was_failed);
extern void outcome_next_state(Outcome outcome, const EntryHistory *history,
							   const Policy *policy, TimestampTz now, NewState *state);

#endif							/* ACME_OUTBOX_OUTCOME_H */
