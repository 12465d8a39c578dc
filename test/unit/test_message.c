/*
 * test_message.c
 *		A row as AMQP: properties, headers of every JSON type, limits, and that a
 *		row that cannot be encoded leaves nothing behind.
 */
#include "unit.h"

#include "message.h"

static struct buffer out;
static amqp_pool_t pool;
static amqp_pool_t decoded;

static int
setup(void **state)
{
	(void) state;
	init_amqp_pool(&pool, 4096);
	init_amqp_pool(&decoded, 4096);
	return 0;
}

static int
teardown(void **state)
{
	(void) state;
	buffer_free(&out);
	empty_amqp_pool(&pool);
	empty_amqp_pool(&decoded);
	return 0;
}

static struct message
example(void)
{
	return (struct message){
		.id = "11111111-2222-3333-4444-555555555555",
		.type = "OrderPlaced",
		.origin = "trading",
		.exchange = "trading.events",
		.routing_key = "order.placed",
		.payload = "{\"header\":{}}",
		.payload_length = 13,
		.created_at = 1700000000,
		.mandatory = true,
	};
}

static const char *
put(const struct message *m)
{
	return message_put(&out, 1, FRAME_MAX, m, &pool);
}

/* The nth frame of the output. */
static struct frame
frame_at(int n)
{
	struct frame frame = {0};
	const char *problem;
	size_t		at = 0;

	for (int i = 0; i <= n; i++)
	{
		assert_int_equal(frame_scan(buffer_head(&out) + at,
									buffer_length(&out) - at, FRAME_MAX,
									&frame, &problem), FRAME_OK);
		at += frame.size;
	}
	return frame;
}

static amqp_basic_properties_t *
properties(void)
{
	struct frame frame = frame_at(1);
	amqp_basic_properties_t *p;
	uint64_t	body;

	assert_true(frame_decode_header(&frame, &decoded, &body, &p));
	return p;
}

static void
assert_bytes(amqp_bytes_t bytes, const char *text)
{
	assert_int_equal(bytes.len, strlen(text));
	assert_memory_equal(bytes.bytes, text, bytes.len);
}

static const amqp_field_value_t *
find(const amqp_table_t *table, const char *name)
{
	for (int i = 0; i < table->num_entries; i++)
		if (table->entries[i].key.len == strlen(name) &&
			memcmp(table->entries[i].key.bytes, name, strlen(name)) == 0)
			return &table->entries[i].value;
	fail_msg("no header %s", name);
	return NULL;
}

static void
properties_of_the_design(void **state)
{
	struct message m = example();
	amqp_basic_properties_t *p;
	struct frame frame;
	amqp_basic_publish_t *publish;
	void	   *method = NULL;

	(void) state;
	assert_null(put(&m));
	p = properties();
	assert_bytes(p->content_type, "application/json");
	assert_bytes(p->content_encoding, "UTF-8");
	assert_bytes(p->message_id, m.id);
	assert_bytes(p->type, m.type);
	assert_bytes(p->app_id, m.origin);
	assert_int_equal(p->delivery_mode, 2);
	assert_int_equal(p->timestamp, 1700000000);
	assert_false(p->_flags & AMQP_BASIC_HEADERS_FLAG);
	assert_false(p->_flags & AMQP_BASIC_USER_ID_FLAG);
	assert_false(p->_flags & AMQP_BASIC_EXPIRATION_FLAG);
	frame = frame_at(0);
	assert_int_equal(frame_method_id(&frame), AMQP_BASIC_PUBLISH_METHOD);
	assert_true(amqp_decode_method(AMQP_BASIC_PUBLISH_METHOD, &decoded,
								   (amqp_bytes_t){frame.length - 4,
									   (void *) (frame.payload + 4)},
								   &method) >= 0);
	publish = method;
	assert_bytes(publish->exchange, m.exchange);
	assert_bytes(publish->routing_key, m.routing_key);
	assert_true(publish->mandatory);
	assert_false(publish->immediate);
	frame = frame_at(2);
	assert_memory_equal(frame.payload, m.payload, m.payload_length);
}

