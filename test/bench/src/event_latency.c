/*
 * event_latency: from the commit to the consumer
 *
 *	event_latency URI QUEUE TOPIC RATE SECONDS
 *
 * A child publishes RATE events a second into the outbox, each in a transaction
 * of its own beside a business row, and notes when COMMIT returned to it.  The
 * parent consumes QUEUE and notes when each event arrived.  Both use the
 * machine's monotonic clock and one table shared between them, indexed by the
 * number that the event's body carries.
 *
 * Publishing keeps its schedule (open loop): an event whose turn has come is not
 * put off because others are late.  The first WARM_UP seconds do not count.
 *
 * Prints: events counted, and the 50th, 99th and 100th percentile in
 * milliseconds.  Every event must arrive.
 */
#include "common.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WARM_UP 2
#define PREFETCH 500
#define ARRIVAL_TIMEOUT 30
#define MARK "\"sequence\":"	/* in the body, before the event's number */

struct event
{
	double		committed_at;
	double		arrived_at;
};

static void
sleep_until(double at)
{
	struct timespec t = {.tv_sec = (time_t) at,
	.tv_nsec = (long) ((at - floor(at)) * 1e9)};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) != 0)
		continue;
}

static void
publish_one(PGconn *conn, const char *topic, long n)
{
	char		text[32];
	const char *values[] = {topic, text};

	snprintf(text, sizeof(text), "%ld", n);
	PQclear(run(conn, PGRES_COMMAND_OK, PQexec(conn, "BEGIN")));
	PQclear(run(conn, PGRES_COMMAND_OK,
				PQexecPrepared(conn, "order", 1, &values[1], NULL, NULL, 0)));
	PQclear(run(conn, PGRES_TUPLES_OK,
				PQexecPrepared(conn, "publish", 2, values, NULL, NULL, 0)));
	PQclear(run(conn, PGRES_COMMAND_OK, PQexec(conn, "COMMIT")));
}

static void
publish_all(struct event *events, long count, double rate, const char *topic)
{
	PGconn	   *conn = open_database();
	double		begin;

	PQclear(run(conn, PGRES_COMMAND_OK,
				PQprepare(conn, "order",
						  "INSERT INTO orders (account_id, amount) VALUES (1, $1)",
						  0, NULL)));
	PQclear(run(conn, PGRES_COMMAND_OK,
				PQprepare(conn, "publish",
						  "SELECT acme_outbox.publish($1, 'order.placed', 'order-' || $2,"
						  " 'OrderPlaced', format('{" MARK "%s,\"filler\":\"%s\"}', $2::text,"
						  " repeat('x', 470)))",
						  0, NULL)));
	begin = now_seconds();
	for (long n = 0; n < count; n++)
	{
		sleep_until(begin + (double) n / rate);
		publish_one(conn, topic, n);
		events[n].committed_at = now_seconds();
	}
	PQfinish(conn);
}

/* The number that the body carries. */
static long
sequence_of(amqp_bytes_t body)
{
	const char *at = memmem(body.bytes, body.len, MARK, strlen(MARK));

	if (at == NULL)
		fail("an event that is not ours is in the queue");
	return strtol(at + strlen(MARK), NULL, 10);
}

static void
consume_one(amqp_connection_state_t conn, struct event *events, long count,
			long *arrived)
{
	struct timeval timeout = {ARRIVAL_TIMEOUT, 0};
	amqp_envelope_t envelope;
	long		n;

	amqp_maybe_release_buffers(conn);
	check_reply(amqp_consume_message(conn, &envelope, &timeout, 0),
				"an event did not arrive");
	n = sequence_of(envelope.message.body);
	if (n < 0 || n >= count)
		fail("event %ld was never published", n);
	if (events[n].arrived_at == 0)	/* else a copy */
	{
		events[n].arrived_at = now_seconds();
		++*arrived;
	}
	amqp_basic_ack(conn, CHANNEL, envelope.delivery_tag, 0);
	amqp_destroy_envelope(&envelope);
}

static int
compare(const void *a, const void *b)
{
	double		x = *(const double *) a;
	double		y = *(const double *) b;

	return (x > y) - (x < y);
}

static void
print_percentiles(const struct event *events, long first, long count)
{
	long		n = count - first;
	double	   *latency = calloc((size_t) n, sizeof(*latency));

	if (latency == NULL)
		fail("out of memory");
	for (long i = 0; i < n; i++)
		latency[i] = 1000 * (events[first + i].arrived_at -
							 events[first + i].committed_at);
	qsort(latency, (size_t) n, sizeof(*latency), compare);
	printf("%ld %.3f %.3f %.3f\n", n, latency[n / 2], latency[n * 99 / 100],
		   latency[n - 1]);
	free(latency);
}

int
main(int argc, char **argv)
{
	amqp_connection_state_t conn;
	struct event *events;
	long		rate;
	long		count;
	long		arrived = 0;
	pid_t		publisher;
	int			status;

	if (argc != 6)
		fail("usage: event_latency URI QUEUE TOPIC RATE SECONDS");
	rate = number(argv[4], "RATE");
	count = rate * (WARM_UP + number(argv[5], "SECONDS"));
	events = mmap(NULL, (size_t) count * sizeof(*events), PROT_READ | PROT_WRITE,
				  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (events == MAP_FAILED)
		fail("out of memory");

	conn = open_channel(argv[1]);
	amqp_basic_qos(conn, CHANNEL, 0, PREFETCH, 0);
	check_reply(amqp_get_rpc_reply(conn), "could not set the prefetch");
	amqp_basic_consume(conn, CHANNEL, amqp_cstring_bytes(argv[2]),
					   amqp_empty_bytes, 0, 0, 0, amqp_empty_table);
	check_reply(amqp_get_rpc_reply(conn), "could not consume");

	publisher = fork();
	if (publisher < 0)
		fail("could not fork: %m");
	if (publisher == 0)
	{
		publish_all(events, count, (double) rate, argv[3]);
		_exit(0);
	}
	while (arrived < count)
		consume_one(conn, events, count, &arrived);
	if (waitpid(publisher, &status, 0) != publisher || status != 0)
		fail("the publisher failed");
	print_percentiles(events, rate * WARM_UP, count);
	close_channel(conn);
	return 0;
}
