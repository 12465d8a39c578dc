#ifndef ACME_URI_H
#define ACME_URI_H

#include <stdbool.h>

#define URI_PART_MAX	256
#define URI_SECRET_MAX	1024
#define URI_HOSTS_MAX	16

#define URI_DEFAULT_PORT		"5672"
#define URI_DEFAULT_TLS_PORT	"5671"
#define URI_DEFAULT_USER		"guest"

enum broker_auth
{
	AUTH_AUTO,					/* the URI does not say */
	AUTH_PLAIN,
	AUTH_EXTERNAL				/* the client certificate is the login */
};

struct broker_host
{
	char		name[URI_PART_MAX];
	char		port[8];
};

struct broker_uri
{
	bool		tls;
	int			count;
	struct broker_host hosts[URI_HOSTS_MAX];
	char		vhost[URI_PART_MAX];
	char		user[URI_PART_MAX];
	char		password[URI_SECRET_MAX];
	bool		has_user;
	bool		has_password;
	enum broker_auth auth;
};

const char *uri_parse(const char *text, struct broker_uri *uri);

#endif							/* ACME_URI_H */
