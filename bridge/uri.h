#ifndef ACME_URI_H
#define ACME_URI_H

#include <stdbool.h>

#define URI_PART_MAX	256
#define URI_SECRET_MAX	1024

#define URI_DEFAULT_PORT	"5672"
#define URI_DEFAULT_USER	"guest"

struct broker_uri
{
	char		host[URI_PART_MAX];
	char		port[8];
	char		vhost[URI_PART_MAX];
	char		user[URI_PART_MAX];
	char		password[URI_SECRET_MAX];
	bool		has_password;
};

const char *uri_parse(const char *text, struct broker_uri *uri);

#endif							/* ACME_URI_H */
