/*
 * test_dead_copy.c
 *		Dead letters: headers, properties, and what gives way in a small frame;
 *		and the texts that come from and go to the database.
 */
#include "unit.h"

#include "amqp_frame.h"
#include "dead_copy.h"
#include "headers_json.h"
#include "pg_array.h"
#include "utf8.h"

static struct delivery *delivery;
static struct buffer out;
static amqp_pool_t pool;
static amqp_pool_t decoded;
static amqp_table_entry_t entries[64];
static amqp_basic_properties_t original;
static amqp_basic_properties_t *copy;
static uint64_t body_size;

static int
setup(void **state)
{
	(void) state;
	delivery = delivery_new();
	delivery->routing_key.length = (size_t) sprintf(delivery->routing_key.bytes, "a.b");
	delivery->exchange.length = (size_t) sprintf(delivery->exchange.bytes, "events");
	delivery->attempts = 5;
	delivery->failure = (struct failure){"P0001", strdup("no"), strdup("line 7")};
	buffer_append_text(&delivery->body, "body");
	init_amqp_pool(&pool, 4096);
	init_amqp_pool(&decoded, 4096);
	memset(&original, 0, sizeof(original));
	original.headers.entries = entries;
	return 0;
}

static int
teardown(void **state)
{
	(void) state;
	delivery_free(delivery);
	buffer_free(&out);
	empty_amqp_pool(&pool);
	empty_amqp_pool(&decoded);
	return 0;
}

static amqp_bytes_t
bytes_of(const char *text)
{
	return (amqp_bytes_t){strlen(text), (void *) text};
}

static void
header(const char *name, const char *text)
{
	amqp_table_entry_t *entry = &entries[original.headers.num_entries++];

	entry->key = bytes_of(name);
	entry->value.kind = AMQP_FIELD_KIND_UTF8;
	entry->value.value.bytes = bytes_of(text);
	original._flags |= AMQP_BASIC_HEADERS_FLAG;
}

/* The original as it was received, then its copy as somebody receives it. */
static bool
put(uint32_t frame_max)
{
	struct dead_copy_settings settings = {"dlx", "trading"};
	struct buffer received = {0};
	struct frame frame;
	const char *problem;
	size_t		at = 0;

	assert_true(frame_put_content(&received, 1, FRAME_MAX, &original, "body", 4));
	buffer_append(&delivery->header, received.data + FRAME_HEADER_SIZE,
				  buffer_length(&received) - 2 * FRAME_OVERHEAD - 4);
	buffer_free(&received);
	if (!dead_copy_put(&out, 2, frame_max, &settings, delivery, &pool))
	{
		assert_int_equal(buffer_length(&out), 0);
		return false;
	}
	assert_int_equal(frame_scan(out.data, buffer_length(&out), frame_max, &frame, &problem), FRAME_OK);
	at = frame.size;
	assert_int_equal(frame_scan(out.data + at, buffer_length(&out) - at, frame_max, &frame, &problem), FRAME_OK);
	assert_true(frame.size <= frame_max);
	assert_true(frame_decode_header(&frame, &decoded, &body_size, &copy));
	return true;
}

static void
assert_header(const char *name, const char *expected)
{
	for (int i = 0; i < copy->headers.num_entries; i++)
	{
		const amqp_table_entry_t *e = &copy->headers.entries[i];

		if (e->key.len != strlen(name) || memcmp(e->key.bytes, name, e->key.len) != 0)
			continue;
		if (expected == NULL)
			fail_msg("there is a header %s", name);
		assert_int_equal(e->value.value.bytes.len, strlen(expected));
		assert_memory_equal(e->value.value.bytes.bytes, expected, strlen(expected));
		return;
	}
	if (expected)
		fail_msg("there is no header %s", name);
}

