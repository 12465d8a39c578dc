/*
 * http.c
 *		/metrics, /healthz and /readyz, on a thread of their own.
 *
 *		/metrics	telemetry in Prometheus's text format
 *		/healthz	200 while the loop turns, else 503: restart the process
 *		/readyz		200 while it can do its work or stands by for it, else 503
 *
 * libmicrohttpd's thread reads what telemetry.c holds and touches nothing else, so that
 * it answers while the loop is stuck. It takes no signals: those are the loop's. There is
 * no login; listen where only the monitoring gets to.
 *
 * A client that says nothing, or a byte now and then, must not keep the probe waiting:
 * silence ends a connection after a few seconds, and when all places are taken, the
 * newcomer gets that of the oldest.
 */
#include "http.h"

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "log.h"
#include "telemetry.h"

#define CONNECTIONS_MAX		16
#define CONNECTION_TIMEOUT	5		/* seconds without a byte */
/* The library accepts no more beyond it, so those that are cut off must fit, too. */
#define LIBRARY_MAX			(4 * CONNECTIONS_MAX)
#define BACKLOG				LIBRARY_MAX

static struct MHD_Daemon *server;

/* The open connections, the oldest first; the library's thread alone uses them. */
static int	open_fds[CONNECTIONS_MAX];
static int	open_count;

/* HOST:PORT or [HOST]:PORT; port 0 lets the system choose. */
bool
http_parse(const char *text, struct http_address *address)
{
	const char *colon = strrchr(text, ':');
	size_t		length = colon ? (size_t) (colon - text) : 0;
	size_t		digits = colon ? strlen(colon + 1) : 0;

	if (length >= 2 && text[0] == '[' && text[length - 1] == ']')
	{
		text++;
		length -= 2;
	}
	else if (memchr(text, ':', length))
		return false;			/* an IPv6 address needs its brackets */
	if (length == 0 || length >= sizeof(address->host) || digits == 0 ||
		digits >= sizeof(address->port) ||
		strspn(colon + 1, "0123456789") != digits || atoi(colon + 1) > 65535)
		return false;
	memcpy(address->host, text, length);
	address->host[length] = '\0';
	memcpy(address->port, colon + 1, digits + 1);
	return true;
}

/* ---- answers ---- */

static enum MHD_Result
answer(struct MHD_Connection *connection, unsigned status, const char *type,
	   const char *body, size_t length)
{
	struct MHD_Response *response =
		MHD_create_response_from_buffer(length, (void *) body, MHD_RESPMEM_MUST_COPY);
	enum MHD_Result result;

	if (response == NULL)
		return MHD_NO;
	MHD_add_response_header(response, "Content-Type", type);
	MHD_add_response_header(response, "Cache-Control", "no-store");
	result = MHD_queue_response(connection, status, response);
	MHD_destroy_response(response);
	return result;
}

static enum MHD_Result
answer_text(struct MHD_Connection *connection, unsigned status, const char *text)
{
	char		line[128];
	int			length = snprintf(line, sizeof(line), "%s\n", text);

	return answer(connection, status, "text/plain; charset=utf-8", line,
				  (size_t) length);
}

static enum MHD_Result
answer_metrics(struct MHD_Connection *connection)
{
	struct buffer out = {0};
	enum MHD_Result result;

	telemetry_render(&out);
	result = answer(connection, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8",
					(const char *) buffer_head(&out), buffer_length(&out));
	buffer_free(&out);
	return result;
}

static enum MHD_Result
handle_request(void *context, struct MHD_Connection *connection, const char *url,
			   const char *method, const char *version, const char *upload,
			   size_t *upload_size, void **state)
{
	const char *problem;

	(void) context;
	(void) version;
	(void) upload;
	(void) upload_size;
	(void) state;
	if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 &&
		strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
		return answer_text(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "GET only");
	if (strcmp(url, "/metrics") == 0)
		return answer_metrics(connection);
	if (strcmp(url, "/healthz") == 0)
		return telemetry_alive(clock_now()) ?
			answer_text(connection, MHD_HTTP_OK, "ok") :
			answer_text(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "the loop is stuck");
	if (strcmp(url, "/readyz") != 0)
		return answer_text(connection, MHD_HTTP_NOT_FOUND,
						   "/metrics, /healthz or /readyz");
	problem = telemetry_not_ready();
	return answer_text(connection, problem ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_OK,
					   problem ? problem : "ok");
}

