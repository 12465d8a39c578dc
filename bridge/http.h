#ifndef ACME_HTTP_H
#define ACME_HTTP_H

#include <stdbool.h>

#define HTTP_HOST_MAX	256
#define HTTP_PORT_MAX	6

struct http_address
{
	char		host[HTTP_HOST_MAX];
	char		port[HTTP_PORT_MAX];
};

bool		http_parse(const char *text, struct http_address *address);
bool		http_start(const char *text);
void		http_stop(void);

#endif							/* ACME_HTTP_H */
