/*
 * test_transport.c
 *		The byte stream, plain and TLS, against a peer in the same thread: what a
 *		full socket, a split record and a bad certificate do.
 *
 * The sockets are a socketpair with small buffers, so that both directions
 * fill up. The certificates are made here.
 */
#include "unit.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport.h"

#define SMALL_BUFFER	4096
#define PIECE			20000
#define TURNS_MAX		100000
#define DAY				86400L

static struct transport t;
static int	peer_fd;
static SSL *peer;				/* NULL: plain */
static char ca_path[] = "/tmp/acme_outbox_ca_XXXXXX";

/* ---- certificates ---- */

/* Signed by itself, and so its own authority. */
static X509 *
make_certificate(EVP_PKEY *key, const char *san, long days)
{
	X509	   *x = X509_new();
	X509_NAME  *name = X509_get_subject_name(x);
	X509_EXTENSION *extension;

	X509_set_version(x, 2);
	ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
	X509_gmtime_adj(X509_getm_notBefore(x), -10 * DAY);
	X509_gmtime_adj(X509_getm_notAfter(x), days * DAY);
	X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
							   (const unsigned char *) "unit", -1, -1, 0);
	X509_set_issuer_name(x, name);
	X509_set_pubkey(x, key);
	extension = X509V3_EXT_conf_nid(NULL, NULL, NID_subject_alt_name, san);
	assert_non_null(extension);
	X509_add_ext(x, extension, -1);
	X509_EXTENSION_free(extension);
	assert_true(X509_sign(x, key, EVP_sha256()) > 0);
	return x;
}

