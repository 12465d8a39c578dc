/*
 * fuzz_headers.c
 *		Headers as JSON text, encoded as a message's AMQP table.
 *
 * The input is the text; its first byte chooses whether there is a traceparent and
 * how large a frame may be. What message_put() accepts must come out as well-formed
 * frames that decode again; what it refuses must leave the output as it was.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "message.h"

static void
check_frames(struct buffer *out, uint32_t frame_max, size_t payload)
{
	amqp_pool_t pool;
	struct frame frame;
	const char *problem = NULL;
	amqp_basic_properties_t *p;
	uint64_t	size;

	init_amqp_pool(&pool, 4096);
	assert(frame_scan(buffer_head(out), buffer_length(out), frame_max, &frame, &problem) == FRAME_OK);
	assert(frame.type == AMQP_FRAME_METHOD && frame_method_id(&frame) == AMQP_BASIC_PUBLISH_METHOD);
	buffer_consume(out, frame.size);
	assert(frame_scan(buffer_head(out), buffer_length(out), frame_max, &frame, &problem) == FRAME_OK);
	assert(frame.type == AMQP_FRAME_HEADER && frame.size <= frame_max);
	assert(frame_decode_header(&frame, &pool, &size, &p));
	assert(size == payload);
	assert(p->message_id.len == 5 && memcmp(p->message_id.bytes, "event", 5) == 0);
	buffer_consume(out, frame.size);
	while (buffer_length(out) > 0)
	{
		assert(frame_scan(buffer_head(out), buffer_length(out), frame_max, &frame, &problem) == FRAME_OK);
		assert(frame.type == AMQP_FRAME_BODY && frame.size <= frame_max);
		payload -= frame.length;
		buffer_consume(out, frame.size);
	}
	assert(payload == 0);
	empty_amqp_pool(&pool);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct buffer out = {0};
	amqp_pool_t pool;
	char	   *text;
	uint32_t	frame_max;
	const char *problem;
	struct message m = {
		.id = "event", .type = "OrderPlaced", .origin = "shop", .exchange = "events",
		.routing_key = "k", .payload = "payload", .payload_length = 7,
		.created_at = 1700000000, .mandatory = true,
	};

	if (size < 1)
		return 0;
	text = malloc(size);
	memcpy(text, data + 1, size - 1);
	text[size - 1] = '\0';
	m.headers = text;
	if (data[0] & 1)
		m.traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
	frame_max = data[0] & 2 ? FRAME_MAX_MIN : FRAME_MAX;
	init_amqp_pool(&pool, 16384);
	problem = message_put(&out, 1, frame_max, &m, &pool);
	if (problem)
		assert(buffer_length(&out) == 0);
	else
		check_frames(&out, frame_max, m.payload_length);
	empty_amqp_pool(&pool);
	buffer_free(&out);
	free(text);
	return 0;
}
