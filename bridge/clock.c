/*
 * clock.c
 *		The one clock of the bridge.
 *
 * Every deadline, the lease's above all, is counted on CLOCK_BOOTTIME: it is
 * monotonic and, unlike CLOCK_MONOTONIC, goes on while the machine sleeps. A
 * relay that wakes up from a suspend must find its lease expired.
 *
 * The loop reads the clock once per turn; only what must not be late (the
 * check before each send()) reads it again.
 */
#include "clock.h"

#include <stdlib.h>
#include <time.h>

/* No poll() waits longer, whatever is planned. */
#define POLL_MAX	60000

msec_t
clock_now(void)
{
	struct timespec ts;

#ifdef CLOCK_BOOTTIME
	if (clock_gettime(CLOCK_BOOTTIME, &ts) == 0)
		return (msec_t) ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
#endif
	if (clock_gettime(CLOCK_MONOTONIC, &ts) != 0)
		abort();
	return (msec_t) ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* Since 1970: only to compare with what a database says, never for deadlines. */
msec_t
clock_wall(void)
{
	struct timespec ts;

	if (clock_gettime(CLOCK_REALTIME, &ts) != 0)
		abort();
	return (msec_t) ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

msec_t
clock_earlier(msec_t a, msec_t b)
{
	return a < b ? a : b;
}

/* How long poll() may wait until the deadline. */
int
clock_poll_timeout(msec_t deadline)
{
	msec_t		wait = deadline - clock_now();

	return wait <= 0 ? 0 : wait > POLL_MAX ? POLL_MAX : (int) wait;
}
