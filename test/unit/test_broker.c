/*
 * test_broker.c
 *		One connection before it is ready: which host is tried when, what a
 *		look-up that never ends holds up (nothing), and the login.
 *
 * Names are looked up by a function of ours; the broker is a listener that
 * says connection.start and reads what comes.
 */
#include "unit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "broker.h"
#include "log.h"

#define LOOKUPS_MAX		64
#define TURNS_MAX		2000

static struct broker broker;
static int	listener;
static char listener_port[8];
static char dead_port[8];
static int	up_count;
static int	refused_count;
static char refusal[512];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t released = PTHREAD_COND_INITIALIZER;
static bool is_released;
static int	hanging;
static char looked_up[LOOKUPS_MAX][32];
static int	lookups;

/* ---- names ---- */

static int
lookup(const char *host, const char *port, const struct addrinfo *hints,
	   struct addrinfo **addresses)
{
	pthread_mutex_lock(&lock);
	if (lookups < LOOKUPS_MAX)
		snprintf(looked_up[lookups++], sizeof(looked_up[0]), "%s", host);
	if (strcmp(host, "hanging") == 0)
	{
		hanging++;
		while (!is_released)
			pthread_cond_wait(&released, &lock);
		hanging--;
		pthread_cond_broadcast(&released);
	}
	pthread_mutex_unlock(&lock);
	if (strcmp(host, "unknown") == 0 || strcmp(host, "hanging") == 0)
		return EAI_NONAME;
	return getaddrinfo("127.0.0.1", port, hints, addresses);
}

static int
count_lookups(const char *host)
{
	int			count = 0;

	pthread_mutex_lock(&lock);
	for (int i = 0; i < lookups; i++)
		count += strcmp(looked_up[i], host) == 0;
	pthread_mutex_unlock(&lock);
	return count;
}

/* ---- the owner ---- */

static void
on_up(void *owner)
{
	(void) owner;
	up_count++;
}

static void
on_down(void *owner, int code)
{
	(void) owner;
	(void) code;
}

static void
on_frame(void *owner, const struct frame *frame, msec_t now)
{
	(void) owner;
	(void) frame;
	(void) now;
}

static void
on_unblocked(void *owner, msec_t blocked_for)
{
	(void) owner;
	(void) blocked_for;
}

static void
on_refused(void *owner, const char *reason)
{
	(void) owner;
	refused_count++;
	snprintf(refusal, sizeof(refusal), "%s", reason);
}

static int
listen_somewhere(char port[8])
{
	struct sockaddr_in address = {
		.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	socklen_t	size = sizeof(address);
	int			fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);

	assert_int_equal(bind(fd, (struct sockaddr *) &address, size), 0);
	assert_int_equal(listen(fd, 10), 0);
	getsockname(fd, (struct sockaddr *) &address, &size);
	snprintf(port, 8, "%d", ntohs(address.sin_port));
	return fd;
}

static void
start(const char *uri, enum broker_auth auth)
{
	struct broker_settings settings = {
		.connection_name = "test",
		.version = "1",
		.connect_timeout = 300,
		.heartbeat = 10000,
		.reconnect_min = 60000,
		.reconnect_max = 60000,
	};
	struct broker_events events = {on_up, on_down, on_frame, on_unblocked,
	on_refused, NULL};

	assert_null(uri_parse(uri, &settings.uri));
	settings.uri.auth = auth;
	broker_init(&broker, &settings, &events);
}

/* The uri's %L is the listener's port, %D one where nobody listens. */
static void
start_hosts(const char *hosts, enum broker_auth auth)
{
	char		uri[512] = "amqp://u:p@";

	for (; *hosts; hosts++)
	{
		if (*hosts == '%')
			strcat(uri, *++hosts == 'L' ? listener_port : dead_port);
		else
			strncat(uri, hosts, 1);
	}
	start(uri, auth);
}

static void
step(void)
{
	struct pollfd pfd = {.fd = -1};

	broker_poll_fd(&broker, &pfd);
	poll(&pfd, 1, 5);
	broker_turn(&broker, pfd.revents, clock_now());
}

