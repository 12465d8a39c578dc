/*
 * backoff.c
 *		Delays that double, with jitter. Pure: the caller brings the random
 *		number.
 *
 * The jitter is +-50 %: relays that lost the same broker at the same moment
 * must not come back at the same moment.
 */
#include "backoff.h"

void
backoff_init(struct backoff *b, msec_t min, msec_t max)
{
	b->min = min > 0 ? min : 1;
	b->max = max > b->min ? max : b->min;
	b->next = b->min;
}

void
backoff_reset(struct backoff *b)
{
	b->next = b->min;
}

/* The delay to wait now; the next one will be twice as long. */
msec_t
backoff_next(struct backoff *b, uint32_t random)
{
	msec_t		delay = b->next;
	msec_t		half = delay / 2;

	b->next = delay > b->max / 2 ? b->max : delay * 2;
	return half + (msec_t) ((uint64_t) random % (uint64_t) (delay + 1));
}
