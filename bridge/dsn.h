#ifndef ACME_DSN_H
#define ACME_DSN_H

#include <netdb.h>
#include <stdbool.h>

#include "buffer.h"

#define DSN_HOSTS_MAX		16
#define DSN_ADDRESSES_MAX	64
#define DSN_NAME_MAX		256

struct dsn_host
{
	char		name[DSN_NAME_MAX];
	char		port[8];		/* empty: libpq's default */
	bool		resolvable;		/* not a socket's folder */
};

struct dsn_address
{
	const struct dsn_host *host;
	char		text[64];		/* empty: the host is a socket's folder */
};

/* The hosts of a connection string; none: libpq is left alone with it. */
struct dsn_hosts
{
	int			count;
	struct dsn_host hosts[DSN_HOSTS_MAX];
	int			address_count;
	struct dsn_address addresses[DSN_ADDRESSES_MAX];
};

/* The settings that name the addresses to libpq. */
struct dsn_texts
{
	struct buffer host;
	struct buffer hostaddr;
	struct buffer port;
};

bool		dsn_is_string(const char *dsn);
void		dsn_read_hosts(const char *dsn, struct dsn_hosts *hosts);
void		dsn_add_addresses(struct dsn_hosts *hosts, int host,
							  const struct addrinfo *addresses);
void		dsn_write_texts(const struct dsn_hosts *hosts,
							const char *last_address, const char *last_port,
							struct dsn_texts *texts);
void		dsn_free_texts(struct dsn_texts *texts);

#endif							/* ACME_DSN_H */