/* All hosts have failed: the broker waits for a minute. */
static void
run_until_round_is_over(void)
{
	for (int i = 0; i < TURNS_MAX; i++)
	{
		step();
		if (broker.state == BROKER_DOWN && broker.retry_at > clock_now() + 1000)
			return;
	}
	fail_msg("the round does not end");
}

static int
setup(void **state)
{
	int			fd = listen_somewhere(dead_port);

	(void) state;
	close(fd);
	log_setup(LOG_ERROR, LOG_KV);
	listener = listen_somewhere(listener_port);
	resolver_lookup = lookup;
	lookups = up_count = refused_count = 0;
	is_released = false;
	return 0;
}

static int
teardown(void **state)
{
	(void) state;
	broker_free(&broker);
	close(listener);
	pthread_mutex_lock(&lock);
	is_released = true;
	pthread_cond_broadcast(&released);
	while (hanging > 0)
		pthread_cond_wait(&released, &lock);
	pthread_mutex_unlock(&lock);
	usleep(20000);				/* the threads free what was abandoned */
	return 0;
}

/* ---- the broker's side ---- */

static int
accept_and_start(const char *mechanisms)
{
	struct buffer out = {0};
	int			fd = -1;

	for (int i = 0; i < TURNS_MAX && fd < 0; i++)
	{
		step();
		fd = accept(listener, NULL, NULL);
	}
	assert_true(fd >= 0);
	assert_true(frame_put_method(&out, 0, AMQP_CONNECTION_START_METHOD,
								 &(amqp_connection_start_t){
		.version_minor = 9,
		.mechanisms = amqp_cstring_bytes(mechanisms),
		.locales = amqp_cstring_bytes("en_US")}));
	assert_true(send(fd, buffer_head(&out), buffer_length(&out), 0) > 0);
	buffer_free(&out);
	return fd;
}

/* What comes behind the greeting must be start-ok: mechanism and response. */
static void
read_start_ok(int fd, char *mechanism, char *response, size_t *length)
{
	uint8_t		data[4096];
	size_t		got = 0;
	struct frame frame;
	const char *problem;
	amqp_pool_t pool;
	void	   *method = NULL;
	amqp_connection_start_ok_t *ok;

	fcntl(fd, F_SETFL, O_NONBLOCK);
	for (int i = 0; i < TURNS_MAX && got < 8 + 100; i++)
	{
		ssize_t		n;

		step();
		n = recv(fd, data + got, sizeof(data) - got, 0);
		got += n > 0 ? (size_t) n : 0;
	}
	assert_int_equal(frame_scan(data + 8, got - 8, FRAME_MAX, &frame, &problem),
					 FRAME_OK);
	assert_int_equal(frame_method_id(&frame), AMQP_CONNECTION_START_OK_METHOD);
	init_amqp_pool(&pool, 4096);
	assert_true(amqp_decode_method(AMQP_CONNECTION_START_OK_METHOD, &pool,
								   (amqp_bytes_t){frame.length - 4,
									   (void *) (frame.payload + 4)},
								   &method) >= 0);
	ok = method;
	snprintf(mechanism, 32, "%.*s", (int) ok->mechanism.len,
			 (char *) ok->mechanism.bytes);
	memcpy(response, ok->response.bytes, ok->response.len);
	*length = ok->response.len;
	empty_amqp_pool(&pool);
}

/* ---- tests ---- */

static void
a_hanging_lookup_holds_up_nothing(void **state)
{
	msec_t		before;

	(void) state;
	start("amqp://hanging:1", AUTH_PLAIN);
	broker.settings.connect_timeout = 60000;
	for (int i = 0; i < TURNS_MAX && hanging == 0; i++)
		step();
	assert_int_equal(broker.state, BROKER_RESOLVING);
	before = clock_now();
	step();
	broker_close(&broker, clock_now());
	assert_int_equal(broker.state, BROKER_DOWN);
	assert_true(clock_now() - before < 200);
	assert_int_equal(hanging, 1);	/* it hangs still */
}

