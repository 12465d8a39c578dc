/*
 * fuzz_rabbit.c
 *		What a broker sends, against the whole publisher: transport, frame
 *		scanner, decoding, connection and channel handlers, confirm window.
 *
 * The first byte of the input chooses (bits): 1 the handshake is done for it, so
 * that the input begins on an open channel; 2 it comes in single bytes; 4 and 8 how
 * many rows are sent before. The rest is the broker's output, handed over frame by
 * frame; between two frames the publisher has a turn and publishes what waits.
 *
 * Name lookup and connect() are replaced: the connection is one end of a socket
 * pair. The harness checks what the publisher promises: one answer for each
 * copy, PUBLISHED only if the input had an ack.
 */
#include <arpa/inet.h>
#include <assert.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../unit/rows.h"
#include "fuzz.h"
#include "log.h"
#include "rabbit.h"
#include "resolver.h"

#define ROWS_MAX	4096
#define AUDIT_CHANNEL	3
#define FED_MAX		65536

static struct publisher *publisher;
static struct claim_set claims;
static int	peer = -1;
static long next_row;
static long decided;
static bool had_ack;

/* ---- what is replaced ---- */

struct resolver
{
	int			fd;
};

struct resolver *
resolver_start(const char *host, const char *port)
{
	struct resolver *r = malloc(sizeof(*r));

	(void) host;
	(void) port;
	r->fd = eventfd(1, EFD_CLOEXEC);
	return r;
}

int
resolver_fd(const struct resolver *r)
{
	return r->fd;
}

bool
resolver_finish(struct resolver *r, struct addrinfo **addresses, int *error)
{
	static const struct addrinfo hints = {
		.ai_flags = AI_NUMERICHOST, .ai_family = AF_INET, .ai_socktype = SOCK_STREAM
	};

	close(r->fd);
	free(r);
	*error = getaddrinfo("127.0.0.1", "5672", &hints, addresses);
	return *error == 0;
}

void
resolver_abandon(struct resolver *r)
{
	close(r->fd);
	free(r);
}

int			__wrap_connect(int fd, const struct sockaddr *address, socklen_t size);

int
__wrap_connect(int fd, const struct sockaddr *address, socklen_t size)
{
	int			pair[2];

	(void) address;
	(void) size;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0)
		abort();
	if (dup3(pair[0], fd, O_CLOEXEC) < 0)
		abort();
	close(pair[0]);
	if (peer >= 0)
		close(peer);
	peer = pair[1];
	return 0;
}

/* ---- the relay's side ---- */

static void
on_answered(void *relay, struct copy *copy, enum outcome outcome, const char *error)
{
	(void) relay;
	assert(outcome != OUTCOME_PUBLISHED || had_ack);
	assert(outcome == OUTCOME_PUBLISHED || error != NULL);
	decided++;
	claims_answer(copy, outcome, error, 0);	/* aborts on a second one */
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
	claims_release(&claims, false, "lost", 0);
}

static void
on_failed(void *relay)
{
	(void) relay;
}

static enum publish_result
offer(void *context, struct copy *copy, const struct message *m)
{
	(void) context;
	return publisher->ops->publish(publisher, copy, m, clock_now());
}

static void
add_rows(int count)
{
	static const char *const topics[] = {"ok", "other", "", "third"};
	PGresult   *rows;

	if (count == 0 || next_row + count > ROWS_MAX)
		return;
	rows = rows_new();
	for (int i = 0; i < count; i++, next_row++)
		rows_add(rows, next_row + 1, topics[next_row % 4], next_row % 3 ? "a" : NULL,
				 next_row % 5 ? "payload" : "");
	claims_add(&claims, rows);
}

static void
step(void)
{
	struct pollfd pfd = {.fd = -1};
	char		nowhere[65536];

	publisher->ops->poll_fd(publisher, &pfd);
	if (pfd.fd >= 0)
		poll(&pfd, 1, 0);
	publisher->ops->turn(publisher, pfd.revents, clock_now());
	claims_offer(&claims, offer, NULL);
	publisher->ops->flush(publisher);
	if (peer >= 0)
		while (recv(peer, nowhere, sizeof(nowhere), 0) > 0)
			;
}

static void
feed(const uint8_t *data, size_t length)
{
	while (length > 0 && peer >= 0)
	{
		ssize_t		sent = send(peer, data, length, MSG_NOSIGNAL);

		if (sent <= 0)
			return;
		data += sent;
		length -= (size_t) sent;
		step();
	}
}

/* ---- the broker's side ---- */

