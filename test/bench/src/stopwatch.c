/*
 * stopwatch: runs a command; tells how long it took and how large it became
 *
 *	stopwatch FILE COMMAND [ARGUMENT ...]
 *
 * writes one line to FILE: seconds from start to exit, processor seconds (user
 * and system), and the highest resident size in kB (the VmHWM of
 * /proc/PID/status).  The exit status is the command's.
 */
#include "common.h"

#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static double
seconds(struct timeval t)
{
	return (double) t.tv_sec + (double) t.tv_usec / 1e6;
}

int
main(int argc, char **argv)
{
	struct rusage usage;
	double		begin = now_seconds();
	double		elapsed;
	FILE	   *out;
	pid_t		pid;
	int			status;

	if (argc < 3)
		fail("usage: stopwatch FILE COMMAND [ARGUMENT ...]");
	pid = fork();
	if (pid < 0)
		fail("could not fork: %m");
	if (pid == 0)
	{
		execvp(argv[2], argv + 2);
		fail("could not run %s: %m", argv[2]);
	}
	if (wait4(pid, &status, 0, &usage) != pid)
		fail("could not wait: %m");
	elapsed = now_seconds() - begin;

	out = fopen(argv[1], "w");
	if (out == NULL)
		fail("could not write %s: %m", argv[1]);
	fprintf(out, "%.6f %.6f %ld\n", elapsed,
			seconds(usage.ru_utime) + seconds(usage.ru_stime),
			usage.ru_maxrss);
	fclose(out);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
