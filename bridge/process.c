/*
 * process.c
 *		Who this process is, where others see it: in the lease, and in the broker's
 *		lists of connections and consumers.
 *
 * The noise makes a name that no earlier process of this host had, even with the
 * same pid in another container; it also seeds the jitter of the backoffs.
 */
#include "process.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

const char *
process_host(void)
{
	static char host[128] = "localhost";

	gethostname(host, sizeof(host) - 1);
	return host;
}

/* "WHAT:PID:NOISE" */
void
process_make_name(char *name, size_t size, const char *what)
{
	unsigned long long noise;

	if (getrandom(&noise, sizeof(noise), 0) != sizeof(noise))
		abort();
	srandom((unsigned) noise);
	snprintf(name, size, "%s:%ld:%016llx", what, (long) getpid(), noise);
}
