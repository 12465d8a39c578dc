/*
 * test_frame.c
 *		Frames: found in any split of the input, and hostile ones refused before
 *		librabbitmq sees them.
 */
#include "unit.h"

#include "amqp_frame.h"

static struct buffer out;
static amqp_pool_t pool;

static int
setup(void **state)
{
	(void) state;
	init_amqp_pool(&pool, 4096);
	return 0;
}

static int
teardown(void **state)
{
	(void) state;
	buffer_free(&out);
	empty_amqp_pool(&pool);
	return 0;
}

static enum frame_status
scan(const uint8_t *data, size_t length, struct frame *frame)
{
	const char *problem = NULL;
	enum frame_status status = frame_scan(data, length, FRAME_MAX, frame,
										  &problem);

	assert_true((status == FRAME_BAD) == (problem != NULL));
	return status;
}

static void
put_ack(uint64_t tag)
{
	amqp_basic_ack_t ack = {.delivery_tag = tag, .multiple = 1};

	assert_true(frame_put_method(&out, 1, AMQP_BASIC_ACK_METHOD, &ack));
}

/*
 * Copied to memory of exactly the length given, so that the sanitizer sees
 * every byte read beyond it.
 */
static enum frame_status
scan_exactly(const uint8_t *data, size_t length, struct frame *frame)
{
	uint8_t    *copy = malloc(length ? length : 1);
	enum frame_status status;

	memcpy(copy, data, length);
	status = scan(copy, length, frame);
	free(copy);
	return status;
}

static void
byte_by_byte(void **state)
{
	struct frame frame;
	size_t		length;

	(void) state;
	put_ack(77);
	frame_put_heartbeat(&out);
	length = buffer_length(&out) - FRAME_OVERHEAD;
	for (size_t i = 0; i < length; i++)
		assert_int_equal(scan_exactly(buffer_head(&out), i, &frame),
						 FRAME_PARTIAL);
	assert_int_equal(scan(buffer_head(&out), length, &frame), FRAME_OK);
	assert_int_equal(frame.size, length);
	assert_int_equal(frame.channel, 1);
	assert_int_equal(frame_method_id(&frame), AMQP_BASIC_ACK_METHOD);
}

static void
method_round_trip(void **state)
{
	struct frame frame;
	amqp_basic_ack_t *ack;

	(void) state;
	put_ack(UINT64_C(0x0102030405060708));
	assert_int_equal(scan(buffer_head(&out), buffer_length(&out), &frame),
					 FRAME_OK);
	ack = frame_decode_method(&frame, &pool);
	assert_non_null(ack);
	assert_true(ack->delivery_tag == UINT64_C(0x0102030405060708));
	assert_true(ack->multiple);
}

static void
heartbeat(void **state)
{
	struct frame frame;

	(void) state;
	frame_put_heartbeat(&out);
	assert_int_equal(buffer_length(&out), 8);
	assert_memory_equal(buffer_head(&out), "\x08\0\0\0\0\0\0\xce", 8);
	assert_int_equal(scan(buffer_head(&out), 8, &frame), FRAME_OK);
	assert_int_equal(frame.type, AMQP_FRAME_HEARTBEAT);
	assert_int_equal(frame_method_id(&frame), 0);
}

static void
oversized_frame(void **state)
{
	uint8_t		head[7] = {AMQP_FRAME_METHOD, 0, 1, 0xff, 0xff, 0xff, 0xff};
	struct frame frame;

	(void) state;
	assert_int_equal(scan(head, 7, &frame), FRAME_BAD);
	memcpy(head + 3, "\0\2\0\1", 4);	/* FRAME_MAX + 1 */
	assert_int_equal(scan(head, 7, &frame), FRAME_BAD);
	memcpy(head + 3, "\0\2\0\0", 4);
	assert_int_equal(scan(head, 7, &frame), FRAME_PARTIAL);
}

static void
bad_end_byte(void **state)
{
	struct frame frame;

	(void) state;
	put_ack(1);
	buffer_head(&out)[buffer_length(&out) - 1] = 0xcd;
	assert_int_equal(scan(buffer_head(&out), buffer_length(&out), &frame),
					 FRAME_BAD);
}

