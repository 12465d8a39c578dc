#ifndef ACME_TLS_H
#define ACME_TLS_H

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stddef.h>

#define TLS_TEXT_MAX	256

/* What a refusal that TLS is the reason of begins with. */
#define TLS_PREFIX		"TLS: "

struct tls_settings
{
	bool		enabled;
	bool		verify;			/* the broker's certificate, and its name */
	const char *ca_file;		/* NULL: the system's */
	const char *cert_file;		/* NULL: none is shown */
	const char *key_file;		/* NULL: in the certificate's file */
	const char *key_password_file;
};

/* What was agreed with the peer, for the report and the log. */
struct tls_facts
{
	char		protocol[16];
	char		cipher[64];
	char		peer[TLS_TEXT_MAX]; /* subject of its certificate */
	int			days_left;		/* of its certificate */
};

SSL_CTX    *tls_context_new(const struct tls_settings *settings, char *error,
							size_t size);
SSL		   *tls_session_new(SSL_CTX *context, int fd, const char *host);
bool		tls_describe_failure(SSL *ssl, const char *host, char *text,
								 size_t size);
bool		tls_read_facts(SSL *ssl, struct tls_facts *facts);
bool		tls_file_days_left(const char *cert_file, int *days);

#endif							/* ACME_TLS_H */
