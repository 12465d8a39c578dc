/*
 * transport.c
 *		A non-blocking byte stream to the broker, plain or TLS.
 *
 * Reading and writing say OK, AGAIN, or that it is over. Under TLS a read may
 * have to wait until the socket can be written, and the other way round, so
 * each direction keeps what it waits for; the loop polls for their union and
 * then tries both. Input that TLS has decrypted and not handed out is not seen
 * by poll(): transport_has_input() tells.
 *
 * A write that said AGAIN must be repeated with at least the same bytes, which
 * the broker's output buffer sees to: it only grows at its end. It may have
 * sent some of them; one call sends a record of 16 KB, or two. An end that is
 * not orderly sends no close_notify, since that could push out a record of
 * messages which must not leave any more.
 */
#include "transport.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void
transport_init(struct transport *t)
{
	memset(t, 0, sizeof(*t));
	t->fd = -1;
	t->read_wants = POLLIN;
	t->write_wants = POLLOUT;
}

/* Begin; done when the socket can be written. False: errno says why. */
bool
transport_connect(struct transport *t, const struct addrinfo *address)
{
	int			fd = socket(address->ai_family,
							SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int			on = 1;
	int			error;

	if (fd < 0)
		return false;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	transport_init(t);
	t->fd = fd;
	if (connect(fd, address->ai_addr, address->ai_addrlen) == 0 ||
		errno == EINPROGRESS)
		return true;
	error = errno;
	transport_close(t, false);
	errno = error;
	return false;
}

int
transport_connect_error(const struct transport *t)
{
	int			error = 0;
	socklen_t	size = sizeof(error);

	if (getsockopt(t->fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0)
		return errno;
	return error;
}

/* Begin TLS on the connected socket. The host outlives the connection. */
bool
transport_secure(struct transport *t, const struct tls_settings *settings,
				 const char *host)
{
	SSL_CTX    *context = tls_context_new(settings, t->error,
										  sizeof(t->error));

	if (context == NULL)
		return false;
	t->host = host;
	t->ssl = tls_session_new(context, t->fd, host);
	SSL_CTX_free(context);		/* the session holds it */
	if (t->ssl == NULL)
		snprintf(t->error, sizeof(t->error), "TLS cannot be set up");
	return t->ssl != NULL;
}

static enum transport_status
fail_errno(struct transport *t, int error)
{
	snprintf(t->error, sizeof(t->error), "%s", error ? strerror(error) :
			 "connection ended");
	return TRANSPORT_FAILED;
}

/* What a call of OpenSSL that did not succeed means. */
static enum transport_status
tls_status(struct transport *t, int result, short *wants)
{
	int			error = errno;

	switch (SSL_get_error(t->ssl, result))
	{
		case SSL_ERROR_WANT_READ:
			*wants = POLLIN;
			return TRANSPORT_AGAIN;
		case SSL_ERROR_WANT_WRITE:
			*wants = POLLOUT;
			return TRANSPORT_AGAIN;
		case SSL_ERROR_ZERO_RETURN:
			snprintf(t->error, sizeof(t->error), "end of input");
			return TRANSPORT_ENDED;
		case SSL_ERROR_SYSCALL:
			return fail_errno(t, error);
		default:
			return tls_describe_failure(t->ssl, t->host, t->error,
										sizeof(t->error)) ?
				TRANSPORT_REFUSED : TRANSPORT_FAILED;
	}
}

enum transport_status
transport_handshake(struct transport *t)
{
	enum transport_status status;
	int			result;

	ERR_clear_error();
	errno = 0;
	result = SSL_do_handshake(t->ssl);
	if (result != 1)
	{
		status = tls_status(t, result, &t->read_wants);
		t->write_wants = t->read_wants;
		return status;
	}
	t->read_wants = POLLIN;
	t->write_wants = POLLOUT;
	return TRANSPORT_OK;
}

static enum transport_status
plain_read(struct transport *t, void *data, size_t size, size_t *got)
{
	ssize_t		result;

	do
		result = recv(t->fd, data, size, 0);
	while (result < 0 && errno == EINTR);
	if (result > 0)
	{
		*got = (size_t) result;
		return TRANSPORT_OK;
	}
	if (result < 0)
		return errno == EAGAIN ? TRANSPORT_AGAIN : fail_errno(t, errno);
	snprintf(t->error, sizeof(t->error), "end of input");
	return TRANSPORT_ENDED;
}

enum transport_status
transport_read(struct transport *t, void *data, size_t size, size_t *got)
{
	int			result;

	if (t->ssl == NULL)
		return plain_read(t, data, size, got);
	ERR_clear_error();
	errno = 0;
	result = SSL_read_ex(t->ssl, data, size, got);
	if (result != 1)
		return tls_status(t, result, &t->read_wants);
	t->read_wants = POLLIN;
	return TRANSPORT_OK;
}

static enum transport_status
plain_write(struct transport *t, const void *data, size_t size, size_t *sent)
{
	ssize_t		result;

	do
		result = send(t->fd, data, size, MSG_NOSIGNAL);
	while (result < 0 && errno == EINTR);
	if (result < 0)
		return errno == EAGAIN ? TRANSPORT_AGAIN : fail_errno(t, errno);
	*sent = (size_t) result;
	return TRANSPORT_OK;
}

enum transport_status
transport_write(struct transport *t, const void *data, size_t size,
				size_t *sent)
{
	int			result;

	if (t->ssl == NULL)
		return plain_write(t, data, size, sent);
	ERR_clear_error();
	errno = 0;
	result = SSL_write_ex(t->ssl, data, size, sent);
	if (result != 1)
		return tls_status(t, result, &t->write_wants);
	t->write_wants = POLLOUT;
	return TRANSPORT_OK;
}

/* For poll(): input is always wanted. */
short
transport_events(const struct transport *t, bool sending)
{
	return t->read_wants | (sending ? t->write_wants : 0);
}

bool
transport_has_input(const struct transport *t)
{
	return t->ssl && SSL_pending(t->ssl) > 0;
}

void
transport_close(struct transport *t, bool orderly)
{
	if (t->ssl && orderly)
		SSL_shutdown(t->ssl);	/* best effort: no answer is awaited */
	ERR_clear_error();
	SSL_free(t->ssl);
	if (t->fd >= 0)
		close(t->fd);
	t->ssl = NULL;
	t->fd = -1;
	t->read_wants = POLLIN;
	t->write_wants = POLLOUT;
}
