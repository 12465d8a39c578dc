/*
 * tls.c
 *		What OpenSSL is told, and what its failures mean.
 *
 * TLS 1.2 or later. The peer's certificate is always verified, with its name,
 * unless a setting says otherwise. A host that is an IP address is compared
 * with the certificate's IP entries and is not sent as SNI; a name is compared
 * with the DNS entries.
 *
 * A context is made anew for each connection, so that renewed certificate
 * files count without a restart.
 */
#include "tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>


/* For the first error in OpenSSL's queue, its reason alone. */
static const char *
reason_of(unsigned long code)
{
	const char *reason;

	if (ERR_SYSTEM_ERROR(code))
		return strerror(ERR_GET_REASON(code));
	reason = ERR_reason_error_string(code);
	return reason ? reason : "unknown error";
}

static bool
fail_file(char *error, size_t size, const char *setting, const char *path)
{
	snprintf(error, size, "setting \"%s\": cannot use \"%s\": %s", setting, path,
			 reason_of(ERR_peek_error()));
	return false;
}

struct passphrase
{
	const char *path;			/* or NULL */
	bool		asked;			/* the key is encrypted */
};

/* Never asks a terminal: without a file, an encrypted key is an error. */
static int
give_password(char *to, int size, int writing, void *argument)
{
	struct passphrase *passphrase = argument;
	FILE	   *file = passphrase->path ? fopen(passphrase->path, "r") : NULL;
	size_t		length;

	(void) writing;
	passphrase->asked = true;
	if (file == NULL)
		return -1;
	if (fgets(to, size, file) == NULL)
		*to = '\0';
	fclose(file);
	length = strcspn(to, "\r\n");
	to[length] = '\0';
	return (int) length;
}

static bool
password_file_is_readable(const char *path, char *error, size_t size)
{
	FILE	   *file = path ? fopen(path, "r") : NULL;

	if (path && file == NULL)
	{
		snprintf(error, size, "setting \"tls-key-password-file\": cannot read "
				 "\"%s\": %s", path, strerror(errno));
		return false;
	}
	if (file)
		fclose(file);
	return true;
}

static bool
load_trust(SSL_CTX *context, const struct tls_settings *settings, char *error,
		   size_t size)
{
	if (settings->ca_file == NULL)
	{
		SSL_CTX_set_default_verify_paths(context);
		return true;
	}
	if (SSL_CTX_load_verify_file(context, settings->ca_file) == 1)
		return true;
	return fail_file(error, size, "tls-ca-file", settings->ca_file);
}

static bool
load_key(SSL_CTX *context, const struct tls_settings *settings, char *error,
		 size_t size)
{
	const char *key = settings->key_file ? settings->key_file :
		settings->cert_file;
	struct passphrase passphrase = {settings->key_password_file, false};
	bool		good;

	SSL_CTX_set_default_passwd_cb_userdata(context, &passphrase);
	good = SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) == 1;
	SSL_CTX_set_default_passwd_cb_userdata(context, NULL);
	if (good)
		return true;
	if (ERR_GET_REASON(ERR_peek_last_error()) == X509_R_KEY_VALUES_MISMATCH ||
		ERR_GET_REASON(ERR_peek_error()) == X509_R_KEY_VALUES_MISMATCH)
		snprintf(error, size, "setting \"tls-key-file\": the key in \"%s\" does "
				 "not belong to the certificate in \"%s\"", key,
				 settings->cert_file);
	else if (passphrase.asked)
		snprintf(error, size, "setting \"tls-key-file\": the key in \"%s\" is "
				 "encrypted: %s", key, passphrase.path ?
				 "the passphrase in tls-key-password-file is wrong" :
				 "give tls-key-password-file");
	else
		return fail_file(error, size, "tls-key-file", key);
	return false;
}

static bool
load_certificate(SSL_CTX *context, const struct tls_settings *settings,
				 char *error, size_t size)
{
	if (settings->cert_file == NULL)
		return true;
	if (!password_file_is_readable(settings->key_password_file, error, size))
		return false;
	if (SSL_CTX_use_certificate_chain_file(context, settings->cert_file) != 1)
		return fail_file(error, size, "tls-cert-file", settings->cert_file);
	SSL_CTX_set_default_passwd_cb(context, give_password);
	return load_key(context, settings, error, size);
}

/* NULL if a file cannot be used; error says which and why. */
SSL_CTX *
tls_context_new(const struct tls_settings *settings, char *error, size_t size)
{
	SSL_CTX    *context = SSL_CTX_new(TLS_client_method());

	ERR_clear_error();
	if (context == NULL)
	{
		snprintf(error, size, "TLS cannot be set up");
		return NULL;
	}
	SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
	/* AMQP has frames of its own, so an end without close_notify hides nothing */
	SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
						SSL_OP_IGNORE_UNEXPECTED_EOF);
	SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE |
					 SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
	SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
	SSL_CTX_set_verify(context, settings->verify ? SSL_VERIFY_PEER :
					   SSL_VERIFY_NONE, NULL);
	if (load_trust(context, settings, error, size) &&
		load_certificate(context, settings, error, size))
		return context;
	ERR_clear_error();
	SSL_CTX_free(context);
	return NULL;
}

