/*
 * amqp_frame.c
 *		AMQP 0-9-1 frames: built for the output, found in the input.
 *
 * librabbitmq encodes and decodes methods, properties and tables; the framing
 * around them is ours, because its transport blocks for ever on a full socket.
 *
 *		type(1) channel(2) length(4) payload(length) 0xCE	all big-endian
 *
 * What comes in is checked before the library sees it: the length against
 * frame_max, the end byte, that the method is one a broker may send us, and the
 * nesting of tables - version 0.11 decodes them recursively without a limit, so
 * one hostile frame could overflow the stack.
 *
 * Pure: no socket, no clock.
 */
#include "amqp_frame.h"

#include <string.h>

#define METHOD_PREFIX	4		/* class and method id */
#define HEADER_PREFIX	12		/* class, weight, body size */

/* Methods with a table outgrow this only by the table. */
#define METHOD_ROOM		4096

static void
put16(uint8_t *out, uint16_t value)
{
	out[0] = (uint8_t) (value >> 8);
	out[1] = (uint8_t) value;
}

static void
put32(uint8_t *out, uint32_t value)
{
	put16(out, (uint16_t) (value >> 16));
	put16(out + 2, (uint16_t) value);
}

static uint16_t
get16(const uint8_t *in)
{
	return (uint16_t) (in[0] << 8 | in[1]);
}

static uint32_t
get32(const uint8_t *in)
{
	return (uint32_t) get16(in) << 16 | get16(in + 2);
}

static uint64_t
get64(const uint8_t *in)
{
	return (uint64_t) get32(in) << 32 | get32(in + 4);
}

/* ---- input ---- */

/*
 * Find the frame at the start of the input. frame_max counts the whole frame;
 * RabbitMQ itself tolerates FRAME_OVERHEAD more, and so do we.
 */
enum frame_status
frame_scan(const uint8_t *data, size_t length, uint32_t frame_max,
		   struct frame *frame, const char **problem)
{
	if (length >= 4 && memcmp(data, "AMQP", 4) == 0)
	{
		*problem = "the broker speaks another version of AMQP";
		return FRAME_BAD;
	}
	if (length < FRAME_HEADER_SIZE)
		return FRAME_PARTIAL;
	frame->type = data[0];
	frame->channel = get16(data + 1);
	frame->length = get32(data + 3);
	frame->payload = data + FRAME_HEADER_SIZE;
	frame->size = (size_t) frame->length + FRAME_OVERHEAD;
	if (frame->type != AMQP_FRAME_METHOD && frame->type != AMQP_FRAME_HEADER &&
		frame->type != AMQP_FRAME_BODY && frame->type != AMQP_FRAME_HEARTBEAT)
	{
		*problem = "frame of unknown type";
		return FRAME_BAD;
	}
	if (frame->length > frame_max)
	{
		*problem = "frame larger than agreed";
		return FRAME_BAD;
	}
	if (length < frame->size)
		return FRAME_PARTIAL;
	if (data[frame->size - 1] != AMQP_FRAME_END)
	{
		*problem = "frame without end byte";
		return FRAME_BAD;
	}
	return FRAME_OK;
}

/* A position in a table's bytes; the walk never leaves end. */
struct walk
{
	const uint8_t *at;
	const uint8_t *end;
};

static bool table_walk(struct walk *walk, bool keys, int depth);

static bool
walk_skip(struct walk *walk, size_t length)
{
	if ((size_t) (walk->end - walk->at) < length)
		return false;
	walk->at += length;
	return true;
}

/* A length of 4 bytes and that many bytes. */
static bool
walk_skip_long(struct walk *walk)
{
	const uint8_t *at = walk->at;

	return walk_skip(walk, 4) && walk_skip(walk, get32(at));
}

static bool
value_walk(struct walk *walk, int depth)
{
	const uint8_t *kind = walk->at;

	if (!walk_skip(walk, 1))
		return false;
	switch (*kind)
	{
		case 'V':
			return true;
		case 't': case 'b': case 'B':
			return walk_skip(walk, 1);
		case 's': case 'u':
			return walk_skip(walk, 2);
		case 'I': case 'i': case 'f':
			return walk_skip(walk, 4);
		case 'D':
			return walk_skip(walk, 5);
		case 'l': case 'L': case 'd': case 'T':
			return walk_skip(walk, 8);
		case 'S': case 'x':
			return walk_skip_long(walk);
		case 'F':
			return table_walk(walk, true, depth + 1);
		case 'A':
			return table_walk(walk, false, depth + 1);
		default:
			return false;
	}
}

/* A table (keys) or an array, with its length before it. */
static bool
table_walk(struct walk *walk, bool keys, int depth)
{
	const uint8_t *start = walk->at;
	struct walk inner;

	if (depth > TABLE_DEPTH_MAX || !walk_skip_long(walk))
		return false;
	inner.at = start + 4;
	inner.end = walk->at;
	while (inner.at < inner.end)
	{
		if (keys && !walk_skip(&inner, 1u + *inner.at))
			return false;
		if (!value_walk(&inner, depth))
			return false;
	}
	return true;
}

