#ifndef ACME_TRANSPORT_H
#define ACME_TRANSPORT_H

#include <netdb.h>
#include <stdbool.h>
#include <stddef.h>

#include "tls.h"

enum transport_status
{
	TRANSPORT_OK,
	TRANSPORT_AGAIN,			/* wait for transport_events() */
	TRANSPORT_ENDED,			/* the peer closed it */
	TRANSPORT_FAILED,			/* error says why */
	TRANSPORT_REFUSED			/* the same, and trying again is of no use */
};

struct transport
{
	int			fd;
	SSL		   *ssl;			/* NULL: plain */
	const char *host;
	short		read_wants;		/* what reading waits for: also POLLOUT */
	short		write_wants;	/* what writing waits for: also POLLIN */
	char		error[TLS_TEXT_MAX];
};

void		transport_init(struct transport *t);
bool		transport_connect(struct transport *t,
							  const struct addrinfo *address);
int			transport_connect_error(const struct transport *t);
bool		transport_secure(struct transport *t,
							 const struct tls_settings *settings,
							 const char *host);
enum transport_status transport_handshake(struct transport *t);
enum transport_status transport_read(struct transport *t, void *data,
									 size_t size, size_t *got);
enum transport_status transport_write(struct transport *t, const void *data,
									  size_t size, size_t *sent);
short		transport_events(const struct transport *t, bool sending);
bool		transport_has_input(const struct transport *t);
void		transport_close(struct transport *t, bool orderly);

#endif							/* ACME_TRANSPORT_H */