static void
unknown_type(void **state)
{
	const uint8_t head[7] = {4, 0, 0, 0, 0, 0, 0};
	struct frame frame;

	(void) state;
	assert_int_equal(scan(head, 7, &frame), FRAME_BAD);
}

static void
another_protocol_version(void **state)
{
	struct frame frame;

	(void) state;
	assert_int_equal(scan((const uint8_t *) "AMQP\0\1\0\0", 8, &frame),
					 FRAME_BAD);
}

/* Truncated, unexpected or unknown methods never reach the decoder. */
static void
bad_methods(void **state)
{
	struct frame frame = {.type = AMQP_FRAME_METHOD};
	const uint8_t deliver[] = {0, 60, 0, 60, 1, 'c', 0, 0, 0, 0};
	const uint8_t short_ack[] = {0, 60, 0, 80, 0, 0, 0};
	const uint8_t nonsense[] = {0xff, 0xff, 0xff, 0xff};

	(void) state;
	frame.payload = deliver;
	frame.length = sizeof(deliver);
	assert_null(frame_decode_method(&frame, &pool));
	frame.payload = short_ack;
	frame.length = sizeof(short_ack);
	assert_null(frame_decode_method(&frame, &pool));
	frame.payload = nonsense;
	for (frame.length = 0; frame.length <= 4; frame.length++)
		assert_null(frame_decode_method(&frame, &pool));
}

/* A table that holds a table that holds a table ... */
static size_t
nest_tables(uint8_t *to, int depth)
{
	size_t		inner = 0;

	if (depth > 1)
	{
		to[4] = 1;
		to[5] = 'k';
		to[6] = 'F';
		inner = 3 + nest_tables(to + 7, depth - 1);
	}
	to[0] = (uint8_t) (inner >> 24);
	to[1] = (uint8_t) (inner >> 16);
	to[2] = (uint8_t) (inner >> 8);
	to[3] = (uint8_t) inner;
	return 4 + inner;
}

static void
nesting_is_limited(void **state)
{
	static uint8_t table[FRAME_MAX];

	(void) state;
	assert_true(frame_table_is_sane(table, nest_tables(table, TABLE_DEPTH_MAX)));
	assert_false(frame_table_is_sane(table,
									 nest_tables(table, TABLE_DEPTH_MAX + 1)));
	assert_false(frame_table_is_sane(table, nest_tables(table, 15000)));
}

/* Arrays nest with five bytes a level: 26 000 of them fit into one frame. */
static void
depth_bomb_of_arrays_in_a_header(void **state)
{
	size_t		levels = 26000;
	size_t		length = 14 + 4 + 2 + levels * 5;
	uint8_t    *payload = calloc(1, length);
	uint8_t    *at = payload + 14;
	uint64_t	body;
	amqp_basic_properties_t *properties;
	struct frame frame = {AMQP_FRAME_HEADER, 1, payload, (uint32_t) length, 0};

	(void) state;
	payload[1] = AMQP_BASIC_CLASS;
	payload[12] = 0x20;			/* the flag of the headers */
	for (int i = 3, rest = (int) (length - 18); i >= 0; i--, rest >>= 8)
		at[i] = (uint8_t) rest;
	at += 4;
	*at++ = 1;
	*at++ = 'k';
	for (size_t left = levels; left > 0; left--)
	{
		uint32_t	rest = (uint32_t) (left - 1) * 5;

		*at++ = 'A';
		*at++ = (uint8_t) (rest >> 24);
		*at++ = (uint8_t) (rest >> 16);
		*at++ = (uint8_t) (rest >> 8);
		*at++ = (uint8_t) rest;
	}
	assert_false(frame_decode_header(&frame, &pool, &body, &properties));
	free(payload);
}