static SSL *
make_peer(const char *san, long days, int fd, bool wants_certificate)
{
	EVP_PKEY   *key = EVP_EC_gen("P-256");
	X509	   *certificate = make_certificate(key, san, days);
	SSL_CTX    *context = SSL_CTX_new(TLS_server_method());
	FILE	   *file = fopen(ca_path, "w");
	SSL		   *ssl;

	assert_non_null(file);
	PEM_write_X509(file, certificate);
	fclose(file);
	SSL_CTX_use_certificate(context, certificate);
	SSL_CTX_use_PrivateKey(context, key);
	SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE |
					 SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
	if (wants_certificate)
		SSL_CTX_set_verify(context, SSL_VERIFY_PEER |
						   SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
	ssl = SSL_new(context);
	SSL_set_fd(ssl, fd);
	SSL_set_accept_state(ssl);
	SSL_CTX_free(context);
	X509_free(certificate);
	EVP_PKEY_free(key);
	return ssl;
}

/* ---- both ends ---- */

static void
open_pair(void)
{
	int			fds[2];
	int			size = SMALL_BUFFER;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
	for (int i = 0; i < 2; i++)
		setsockopt(fds[i], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	transport_init(&t);
	t.fd = fds[0];
	peer_fd = fds[1];
	peer = NULL;
}

static void
close_pair(void)
{
	transport_close(&t, false);
	SSL_free(peer);
	peer = NULL;
	if (peer_fd >= 0)
		close(peer_fd);
	peer_fd = -1;
	ERR_clear_error();
}

static int
setup(void **state)
{
	(void) state;
	signal(SIGPIPE, SIG_IGN);
	open_pair();
	return 0;
}

static int
teardown(void **state)
{
	(void) state;
	close_pair();
	return 0;
}

static struct tls_settings
settings(void)
{
	return (struct tls_settings){.enabled = true, .verify = true,
		.ca_file = ca_path};
}

/* Drive both until the client's handshake is over. */
static enum transport_status
shake(const char *san, long days, const char *host, bool verify)
{
	struct tls_settings tls = settings();
	enum transport_status status;

	peer = make_peer(san, days, peer_fd, false);
	tls.verify = verify;
	assert_true(transport_secure(&t, &tls, host));
	for (int i = 0; i < TURNS_MAX; i++)
	{
		status = transport_handshake(&t);
		if (status != TRANSPORT_AGAIN)
			return status;
		SSL_do_handshake(peer);
	}
	fail_msg("the handshake does not end");
	return TRANSPORT_FAILED;
}

static void
finish_peer(void)
{
	for (int i = 0; i < TURNS_MAX && SSL_do_handshake(peer) != 1; i++)
		;
}

static size_t
peer_read(char *to, size_t size)
{
	size_t		got = 0;

	if (peer && SSL_read_ex(peer, to, size, &got) != 1)
		return 0;
	if (peer == NULL)
	{
		ssize_t		result = recv(peer_fd, to, size, 0);

		got = result > 0 ? (size_t) result : 0;
	}
	return got;
}

/* ---- tests ---- */

/* More than any buffer holds, both ways at once, in the same bytes. */
static void
exchange_bulk(void)
{
	static char out[1 << 20],
				in[1 << 20],
				back[1 << 20],
				returned[1 << 20];
	size_t		sent = 0,
				arrived = 0,
				answered = 0,
				read = 0,
				n;
	int			waits = 0,
				updates = 0;

	for (size_t i = 0; i < sizeof(out); i++)
	{
		out[i] = (char) (i * 7 + i / 251);
		back[i] = (char) (i * 5 + i / 127);
	}
	for (int i = 0; i < TURNS_MAX &&
		 (arrived < sizeof(out) || read < sizeof(back)); i++)
	{
		if (sent < sizeof(out))
		{
			enum transport_status status =
				transport_write(&t, out + sent, sizeof(out) - sent, &n);

			if (status == TRANSPORT_OK)
			{
				waits += n < sizeof(out) - sent;	/* a part of it */
				sent += n;
			}
			else
			{
				assert_int_equal(status, TRANSPORT_AGAIN);
				assert_true(transport_events(&t, true) & POLLOUT);
				waits++;
			}
		}
		if (answered < sizeof(back))
		{
			size_t		left = sizeof(back) - answered;

			if (peer && SSL_write_ex(peer, back + answered, left < PIECE ? left :
									 PIECE, &n) == 1)
			{
				answered += n;
				/* new keys, ours too: reading then has something to write */
				if (answered > (size_t) (updates + 1) * 100000 &&
					SSL_key_update(peer, SSL_KEY_UPDATE_REQUESTED) == 1)
					updates++;
			}
			else if (peer == NULL)
			{
				ssize_t		result = send(peer_fd, back + answered,
										  sizeof(back) - answered, 0);

				answered += result > 0 ? (size_t) result : 0;
			}
		}
		/* small pieces: what TLS has decrypted must not be overlooked */
		if (read < sizeof(back) &&
			transport_read(&t, returned + read, i % 3 ? 1000 : 1, &n) ==
			TRANSPORT_OK)
			read += n;
		arrived += peer_read(in + arrived, sizeof(in) - arrived);
	}
	assert_int_equal(arrived, sizeof(out));
	assert_int_equal(read, sizeof(back));
	assert_memory_equal(in, out, sizeof(out));
	assert_memory_equal(returned, back, sizeof(back));
	assert_true(waits > 10);
	if (peer) print_message("updates %d\n", updates);
	assert_true(peer == NULL || updates > 3);
}

static void
plain_bulk(void **state)
{
	(void) state;
	exchange_bulk();
}

static void
tls_bulk(void **state)
{
	(void) state;
	assert_int_equal(shake("DNS:localhost", 30, "localhost", true), TRANSPORT_OK);
	finish_peer();
	exchange_bulk();
}

/* A record read in part is invisible to poll(). */
static void
decrypted_input_is_told(void **state)
{
	char		byte;
	size_t		n;

	(void) state;
	assert_int_equal(shake("DNS:localhost", 30, "localhost", true), TRANSPORT_OK);
	finish_peer();
	assert_false(transport_has_input(&t));
	assert_int_equal(SSL_write(peer, "hello", 5), 5);
	assert_int_equal(transport_read(&t, &byte, 1, &n), TRANSPORT_OK);
	assert_int_equal(byte, 'h');
	assert_true(transport_has_input(&t));
	assert_int_equal(poll(&(struct pollfd){.fd = t.fd, .events = POLLIN}, 1, 0), 0);
}

static void
ends(void **state)
{
	char		byte;
	size_t		n;

	(void) state;
	close(peer_fd);
	peer_fd = -1;
	assert_int_equal(transport_read(&t, &byte, 1, &n), TRANSPORT_ENDED);
	assert_int_equal(transport_write(&t, "x", 1, &n), TRANSPORT_FAILED);
	close_pair();
	open_pair();
	assert_int_equal(shake("DNS:localhost", 30, "localhost", true), TRANSPORT_OK);
	finish_peer();
	SSL_shutdown(peer);
	/* session tickets come first */
	for (int i = 0; i < 10; i++)
		if (transport_read(&t, &byte, 1, &n) != TRANSPORT_AGAIN)
			break;
	assert_int_equal(transport_read(&t, &byte, 1, &n), TRANSPORT_ENDED);
	close(peer_fd);
	peer_fd = -1;
	assert_int_not_equal(transport_write(&t, "x", 1, &n), TRANSPORT_OK);
}

static void
names_and_addresses(void **state)
{
	static const struct
	{
		const char *san;
		const char *host;
		bool		good;
	}			cases[] = {
		{"DNS:localhost", "localhost", true},
		{"DNS:*.example.org", "mq.example.org", true},
		{"DNS:*.example.org", "a.mq.example.org", false},
		{"DNS:mq*.example.org", "mq1.example.org", false},
		{"DNS:localhost", "127.0.0.1", false},
		{"IP:127.0.0.1", "127.0.0.1", true},
		{"IP:127.0.0.1", "localhost", false},
		{"IP:127.0.0.2", "127.0.0.1", false},
		{"DNS:127.0.0.1", "127.0.0.1", false},
		{"IP:::1", "::1", true},
		{"IP:::1", "0:0:0:0:0:0:0:1", true},
		{"DNS:other", "localhost", false},
	};

	(void) state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
	{
		enum transport_status status = shake(cases[i].san, 30, cases[i].host,
											 true);

		if (status != (cases[i].good ? TRANSPORT_OK : TRANSPORT_REFUSED))
			fail_msg("%s for %s: status %d, %s", cases[i].san, cases[i].host,
					 status, t.error);
		if (!cases[i].good && strstr(t.error, "mismatch") == NULL)
			fail_msg("%s for %s: %s", cases[i].san, cases[i].host, t.error);
		close_pair();
		open_pair();
	}
}

static void
expired_and_unverified(void **state)
{
	struct tls_facts facts;

	(void) state;
	assert_int_equal(shake("DNS:localhost", -1, "localhost", true),
					 TRANSPORT_REFUSED);
	assert_non_null(strstr(t.error, "certificate has expired"));
	close_pair();
	open_pair();
	assert_int_equal(shake("DNS:other", -1, "localhost", false), TRANSPORT_OK);
	assert_true(tls_read_facts(t.ssl, &facts));
	assert_true(facts.days_left < 0);
	assert_non_null(strstr(facts.peer, "CN=unit"));
	close_pair();
	open_pair();
	assert_int_equal(shake("DNS:localhost", 5, "localhost", true), TRANSPORT_OK);
	assert_true(tls_read_facts(t.ssl, &facts));
	assert_in_range(facts.days_left, 4, 5);
	assert_string_equal(facts.protocol, "TLSv1.3");
}

/* TLS 1.0 and 1.1 are refused, whatever the peer would like. */
static void
old_protocols_are_refused(void **state)
{
	struct tls_settings tls = settings();
	enum transport_status status = TRANSPORT_AGAIN;

	(void) state;
	peer = make_peer("DNS:localhost", 30, peer_fd, false);
	SSL_set_security_level(peer, 0);
	SSL_set_min_proto_version(peer, TLS1_VERSION);
	SSL_set_max_proto_version(peer, TLS1_1_VERSION);
	assert_true(transport_secure(&t, &tls, "localhost"));
	for (int i = 0; i < TURNS_MAX && status == TRANSPORT_AGAIN; i++)
	{
		status = transport_handshake(&t);
		SSL_do_handshake(peer);
	}
	assert_int_equal(status, TRANSPORT_REFUSED);
}

/* The alert comes behind the handshake in TLS 1.3. */
static void
missing_client_certificate(void **state)
{
	struct tls_settings tls = settings();
	enum transport_status status = TRANSPORT_AGAIN;
	char		byte;
	size_t		n;

	(void) state;
	peer = make_peer("DNS:localhost", 30, peer_fd, true);
	assert_true(transport_secure(&t, &tls, "localhost"));
	for (int i = 0; i < TURNS_MAX && status == TRANSPORT_AGAIN; i++)
	{
		status = transport_handshake(&t);
		SSL_do_handshake(peer);
	}
	assert_int_equal(status, TRANSPORT_OK);
	assert_int_equal(transport_read(&t, &byte, 1, &n), TRANSPORT_REFUSED);
	assert_non_null(strstr(t.error, "client's certificate"));
}

static void
peer_without_tls(void **state)
{
	struct tls_settings tls = settings();
	enum transport_status status;

	(void) state;
	SSL_free(make_peer("DNS:localhost", 30, peer_fd, false));	/* writes the CA */
	assert_true(transport_secure(&t, &tls, "localhost"));
	status = transport_handshake(&t);
	assert_int_equal(status, TRANSPORT_AGAIN);
	assert_int_equal(send(peer_fd, "AMQP\0\0\x09\x01", 8, 0), 8);
	assert_int_equal(transport_handshake(&t), TRANSPORT_REFUSED);
	assert_string_equal(t.error, "this port does not speak TLS");
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(plain_bulk),
		T(tls_bulk),
		T(decrypted_input_is_told),
		T(ends),
		T(names_and_addresses),
		T(expired_and_unverified),
		T(old_protocols_are_refused),
		T(missing_client_certificate),
		T(peer_without_tls),
	};
	int			fd = mkstemp(ca_path);
	int			failed;

	close(fd);
	failed = cmocka_run_group_tests_name("transport", tests, NULL, NULL);
	unlink(ca_path);
	return failed;
}