/* Is the table that starts here well formed and not nested too deep? */
bool
frame_table_is_sane(const uint8_t *data, size_t length)
{
	struct walk walk = {data, data + length};

	return table_walk(&walk, true, 1);
}

/* Bytes of the field value that starts here, its kind included; 0: malformed. */
size_t
frame_value_size(const uint8_t *data, size_t length)
{
	struct walk walk = {data, data + length};

	return value_walk(&walk, 1) ? (size_t) (walk.at - data) : 0;
}

/* 0 if the payload is too short for one. */
amqp_method_number_t
frame_method_id(const struct frame *frame)
{
	return frame->length < METHOD_PREFIX ? 0 : get32(frame->payload);
}

/* Only what a broker may send to us is decoded at all. */
static bool
method_is_expected(amqp_method_number_t id)
{
	switch (id)
	{
		case AMQP_CONNECTION_START_METHOD:
		case AMQP_CONNECTION_TUNE_METHOD:
		case AMQP_CONNECTION_OPEN_OK_METHOD:
		case AMQP_CONNECTION_CLOSE_METHOD:
		case AMQP_CONNECTION_CLOSE_OK_METHOD:
		case AMQP_CONNECTION_BLOCKED_METHOD:
		case AMQP_CONNECTION_UNBLOCKED_METHOD:
		case AMQP_CHANNEL_OPEN_OK_METHOD:
		case AMQP_CHANNEL_FLOW_METHOD:
		case AMQP_CHANNEL_CLOSE_METHOD:
		case AMQP_CHANNEL_CLOSE_OK_METHOD:
		case AMQP_EXCHANGE_DECLARE_OK_METHOD:
		case AMQP_EXCHANGE_DELETE_OK_METHOD:
		case AMQP_QUEUE_DECLARE_OK_METHOD:
		case AMQP_QUEUE_DELETE_OK_METHOD:
		case AMQP_QUEUE_BIND_OK_METHOD:
		case AMQP_QUEUE_UNBIND_OK_METHOD:
		case AMQP_CONFIRM_SELECT_OK_METHOD:
		case AMQP_BASIC_GET_OK_METHOD:
		case AMQP_BASIC_GET_EMPTY_METHOD:
		case AMQP_TX_SELECT_OK_METHOD:
		case AMQP_TX_ROLLBACK_OK_METHOD:
		case AMQP_BASIC_ACK_METHOD:
		case AMQP_BASIC_NACK_METHOD:
		case AMQP_BASIC_RETURN_METHOD:
		case AMQP_BASIC_QOS_OK_METHOD:
		case AMQP_BASIC_CONSUME_OK_METHOD:
		case AMQP_BASIC_CANCEL_METHOD:
		case AMQP_BASIC_CANCEL_OK_METHOD:
		case AMQP_BASIC_DELIVER_METHOD:
			return true;
		default:
			return false;
	}
}

/* The method's struct, allocated in the pool; NULL if it is not to be trusted. */
void *
frame_decode_method(const struct frame *frame, amqp_pool_t *pool)
{
	amqp_method_number_t id = frame_method_id(frame);
	amqp_bytes_t encoded;
	void	   *decoded = NULL;

	if (!method_is_expected(id))
		return NULL;
	encoded.bytes = (void *) (frame->payload + METHOD_PREFIX);
	encoded.len = frame->length - METHOD_PREFIX;
	/* connection.start has the only table, after its two version bytes */
	if (id == AMQP_CONNECTION_START_METHOD &&
		(encoded.len < 2 ||
		 !frame_table_is_sane((uint8_t *) encoded.bytes + 2, encoded.len - 2)))
		return NULL;
	if (amqp_decode_method(id, pool, encoded, &decoded) < 0)
		return NULL;
	return decoded;
}

/* Skip content-type and content-encoding to look at the header table. */
static bool
properties_are_sane(const uint8_t *data, size_t length)
{
	struct walk walk = {data, data + length};
	uint16_t	flags;

	if (!walk_skip(&walk, 2))
		return false;
	flags = get16(data);
	if (flags & 1)				/* a second word of flags: not in basic */
		return false;
	for (int bit = 15; bit >= 14; bit--)
		if (flags & (1u << bit) &&
			(walk.at >= walk.end || !walk_skip(&walk, 1u + *walk.at)))
			return false;
	if (flags & AMQP_BASIC_HEADERS_FLAG)
		return frame_table_is_sane(walk.at, (size_t) (walk.end - walk.at));
	return true;
}

/* What a content header says of the body, whatever the properties are. */
bool
frame_body_size(const struct frame *frame, uint64_t *body_size)
{
	if (frame->length < HEADER_PREFIX + 2 ||
		get16(frame->payload) != AMQP_BASIC_CLASS)
		return false;
	*body_size = get64(frame->payload + 4);
	return true;
}

/* The encoded properties of a content header, checked but not decoded. */
bool
frame_content_header(const struct frame *frame, uint64_t *body_size,
					 const uint8_t **properties, size_t *length)
{
	if (!frame_body_size(frame, body_size))
		return false;
	*properties = frame->payload + HEADER_PREFIX;
	*length = frame->length - HEADER_PREFIX;
	return properties_are_sane(*properties, *length);
}

