#ifndef ACME_RESOLVER_H
#define ACME_RESOLVER_H

#include <netdb.h>
#include <stdbool.h>

struct resolver;

struct resolver *resolver_start(const char *host, const char *port);
int			resolver_fd(const struct resolver *r);
bool		resolver_finish(struct resolver *r, struct addrinfo **addresses,
							int *error);
void		resolver_abandon(struct resolver *r);

#endif							/* ACME_RESOLVER_H */