static void
each_host_is_tried_once_a_round(void **state)
{
	(void) state;
	start_hosts("unknown:1,hanging:2,dead:%D", AUTH_PLAIN);
	run_until_round_is_over();
	assert_int_equal(count_lookups("unknown"), 1);
	assert_int_equal(count_lookups("hanging"), 1);
	assert_int_equal(count_lookups("dead"), 1);
	assert_int_equal(refused_count, 0);
	broker.retry_at = 0;
	run_until_round_is_over();
	assert_int_equal(lookups, 6);
}

static void
any_host_may_be_the_first(void **state)
{
	bool		first[3] = {false, false, false};

	(void) state;
	for (int i = 0; i < 200; i++)
	{
		start("amqp://a,b,c", AUTH_PLAIN);
		first[broker.host] = true;
		broker_free(&broker);
	}
	assert_true(first[0] && first[1] && first[2]);
	start("amqp://a,b,c", AUTH_PLAIN);
}

static void
plain_login(void **state)
{
	char		mechanism[32],
				response[256];
	size_t		length;
	int			fd;

	(void) state;
	start_hosts("h:%L", AUTH_PLAIN);
	fd = accept_and_start("EXTERNAL PLAIN");
	read_start_ok(fd, mechanism, response, &length);
	assert_string_equal(mechanism, "PLAIN");
	assert_int_equal(length, 4);
	assert_memory_equal(response, "\0u\0p", 4);
	close(fd);
}

static void
external_login_sends_nothing(void **state)
{
	char		mechanism[32],
				response[256];
	size_t		length;
	int			fd;

	(void) state;
	start_hosts("h:%L", AUTH_EXTERNAL);
	fd = accept_and_start("PLAIN AMQPLAIN EXTERNAL");
	read_start_ok(fd, mechanism, response, &length);
	assert_string_equal(mechanism, "EXTERNAL");
	assert_int_equal(length, 0);
	close(fd);
}

static void
a_mechanism_that_is_not_offered(void **state)
{
	int			fd;

	(void) state;
	start_hosts("h:%L", AUTH_EXTERNAL);
	fd = accept_and_start("PLAIN XEXTERNAL EXTERNALLY");
	run_until_round_is_over();
	assert_int_equal(refused_count, 1);
	assert_non_null(strstr(refusal, "rabbitmq_auth_mechanism_ssl"));
	close(fd);
}

/* A refusal counts only when no other host took us. */
static void
the_next_host_may_take_us(void **state)
{
	char		mechanism[32],
				response[256];
	size_t		length;
	int			first,
				second;

	(void) state;
	start_hosts("a:%L,b:%L", AUTH_EXTERNAL);
	first = accept_and_start("PLAIN");
	second = accept_and_start("EXTERNAL");
	assert_int_equal(refused_count, 0);
	read_start_ok(second, mechanism, response, &length);
	assert_string_equal(mechanism, "EXTERNAL");
	close(first);
	close(second);
}

static void
all_refuse(void **state)
{
	int			first,
				second;

	(void) state;
	start_hosts("a:%L,b:%L,dead:%D", AUTH_EXTERNAL);
	first = accept_and_start("PLAIN");
	second = accept_and_start("PLAIN");
	run_until_round_is_over();
	assert_int_equal(refused_count, 1);
	close(first);
	close(second);
}

static void
a_tls_port_is_told(void **state)
{
	int			fd = -1;

	(void) state;
	start_hosts("h:%L", AUTH_PLAIN);
	for (int i = 0; i < TURNS_MAX && fd < 0; i++)
	{
		step();
		fd = accept(listener, NULL, NULL);
	}
	assert_int_equal(send(fd, "\x15\x03\x01\0\x02\x02\x46", 7, 0), 7);
	run_until_round_is_over();
	assert_int_equal(refused_count, 1);
	assert_non_null(strstr(refusal, "use amqps://"));
	close(fd);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(a_hanging_lookup_holds_up_nothing),
		T(each_host_is_tried_once_a_round),
		T(any_host_may_be_the_first),
		T(plain_login),
		T(external_login_sends_nothing),
		T(a_mechanism_that_is_not_offered),
		T(the_next_host_may_take_us),
		T(all_refuse),
		T(a_tls_port_is_told),
	};

	return cmocka_run_group_tests_name("broker", tests, NULL, NULL);
}
