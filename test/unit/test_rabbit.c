/*
 * test_rabbit.c
 *		The RabbitMQ publisher against a scripted broker on a loopback socket.
 *
 * The broker here is deterministic where RabbitMQ is not: it acks late, out of
 * order or with multiple, names unknown tags, returns, closes the channel for a
 * row whose exchange says so, and splits its output into single bytes.
 *
 * What an exchange's name means to it:
 *		ok*		ack			return	basic.return, then ack		nack	nack
 *		missing	404			refused	403							bad		406
 *		hold	no answer until told
 */
#include "unit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "log.h"
#include "rabbit.h"
#include "rows.h"

#define WINDOW			16
#define TURNS_MAX		20000
#define ROWS_MAX		400

struct fake
{
	int			listener;
	int			fd;
	struct buffer in;
	struct buffer out;
	amqp_pool_t pool;
	bool		started;
	bool		closed[5];		/* by us, close-ok awaited */
	uint64_t	tags[5];
	uint16_t	channel;		/* of the message being received */
	/* the message being received */
	char		exchange[256];
	char		id[64];
	uint64_t	missing;
	bool		in_content;
	bool		dribble;		/* send one byte at a time */
	/* what was taken, in order */
	long		taken[ROWS_MAX * 20];
	int			taken_count;
	int			closes;
	bool		saw_capabilities;
};

static struct fake fake;
static struct publisher *publisher;
static struct claim_set claims;
static enum outcome outcomes[ROWS_MAX];
static enum outcome audit_outcomes[ROWS_MAX];
static char errors[ROWS_MAX][256];
static int	decided_count;
static int	lost_count;
static int	failed_count;

/* ---- the relay's side ---- */

static void
on_answered(void *relay, struct copy *copy, enum outcome outcome,
			const char *error)
{
	(void) relay;
	*(copy->lane == LANE_AUDIT ? &audit_outcomes[copy->id] :
	  &outcomes[copy->id]) = outcome;
	snprintf(errors[copy->id], sizeof(errors[0]), "%s", error ? error : "");
	decided_count++;
	claims_answer(copy, outcome, error, 0);
}

static void
on_again(void *relay, struct copy *copy)
{
	(void) relay;
	claims_again(copy);
}

static void
on_lost(void *relay)
{
	(void) relay;
	lost_count++;
}

static void
on_failed(void *relay)
{
	(void) relay;
	failed_count++;
}

static enum publish_result
offer(void *context, struct copy *copy, const struct message *m)
{
	(void) context;
	return publisher->ops->publish(publisher, copy, m, clock_now());
}

/* ---- the broker's side ---- */

static void
fake_send(uint16_t channel, amqp_method_number_t id, void *method)
{
	assert_true(frame_put_method(&fake.out, channel, id, method));
}

static void
fake_ack_on(uint16_t channel, uint64_t tag, bool multiple)
{
	fake_send(channel, AMQP_BASIC_ACK_METHOD,
			  &(amqp_basic_ack_t){.delivery_tag = tag, .multiple = multiple});
}

static void
fake_ack(uint64_t tag, bool multiple)
{
	fake_ack_on(1, tag, multiple);
}

static void
fake_close_channel(uint16_t channel, uint16_t code, const char *text)
{
	fake_send(channel, AMQP_CHANNEL_CLOSE_METHOD,
			  &(amqp_channel_close_t){.reply_code = code,
		.reply_text = amqp_cstring_bytes(text)});
	fake.closed[channel] = true;
	fake.closes++;
}

static void
fake_return(void)
{
	amqp_basic_properties_t p = {
		._flags = AMQP_BASIC_MESSAGE_ID_FLAG,
		.message_id = amqp_cstring_bytes(fake.id),
	};

	fake_send(fake.channel, AMQP_BASIC_RETURN_METHOD,
			  &(amqp_basic_return_t){.reply_code = 312,
		.reply_text = amqp_cstring_bytes("NO_ROUTE"),
		.exchange = amqp_cstring_bytes(fake.exchange),
		.routing_key = amqp_cstring_bytes("key")});
	assert_true(frame_put_content(&fake.out, fake.channel, 4096, &p, "body", 4));
}