static void
headers_of_every_type(void **state)
{
	struct message m = example();
	const amqp_table_t *t;
	const amqp_field_value_t *v;

	(void) state;
	m.headers = "{\"s\":\"text\",\"e\":\"\",\"i\":-42,\"big\":9223372036854775807,"
		"\"d\":1.5,\"t\":true,\"f\":false,\"n\":null,"
		"\"o\":{\"a\":{\"b\":7}},\"a\":[1,\"x\",[true],{}],\"u\":\"\\u00e9\"}";
	assert_null(put(&m));
	t = &properties()->headers;
	assert_int_equal(t->num_entries, 11);
	v = find(t, "s");
	assert_int_equal(v->kind, AMQP_FIELD_KIND_UTF8);
	assert_bytes(v->value.bytes, "text");
	assert_int_equal(find(t, "e")->value.bytes.len, 0);
	v = find(t, "i");
	assert_int_equal(v->kind, AMQP_FIELD_KIND_I64);
	assert_true(v->value.i64 == -42);
	assert_true(find(t, "big")->value.i64 == INT64_MAX);
	v = find(t, "d");
	assert_int_equal(v->kind, AMQP_FIELD_KIND_F64);
	assert_true(v->value.f64 == 1.5);
	v = find(t, "t");
	assert_int_equal(v->kind, AMQP_FIELD_KIND_BOOLEAN);
	assert_true(v->value.boolean);
	assert_false(find(t, "f")->value.boolean);
	assert_int_equal(find(t, "n")->kind, AMQP_FIELD_KIND_VOID);
	v = find(t, "o");
	assert_int_equal(v->kind, AMQP_FIELD_KIND_TABLE);
	v = find(&v->value.table, "a");
	assert_true(find(&v->value.table, "b")->value.i64 == 7);
	v = find(t, "a");
	assert_int_equal(v->kind, AMQP_FIELD_KIND_ARRAY);
	assert_int_equal(v->value.array.num_entries, 4);
	assert_int_equal(v->value.array.entries[2].kind, AMQP_FIELD_KIND_ARRAY);
	assert_bytes(find(t, "u")->value.bytes, "\xc3\xa9");
}

static void
integers_beyond_64_bits_become_doubles(void **state)
{
	struct message m = example();
	const amqp_field_value_t *v;

	(void) state;
	m.headers = "{\"x\":18446744073709551615}";
	assert_null(put(&m));
	v = find(&properties()->headers, "x");
	assert_int_equal(v->kind, AMQP_FIELD_KIND_F64);
	assert_true(v->value.f64 > 1.8e19);
}

static void
traceparent_is_a_header(void **state)
{
	struct message m = example();

	(void) state;
	m.traceparent = "00-abc-def-01";
	assert_null(put(&m));
	assert_int_equal(properties()->headers.num_entries, 1);
	assert_bytes(find(&properties()->headers, "traceparent")->value.bytes,
				 "00-abc-def-01");
}

static void
traceparent_of_the_row_wins(void **state)
{
	struct message m = example();

	(void) state;
	m.headers = "{\"traceparent\":\"old\",\"other\":1}";
	m.traceparent = "new";
	assert_null(put(&m));
	assert_int_equal(properties()->headers.num_entries, 2);
	assert_bytes(find(&properties()->headers, "traceparent")->value.bytes, "new");
}

static void
empty_body_and_key(void **state)
{
	struct message m = example();

	(void) state;
	m.routing_key = "";
	m.exchange = "";
	m.payload = "";
	m.payload_length = 0;
	assert_null(put(&m));
	assert_int_equal(frame_at(0).size + frame_at(1).size, buffer_length(&out));
}

/* Refused, and what was in the output before is still all there is. */
static void
assert_refused(const struct message *m)
{
	size_t		before;

	buffer_clear(&out);
	buffer_append_text(&out, "before");
	before = buffer_length(&out);
	assert_non_null(put(m));
	assert_int_equal(buffer_length(&out), before);
	assert_memory_equal(buffer_head(&out), "before", before);
}

static void
short_strings_are_limited(void **state)
{
	struct message m;
	char		text[257];

	(void) state;
	memset(text, 'x', 256);
	text[256] = '\0';
	m = example(), m.exchange = text, assert_refused(&m);
	m = example(), m.routing_key = text, assert_refused(&m);
	m = example(), m.type = text, assert_refused(&m);
	m = example(), m.origin = text, assert_refused(&m);
	text[255] = '\0';
	m = example(), m.exchange = m.routing_key = text;
	buffer_clear(&out);
	assert_null(put(&m));
}

static void
bad_headers_are_refused(void **state)
{
	const char *const bad[] = {"", "[]", "1", "null", "{", "{\"a\":}", "text",
	"\"text\""};
	struct message m = example();

	(void) state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
	{
		m.headers = bad[i];
		assert_refused(&m);
	}
}

static void
deep_headers(char *text, int depth)
{
	char	   *at = text;

	for (int i = 0; i < depth; i++)
		at += sprintf(at, i ? "[" : "{\"a\":");
	at += sprintf(at, "1");
	for (int i = depth - 1; i >= 0; i--)
		at += sprintf(at, i ? "]" : "}");
}

