#ifndef ACME_CRASH_H
#define ACME_CRASH_H

#include <stdbool.h>

/* Where a test may end or stop the process; only the test binary has them. */
enum crash_point
{
	CRASH_CLAIM_COMMITTED,		/* claimed, nothing sent */
	CRASH_MID_WINDOW,			/* half a claim sent, nothing confirmed */
	CRASH_CONFIRMED_BEFORE_SETTLE,	/* confirmed, settle not sent */
	CRASH_SETTLED,				/* settle committed */
	CRASH_REPROCESS_BOUND,		/* the exchange is made and bound */
	CRASH_DEAD_LETTER_TAKEN,	/* got, its copy not sent */
	CRASH_COPY_SENT,			/* not confirmed */
	CRASH_COPY_CONFIRMED,		/* the dead letter not acknowledged */
	CRASH_DEAD_LETTER_ACKED,
	CRASH_REPROCESS_UNBOUND,	/* the exchange not deleted */
	CRASH_ATTEMPT_COUNTED,		/* a suspect message's attempt committed, not run */
	CRASH_BATCH_COMMITTED,		/* a batch of messages committed, not acknowledged */
	CRASH_ACKNOWLEDGED,			/* the acknowledgement sent */
	CRASH_POINTS
};

#ifdef ACME_OUTBOX_CRASH_POINTS
void		crash_here(enum crash_point point);
bool		crash_armed(enum crash_point point);
#else
#define crash_here(point)	((void) 0)
#define crash_armed(point)	(false)
#endif

#endif							/* ACME_CRASH_H */
