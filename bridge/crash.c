/*
 * crash.c
 *		Named places where a test ends (ACME_OUTBOX_CRASH_AT=point[:n]) or
 *		stops (ACME_OUTBOX_STOP_AT=point[:n]) the process, or lets its loop hang
 *		(ACME_OUTBOX_HANG_AT=point[:n]).
 *
 * n counts the hits, 1 by default. The whole file is empty in the binary that
 * is installed.
 */
#include "crash.h"

#ifdef ACME_OUTBOX_CRASH_POINTS

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const point_names[CRASH_POINTS] = {
	[CRASH_CLAIM_COMMITTED] = "claim-committed",
	[CRASH_MID_WINDOW] = "mid-window",
	[CRASH_CONFIRMED_BEFORE_SETTLE] = "confirmed-before-settle",
	[CRASH_SETTLED] = "settled",
	[CRASH_REPROCESS_BOUND] = "reprocess-bound",
	[CRASH_DEAD_LETTER_TAKEN] = "dead-letter-taken",
	[CRASH_COPY_SENT] = "copy-sent",
	[CRASH_COPY_CONFIRMED] = "copy-confirmed",
	[CRASH_DEAD_LETTER_ACKED] = "dead-letter-acked",
	[CRASH_REPROCESS_UNBOUND] = "reprocess-unbound",
	[CRASH_ATTEMPT_COUNTED] = "attempt-counted",
	[CRASH_BATCH_COMMITTED] = "batch-committed",
	[CRASH_ACKNOWLEDGED] = "acknowledged",
};

static int	hits[CRASH_POINTS];

/* Does the variable name this point? If so, at which hit? */
static int
wanted_hit(const char *variable, enum crash_point point)
{
	const char *value = getenv(variable);
	size_t		length = strlen(point_names[point]);

	if (value == NULL || strncmp(value, point_names[point], length) != 0)
		return 0;
	if (value[length] == '\0')
		return 1;
	return value[length] == ':' ? atoi(value + length + 1) : 0;
}

bool
crash_armed(enum crash_point point)
{
	return wanted_hit("ACME_OUTBOX_CRASH_AT", point) > hits[point] ||
		wanted_hit("ACME_OUTBOX_STOP_AT", point) > hits[point];
}

void
crash_here(enum crash_point point)
{
	hits[point]++;
	if (wanted_hit("ACME_OUTBOX_CRASH_AT", point) == hits[point])
	{
		dprintf(STDERR_FILENO, "crash point %s hit\n", point_names[point]);
		kill(getpid(), SIGKILL);
	}
	if (wanted_hit("ACME_OUTBOX_STOP_AT", point) == hits[point])
	{
		dprintf(STDERR_FILENO, "stop point %s hit\n", point_names[point]);
		raise(SIGSTOP);
	}
	if (wanted_hit("ACME_OUTBOX_HANG_AT", point) == hits[point])
	{
		dprintf(STDERR_FILENO, "hang point %s hit\n", point_names[point]);
		for (;;)
			pause();
	}
}

#else
/* ISO C forbids an empty file. */
typedef int crash_points_are_compiled_out;
#endif
