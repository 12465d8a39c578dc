/*
 * dsn.c
 *		The hosts of a PostgreSQL connection string, and their addresses.
 *
 * libpq looks names up inside PQconnectStart() and PQconnectPoll(), which then
 * block. So names are resolved before (resolver.c), and libpq is told each
 * address in hostaddr, with the name still in host: certificates are verified
 * and passwords found by the name.
 *
 * libpq is left alone with connection strings that give hostaddr, name a
 * service, have no host at all, or lists that do not fit together, about which
 * it complains itself. Pure but for libpq's own reading of its variables.
 */
#include "dsn.h"

#include <libpq-fe.h>
#include <stdlib.h>
#include <string.h>

bool
dsn_is_string(const char *dsn)
{
	return strchr(dsn, '=') || strncmp(dsn, "postgres://", 11) == 0 ||
		strncmp(dsn, "postgresql://", 13) == 0;
}

static const char *
find_option(const PQconninfoOption *options, const char *keyword)
{
	for (; options && options->keyword; options++)
		if (strcmp(options->keyword, keyword) == 0)
			return options->val && options->val[0] ? options->val : NULL;
	return NULL;
}

/* The element of a comma-separated list; false if it has no such, or is long. */
static bool
list_element(const char *list, int index, char *to, size_t capacity)
{
	size_t		length;

	while (index-- > 0)
	{
		list = strchr(list, ',');
		if (list == NULL)
			return false;
		list++;
	}
	length = strcspn(list, ",");
	if (length >= capacity)
		return false;
	memcpy(to, list, length);
	to[length] = '\0';
	return true;
}

static int
list_length(const char *list)
{
	int			count = 1;

	for (; *list; list++)
		count += *list == ',';
	return count;
}

static bool
read_lists(const char *names, const char *ports, struct dsn_hosts *hosts)
{
	int			count = list_length(names);
	int			port_count = ports ? list_length(ports) : 0;

	if (count > DSN_HOSTS_MAX || (port_count > 1 && port_count != count))
		return false;
	for (int i = 0; i < count; i++)
	{
		struct dsn_host *host = &hosts->hosts[i];

		if (!list_element(names, i, host->name, sizeof(host->name)) ||
			(ports && !list_element(ports, port_count == 1 ? 0 : i, host->port,
									sizeof(host->port))))
			return false;
		/* an empty one means the default socket */
		host->resolvable = host->name[0] != '\0' && host->name[0] != '/' &&
			host->name[0] != '@';
	}
	hosts->count = count;
	return true;
}

void
dsn_read_hosts(const char *dsn, struct dsn_hosts *hosts)
{
	PQconninfoOption *defaults = PQconndefaults();
	PQconninfoOption *given = dsn && dsn_is_string(dsn) ?
		PQconninfoParse(dsn, NULL) : NULL;
	const char *names = find_option(given, "host");
	const char *ports = find_option(given, "port");

	memset(hosts, 0, sizeof(*hosts));
	if (names == NULL)
		names = find_option(defaults, "host");
	if (ports == NULL)
		ports = find_option(defaults, "port");
	if (names == NULL || find_option(given, "service") ||
		find_option(given, "hostaddr") || find_option(defaults, "hostaddr") ||
		!read_lists(names, ports, hosts))
		hosts->count = 0;
	PQconninfoFree(given);
	PQconninfoFree(defaults);
}

static struct dsn_address *
add_address(struct dsn_hosts *hosts, int host)
{
	struct dsn_address *address;

	if (hosts->address_count == DSN_ADDRESSES_MAX)
		return NULL;
	address = &hosts->addresses[hosts->address_count++];
	address->host = &hosts->hosts[host];
	address->text[0] = '\0';
	return address;
}

/* Of the host with that index, in the order of the hosts; NULL: a socket. */
void
dsn_add_addresses(struct dsn_hosts *hosts, int host,
				  const struct addrinfo *addresses)
{
	if (addresses == NULL)
		add_address(hosts, host);
	for (; addresses; addresses = addresses->ai_next)
	{
		struct dsn_address *address = add_address(hosts, host);

		if (address == NULL)
			return;
		if (getnameinfo(addresses->ai_addr, addresses->ai_addrlen,
						address->text, sizeof(address->text), NULL, 0,
						NI_NUMERICHOST) != 0)
			hosts->address_count--;
	}
}

/* The place behind the address that did not answer, or the first. */
static int
first_index(const struct dsn_hosts *hosts, const char *address,
			const char *port)
{
	for (int i = 0; i < hosts->address_count; i++)
		if (address[0] != '\0' &&
			strcmp(hosts->addresses[i].text, address) == 0 &&
			(hosts->addresses[i].host->port[0] == '\0' ||
			 strcmp(hosts->addresses[i].host->port, port) == 0))
			return i + 1;
	return 0;
}

/*
 * All addresses once. libpq itself never gives one up that does not answer, and
 * its deadline here is the whole connection's: the next attempt begins behind
 * that one.
 */
void
dsn_write_texts(const struct dsn_hosts *hosts, const char *last_address,
				const char *last_port, struct dsn_texts *texts)
{
	int			first = first_index(hosts, last_address, last_port);

	memset(texts, 0, sizeof(*texts));
	for (int i = 0; i < hosts->address_count; i++)
	{
		const struct dsn_address *address =
			&hosts->addresses[(first + i) % hosts->address_count];
		const char *comma = i ? "," : "";

		buffer_append_text(&texts->host, comma);
		buffer_append_text(&texts->host, address->host->name);
		buffer_append_text(&texts->hostaddr, comma);
		buffer_append_text(&texts->hostaddr, address->text);
		buffer_append_text(&texts->port, comma);
		buffer_append_text(&texts->port, address->host->port);
	}
}

void
dsn_free_texts(struct dsn_texts *texts)
{
	buffer_free(&texts->host);
	buffer_free(&texts->hostaddr);
	buffer_free(&texts->port);
}
