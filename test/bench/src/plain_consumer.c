/*
 * plain_consumer: what a program consumes per second without batches
 *
 *	plain_consumer URI QUEUE COUNT PREFETCH ack|each
 *
 * The baselines of "acme-outbox-bridge consume": librabbitmq as its authors meant
 * it to be used.
 *
 *	ack     acknowledges, a hundred at once, and does nothing else
 *	each    runs the handler for each message in a transaction of its own,
 *	        then acknowledges it; the PG* variables say where
 *
 * It ends after COUNT messages.
 */
#include "common.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One by one, a quorum queue falls behind and forgets some when the channel ends. */
#define ACK_EVERY 100

#define HANDLE "SELECT acme_outbox.inbox_process('bench', $1, 'bench.upsert')"

static PGconn *
prepare_handler(void)
{
	PGconn	   *db = open_database();
	const Oid	text_oid = 25;

	PQclear(run(db, PGRES_COMMAND_OK, PQprepare(db, "handle", HANDLE, 1, &text_oid)));
	return db;
}

/* One round trip, one durable commit. */
static void
handle(PGconn *db, const amqp_bytes_t *body)
{
	char	   *text = strndup(body->bytes, body->len);
	const char *values[] = {text};

	if (text == NULL)
		fail("out of memory");
	PQclear(run(db, PGRES_TUPLES_OK,
				PQexecPrepared(db, "handle", 1, values, NULL, NULL, 0)));
	free(text);
}

static void
subscribe(amqp_connection_state_t conn, const char *queue, uint16_t prefetch)
{
	amqp_basic_qos(conn, CHANNEL, 0, prefetch, false);
	check_reply(amqp_get_rpc_reply(conn), "could not set the prefetch");
	amqp_basic_consume(conn, CHANNEL, amqp_cstring_bytes(queue), amqp_empty_bytes,
					   false, false, false, amqp_empty_table);
	check_reply(amqp_get_rpc_reply(conn), "could not consume");
}

int
main(int argc, char **argv)
{
	amqp_connection_state_t conn;
	PGconn	   *db = NULL;
	long		count;

	if (argc != 6 || (strcmp(argv[5], "ack") != 0 && strcmp(argv[5], "each") != 0))
		fail("usage: plain_consumer URI QUEUE COUNT PREFETCH ack|each");
	count = number(argv[3], "COUNT");
	if (strcmp(argv[5], "each") == 0)
		db = prepare_handler();
	conn = open_channel(argv[1]);
	subscribe(conn, argv[2], (uint16_t) number(argv[4], "PREFETCH"));
	while (count-- > 0)
	{
		amqp_envelope_t envelope;

		amqp_maybe_release_buffers(conn);
		check_reply(amqp_consume_message(conn, &envelope, NULL, 0), "could not read");
		if (db)
			handle(db, &envelope.message.body);
		if ((db || count % ACK_EVERY == 0) &&
			amqp_basic_ack(conn, CHANNEL, envelope.delivery_tag, db == NULL) != AMQP_STATUS_OK)
			fail("could not acknowledge");
		amqp_destroy_envelope(&envelope);
	}
	close_channel(conn);
	if (db)
		PQfinish(db);
	return 0;
}