static void
feed_method(uint16_t channel, amqp_method_number_t id, void *method)
{
	struct buffer out = {0};

	if (!frame_put_method(&out, channel, id, method))
		abort();
	feed(buffer_head(&out), buffer_length(&out));
	buffer_free(&out);
}

static void
shake_hands(void)
{
	feed_method(0, AMQP_CONNECTION_START_METHOD,
				&(amqp_connection_start_t){.version_minor = 9,
		.mechanisms = amqp_cstring_bytes("PLAIN"),
		.locales = amqp_cstring_bytes("en_US")});
	feed_method(0, AMQP_CONNECTION_TUNE_METHOD,
				&(amqp_connection_tune_t){.channel_max = 10, .frame_max = 65536,
		.heartbeat = 60});
	feed_method(0, AMQP_CONNECTION_OPEN_OK_METHOD, &(amqp_connection_open_ok_t){0});
	for (uint16_t channel = 1; channel <= AUDIT_CHANNEL; channel += AUDIT_CHANNEL - 1)
	{
		feed_method(channel, AMQP_CHANNEL_OPEN_OK_METHOD,
					&(amqp_channel_open_ok_t){0});
		feed_method(channel, AMQP_CONFIRM_SELECT_OK_METHOD,
					&(amqp_confirm_select_ok_t){0});
	}
	step();
}

/* The length of the frame that seems to begin here, but no more than there is. */
static size_t
piece_length(const uint8_t *data, size_t left)
{
	size_t		length;

	if (left < 7)
		return left;
	length = ((size_t) data[3] << 24 | (size_t) data[4] << 16 | (size_t) data[5] << 8 |
			  data[6]) + 8;
	return length < left ? length : left;
}

static bool
is_ack(const uint8_t *data, size_t length)
{
	return length >= 11 && data[0] == 1 && memcmp(data + 7, "\0\x3c\0\x50", 4) == 0;
}

static void
begin(void)
{
	struct broker_settings settings = {
		.connection_name = "fuzz:1:relay",
		.version = "1",
		.connect_timeout = 60000,
		.heartbeat = 600000,
		.reconnect_min = 600000,
		.reconnect_max = 600000,
	};
	struct publisher_events events = {on_answered, on_again, on_lost, on_failed, NULL};

	if (uri_parse("amqp://u:p@127.0.0.1:5672/v", &settings.uri) != NULL)
		abort();
	log_setup(LOG_ERROR, LOG_KV);
	next_row = decided = 0;
	had_ack = false;
	claims_init(&claims, &(struct claim_settings){.origin = "shop",
		.audit_exchange = "audit", .window = 16});
	publisher = rabbit_new(&settings, &events, (uint32_t[LANES]){16, 16}, 600000);
	publisher->send_until = CLOCK_NEVER;
	for (int i = 0; i < 4 && peer < 0; i++)
		step();
	step();
}

static void
end(void)
{
	publisher->ops->forget(publisher, "the end");
	publisher->ops->close(publisher, clock_now());
	publisher->ops->free(publisher);
	claims_clear(&claims);
	if (peer >= 0)
		close(peer);
	peer = -1;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	bool		single;

	if (size < 1 || size > FED_MAX)
		return 0;
	begin();
	single = data[0] & 2;
	add_rows((data[0] >> 2 & 3) * 5);
	if (data[0] & 1)
		shake_hands();
	for (size_t at = 1; at < size && peer >= 0;)
	{
		size_t		length = piece_length(data + at, size - at);

		had_ack = had_ack || is_ack(data + at, length);
		for (size_t i = 0; i < length; i += single ? 1 : length)
			feed(data + at + i, single ? 1 : length);
		at += length;
		step();
		if (claims.waiting == 0)
			add_rows(3);
	}
	step();
	end();
	return 0;
}

/* ---- mutations that leave frames ---- */

size_t		LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);

/* Mend lengths and end bytes three times in four, so that mutants are read at all. */
size_t
LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
	size_t		at = 1;

	size = LLVMFuzzerMutate(data, size, max_size);
	if (seed % 4 == 0)
		return size;
	while (at + 8 <= size)
	{
		size_t		length = (size_t) data[at + 5] << 8 | data[at + 6];

		if (length > size - at - 8)
			length = size - at - 8;
		if (data[at] == 0 || (data[at] > 3 && data[at] != 8))
			data[at] = 1;
		data[at + 1] = 0;
		data[at + 2] %= AUDIT_CHANNEL + 1;
		data[at + 3] = data[at + 4] = 0;
		data[at + 5] = (uint8_t) (length >> 8);
		data[at + 6] = (uint8_t) length;
		data[at + 7 + length] = 0xCE;
		at += length + 8;
	}
	return size;
}
