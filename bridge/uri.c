/*
 * uri.c
 *		amqp://user:password@host:port,host:port/vhost?auth_mechanism=external,
 *		or amqps://, every part but the scheme optional.
 *
 * Parts are percent-decoded, so a password may hold any byte but NUL. As in
 * RabbitMQ's own rules, no path means the virtual host "/", while a lone slash
 * means the one with the empty name. The query knows one parameter; those that
 * other clients take (heartbeat, cacertfile, ...) are settings here, and are
 * refused rather than overlooked. Pure.
 */
#include "uri.h"

#include <stdlib.h>
#include <string.h>

static int
hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

/* False if it does not fit, or a percent sign has no two digits behind it. */
static bool
decode(const char *from, size_t length, char *to, size_t capacity)
{
	size_t		written = 0;

	for (size_t i = 0; i < length; i++)
	{
		char		c = from[i];

		if (c == '%')
		{
			int			high = i + 2 < length ? hex_digit(from[i + 1]) : -1;
			int			low = i + 2 < length ? hex_digit(from[i + 2]) : -1;

			if (high < 0 || low < 0 || high + low == 0)
				return false;
			c = (char) (high * 16 + low);
			i += 2;
		}
		if (written + 1 >= capacity)
			return false;
		to[written++] = c;
	}
	to[written] = '\0';
	return true;
}

static bool
port_is_valid(const char *port)
{
	char	   *end;
	long		number = strtol(port, &end, 10);

	return *port >= '0' && *port <= '9' && *end == '\0' &&
		number >= 1 && number <= 65535;
}

static const char *
parse_login(const char *text, size_t length, struct broker_uri *uri)
{
	const char *colon = memchr(text, ':', length);
	size_t		user = colon ? (size_t) (colon - text) : length;

	if (!decode(text, user, uri->user, sizeof(uri->user)))
		return "its user name is not valid";
	uri->has_user = user > 0;
	if (colon == NULL)
		return NULL;
	uri->has_password = true;
	if (!decode(colon + 1, length - user - 1, uri->password,
				sizeof(uri->password)))
		return "its password is not valid percent-encoding";
	return NULL;
}

/* The rest of one host, behind its name: nothing, or a colon and the port. */
static const char *
parse_port(const char *text, const char *end, char port[8])
{
	size_t		length = (size_t) (end - text);

	if (length == 0)
		return NULL;
	if (*text != ':' || length > sizeof(((struct broker_host *) 0)->port))
		return "its port is not a number from 1 to 65535";
	memcpy(port, text + 1, length - 1);
	port[length - 1] = '\0';
	return port_is_valid(port) ? NULL :
		"its port is not a number from 1 to 65535";
}

/* host, host:port, [v6], [v6]:port */
static const char *
parse_host(const char *text, size_t length, struct broker_host *to)
{
	const char *host = text;
	const char *end = text + length;
	const char *rest;

	if (length > 0 && *text == '[')
	{
		host++;
		rest = memchr(host, ']', length - 1);
		if (rest == NULL)
			return "its host lacks a closing bracket";
	}
	else
	{
		rest = memchr(host, ':', length);
		if (rest == NULL)
			rest = end;
	}
	if (!decode(host, (size_t) (rest - host), to->name, URI_PART_MAX))
		return "its host is not valid";
	if (rest < end && *rest == ']')
		rest++;
	return parse_port(rest, end, to->port);
}

/* Hosts separated by commas; none at all is the local one. */
static const char *
parse_hosts(const char *text, size_t length, struct broker_uri *uri)
{
	const char *end = text + length;
	const char *problem = NULL;

	for (;;)
	{
		const char *comma = memchr(text, ',', (size_t) (end - text));
		struct broker_host *host = &uri->hosts[uri->count];

		if (uri->count == URI_HOSTS_MAX)
			return "it has more than 16 hosts";
		strcpy(host->port, uri->tls ? URI_DEFAULT_TLS_PORT : URI_DEFAULT_PORT);
		problem = parse_host(text, (size_t) ((comma ? comma : end) - text),
							 host);
		if (problem)
			return problem;
		if (host->name[0] == '\0')
		{
			if (length > 0 && (comma || uri->count > 0))
				return "a host in its list is empty";
			strcpy(host->name, "localhost");
		}
		uri->count++;
		if (comma == NULL)
			return NULL;
		text = comma + 1;
	}
}

static const char *
parse_vhost(const char *text, size_t length, struct broker_uri *uri)
{
	if (memchr(text, '/', length) || memchr(text, '#', length))
		return "its virtual host holds a '/', '?' or '#' that is not encoded";
	if (!decode(text, length, uri->vhost, URI_PART_MAX))
		return "its virtual host is not valid";
	return NULL;
}

static const char *
parse_query(const char *text, struct broker_uri *uri)
{
	if (strcmp(text, "auth_mechanism=external") == 0)
		uri->auth = AUTH_EXTERNAL;
	else if (strcmp(text, "auth_mechanism=plain") == 0)
		uri->auth = AUTH_PLAIN;
	else
		return "its query may only be auth_mechanism=external or "
			"auth_mechanism=plain";
	return NULL;
}

/* The last @ ends the login, even where a password's own was not encoded. */
static const char *
parse_authority(const char *text, size_t length, struct broker_uri *uri)
{
	const char *at = memrchr(text, '@', length);
	const char *problem;

	if (at)
	{
		problem = parse_login(text, (size_t) (at - text), uri);
		if (problem)
			return problem;
		length -= (size_t) (at + 1 - text);
		text = at + 1;
	}
	return parse_hosts(text, length, uri);
}

/* NULL if well formed, else what is wrong; the text never quotes the URI. */
const char *
uri_parse(const char *text, struct broker_uri *uri)
{
	const char *problem,
			   *slash,
			   *query,
			   *end;

	memset(uri, 0, sizeof(*uri));
	uri->tls = strncmp(text, "amqps://", 8) == 0;
	if (!uri->tls && strncmp(text, "amqp://", 7) != 0)
		return "it does not begin with amqp:// or amqps://";
	text += uri->tls ? 8 : 7;
	end = text + strlen(text);
	slash = strchr(text, '/');
	/* without a path, only a question mark behind the login begins the query */
	query = strchr(slash ? slash : strrchr(text, '@') ? strrchr(text, '@') : text,
				   '?');
	problem = parse_authority(text, (size_t) ((slash ? slash : query ? query :
											   end) - text), uri);
	if (problem == NULL && query)
		problem = parse_query(query + 1, uri);
	if (problem == NULL && slash)
		problem = parse_vhost(slash + 1, (size_t) ((query ? query : end) -
												   slash - 1), uri);
	if (problem)
		return problem;
	if (!uri->has_user)
		strcpy(uri->user, URI_DEFAULT_USER);
	if (slash == NULL)
		strcpy(uri->vhost, "/");
	return NULL;
}