static bool
is_address(const char *host)
{
	struct in6_addr address;

	return inet_pton(AF_INET, host, &address) == 1 ||
		inet_pton(AF_INET6, host, &address) == 1;
}

/* A client's session on a connected socket, bound to the host's name. */
SSL *
tls_session_new(SSL_CTX *context, int fd, const char *host)
{
	SSL		   *ssl = SSL_new(context);
	bool		good;

	if (ssl == NULL)
		return NULL;
	if (is_address(host))
		good = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1;
	else
	{
		SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
		good = SSL_set1_host(ssl, host) == 1 &&
			SSL_set_tlsext_host_name(ssl, host) == 1;
	}
	if (good && SSL_set_fd(ssl, fd) == 1)
	{
		SSL_set_connect_state(ssl);
		return ssl;
	}
	SSL_free(ssl);
	return NULL;
}

/* The peer ended the handshake for what it thinks of our certificate. */
static bool
is_about_our_certificate(int reason)
{
	switch (reason)
	{
		case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
		case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
		case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
		case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
		case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
		case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
		case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
		case SSL_R_TLSV1_ALERT_ACCESS_DENIED:
		case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
			return true;
		default:
			return false;
	}
}

static void
describe_verification(long result, const char *host, char *text, size_t size)
{
	if (result == X509_V_ERR_HOSTNAME_MISMATCH ||
		result == X509_V_ERR_IP_ADDRESS_MISMATCH)
		snprintf(text, size, "the broker's certificate is not for \"%s\": %s",
				 host, X509_verify_cert_error_string(result));
	else
		snprintf(text, size, "the broker's certificate is not trusted: %s",
				 X509_verify_cert_error_string(result));
}

/*
 * Why the session failed, as one line. True if a person must mend it: trying
 * again is of no use.
 */
bool
tls_describe_failure(SSL *ssl, const char *host, char *text, size_t size)
{
	unsigned long code = ERR_peek_error();
	long		result = SSL_get_verify_result(ssl);
	int			reason = ERR_GET_REASON(code);
	bool		is_ssl = ERR_GET_LIB(code) == ERR_LIB_SSL;

	if (is_ssl && reason == SSL_R_CERTIFICATE_VERIFY_FAILED)
		describe_verification(result, host, text, size);
	else if (is_ssl && is_about_our_certificate(reason))
		snprintf(text, size, "the broker did not accept this client's "
				 "certificate, or wants one: %s", reason_of(code));
	else if (is_ssl && (reason == SSL_R_WRONG_VERSION_NUMBER ||
						reason == SSL_R_PACKET_LENGTH_TOO_LONG))
		snprintf(text, size, "this port does not speak TLS");
	else
	{
		snprintf(text, size, "%s", code ? reason_of(code) : "connection ended");
		return is_ssl && (reason == SSL_R_UNSUPPORTED_PROTOCOL ||
						  reason == SSL_R_TLSV1_ALERT_PROTOCOL_VERSION);
	}
	return true;
}

static int
days_left(const X509 *certificate)
{
	int			days = 0,
				seconds = 0;

	ASN1_TIME_diff(&days, &seconds, NULL, X509_get0_notAfter(certificate));
	return seconds < 0 && days == 0 ? -1 : days;
}

bool
tls_read_facts(SSL *ssl, struct tls_facts *facts)
{
	X509	   *certificate = ssl ? SSL_get0_peer_certificate(ssl) : NULL;

	memset(facts, 0, sizeof(*facts));
	if (certificate == NULL)
		return false;
	snprintf(facts->protocol, sizeof(facts->protocol), "%s",
			 SSL_get_version(ssl));
	snprintf(facts->cipher, sizeof(facts->cipher), "%s",
			 SSL_get_cipher_name(ssl));
	X509_NAME_oneline(X509_get_subject_name(certificate), facts->peer,
					  sizeof(facts->peer));
	facts->days_left = days_left(certificate);
	return true;
}

/* Of the first certificate of a file; below zero: expired. */
bool
tls_file_days_left(const char *cert_file, int *days)
{
	FILE	   *file = fopen(cert_file, "r");
	X509	   *certificate = file ? PEM_read_X509(file, NULL, NULL, NULL) : NULL;

	if (file)
		fclose(file);
	if (certificate == NULL)
	{
		ERR_clear_error();
		return false;
	}
	*days = days_left(certificate);
	X509_free(certificate);
	return true;
}
