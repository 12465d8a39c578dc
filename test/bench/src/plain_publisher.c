/*
 * plain_publisher: what a program without a database publishes per second
 *
 *	plain_publisher URI EXCHANGE ROUTING_KEY COUNT BODY_BYTES WINDOW
 *
 * The baseline of the bridge: librabbitmq as its authors meant it to be used.
 * One connection, one confirm channel, amqp_basic_publish() for each message,
 * persistent and mandatory, with the properties the bridge sets.  At most WINDOW
 * tags are open; confirms are read only when the window is full, and then all
 * that have come.  Acks may come out of order, so each tag has a slot.
 *
 * Exit status 0 only if every message was confirmed and none came back.
 */
#include "common.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct window
{
	bool	   *acked;			/* by tag modulo size */
	uint64_t	size;
	uint64_t	low;			/* lowest open tag */
	uint64_t	next;			/* tag of the next message */
};

static void
take_ack(struct window *w, const amqp_basic_ack_t *ack)
{
	uint64_t	tag = ack->multiple ? w->low : ack->delivery_tag;

	for (; tag <= ack->delivery_tag; tag++)
		w->acked[tag % w->size] = true;
	while (w->low < w->next && w->acked[w->low % w->size])
		w->acked[w->low++ % w->size] = false;
}

/* Anything but an ack means that the comparison is not one. */
static void
take_frame(struct window *w, const amqp_frame_t *frame)
{
	if (frame->frame_type != AMQP_FRAME_METHOD)
		return;
	if (frame->payload.method.id != AMQP_BASIC_ACK_METHOD)
		fail("not confirmed: %s", amqp_method_name(frame->payload.method.id));
	take_ack(w, frame->payload.method.decoded);
}

/* Block until at least one frame has come, then take all that are there. */
static void
read_confirms(amqp_connection_state_t conn, struct window *w)
{
	do
	{
		amqp_frame_t frame;
		int			status = amqp_simple_wait_frame(conn, &frame);

		if (status != AMQP_STATUS_OK)
			fail("could not read: %s", amqp_error_string2(status));
		take_frame(w, &frame);
		amqp_maybe_release_buffers(conn);
	} while (amqp_frames_enqueued(conn) || amqp_data_in_buffer(conn));
}

static void
set_properties(amqp_basic_properties_t *p)
{
	p->_flags = AMQP_BASIC_CONTENT_TYPE_FLAG | AMQP_BASIC_CONTENT_ENCODING_FLAG |
		AMQP_BASIC_DELIVERY_MODE_FLAG | AMQP_BASIC_MESSAGE_ID_FLAG |
		AMQP_BASIC_TIMESTAMP_FLAG | AMQP_BASIC_TYPE_FLAG |
		AMQP_BASIC_APP_ID_FLAG;
	p->content_type = amqp_cstring_bytes("application/json");
	p->content_encoding = amqp_cstring_bytes("UTF-8");
	p->delivery_mode = AMQP_DELIVERY_PERSISTENT;
	p->timestamp = (uint64_t) time(NULL);
	p->type = amqp_cstring_bytes("OrderPlaced");
	p->app_id = amqp_cstring_bytes("shop");
}

static void
publish(amqp_connection_state_t conn, const char *exchange, const char *key,
		amqp_basic_properties_t *properties, amqp_bytes_t body, uint64_t n)
{
	char		id[40];
	int			status;

	/* as long as a uuid, and as different each time */
	snprintf(id, sizeof(id), "0190a000-0000-7000-8000-%012" PRIx64, n);
	properties->message_id = amqp_cstring_bytes(id);
	status = amqp_basic_publish(conn, CHANNEL, amqp_cstring_bytes(exchange),
								amqp_cstring_bytes(key), true, false,
								properties, body);
	if (status != AMQP_STATUS_OK)
		fail("could not publish: %s", amqp_error_string2(status));
}

int
main(int argc, char **argv)
{
	amqp_connection_state_t conn;
	amqp_basic_properties_t properties = {0};
	struct window w = {.low = 1, .next = 1};
	amqp_bytes_t body;
	uint64_t	count;

	if (argc != 7)
		fail("usage: plain_publisher URI EXCHANGE ROUTING_KEY COUNT BODY_BYTES WINDOW");
	count = (uint64_t) number(argv[4], "COUNT");
	body.len = (size_t) number(argv[5], "BODY_BYTES");
	w.size = (uint64_t) number(argv[6], "WINDOW");
	body.bytes = malloc(body.len);
	w.acked = calloc(w.size, sizeof(*w.acked));
	if (body.bytes == NULL || w.acked == NULL)
		fail("out of memory");
	memset(body.bytes, 'x', body.len);

	conn = open_channel(argv[1]);
	amqp_confirm_select(conn, CHANNEL);
	check_reply(amqp_get_rpc_reply(conn), "could not select confirms");
	set_properties(&properties);
	while (w.next <= count)
	{
		publish(conn, argv[2], argv[3], &properties, body, w.next);
		w.next++;
		while (w.next - w.low >= w.size)
			read_confirms(conn, &w);
	}
	while (w.low < w.next)
		read_confirms(conn, &w);
	close_channel(conn);
	free(body.bytes);
	free(w.acked);
	return 0;
}