static void
header_depth_is_limited(void **state)
{
	struct message m = example();
	char	   *text = malloc(400000);

	(void) state;
	m.headers = text;
	deep_headers(text, TABLE_DEPTH_MAX);
	assert_null(put(&m));
	frame_decode_header(&(struct frame){0}, &decoded, &(uint64_t){0}, NULL);
	assert_non_null(properties());	/* our own depth check lets it in again */
	deep_headers(text, TABLE_DEPTH_MAX + 1);
	assert_refused(&m);
	deep_headers(text, 100000);
	assert_refused(&m);
	free(text);
}

static void
header_names_are_limited(void **state)
{
	struct message m = example();
	char		text[400];
	char		name[257];

	(void) state;
	memset(name, 'n', 256);
	name[256] = '\0';
	snprintf(text, sizeof(text), "{\"%s\":1}", name);
	m.headers = text;
	assert_refused(&m);
	name[255] = '\0';
	snprintf(text, sizeof(text), "{\"%s\":1}", name);
	buffer_clear(&out);
	assert_null(put(&m));
}

static void
headers_beyond_one_frame_are_refused(void **state)
{
	struct message m = example();
	char	   *text = malloc(FRAME_MAX + 100);

	(void) state;
	memset(text, 'h', FRAME_MAX + 50);
	memcpy(text, "{\"a\":\"", 6);
	strcpy(text + FRAME_MAX, "\"}");
	m.headers = text;
	assert_refused(&m);
	strcpy(text + FRAME_MAX / 2, "\"}");
	buffer_clear(&out);
	assert_null(put(&m));
	free(text);
}

static void
errors_quote_nothing(void **state)
{
	struct message m = example();
	const char *problem;

	(void) state;
	m.headers = "{\"card\":\"4111111111111111\"";
	problem = put(&m);
	assert_non_null(problem);
	assert_null(strstr(problem, "4111"));
}

/* They are added to the row's, win over them, and come without any of those too. */
static void
added_headers_win(void **state)
{
	static const struct message_header extra[] = {
		{"x-error-message", "it broke", 0, false},
		{"x-error-attempts", NULL, 5, false},
		{"x-error-original-time", NULL, 1700000000, true},
	};
	struct message m = example();
	const amqp_table_t *table;

	(void) state;
	m.extra = extra;
	m.extra_count = 3;
	assert_null(put(&m));
	table = &properties()->headers;
	assert_int_equal(table->num_entries, 3);
	assert_int_equal(find(table, "x-error-original-time")->kind,
					 AMQP_FIELD_KIND_TIMESTAMP);
	assert_int_equal(find(table, "x-error-attempts")->kind, AMQP_FIELD_KIND_I64);
	assert_int_equal(find(table, "x-error-attempts")->value.i64, 5);
	buffer_clear(&out);
	m.headers = "{\"a\":1,\"x-error-message\":\"other\",\"b\":2}";
	m.traceparent = "00-11111111111111111111111111111111-2222222222222222-01";
	assert_null(put(&m));
	table = &properties()->headers;
	assert_int_equal(table->num_entries, 6);
	assert_bytes(find(table, "x-error-message")->value.bytes, "it broke");
	assert_bytes(find(table, "traceparent")->value.bytes, m.traceparent);
}

static void
a_sidetracked_message_goes_nowhere_else(void **state)
{
	struct message m = example();

	(void) state;
	m.headers = "{\"CC\":[\"k\"],\"a\":1,\"BCC\":[\"k\"]}";
	assert_null(put(&m));
	assert_int_equal(properties()->headers.num_entries, 3);
	buffer_clear(&out);
	m.sidetracked = true;
	assert_null(put(&m));
	assert_int_equal(properties()->headers.num_entries, 1);
	find(&properties()->headers, "a");
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(properties_of_the_design),
		T(headers_of_every_type),
		T(integers_beyond_64_bits_become_doubles),
		T(traceparent_is_a_header),
		T(traceparent_of_the_row_wins),
		T(empty_body_and_key),
		T(short_strings_are_limited),
		T(bad_headers_are_refused),
		T(header_depth_is_limited),
		T(header_names_are_limited),
		T(headers_beyond_one_frame_are_refused),
		T(errors_quote_nothing),
		T(added_headers_win),
		T(a_sidetracked_message_goes_nowhere_else),
	};

	return cmocka_run_group_tests_name("message", tests, NULL, NULL);
}