static void
says_where_from_and_why(void **state)
{
	(void) state;
	header("mine", "stays");
	header("x-error-message", "an old one");
	header("x-delivery-count", "7");
	header("CC", "elsewhere");
	original._flags |= AMQP_BASIC_MESSAGE_ID_FLAG | AMQP_BASIC_USER_ID_FLAG |
		AMQP_BASIC_EXPIRATION_FLAG | AMQP_BASIC_TIMESTAMP_FLAG;
	original.message_id = bytes_of("m1");
	original.user_id = bytes_of("somebody");
	original.expiration = bytes_of("1000");
	original.timestamp = 1700000000;
	assert_true(put(FRAME_MAX));
	assert_header("mine", "stays");
	assert_header("x-original-exchange", "events");
	assert_header("x-original-routing-key", "a.b");
	assert_header("x-error-service", "trading");
	assert_header("x-error-sqlstate", "P0001");
	assert_header("x-error-message", "no");
	assert_header("x-error-context", "line 7");
	assert_header("x-delivery-count", NULL);
	assert_header("CC", NULL);
	assert_int_equal(body_size, 4);
	assert_int_equal(copy->delivery_mode, 2);
	assert_memory_equal(copy->message_id.bytes, "m1", 2);
	assert_false(copy->_flags & (AMQP_BASIC_USER_ID_FLAG | AMQP_BASIC_EXPIRATION_FLAG));
}

/* Dead-lettered, reprocessed, dead-lettered: where it came from first. */
static void
keeps_the_first_origin(void **state)
{
	(void) state;
	header("x-original-exchange", "first");
	header("x-original-routing-key", "");
	assert_true(put(FRAME_MAX));
	assert_header("x-original-exchange", "first");
	assert_header("x-original-routing-key", "");
}

/* Properties that cannot be read are left behind, the body is not. */
static void
unreadable_properties_cost_no_body(void **state)
{
	struct dead_copy_settings settings = {"dlx", "trading"};
	struct frame frame;
	const char *problem;
	size_t		at;

	(void) state;
	buffer_append(&delivery->header, "\0\x3c\0\0\0\0\0\0\0\0\0\4\x20\0\xff\xff\xff\xff", 18);
	assert_true(dead_copy_put(&out, 2, FRAME_MAX, &settings, delivery, &pool));
	assert_int_equal(frame_scan(out.data, buffer_length(&out), FRAME_MAX, &frame, &problem), FRAME_OK);
	at = frame.size;
	assert_int_equal(frame_scan(out.data + at, buffer_length(&out) - at, FRAME_MAX, &frame, &problem), FRAME_OK);
	assert_true(frame_decode_header(&frame, &decoded, &body_size, &copy));
	assert_int_equal(body_size, 4);
	assert_int_equal(copy->delivery_mode, 2);
	assert_header("x-error-message", "no");
	assert_header("x-original-routing-key", "a.b");
}

static void
without_headers_or_error_text(void **state)
{
	(void) state;
	free(delivery->failure.message);
	free(delivery->failure.context);
	delivery->failure = (struct failure){0};
	assert_true(put(FRAME_MAX));
	assert_header("x-error-sqlstate", NULL);
	assert_header("x-error-message", NULL);
	assert_header("x-error-context", NULL);
	assert_header("x-original-exchange", "events");
}

static void
trims_to_the_frame(void **state)
{
	static char filler[4000];

	(void) state;
	memset(filler, 'f', 3400);
	header("filler", filler);
	header("x-death", filler + 2600);
	free(delivery->failure.context);
	delivery->failure.context = strdup(filler);
	assert_true(put(FRAME_MAX_MIN));
	assert_header("x-error-context", NULL);
	assert_header("x-death", NULL);
	assert_int_equal(copy->headers.num_entries, 7);
	assert_header("x-error-message", "no");
}

static void
trims_the_original_last(void **state)
{
	static char filler[4001];

	(void) state;
	memset(filler, 'f', 3950);
	header("filler", filler);
	header("x-original-exchange", "first");
	assert_true(put(FRAME_MAX_MIN));
	assert_header("filler", NULL);
	assert_header("x-original-exchange", "first");
	assert_header("x-error-sqlstate", "P0001");
}

static void
text_is_cut_at_a_character(void **state)
{
	(void) state;
	assert_int_equal(utf8_cut("abc", 3), 3);
	assert_int_equal(utf8_cut("abc", 2), 2);
	assert_int_equal(utf8_cut("a\xc3\xa9", 2), 1);
	assert_int_equal(utf8_cut("a\xc3\xa9", 3), 3);
	assert_int_equal(utf8_cut("", 0), 0);
}