/* A whole message is there. */
static void
fake_answer(void)
{
	uint64_t	tag = ++fake.tags[fake.channel];

	fake.in_content = false;
	if (strcmp(fake.exchange, "missing") == 0)
		fake_close_channel(fake.channel, 404, "NOT_FOUND - no exchange 'missing'");
	else if (strcmp(fake.exchange, "refused") == 0)
		fake_close_channel(fake.channel, 403, "ACCESS_REFUSED - access to exchange");
	else if (strcmp(fake.exchange, "bad") == 0)
		fake_close_channel(fake.channel, 406, "PRECONDITION_FAILED - bad");
	else
	{
		/* of the other lanes only what becomes of it is looked at */
		if (fake.channel == 1)
			fake.taken[fake.taken_count++] = atol(fake.id + strlen("event-"));
		if (strcmp(fake.exchange, "return") == 0)
			fake_return();
		if (strcmp(fake.exchange, "nack") == 0)
			fake_send(fake.channel, AMQP_BASIC_NACK_METHOD,
					  &(amqp_basic_nack_t){.delivery_tag = tag});
		else if (strcmp(fake.exchange, "hold") != 0)
			fake_ack_on(fake.channel, tag, false);
	}
}

static void
fake_copy(char *to, size_t capacity, amqp_bytes_t from)
{
	assert_true(from.len < capacity);
	memcpy(to, from.bytes, from.len);
	to[from.len] = '\0';
}

static void
fake_tune(const struct frame *frame)
{
	fake.saw_capabilities =
		memmem(frame->payload, frame->length, "connection.blocked", 18) &&
		memmem(frame->payload, frame->length, "consumer_cancel_notify", 22) &&
		memmem(frame->payload, frame->length, "publisher_confirms", 18) &&
		memmem(frame->payload, frame->length, "test:1:relay", 12);
	fake_send(0, AMQP_CONNECTION_TUNE_METHOD,
			  &(amqp_connection_tune_t){.channel_max = 10, .frame_max = 4096,
		.heartbeat = 60});
}

static void
fake_method(const struct frame *frame)
{
	amqp_method_number_t id = frame_method_id(frame);
	amqp_bytes_t encoded = {frame->length - 4, (void *) (frame->payload + 4)};
	void	   *method = NULL;
	amqp_basic_publish_t *publish;
	amqp_exchange_declare_t *declare;

	if (id == AMQP_CHANNEL_CLOSE_OK_METHOD)
		fake.closed[frame->channel] = false;
	if (fake.closed[frame->channel])
		return;
	assert_true(amqp_decode_method(id, &fake.pool, encoded, &method) >= 0);
	switch (id)
	{
		case AMQP_CONNECTION_START_OK_METHOD:
			fake_tune(frame);
			break;
		case AMQP_CONNECTION_OPEN_METHOD:
			fake_send(0, AMQP_CONNECTION_OPEN_OK_METHOD,
					  &(amqp_connection_open_ok_t){0});
			break;
		case AMQP_CHANNEL_OPEN_METHOD:
			fake.tags[frame->channel] = 0;
			fake_send(frame->channel, AMQP_CHANNEL_OPEN_OK_METHOD,
					  &(amqp_channel_open_ok_t){0});
			break;
		case AMQP_CONFIRM_SELECT_METHOD:
			fake_send(frame->channel, AMQP_CONFIRM_SELECT_OK_METHOD,
					  &(amqp_confirm_select_ok_t){0});
			break;
		case AMQP_EXCHANGE_DECLARE_METHOD:
			declare = method;
			assert_true(declare->passive);
			fake_copy(fake.exchange, sizeof(fake.exchange), declare->exchange);
			if (strcmp(fake.exchange, "missing") == 0)
				fake_close_channel(2, 404, "NOT_FOUND");
			else
				fake_send(2, AMQP_EXCHANGE_DECLARE_OK_METHOD,
						  &(amqp_exchange_declare_ok_t){0});
			break;
		case AMQP_BASIC_PUBLISH_METHOD:
			assert_false(fake.in_content);
			publish = method;
			fake.channel = frame->channel;
			fake_copy(fake.exchange, sizeof(fake.exchange), publish->exchange);
			fake.in_content = true;
			break;
		case AMQP_CONNECTION_CLOSE_METHOD:
			fake_send(0, AMQP_CONNECTION_CLOSE_OK_METHOD,
					  &(amqp_connection_close_ok_t){0});
			break;
		default:
			break;
	}
}