/* ---- who is connected ---- */

static void
forget_connection(int fd)
{
	int			i = 0;

	while (i < open_count && open_fds[i] != fd)
		i++;
	if (i == open_count)
		return;
	open_count--;
	memmove(&open_fds[i], &open_fds[i + 1], sizeof(*open_fds) *
			(size_t) (open_count - i));
}

/* The library then reads the end of the connection, and closes it. */
static void
cut_off_oldest(void)
{
	shutdown(open_fds[0], SHUT_RDWR);
	forget_connection(open_fds[0]);
}

static void
note_connection(void *context, struct MHD_Connection *connection, void **state,
				enum MHD_ConnectionNotificationCode code)
{
	int			fd = MHD_get_connection_info(connection,
											 MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;

	(void) context;
	(void) state;
	if (code == MHD_CONNECTION_NOTIFY_CLOSED)
	{
		forget_connection(fd);
		return;
	}
	if (open_count == CONNECTIONS_MAX)
		cut_off_oldest();
	open_fds[open_count++] = fd;
}

/* ---- start and stop ---- */

/* A listening socket, or -1 and the reason. */
static int
listen_at(const struct http_address *address, const char **reason)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
	struct addrinfo *found;
	int			error = getaddrinfo(address->host, address->port, &hints, &found);
	int			on = 1;
	int			fd;

	if (error != 0)
	{
		*reason = gai_strerror(error);
		return -1;
	}
	fd = socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, found->ai_protocol);
	if (fd >= 0)
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (fd < 0 || bind(fd, found->ai_addr, found->ai_addrlen) != 0 ||
		listen(fd, BACKLOG) != 0)
	{
		*reason = strerrordesc_np(errno);
		if (fd >= 0)
			close(fd);
		fd = -1;
	}
	freeaddrinfo(found);
	return fd;
}

static void
log_listening(int fd)
{
	struct sockaddr_storage bound;
	socklen_t	length = sizeof(bound);
	char		host[HTTP_HOST_MAX] = "";
	char		port[16] = "";

	if (getsockname(fd, (struct sockaddr *) &bound, &length) == 0)
		getnameinfo((struct sockaddr *) &bound, length, host, sizeof(host), port,
					sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV);
	log_info("http listening", LOG_TEXT("host", host), LOG_NUM("port", atoi(port)));
}

/* The thread inherits the mask: signals stay with the loop. */
static struct MHD_Daemon *
start_thread(int fd)
{
	sigset_t	all,
				before;
	struct MHD_Daemon *daemon;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	daemon = MHD_start_daemon(MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD, 0,
							  NULL, NULL, handle_request, NULL,
							  MHD_OPTION_LISTEN_SOCKET, fd,
							  MHD_OPTION_CONNECTION_LIMIT, LIBRARY_MAX,
							  MHD_OPTION_CONNECTION_TIMEOUT, CONNECTION_TIMEOUT,
							  MHD_OPTION_NOTIFY_CONNECTION, note_connection, NULL,
							  MHD_OPTION_END);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return daemon;
}

/* text was checked by config_check.c; NULL: no server. */
bool
http_start(const char *text)
{
	struct http_address address;
	const char *reason = "no thread";
	int			fd = -1;

	if (text == NULL)
		return true;
	if (http_parse(text, &address))
		fd = listen_at(&address, &reason);
	if (fd >= 0)
		server = start_thread(fd);
	if (server == NULL)
	{
		log_error("cannot start: no HTTP there", LOG_TEXT("http", text),
				  LOG_TEXT("reason", reason));
		if (fd >= 0)
			close(fd);
		return false;
	}
	log_listening(fd);
	return true;
}

void
http_stop(void)
{
	if (server)
		MHD_stop_daemon(server);
	server = NULL;
}