bool
frame_decode_header(const struct frame *frame, amqp_pool_t *pool,
					uint64_t *body_size, amqp_basic_properties_t **properties)
{
	const uint8_t *data;
	amqp_bytes_t encoded;
	void	   *decoded = NULL;

	if (!frame_content_header(frame, body_size, &data, &encoded.len))
		return false;
	encoded.bytes = (void *) data;
	if (amqp_decode_properties(AMQP_BASIC_CLASS, pool, encoded, &decoded) < 0)
		return false;
	*properties = decoded;
	return true;
}

/* ---- output ---- */

/* Fill in what surrounds a payload that was written at start + 7. */
static void
frame_close(struct buffer *out, uint8_t *start, uint8_t type, uint16_t channel,
			size_t payload)
{
	start[0] = type;
	put16(start + 1, channel);
	put32(start + 3, (uint32_t) payload);
	start[FRAME_HEADER_SIZE + payload] = AMQP_FRAME_END;
	buffer_commit(out, payload + FRAME_OVERHEAD);
}

/* False, and nothing written, if the method cannot be encoded. */
bool
frame_put_method(struct buffer *out, uint16_t channel, amqp_method_number_t id,
				 void *method)
{
	uint8_t    *start = buffer_reserve(out, METHOD_ROOM + FRAME_OVERHEAD +
									   METHOD_PREFIX);
	amqp_bytes_t room = {METHOD_ROOM, start + FRAME_HEADER_SIZE + METHOD_PREFIX};
	int			length = amqp_encode_method(id, method, room);

	if (length < 0)
		return false;
	put32(start + FRAME_HEADER_SIZE, id);
	frame_close(out, start, AMQP_FRAME_METHOD, channel,
				(size_t) length + METHOD_PREFIX);
	return true;
}

/* The header's frame around properties that were written at their place. */
static void
close_header(struct buffer *out, uint8_t *start, uint16_t channel,
			 size_t properties, size_t body)
{
	uint8_t    *payload = start + FRAME_HEADER_SIZE;

	put16(payload, AMQP_BASIC_CLASS);
	put16(payload + 2, 0);
	put32(payload + 4, (uint32_t) ((uint64_t) body >> 32));
	put32(payload + 8, (uint32_t) body);
	frame_close(out, start, AMQP_FRAME_HEADER, channel,
				properties + HEADER_PREFIX);
}

/* False if the properties do not fit into one frame: they may not be split. */
static bool
put_header(struct buffer *out, uint16_t channel, uint32_t frame_max,
		   amqp_basic_properties_t *properties, size_t body)
{
	uint8_t    *start = buffer_reserve(out, frame_max);
	amqp_bytes_t room = {frame_max - FRAME_OVERHEAD - HEADER_PREFIX,
		start + FRAME_HEADER_SIZE + HEADER_PREFIX};
	int			length = amqp_encode_properties(AMQP_BASIC_CLASS, properties,
												room);

	if (length < 0)
		return false;
	close_header(out, start, channel, (size_t) length, body);
	return true;
}

/* As many body frames as frame_max asks for; none for an empty body. */
static void
put_body(struct buffer *out, uint16_t channel, uint32_t frame_max,
		 const void *body, size_t length)
{
	size_t		most = frame_max - FRAME_OVERHEAD;
	const uint8_t *from = body;

	while (length > 0)
	{
		size_t		part = length < most ? length : most;
		uint8_t    *start = buffer_reserve(out, part + FRAME_OVERHEAD);

		memcpy(start + FRAME_HEADER_SIZE, from, part);
		frame_close(out, start, AMQP_FRAME_BODY, channel, part);
		from += part;
		length -= part;
	}
}

/*
 * The content header and the body. False, and nothing written, if the header
 * cannot be encoded.
 */
bool
frame_put_content(struct buffer *out, uint16_t channel, uint32_t frame_max,
				  amqp_basic_properties_t *properties, const void *body,
				  size_t length)
{
	if (!put_header(out, channel, frame_max, properties, length))
		return false;
	put_body(out, channel, frame_max, body, length);
	return true;
}

/* The same with properties that are encoded already. */
bool
frame_put_encoded(struct buffer *out, uint16_t channel, uint32_t frame_max,
				  const uint8_t *properties, size_t properties_length,
				  const void *body, size_t length)
{
	size_t		room = frame_max - FRAME_OVERHEAD - HEADER_PREFIX;
	uint8_t    *start;

	if (properties_length > room)
		return false;
	start = buffer_reserve(out, frame_max);
	memcpy(start + FRAME_HEADER_SIZE + HEADER_PREFIX, properties,
		   properties_length);
	close_header(out, start, channel, properties_length, length);
	put_body(out, channel, frame_max, body, length);
	return true;
}

void
frame_put_heartbeat(struct buffer *out)
{
	uint8_t    *start = buffer_reserve(out, FRAME_OVERHEAD);

	frame_close(out, start, AMQP_FRAME_HEARTBEAT, 0, 0);
}
