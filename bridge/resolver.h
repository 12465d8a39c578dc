#ifndef ACME_RESOLVER_H
#define ACME_RESOLVER_H

#include <netdb.h>
#include <stdbool.h>

struct resolver;

/* getaddrinfo(), unless a test says otherwise. */
typedef int (*resolver_lookup_function) (const char *host, const char *port,
										 const struct addrinfo *hints,
										 struct addrinfo **addresses);
extern resolver_lookup_function resolver_lookup;

struct resolver *resolver_start(const char *host, const char *port);
int			resolver_fd(const struct resolver *r);
bool		resolver_finish(struct resolver *r, struct addrinfo **addresses,
							int *error);
void		resolver_abandon(struct resolver *r);

#endif							/* ACME_RESOLVER_H */
