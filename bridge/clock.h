#ifndef ACME_CLOCK_H
#define ACME_CLOCK_H

#include <stdint.h>

/* A point in time or a span, in milliseconds. */
typedef int64_t msec_t;

/* "Not planned"; later than every deadline. */
#define CLOCK_NEVER		INT64_MAX

msec_t		clock_now(void);
msec_t		clock_wall(void);
msec_t		clock_earlier(msec_t a, msec_t b);
int			clock_poll_timeout(msec_t deadline);

#endif							/* ACME_CLOCK_H */