static void
what_is_text(void **state)
{
	const char *const good[] = {"", "a", "12345678", "1234567\xc3\xa9 and more",
		"\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"};
	const char *const bad[] = {"\xff", "\xc3", "\xc0\xaf", "\xe0\x80\xaf",
		"\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf0\x80\x80\xaf", "1234567890\x80",
		"\xe2\x82", "a\xe2\x28\xa1"};

	(void) state;
	for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++)
		assert_true(utf8_is_text(good[i], strlen(good[i])));
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		assert_false(utf8_is_text(bad[i], strlen(bad[i])));
	for (size_t at = 0; at < 20; at++)
	{
		char		text[] = "abcdefghijklmnopqrst";

		text[at] = '\0';
		assert_false(utf8_is_text(text, 20));
	}
}

static void
tables_become_json(void **state)
{
	amqp_table_entry_t nested[] = {{.key = bytes_of("x")}};
	amqp_field_value_t list[2] = {{.kind = AMQP_FIELD_KIND_I64}, {.kind = AMQP_FIELD_KIND_VOID}};
	amqp_table_t table = {8, entries};

	(void) state;
	memset(entries, 0, sizeof(entries));
	for (int i = 0; i < 8; i++)
		entries[i].key = bytes_of((const char *const[]){"s", "bad", "i", "d", "nan", "t", "a", "\xff"}[i]);
	entries[0].value = (amqp_field_value_t){.kind = AMQP_FIELD_KIND_UTF8, .value.bytes = bytes_of("\"\\\n\xc3\xa9")};
	entries[1].value = (amqp_field_value_t){.kind = AMQP_FIELD_KIND_BYTES, .value.bytes = bytes_of("\xff")};
	entries[2].value = (amqp_field_value_t){.kind = AMQP_FIELD_KIND_I32, .value.i32 = -7};
	entries[3].value = (amqp_field_value_t){.kind = AMQP_FIELD_KIND_DECIMAL, .value.decimal = {2, 314}};
	entries[4].value = (amqp_field_value_t){.kind = AMQP_FIELD_KIND_F64, .value.f64 = 0.0 / 0.0};
	nested[0].value = (amqp_field_value_t){.kind = AMQP_FIELD_KIND_BOOLEAN, .value.boolean = 1};
	entries[5].value = (amqp_field_value_t){.kind = AMQP_FIELD_KIND_TABLE, .value.table = {1, nested}};
	list[0].value.i64 = INT64_MIN;
	entries[6].value = (amqp_field_value_t){.kind = AMQP_FIELD_KIND_ARRAY, .value.array = {2, list}};
	headers_put_table(&out, &table);
	assert_string_equal(buffer_text(&out),
						"{\"s\":\"\\\"\\\\\\u000a\xc3\xa9\",\"bad\":null,\"i\":-7,\"d\":314e-2,\"nan\":null,"
						"\"t\":{\"x\":true},\"a\":[-9223372036854775808,null]}");
}

static void
arrays_are_binary(void **state)
{
	static const uint8_t expected[] = {0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0x0e, 0xda,
		0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3, 1, '{', '}', 0, 0, 0, 1, 1};
	struct pg_array array;
	int			length;
	const char *value;

	(void) state;
	pg_array_begin(&array, PG_ARRAY_JSONB);
	pg_array_add(&array, "{}", 2);
	pg_array_add(&array, NULL, 0);
	value = pg_array_end(&array, &length);
	assert_int_equal(length, sizeof(expected));
	assert_memory_equal(value, expected, sizeof(expected));
	pg_array_free(&array);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(says_where_from_and_why),
		T(keeps_the_first_origin),
		T(unreadable_properties_cost_no_body),
		T(without_headers_or_error_text),
		T(trims_to_the_frame),
		T(trims_the_original_last),
		T(text_is_cut_at_a_character),
		T(what_is_text),
		T(tables_become_json),
		T(arrays_are_binary),
	};

	return cmocka_run_group_tests_name("dead copy", tests, NULL, NULL);
}
