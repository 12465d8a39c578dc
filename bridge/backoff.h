#ifndef ACME_BACKOFF_H
#define ACME_BACKOFF_H

#include "clock.h"

struct backoff
{
	msec_t		min;			/* the first delay */
	msec_t		max;			/* where the doubling stops */
	msec_t		next;			/* the coming delay, before jitter */
};

void		backoff_init(struct backoff *b, msec_t min, msec_t max);
void		backoff_reset(struct backoff *b);
msec_t		backoff_next(struct backoff *b, uint32_t random);

#endif							/* ACME_BACKOFF_H */
