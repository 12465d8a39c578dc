/*
 * uri.c
 *		amqp://user:password@host:port/vhost, every part but the scheme optional.
 *
 * Parts are percent-decoded, so a password may hold any byte but NUL. As in
 * RabbitMQ's own rules, no path means the virtual host "/", while a lone slash
 * means the one with the empty name. Pure.
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
	if (colon == NULL)
		return NULL;
	uri->has_password = true;
	if (!decode(colon + 1, length - user - 1, uri->password,
				sizeof(uri->password)))
		return "its password is not valid percent-encoding";
	return NULL;
}

/* host, host:port, [v6], [v6]:port */
static const char *
parse_host(const char *text, size_t length, struct broker_uri *uri)
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
		if (!decode(host, (size_t) (rest - host), uri->host, URI_PART_MAX))
			return "its host is not valid";
		rest++;
	}
	else
	{
		rest = memchr(host, ':', length);
		if (rest == NULL)
			rest = end;
		if (!decode(host, (size_t) (rest - host), uri->host, URI_PART_MAX))
			return "its host is not valid";
	}
	if (rest == end)
		return NULL;
	if (*rest != ':' || (size_t) (end - rest) > sizeof(uri->port) - 1)
		return "its port is not a number from 1 to 65535";
	memcpy(uri->port, rest + 1, (size_t) (end - rest - 1));
	uri->port[end - rest - 1] = '\0';
	return port_is_valid(uri->port) ? NULL :
		"its port is not a number from 1 to 65535";
}

/* NULL if well formed, else what is wrong; the text never quotes the URI. */
const char *
uri_parse(const char *text, struct broker_uri *uri)
{
	const char *authority,
			   *slash,
			   *at = NULL;
	const char *problem = NULL;
	size_t		length;

	memset(uri, 0, sizeof(*uri));
	if (strncmp(text, "amqps://", 8) == 0)
		return "amqps:// (TLS) is not supported in this version";
	if (strncmp(text, "amqp://", 7) != 0)
		return "it does not begin with amqp://";
	authority = text + 7;
	slash = strchr(authority, '/');
	length = slash ? (size_t) (slash - authority) : strlen(authority);
	for (size_t i = 0; i < length; i++)
		if (authority[i] == '@')
			at = authority + i;
	strcpy(uri->port, URI_DEFAULT_PORT);
	if (at)
	{
		problem = parse_login(authority, (size_t) (at - authority), uri);
		length -= (size_t) (at + 1 - authority);
		authority = at + 1;
	}
	if (problem == NULL)
		problem = parse_host(authority, length, uri);
	if (problem)
		return problem;
	if (uri->host[0] == '\0')
		strcpy(uri->host, "localhost");
	if (uri->user[0] == '\0')
		strcpy(uri->user, URI_DEFAULT_USER);
	if (slash == NULL)
		strcpy(uri->vhost, "/");
	else if (strpbrk(slash + 1, "/?#"))
		return "its virtual host holds a '/', '?' or '#' that is not encoded";
	else if (!decode(slash + 1, strlen(slash + 1), uri->vhost, URI_PART_MAX))
		return "its virtual host is not valid";
	return NULL;
}
