/*
 * resolver.c
 *		Name resolution that does not stop the loop.
 *
 * getaddrinfo() can block for as long as the resolver likes, so it runs on a
 * thread of its own, one per attempt, that does nothing else; the loop waits
 * for a byte in a pipe and gives up at its own deadline. Whoever comes second,
 * the thread with its answer or the loop giving up, frees the request: an
 * atomic exchange decides.
 */
#include "resolver.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

resolver_lookup_function resolver_lookup = getaddrinfo;

enum resolver_side
{
	RESOLVER_PENDING,
	RESOLVER_ANSWERED,
	RESOLVER_ABANDONED
};

struct resolver
{
	char	   *host;
	char	   *port;
	int			pipe[2];
	int			error;
	struct addrinfo *addresses;
	atomic_int	side;
};

static void
resolver_free(struct resolver *r)
{
	if (r->addresses)
		freeaddrinfo(r->addresses);
	close(r->pipe[0]);
	close(r->pipe[1]);
	free(r->host);
	free(r->port);
	free(r);
}

/* Tests let the look-up of one name take for ever. */
static void
hang_for_test(const char *host)
{
#ifdef ACME_OUTBOX_CRASH_POINTS
	const char *name = getenv("ACME_OUTBOX_HANG_RESOLVING");

	if (name && strcmp(name, host) == 0)
		for (;;)
			pause();
#endif
	(void) host;
}

static void *
resolver_thread(void *argument)
{
	struct resolver *r = argument;
	struct addrinfo hints = {
		.ai_family = AF_UNSPEC,
		.ai_socktype = SOCK_STREAM,
	};

	hang_for_test(r->host);
	r->error = resolver_lookup(r->host, r->port, &hints, &r->addresses);
	/* Both ends of the pipe live until the second side comes. */
	if (write(r->pipe[1], "r", 1) < 0)
		r->error = EAI_SYSTEM;
	if (atomic_exchange(&r->side, RESOLVER_ANSWERED) == RESOLVER_ABANDONED)
		resolver_free(r);
	return NULL;
}

/* NULL if there is no memory, descriptor or thread for it. No port is fine. */
struct resolver *
resolver_start(const char *host, const char *port)
{
	struct resolver *r = calloc(1, sizeof(*r));
	pthread_attr_t detached;
	pthread_t	thread;
	bool		started;

	if (r == NULL || pipe(r->pipe) != 0)
	{
		free(r);
		return NULL;
	}
	fcntl(r->pipe[0], F_SETFD, FD_CLOEXEC);
	fcntl(r->pipe[1], F_SETFD, FD_CLOEXEC);
	r->host = strdup(host);
	r->port = port ? strdup(port) : NULL;
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	started = r->host && (r->port || port == NULL) &&
		pthread_create(&thread, &detached, resolver_thread, r) == 0;
	pthread_attr_destroy(&detached);
	if (started)
		return r;
	resolver_free(r);
	return NULL;
}

int
resolver_fd(const struct resolver *r)
{
	return r->pipe[0];
}

/* Call when the descriptor is readable; ends the request. */
bool
resolver_finish(struct resolver *r, struct addrinfo **addresses, int *error)
{
	*error = r->error;
	*addresses = r->addresses;
	r->addresses = NULL;
	resolver_abandon(r);
	return *error == 0 && *addresses != NULL;
}

void
resolver_abandon(struct resolver *r)
{
	if (atomic_exchange(&r->side, RESOLVER_ABANDONED) == RESOLVER_ANSWERED)
		resolver_free(r);
}