static void
fake_frame(const struct frame *frame)
{
	void	   *decoded = NULL;
	amqp_basic_properties_t *p;

	assert_true(frame->channel <= 4);
	assert_true(!fake.in_content || frame->channel == fake.channel);
	assert_true(frame->size <= 4096 || !fake.started);
	if (frame->type == AMQP_FRAME_METHOD)
		fake_method(frame);
	else if (fake.closed[frame->channel] || frame->type == AMQP_FRAME_HEARTBEAT)
		return;
	else if (frame->type == AMQP_FRAME_HEADER)
	{
		assert_true(fake.in_content);
		assert_true(amqp_decode_properties(AMQP_BASIC_CLASS, &fake.pool,
										   (amqp_bytes_t){frame->length - 12,
											   (void *) (frame->payload + 12)},
										   &decoded) >= 0);
		p = decoded;
		fake_copy(fake.id, sizeof(fake.id), p->message_id);
		fake.missing = (uint64_t) frame->payload[10] << 8 | frame->payload[11];
		if (fake.missing == 0)
			fake_answer();
	}
	else
	{
		assert_true(frame->length <= fake.missing);
		fake.missing -= frame->length;
		if (fake.missing == 0)
			fake_answer();
	}
	recycle_amqp_pool(&fake.pool);
}