static void
lying_lengths_in_tables(void **state)
{
	const uint8_t beyond[] = {0, 0, 0, 9, 1, 'k', 't', 1};
	const uint8_t long_key[] = {0, 0, 0, 3, 200, 'k', 't'};
	const uint8_t long_text[] = {0, 0, 0, 7, 1, 'k', 'S', 0xff, 0xff, 0xff, 0xff};
	const uint8_t no_value[] = {0, 0, 0, 2, 1, 'k'};
	const uint8_t bad_kind[] = {0, 0, 0, 3, 1, 'k', '?'};
	const uint8_t good[] = {0, 0, 0, 4, 1, 'k', 't', 1};

	(void) state;
	assert_false(frame_table_is_sane(beyond, sizeof(beyond)));
	assert_false(frame_table_is_sane(long_key, sizeof(long_key)));
	assert_false(frame_table_is_sane(long_text, sizeof(long_text)));
	assert_false(frame_table_is_sane(no_value, sizeof(no_value)));
	assert_false(frame_table_is_sane(bad_kind, sizeof(bad_kind)));
	assert_true(frame_table_is_sane(good, sizeof(good)));
	assert_false(frame_table_is_sane(good, 3));
	assert_false(frame_table_is_sane(good, 0));
}

static void
header_round_trip(void **state)
{
	amqp_basic_properties_t p = {
		._flags = AMQP_BASIC_MESSAGE_ID_FLAG | AMQP_BASIC_CONTENT_TYPE_FLAG,
		.content_type = amqp_cstring_bytes("application/json"),
		.message_id = amqp_cstring_bytes("abc"),
	};
	amqp_basic_properties_t *got;
	struct frame frame;
	uint64_t	body = 0;

	(void) state;
	assert_true(frame_put_content(&out, 1, FRAME_MAX, &p, "hello", 5));
	assert_int_equal(scan(buffer_head(&out), buffer_length(&out), &frame),
					 FRAME_OK);
	assert_true(frame_decode_header(&frame, &pool, &body, &got));
	assert_int_equal(body, 5);
	assert_int_equal(got->message_id.len, 3);
	assert_memory_equal(got->message_id.bytes, "abc", 3);
	for (frame.length = 0; frame.length < 20; frame.length++)
		frame_decode_header(&frame, &pool, &body, &got);	/* must not crash */
}

/* How many body frames, and do they add up? */
static int
body_frames(size_t length, uint32_t frame_max)
{
	amqp_basic_properties_t p = {0};
	char	   *body = malloc(length + 1);
	struct frame frame;
	const char *problem;
	int			frames = 0;
	size_t		total = 0;

	memset(body, 'b', length);
	buffer_clear(&out);
	assert_true(frame_put_content(&out, 1, frame_max, &p, body, length));
	free(body);
	while (buffer_length(&out) > 0)
	{
		assert_int_equal(frame_scan(buffer_head(&out), buffer_length(&out),
									frame_max, &frame, &problem), FRAME_OK);
		assert_true(frame.size <= frame_max);
		if (frame.type == AMQP_FRAME_BODY)
		{
			assert_true(frame.length > 0);
			frames++;
			total += frame.length;
		}
		buffer_consume(&out, frame.size);
	}
	assert_int_equal(total, length);
	return frames;
}

static void
bodies_are_split(void **state)
{
	(void) state;
	assert_int_equal(body_frames(0, 4096), 0);
	assert_int_equal(body_frames(1, 4096), 1);
	assert_int_equal(body_frames(4088, 4096), 1);	/* exactly one */
	assert_int_equal(body_frames(4089, 4096), 2);
	assert_int_equal(body_frames(4088 * 3, 4096), 3);
	assert_int_equal(body_frames(4088 * 3 + 1, 4096), 4);
	assert_int_equal(body_frames(1024 * 1024, FRAME_MAX), 9);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(byte_by_byte),
		T(method_round_trip),
		T(heartbeat),
		T(oversized_frame),
		T(bad_end_byte),
		T(unknown_type),
		T(another_protocol_version),
		T(bad_methods),
		T(nesting_is_limited),
		T(depth_bomb_of_arrays_in_a_header),
		T(lying_lengths_in_tables),
		T(header_round_trip),
		T(bodies_are_split),
	};

	return cmocka_run_group_tests_name("frame", tests, NULL, NULL);
}
