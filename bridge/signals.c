/*
 * signals.c
 *		Signals become events: the handler notes them and wakes the loop
 *		through a pipe.
 *
 * SIGTERM and SIGINT ask for an orderly stop; a second one ends the process
 * inside the handler, so that it is obeyed whatever the loop is waiting for.
 * SIGHUP asks for a reload. SIGPIPE is ignored: writes report it.
 */
#include "signals.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int	wake_pipe[2] = {-1, -1};
static volatile sig_atomic_t stop_requested;
static volatile sig_atomic_t reload_requested;

static void
handle_signal(int signo)
{
	int			saved_errno = errno;

	if (signo == SIGHUP)
		reload_requested = 1;
	else if (stop_requested)
		_exit(128 + signo);
	else
		stop_requested = 1;

	/* A full pipe is as good: the loop will wake up. */
	if (write(wake_pipe[1], "s", 1) < 0)
		errno = saved_errno;
	errno = saved_errno;
}

void
signals_setup(void)
{
	struct sigaction action;

	if (pipe(wake_pipe) != 0)
		abort();
	for (int i = 0; i < 2; i++)
	{
		fcntl(wake_pipe[i], F_SETFL, O_NONBLOCK);
		fcntl(wake_pipe[i], F_SETFD, FD_CLOEXEC);
	}
	memset(&action, 0, sizeof(action));
	action.sa_handler = handle_signal;
	action.sa_flags = SA_RESTART;
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGHUP, &action, NULL);
	action.sa_handler = SIG_IGN;
	sigaction(SIGPIPE, &action, NULL);
}

int
signals_fd(void)
{
	return wake_pipe[0];
}

/* Empty the pipe; what happened is in the flags. */
void
signals_read(void)
{
	char		bytes[64];

	while (read(wake_pipe[0], bytes, sizeof(bytes)) > 0)
		;
}

bool
signals_stop_requested(void)
{
	return stop_requested;
}

bool
signals_take_reload(void)
{
	bool		requested = reload_requested;

	reload_requested = 0;
	return requested;
}