static void
fake_accept(void)
{
	fake.fd = accept(fake.listener, NULL, NULL);
	if (fake.fd < 0)
		return;
	fcntl(fake.fd, F_SETFL, O_NONBLOCK);
	setsockopt(fake.fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
	fake.started = false;
	memset(fake.closed, 0, sizeof(fake.closed));
	fake.in_content = false;
	buffer_clear(&fake.in);
	buffer_clear(&fake.out);
}

static void
fake_read(void)
{
	ssize_t		got = recv(fake.fd, buffer_reserve(&fake.in, 65536), 65536, 0);

	if (got == 0 || (got < 0 && errno != EAGAIN))
	{
		close(fake.fd);
		fake.fd = -1;
		return;
	}
	if (got > 0)
		buffer_commit(&fake.in, (size_t) got);
}

static void
fake_step(void)
{
	struct frame frame;
	const char *problem;

	if (fake.fd < 0)
		fake_accept();
	if (fake.fd >= 0)
		fake_read();
	if (fake.fd < 0)
		return;
	if (!fake.started && buffer_length(&fake.in) >= 8)
	{
		assert_memory_equal(buffer_head(&fake.in), "AMQP\0\0\x09\x01", 8);
		buffer_consume(&fake.in, 8);
		fake.started = true;
		fake_send(0, AMQP_CONNECTION_START_METHOD,
				  &(amqp_connection_start_t){.version_minor = 9,
			.mechanisms = amqp_cstring_bytes("AMQPLAIN PLAIN"),
			.locales = amqp_cstring_bytes("en_US")});
	}
	while (buffer_length(&fake.in) > 0 &&
		   frame_scan(buffer_head(&fake.in), buffer_length(&fake.in), FRAME_MAX,
					  &frame, &problem) == FRAME_OK)
	{
		fake_frame(&frame);
		buffer_consume(&fake.in, frame.size);
	}
	if (buffer_length(&fake.out) > 0)
	{
		ssize_t		sent = send(fake.fd, buffer_head(&fake.out),
								fake.dribble ? 1 : buffer_length(&fake.out),
								MSG_NOSIGNAL);

		if (sent > 0)
			buffer_consume(&fake.out, (size_t) sent);
	}
}

/* ---- driving both ---- */

static void
step(void)
{
	struct pollfd pfd = {.fd = -1};

	publisher->ops->poll_fd(publisher, &pfd);
	poll(&pfd, 1, 1);
	publisher->ops->turn(publisher, pfd.revents, clock_now());
	claims_offer(&claims, offer, NULL);
	publisher->ops->flush(publisher);
	fake_step();
}

static void
run_until_decided(int count)
{
	int			turns = 0;

	while (decided_count < count && turns++ < TURNS_MAX)
		step();
	assert_int_equal(decided_count, count);
}

static void
run(int turns)
{
	while (turns-- > 0)
		step();
}

static void
run_until_ready(void)
{
	for (int i = 0; i < TURNS_MAX && !publisher->ops->ready(publisher); i++)
		step();
	assert_true(publisher->ops->ready(publisher));
}

static int
setup(void **state)
{
	struct sockaddr_in address = {
		.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	socklen_t	size = sizeof(address);
	struct broker_settings settings = {
		.uri = {.count = 1, .hosts = {{.name = "127.0.0.1"}}, .vhost = "/",
			.user = "u", .password = "p"},
		.connection_name = "test:1:relay",
		.version = "1",
		.connect_timeout = 5000,
		.heartbeat = 10000,
		.reconnect_min = 10,
		.reconnect_max = 20,
	};
	struct publisher_events events = {on_answered, on_again, on_lost, on_failed,
	NULL};

	(void) state;
	log_setup(LOG_ERROR, LOG_KV);
	memset(&fake, 0, sizeof(fake));
	memset(errors, 0, sizeof(errors));
	decided_count = lost_count = failed_count = 0;
	init_amqp_pool(&fake.pool, 4096);
	fake.fd = -1;
	fake.listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	assert_int_equal(bind(fake.listener, (struct sockaddr *) &address, size), 0);
	assert_int_equal(listen(fake.listener, 5), 0);
	getsockname(fake.listener, (struct sockaddr *) &address, &size);
	snprintf(settings.uri.hosts[0].port, sizeof(settings.uri.hosts[0].port),
			 "%d", ntohs(address.sin_port));
	claims_init(&claims, &(struct claim_settings){.origin = "trading",
		.window = 100000});		/* nothing is settled here */
	publisher = rabbit_new(&settings, &events,
						   (uint32_t[LANES]){WINDOW, WINDOW, WINDOW}, 30000);
	publisher->send_until = CLOCK_NEVER;
	return 0;
}

static int
teardown(void **state)
{
	(void) state;
	publisher->ops->forget(publisher, "end of test");
	publisher->ops->free(publisher);
	claims_clear(&claims);
	names_free(&claims.keys);
	buffer_free(&fake.in);
	buffer_free(&fake.out);
	empty_amqp_pool(&fake.pool);
	if (fake.fd >= 0)
		close(fake.fd);
	close(fake.listener);
	return 0;
}

/* "ok return ok": rows 0, 1, 2 ... to these exchanges, all of one key. */
static int
add(const char *topics, const char *key)
{
	PGresult   *result = rows_new();
	char		copy[1024];
	int			count = 0;

	snprintf(copy, sizeof(copy), "%s", topics);
	for (char *topic = strtok(copy, " "); topic; topic = strtok(NULL, " "))
		rows_add(result, count++, topic, key, "{\"a\":1}");
	claims_add(&claims, result);
	return count;
}

static void
assert_taken(const char *expected)
{
	char		text[1024] = "";

	for (int i = 0; i < fake.taken_count; i++)
		sprintf(text + strlen(text), "%s%ld", i ? " " : "", fake.taken[i]);
	assert_string_equal(text, expected);
}

/* ---- tests ---- */

static void
handshake_announces_what_we_understand(void **state)
{
	(void) state;
	run_until_ready();
	assert_true(fake.saw_capabilities);
}

static void
acks_publish(void **state)
{
	(void) state;
	run_until_decided(add("ok ok ok", NULL));
	for (int i = 0; i < 3; i++)
		assert_int_equal(outcomes[i], OUTCOME_PUBLISHED);
	assert_taken("0 1 2");
}

static void
input_may_come_byte_by_byte(void **state)
{
	(void) state;
	fake.dribble = true;
	run_until_decided(add("ok return nack ok", NULL));
	assert_int_equal(outcomes[1], OUTCOME_UNROUTABLE);
	assert_int_equal(outcomes[2], OUTCOME_NACKED);
	assert_int_equal(outcomes[3], OUTCOME_PUBLISHED);
}

static void
returned_is_unroutable_though_acked(void **state)
{
	(void) state;
	run_until_decided(add("ok return ok", NULL));
	assert_int_equal(outcomes[1], OUTCOME_UNROUTABLE);
	assert_string_equal(errors[1], "NO_ROUTE exchange=return routing key=key");
	assert_int_equal(outcomes[2], OUTCOME_PUBLISHED);
}

static void
acks_out_of_order_multiple_and_unknown(void **state)
{
	(void) state;
	add("hold hold hold hold", NULL);
	run_until_ready();
	run(20);
	assert_int_equal(publisher->ops->unconfirmed(publisher), 4);
	fake_ack(99, false);
	fake_ack(1000, true);
	fake_ack(3, false);
	run(10);
	assert_int_equal(decided_count, 1);
	assert_int_equal(lost_count, 0);
	fake_ack(3, false);
	fake_ack(2, true);
	run(10);
	assert_int_equal(decided_count, 3);
	fake_ack(0, true);
	run_until_decided(4);
}

static void
window_bounds_what_is_unconfirmed(void **state)
{
	(void) state;
	add("hold hold hold hold hold hold hold hold hold hold hold hold hold hold "
		"hold hold hold hold hold hold", NULL);
	run_until_ready();
	run(30);
	assert_int_equal(publisher->ops->unconfirmed(publisher), WINDOW);
	fake_ack(0, true);			/* all so far; then the rest is sent */
	run(30);
	assert_int_equal(decided_count, WINDOW);
	assert_int_equal(publisher->ops->unconfirmed(publisher), 4);
}

static void
missing_exchange_is_found_and_the_others_go_on(void **state)
{
	int			count = add("ok missing ok2 missing ok", NULL);

	(void) state;
	run_until_decided(count);
	assert_int_equal(outcomes[0], OUTCOME_PUBLISHED);
	assert_int_equal(outcomes[1], OUTCOME_UNROUTABLE);
	assert_string_equal(errors[1], "exchange \"missing\" does not exist");
	assert_int_equal(outcomes[2], OUTCOME_PUBLISHED);
	assert_int_equal(outcomes[3], OUTCOME_UNROUTABLE);
	assert_int_equal(outcomes[4], OUTCOME_PUBLISHED);
	assert_int_equal(fake.closes, 2);	/* the publish, and the question */
	assert_int_equal(lost_count, 0);
}

static void
a_known_missing_exchange_closes_no_channel(void **state)
{
	(void) state;
	run_until_decided(add("missing ok", NULL));
	fake.closes = 0;
	decided_count = 0;
	run_until_decided(add("missing ok missing", NULL));
	assert_int_equal(fake.closes, 0);
	assert_int_equal(outcomes[0], OUTCOME_UNROUTABLE);
	assert_int_equal(outcomes[1], OUTCOME_PUBLISHED);
}

static void
the_row_at_fault_is_narrowed_down(void **state)
{
	int			count = add("ok ok ok ok ok bad ok ok ok ok", NULL);

	(void) state;
	run_until_decided(count);
	for (int i = 0; i < count; i++)
		assert_int_equal(outcomes[i], i == 5 ? OUTCOME_REJECTED :
						 OUTCOME_PUBLISHED);
	assert_string_equal(errors[5], "PRECONDITION_FAILED - bad");
}

static void
every_row_at_fault(void **state)
{
	int			count = add("bad bad bad bad bad bad bad", NULL);

	(void) state;
	run_until_decided(count);
	for (int i = 0; i < count; i++)
		assert_int_equal(outcomes[i], OUTCOME_REJECTED);
}

static void
a_refused_exchange_is_held_uncharged(void **state)
{
	int			count = add("ok refused ok refused ok ok ok", NULL);

	(void) state;
	run_until_decided(count);
	assert_int_equal(outcomes[1], OUTCOME_UNROUTABLE);
	assert_int_equal(outcomes[3], OUTCOME_UNROUTABLE);
	assert_non_null(strstr(errors[3], "ACCESS_REFUSED"));
	assert_int_equal(outcomes[2], OUTCOME_PUBLISHED);
	assert_int_equal(outcomes[6], OUTCOME_PUBLISHED);
}

static void
a_row_behind_one_at_fault_is_released(void **state)
{
	int			count = add("bad ok ok", "key");

	(void) state;
	for (int i = 0; i < TURNS_MAX && claims.decided < count; i++)
		step();
	assert_int_equal(claims.decided, count);
	assert_int_equal(outcomes[0], OUTCOME_REJECTED);
	assert_int_equal(claims.counts[OUTCOME_RELEASED], 2);
	assert_taken("");
}

static void
a_lost_connection_makes_unknown(void **state)
{
	(void) state;
	add("hold hold", NULL);
	run_until_ready();
	run(20);
	close(fake.fd);
	fake.fd = -1;
	run_until_decided(2);
	assert_int_equal(outcomes[0], OUTCOME_RELEASED);
	assert_int_equal(lost_count, 1);
	run_until_ready();			/* and it connects again, tags begin anew */
	decided_count = 0;
	run_until_decided(add("ok", NULL));
	assert_int_equal(outcomes[0], OUTCOME_PUBLISHED);
}

static void
a_hostile_broker_loses_its_connection_only(void **state)
{
	static const char *const bytes[] = {
		"\x01\x00\x01\xff\xff\xff\xff",	/* too large */
		"\x09\x00\x01\x00\x00\x00\x00\xce",	/* unknown type */
		"\x01\x00\x01\x00\x00\x00\x04\x00\x3c\x00\x3c\xce",	/* basic.deliver */
		"\x01\x00\x01\x00\x00\x00\x01\x00\xcd",	/* bad end */
		"\x02\x00\x01\x00\x00\x00\x01\x00\xce",	/* header out of place */
		"\x01\x00\x07\x00\x00\x00\x0d\x00\x3c\x00\x50\x00\x00\x00\x00\x00\x00"
		"\x00\x01\x00\xce",		/* ack on another channel */
	};
	static const size_t lengths[] = {7, 8, 12, 9, 9, 21};

	(void) state;
	for (int i = 0; i < 6; i++)
	{
		run_until_ready();
		buffer_append(&fake.out, bytes[i], lengths[i]);
		for (int n = 0; n < TURNS_MAX && lost_count == i; n++)
			step();
		assert_int_equal(lost_count, i + 1);
	}
}

static void
blocked_stops_publishing(void **state)
{
	(void) state;
	run_until_ready();
	fake_send(0, AMQP_CONNECTION_BLOCKED_METHOD,
			  &(amqp_connection_blocked_t){amqp_cstring_bytes("low on memory")});
	run(20);
	assert_false(publisher->ops->ready(publisher));
	add("ok", NULL);
	run(20);
	assert_int_equal(fake.taken_count, 0);
	fake_send(0, AMQP_CONNECTION_UNBLOCKED_METHOD,
			  &(amqp_connection_unblocked_t){0});
	run_until_decided(1);
}

static void
nothing_is_sent_past_the_lease(void **state)
{
	(void) state;
	run_until_ready();
	publisher->send_until = clock_now() - 1;
	add("ok ok", NULL);
	run_until_decided(2);
	assert_int_equal(outcomes[0], OUTCOME_RELEASED);
	assert_int_equal(fake.taken_count, 0);
	assert_int_equal(lost_count, 1);
}

static void
orderly_close(void **state)
{
	(void) state;
	run_until_ready();
	publisher->ops->close(publisher, clock_now());
	for (int i = 0; i < TURNS_MAX && !publisher->ops->closed(publisher); i++)
		step();
	assert_true(publisher->ops->closed(publisher));
	run(50);
	assert_true(publisher->ops->closed(publisher));
}

/*
 * Any mix: every row gets the outcome of its exchange, whatever its neighbours
 * did. First copies of one key keep the order of ids, though the key's rows go to
 * several exchanges and each of them may be in doubt for a while.
 */
static void
any_mix_of_faults(void **state)
{
	static const char *const topics[] = {"ok", "ok1", "ok2", "return", "nack",
	"bad", "missing", "refused"};
	static const char *const keys[] = {"a", "b", "c"};
	static const enum outcome expected[] = {OUTCOME_PUBLISHED, OUTCOME_PUBLISHED,
		OUTCOME_PUBLISHED, OUTCOME_UNROUTABLE, OUTCOME_NACKED, OUTCOME_REJECTED,
	OUTCOME_UNROUTABLE, OUTCOME_UNROUTABLE};

	(void) state;
	for (unsigned seed = 1; seed <= 20; seed++)
	{
		PGresult   *result = rows_new();
		int			kinds[60];
		bool		seen[60] = {false};
		long		last[3] = {-1, -1, -1};

		srandom(seed);
		for (int i = 0; i < 60; i++)
		{
			kinds[i] = (int) (random() % (seed % 2 ? 8 : 5));
			if (random() % 3 == 0)
				kinds[i] = 0;
			/* only healthy rows have keys: a fault releases the key's rest */
			rows_add(result, i, topics[kinds[i]],
					 kinds[i] > 2 ? NULL : keys[i % 3], "{}");
		}
		claims_add(&claims, result);
		decided_count = fake.taken_count = 0;
		run_until_decided(60);
		for (int i = 0; i < 60; i++)
			if (outcomes[i] != expected[kinds[i]])
				fail_msg("seed %u row %d to %s: %d, %s", seed, i,
						 topics[kinds[i]], outcomes[i], errors[i]);
		for (int i = 0; i < fake.taken_count; i++)
		{
			long		id = fake.taken[i];

			if (seen[id])
				continue;
			seen[id] = true;
			if (kinds[id] > 2)
				continue;
			assert_true(id > last[id % 3]);
			last[id % 3] = id;
		}
	}
}

static void
use_audit_exchange(const char *name)
{
	claims_clear(&claims);
	names_free(&claims.keys);
	claims_init(&claims, &(struct claim_settings){.origin = "trading",
		.audit_exchange = name, .window = 100000});
}

static void
assert_audit(int count, enum outcome outcome)
{
	for (int i = 0; i < count; i++)
	{
		assert_int_equal(outcomes[i], OUTCOME_PUBLISHED);
		assert_int_equal(audit_outcomes[i], outcome);
	}
}

static void
two_lanes_are_confirmed_apart(void **state)
{
	int			count = 5;

	(void) state;
	use_audit_exchange("hold");
	add("ok ok ok ok ok", "key");
	run_until_decided(count);
	run(20);
	assert_int_equal(decided_count, count);
	assert_int_equal(publisher->ops->unconfirmed(publisher), count);
	fake_ack_on(3, 5, true);
	run_until_decided(2 * count);
	assert_audit(count, OUTCOME_PUBLISHED);
	assert_taken("0 1 2 3 4");
}

/* It is asked about before it is used. */
static void
a_missing_audit_exchange_closes_no_channel(void **state)
{
	(void) state;
	use_audit_exchange("missing");
	run_until_decided(2 * add("ok ok ok", "key"));
	assert_audit(3, OUTCOME_UNROUTABLE);
	assert_int_equal(fake.closes, 1);	/* the question */
	assert_taken("0 1 2");
	assert_int_equal(lost_count, 0);
}

/* Each lane's fault is narrowed down on its own channel: nothing is sent twice. */
static void
a_fault_of_the_audit_lane_disturbs_no_business_copy(void **state)
{
	static const char *const exchanges[] = {"bad", "refused", "return", "nack"};
	static const enum outcome expected[] = {OUTCOME_REJECTED, OUTCOME_UNROUTABLE,
	OUTCOME_UNROUTABLE, OUTCOME_NACKED};

	(void) state;
	for (int i = 0; i < 4; i++)
	{
		use_audit_exchange(exchanges[i]);
		decided_count = fake.taken_count = 0;
		run_until_decided(2 * add("ok ok1 ok ok2 ok ok", "key"));
		assert_audit(6, expected[i]);
		assert_taken("0 1 2 3 4 5");
	}
	assert_int_equal(lost_count, 0);
}

static void
a_fault_of_the_business_lane_disturbs_no_audit_copy(void **state)
{
	(void) state;
	use_audit_exchange("ok");
	run_until_decided(2 * add("ok bad ok ok ok", NULL));
	for (int i = 0; i < 5; i++)
	{
		assert_int_equal(outcomes[i], i == 1 ? OUTCOME_REJECTED : OUTCOME_PUBLISHED);
		assert_int_equal(audit_outcomes[i], OUTCOME_PUBLISHED);
	}
	assert_int_equal(fake.tags[3], 5);	/* its channel was never opened anew */
}

/* Close the connection for what a message did, once so many are unconfirmed. */
static void
fail_connection(int unconfirmed)
{
	int			lost = lost_count;

	run_until_ready();
	run(30);
	assert_int_equal(publisher->ops->unconfirmed(publisher), unconfirmed);
	fake_send(0, AMQP_CONNECTION_CLOSE_METHOD,
			  &(amqp_connection_close_t){.reply_code = AMQP_FRAME_ERROR});
	for (int i = 0; i < TURNS_MAX && lost_count == lost; i++)
		step();
	claims_release(&claims, false, "lost", 0);
	assert_int_equal(claims.sent + claims.waiting, 0);
}

/* Were each lane narrowed down alone, two messages would be under way for ever. */
static void
a_closed_connection_is_narrowed_down_over_all_lanes(void **state)
{
	(void) state;
	use_audit_exchange("hold");
	add("hold hold", NULL);
	fail_connection(4);
	assert_int_equal(outcomes[0], OUTCOME_RELEASED);
	add("hold hold", NULL);
	fail_connection(2);
	add("hold hold", NULL);
	fail_connection(1);
	assert_int_equal(outcomes[0], OUTCOME_REJECTED);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(handshake_announces_what_we_understand),
		T(acks_publish),
		T(input_may_come_byte_by_byte),
		T(returned_is_unroutable_though_acked),
		T(acks_out_of_order_multiple_and_unknown),
		T(window_bounds_what_is_unconfirmed),
		T(missing_exchange_is_found_and_the_others_go_on),
		T(a_known_missing_exchange_closes_no_channel),
		T(the_row_at_fault_is_narrowed_down),
		T(every_row_at_fault),
		T(a_refused_exchange_is_held_uncharged),
		T(a_row_behind_one_at_fault_is_released),
		T(a_lost_connection_makes_unknown),
		T(a_hostile_broker_loses_its_connection_only),
		T(blocked_stops_publishing),
		T(nothing_is_sent_past_the_lease),
		T(orderly_close),
		T(any_mix_of_faults),
		T(two_lanes_are_confirmed_apart),
		T(a_missing_audit_exchange_closes_no_channel),
		T(a_fault_of_the_audit_lane_disturbs_no_business_copy),
		T(a_fault_of_the_business_lane_disturbs_no_audit_copy),
		T(a_closed_connection_is_narrowed_down_over_all_lanes),
	};

	return cmocka_run_group_tests_name("rabbit", tests, NULL, NULL);
}
