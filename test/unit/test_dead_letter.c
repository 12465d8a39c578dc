/*
 * test_dead_letter.c
 *		Dead letters: what they tell of their death, what goes and what stays byte
 *		for byte when they are put back, which of them --match means, and that a
 *		malformed one is read no further than it reaches.
 */
#include "unit.h"

#include "dead_letter.h"
#include "match.h"
#include "reprocess_names.h"

static struct dead_letter letter;
static struct buffer table;
static struct buffer list;		/* what fresh() made */
static amqp_pool_t pool;
static size_t table_start;

static int
setup(void **state)
{
	(void) state;
	memset(&letter, 0, sizeof(letter));
	init_amqp_pool(&pool, 4096);
	table_start = table_begin(&table);
	return 0;
}

static int
teardown(void **state)
{
	(void) state;
	dead_letter_free(&letter);
	buffer_free(&table);
	buffer_free(&list);
	empty_amqp_pool(&pool);
	return 0;
}

static struct span
span_of(const char *text)
{
	return (struct span){(const uint8_t *) text, strlen(text)};
}

static void
put_string(const char *name, const char *value)
{
	table_put_string(&table, name, span_of(value));
}

/* A field by its bytes, its kind first. */
static void
put_raw(const char *name, const void *value, size_t length)
{
	uint8_t		name_length = (uint8_t) strlen(name);

	buffer_append(&table, &name_length, 1);
	buffer_append(&table, name, name_length);
	buffer_append(&table, value, length);
}

static void
put32(struct buffer *out, size_t number)
{
	uint8_t		bytes[4] = {
		(uint8_t) (number >> 24), (uint8_t) (number >> 16),
		(uint8_t) (number >> 8), (uint8_t) number
	};

	buffer_append(out, bytes, 4);
}

struct death
{
	const char *queue;
	const char *reason;
	const char *exchange;
	const char *key;
	uint8_t		time;
};

/* Append one element of x-death. */
static void
put_death(struct buffer *array, const struct death *death)
{
	struct buffer one = {0};
	size_t		begin = table_begin(&one);
	size_t		length = strlen(death->key);

	table_put_string(&one, "queue", span_of(death->queue));
	table_put_string(&one, "reason", span_of(death->reason));
	table_put_string(&one, "exchange", span_of(death->exchange));
	buffer_append(&one, "\4timeT\0\0\0\0\0\0\0", 13);
	buffer_append(&one, &death->time, 1);
	buffer_append(&one, "\14routing-keysA", 14);
	put32(&one, length + 5 + 7);
	buffer_append(&one, "S", 1);
	put32(&one, length);
	buffer_append(&one, death->key, length);
	buffer_append(&one, "S\0\0\0\2cc", 7);
	table_end(&one, begin);
	buffer_append(array, "F", 1);
	buffer_append(array, buffer_head(&one), buffer_length(&one));
	buffer_free(&one);
}

static void
put_deaths(const struct death *deaths, int count)
{
	struct buffer array = {0};

	for (int i = 0; i < count; i++)
		put_death(&array, &deaths[i]);
	buffer_append(&table, "\7x-deathA", 9);
	put32(&table, buffer_length(&array));
	buffer_append(&table, buffer_head(&array), buffer_length(&array));
	buffer_free(&array);
}

/* Make the letter of these properties and, if any was put, of the headers. */
static void
receive(struct properties *properties)
{
	struct buffer received = {0};
	struct buffer frames = {0};
	struct frame frame;
	const char *problem;

	table_end(&table, table_start);
	if (buffer_length(&table) > 4)
		properties->encoded[PROPERTY_HEADERS] = (struct span){
			buffer_head(&table), buffer_length(&table)
		};
	properties_put(&received, properties);
	assert_true(frame_put_encoded(&frames, 1, FRAME_MAX, buffer_head(&received),
								  buffer_length(&received), "body", 4));
	assert_int_equal(frame_scan(buffer_head(&frames), buffer_length(&frames),
								FRAME_MAX, &frame, &problem), FRAME_OK);
	assert_true(dead_letter_add(&letter, &frame));
	assert_false(dead_letter_is_whole(&letter));
	buffer_consume(&frames, frame.size);
	assert_int_equal(frame_scan(buffer_head(&frames), buffer_length(&frames),
								FRAME_MAX, &frame, &problem), FRAME_OK);
	assert_true(dead_letter_add(&letter, &frame));
	assert_true(dead_letter_is_whole(&letter));
	assert_false(dead_letter_add(&letter, &frame));
	buffer_free(&received);
	buffer_free(&frames);
}

static void
receive_headers(void)
{
	struct properties properties = {0};

	receive(&properties);
}

/* As it is put back, decoded by librabbitmq: a second opinion. */
static amqp_basic_properties_t *
fresh(const char *user, const char *also_to)
{
	amqp_bytes_t bytes;
	void	   *decoded = NULL;

	buffer_clear(&list);
	dead_letter_put_fresh(&list, &letter, user, also_to);
	bytes = (amqp_bytes_t){buffer_length(&list), buffer_head(&list)};
	assert_int_equal(amqp_decode_properties(AMQP_BASIC_CLASS, &pool, bytes,
											&decoded), 0);
	return decoded;
}

static const amqp_field_value_t *
find(const amqp_basic_properties_t *p, const char *name)
{
	for (int i = 0; i < p->headers.num_entries; i++)
		if (p->headers.entries[i].key.len == strlen(name) &&
			memcmp(p->headers.entries[i].key.bytes, name, strlen(name)) == 0)
			return &p->headers.entries[i].value;
	return NULL;
}

/* ---- tables ---- */

/* Each kind by its bytes, and its text. */
static const struct
{
	const char *bytes;
	size_t		length;
	const char *text;
}			kinds[] = {
	{"V", 1, NULL},
	{"t\1", 2, "true"},
	{"t\0", 2, "false"},
	{"b\xff", 2, "-1"},
	{"B\xff", 2, "255"},
	{"s\xff\xfe", 3, "-2"},
	{"u\xff\xfe", 3, "65534"},
	{"I\xff\xff\xff\xfd", 5, "-3"},
	{"i\xff\xff\xff\xfd", 5, "4294967293"},
	{"l\xff\xff\xff\xff\xff\xff\xff\xfc", 9, "-4"},
	{"L\0\0\0\0\0\0\0\5", 9, "5"},
	{"T\0\0\0\0\x65\x53\xf1\0", 9, "1700000000"},
	{"f\x3f\xc0\0\0", 5, NULL},
	{"d\x3f\xf8\0\0\0\0\0\0", 9, NULL},
	{"D\2\0\0\x30\x39", 6, NULL},
	{"S\0\0\0\2hi", 7, "hi"},
	{"S\0\0\0\0", 5, ""},
	{"x\0\0\0\2hi", 7, "hi"},
	/* a table with an x-death of its own, which is nobody's business */
	{"F\0\0\0\21\7x-deathS\0\0\0\4mine", 22, NULL},
	{"A\0\0\0\4t\1b\2", 9, NULL},
};

#define KINDS	(sizeof(kinds) / sizeof(kinds[0]))

static void
put_kinds(bool with_deaths)
{
	char		name[8];

	for (size_t i = 0; i < KINDS; i++)
	{
		snprintf(name, sizeof(name), "h%zu", i);
		put_raw(name, kinds[i].bytes, kinds[i].length);
		if (with_deaths && i % 3 == 0)
			put_string(i % 2 ? "x-first-death-reason" : "x-error-context", "old");
	}
}

static void
every_kind_has_its_text(void **state)
{
	char		name[8];
	char		text[FIELD_TEXT_MAX];

	(void) state;
	put_kinds(false);
	receive_headers();
	for (size_t i = 0; i < KINDS; i++)
	{
		snprintf(name, sizeof(name), "h%zu", i);
		assert_int_equal(dead_letter_text(&letter, LETTER_HEADER, name, text),
						 kinds[i].text != NULL);
		if (kinds[i].text)
			assert_string_equal(text, kinds[i].text);
	}
}

static void
every_kind_stays_byte_for_byte(void **state)
{
	struct buffer list = {0};
	struct properties after;
	struct span headers;

	(void) state;
	put_kinds(true);
	receive_headers();
	dead_letter_put_fresh(&list, &letter, "me", NULL);
	assert_true(properties_parse(&after, (struct span){
								 buffer_head(&list), buffer_length(&list)}));
	headers = after.encoded[PROPERTY_HEADERS];
	buffer_clear(&table);
	table_start = table_begin(&table);
	put_kinds(false);
	table_end(&table, table_start);
	assert_int_equal(headers.length, buffer_length(&table));
	assert_memory_equal(headers.data, buffer_head(&table), headers.length);
	buffer_free(&list);
}

/* ---- what goes, what stays, what is added ---- */

static void
signs_of_death_go(void **state)
{
	static const char *const signs[] = {
		"x-first-death-queue", "x-first-death-reason", "x-first-death-exchange",
		"x-last-death-queue", "x-last-death-reason", "x-delivery-count",
		"x-error-service", "x-error-sqlstate", "x-error-anything"
	};
	static const char *const others[] = {
		"x-deaths", "x-first-deat", "x-error", "x-delivery-counter", "traceparent",
		"X-Death"
	};
	amqp_basic_properties_t *p;

	(void) state;
	put_deaths(&(struct death){"q", "rejected", "e", "k", 9}, 1);
	for (size_t i = 0; i < sizeof(signs) / sizeof(signs[0]); i++)
		put_string(signs[i], "old");
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		put_string(others[i], "kept");
	receive_headers();
	p = fresh("me", NULL);
	assert_null(find(p, "x-death"));
	for (size_t i = 0; i < sizeof(signs) / sizeof(signs[0]); i++)
		assert_null(find(p, signs[i]));
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		assert_non_null(find(p, others[i]));
}

static void
no_header_is_left_alone(void **state)
{
	amqp_basic_properties_t *p;

	(void) state;
	put_string("x-error-message", "old");
	receive_headers();
	p = fresh("me", NULL);
	assert_int_equal(p->_flags, 0);
}

static void
properties_stay(void **state)
{
	struct properties properties = {0};
	amqp_basic_properties_t *p;

	(void) state;
	for (int i = 0; i < PROPERTIES; i++)
		properties.encoded[i] = i == PROPERTY_HEADERS ? (struct span){0} :
			i == PROPERTY_TIMESTAMP ?
			(struct span){(const uint8_t *) "\0\0\0\0\0\0\1\2", 8} :
			i == PROPERTY_DELIVERY_MODE || i == PROPERTY_PRIORITY ?
			(struct span){(const uint8_t *) "\2", 1} :
			(struct span){(const uint8_t *) "\3abc", 4};
	receive(&properties);
	p = fresh("abc", NULL);
	assert_int_equal(p->_flags, 0xfffc & ~AMQP_BASIC_HEADERS_FLAG);
	assert_int_equal(p->timestamp, 258);
	assert_int_equal(p->priority, 2);
	assert_int_equal(p->cluster_id.len, 3);
	/* the broker takes nobody else's name */
	p = fresh("me", NULL);
	assert_int_equal(p->_flags, 0xfffc & ~AMQP_BASIC_USER_ID_FLAG);
	assert_int_equal(find(p, HEADER_ORIGINAL_USER)->value.bytes.len, 3);
}

static void
assert_header(const amqp_basic_properties_t *p, const char *name,
			  const char *text)
{
	const amqp_field_value_t *value = find(p, name);

	assert_non_null(value);
	assert_int_equal(value->kind, AMQP_FIELD_KIND_UTF8);
	assert_int_equal(value->value.bytes.len, strlen(text));
	assert_memory_equal(value->value.bytes.bytes, text, strlen(text));
}

static void
assert_key(const char *expected)
{
	char		key[SHORT_TEXT_MAX] = "untouched";

	assert_int_equal(dead_letter_original_key(&letter, key), expected != NULL);
	assert_string_equal(key, expected ? expected : "untouched");
}

static void
origin_of_one_death_is_kept(void **state)
{
	amqp_basic_properties_t *p;

	(void) state;
	put_deaths(&(struct death){"q", "rejected", "events", "a.b", 9}, 1);
	receive_headers();
	assert_key("a.b");
	p = fresh("me", NULL);
	assert_header(p, HEADER_ORIGINAL_KEY, "a.b");
	assert_header(p, HEADER_ORIGINAL_EXCHANGE, "events");
	assert_int_equal(p->headers.num_entries, 2);
}

/* Through a queue for retries: the first death was the one in the middle. */
static void
first_death_is_by_name(void **state)
{
	static const struct death deaths[] = {
		{"q", "expired", "retry", "second", 3},
		{"q", "rejected", "events", "first", 2},
		{"wait", "expired", "retry", "third", 1},
	};
	char		text[FIELD_TEXT_MAX];
	int64_t		seconds;

	(void) state;
	put_deaths(deaths, 3);
	put_string("x-first-death-queue", "q");
	put_string("x-first-death-reason", "rejected");
	receive_headers();
	assert_key("first");
	assert_true(dead_letter_text(&letter, LETTER_QUEUE, NULL, text));
	assert_string_equal(text, "q");
	assert_true(dead_letter_death_time(&letter, &seconds));
	assert_int_equal(seconds, 3);
	dead_letter_reason(&letter, text);
	assert_string_equal(text, "expired in q");
}

static void
without_names_the_last_is_the_first(void **state)
{
	static const struct death deaths[] = {
		{"q", "rejected", "retry", "second", 3}, {"q", "expired", "events", "first", 2},
	};

	(void) state;
	put_deaths(deaths, 2);
	receive_headers();
	assert_key("first");
}

static void
known_origin_counts_before_death(void **state)
{
	amqp_basic_properties_t *p;

	(void) state;
	put_deaths(&(struct death){"q", "rejected", "q.reprocess", "other", 9}, 1);
	put_string(HEADER_ORIGINAL_KEY, "first");
	put_string(HEADER_ORIGINAL_EXCHANGE, "events");
	receive_headers();
	assert_key("first");
	p = fresh("me", NULL);
	assert_header(p, HEADER_ORIGINAL_KEY, "first");
	assert_header(p, HEADER_ORIGINAL_EXCHANGE, "events");
	assert_int_equal(p->headers.num_entries, 2);
}

static void
reprocessing_is_no_origin(void **state)
{
	(void) state;
	put_deaths(&(struct death){"q", "rejected", "q.reprocess", "reprocess", 9}, 1);
	receive_headers();
	assert_key(NULL);
	assert_int_equal(fresh("me", NULL)->_flags, 0);
}

static void
empty_key_is_a_key(void **state)
{
	(void) state;
	put_deaths(&(struct death){"q", "rejected", "fan", "", 9}, 1);
	receive_headers();
	assert_key("");
	assert_header(fresh("me", NULL), HEADER_ORIGINAL_KEY, "");
}

static void
nothing_known_is_no_key(void **state)
{
	char		text[FIELD_TEXT_MAX];
	int64_t		seconds;

	(void) state;
	put_string("x-death", "no array");
	receive_headers();
	assert_key(NULL);
	assert_false(dead_letter_death_time(&letter, &seconds));
	dead_letter_reason(&letter, text);
	assert_string_equal(text, "");
}

/* A key that no routing key can be is none. */
static void
long_key_is_no_key(void **state)
{
	char		key[300];

	(void) state;
	memset(key, 'k', sizeof(key));
	key[299] = '\0';
	put_string(HEADER_ORIGINAL_KEY, key);
	receive_headers();
	assert_key(NULL);
}

static void
second_key_is_a_bcc(void **state)
{
	const amqp_field_value_t *bcc;
	amqp_basic_properties_t *p;

	(void) state;
	put_string("BCC", "a stale one");
	put_string("mine", "kept");
	receive_headers();
	p = fresh("me", REPROCESS_KEY);
	assert_int_equal(p->headers.num_entries, 2);
	bcc = find(p, "BCC");
	assert_int_equal(bcc->kind, AMQP_FIELD_KIND_ARRAY);
	assert_int_equal(bcc->value.array.num_entries, 1);
	assert_int_equal(bcc->value.array.entries[0].value.bytes.len,
					 strlen(REPROCESS_KEY));
}

/* ---- --match ---- */

static bool
matches(int count, const char *const *conditions)
{
	struct match match = {0};
	char		error[MATCH_ERROR_MAX];

	for (int i = 0; i < count; i++)
		assert_true(match_add(&match, conditions[i], error));
	return match_accepts(&match, &letter);
}

#define MATCHES(...) \
	matches(sizeof((const char *const[]) {__VA_ARGS__}) / sizeof(char *), \
			(const char *const[]) {__VA_ARGS__})

static void
conditions(void **state)
{
	struct properties properties = {
		.encoded[PROPERTY_TYPE] = {(const uint8_t *) "\4Sold", 5},
		.encoded[PROPERTY_MESSAGE_ID] = {(const uint8_t *) "\2id", 3},
		.encoded[PROPERTY_APP_ID] = {(const uint8_t *) "\0", 1},
	};

	(void) state;
	put_deaths(&(struct death){"q", "rejected", "events", "a.b", 9}, 1);
	put_string("x-error-service", "trading");
	put_string("x-error-sqlstate", "23505");
	put_raw("tenant", "I\0\0\0\7", 5);
	put_string("=", "odd");
	receive(&properties);
	assert_true(matches(0, NULL));
	assert_true(MATCHES("event-name=Sold"));
	assert_false(MATCHES("event-name=Sol"));
	assert_false(MATCHES("event-name=Sold!"));
	assert_false(MATCHES("event-name=sold"));
	assert_true(MATCHES("event-id=id", "origin=", "routing-key=a.b", "queue=q",
						"consumer=trading", "service=trading", "sqlstate=23505",
						"header:tenant=7", "header:x-error-service=trading"));
	assert_true(MATCHES("event-name=Bought", "event-name=Sold"));
	assert_false(MATCHES("event-name=Bought", "event-name=Sold", "queue=p"));
	assert_true(MATCHES("header:tenant=8", "header:tenant=7"));
	assert_false(MATCHES("header:tenant=7", "header:absent=7"));
	assert_false(MATCHES("header:x-death=q"));
}

static void
bad_conditions(void **state)
{
	struct match match = {0};
	char		error[MATCH_ERROR_MAX];
	char		text[400] = "event-id=";

	(void) state;
	assert_false(match_add(&match, "event-name", error));
	assert_string_equal(error, "it must be field=value");
	assert_false(match_add(&match, "Event-Name=x", error));
	assert_false(match_add(&match, "=x", error));
	assert_false(match_add(&match, "header:=x", error));
	memset(text + 9, 'v', 255);
	assert_false(match_add(&match, text, error));
	text[9 + 254] = '\0';
	assert_true(match_add(&match, text, error));
	while (match.count < MATCH_CONDITIONS_MAX)
		assert_true(match_add(&match, "queue=q", error));
	assert_false(match_add(&match, "queue=q", error));
}

/* ---- malformed ---- */

/* In memory of exactly that length, so that the sanitizer sees what lies beyond. */
static void
read_exactly(const uint8_t *data, size_t length)
{
	uint8_t    *copy = malloc(length ? length : 1);
	struct properties properties;
	struct field field;
	struct fields fields;
	char		text[FIELD_TEXT_MAX];

	memcpy(copy, data, length);
	if (properties_parse(&properties, (struct span){copy, length}))
	{
		fields = table_fields(properties.encoded[PROPERTY_HEADERS]);
		while (fields_next(&fields, &field))
			field_text(&field, text);
	}
	fields = table_fields((struct span){copy, length});
	while (fields_next(&fields, &field))
		field_text(&field, text);
	free(copy);
}

static void
malformed_is_read_no_further(void **state)
{
	struct buffer list = {0};
	struct properties properties = {
		.encoded[PROPERTY_TYPE] = {(const uint8_t *) "\4Sold", 5},
		.encoded[PROPERTY_TIMESTAMP] = {(const uint8_t *) "12345678", 8},
	};

	(void) state;
	put_deaths(&(struct death){"q", "rejected", "events", "a.b", 9}, 1);
	put_kinds(true);
	receive(&properties);
	dead_letter_put_fresh(&list, &letter, "me", REPROCESS_KEY);
	for (size_t cut = 0; cut <= buffer_length(&list); cut++)
		read_exactly(buffer_head(&list), cut);
	for (size_t i = 0; i < buffer_length(&list); i++)
		for (int bit = 0; bit < 8; bit++)
		{
			buffer_head(&list)[i] ^= (uint8_t) (1 << bit);
			read_exactly(buffer_head(&list), buffer_length(&list));
			buffer_head(&list)[i] ^= (uint8_t) (1 << bit);
		}
	for (size_t cut = 0; cut <= buffer_length(&table); cut++)
		read_exactly(buffer_head(&table), cut);
	buffer_free(&list);
}

static void
malformed_content_is_noticed(void **state)
{
	static const uint8_t list[] = {0x20, 0, 0, 0, 0, 9, 1};	/* headers too long */
	struct buffer frames = {0};
	struct frame frame;
	const char *problem;

	(void) state;
	assert_true(frame_put_encoded(&frames, 1, FRAME_MAX, list, sizeof(list),
								  NULL, 0));
	assert_int_equal(frame_scan(buffer_head(&frames), buffer_length(&frames),
								FRAME_MAX, &frame, &problem), FRAME_OK);
	assert_true(dead_letter_add(&letter, &frame));
	assert_true(letter.unreadable && dead_letter_is_whole(&letter));
	assert_null(letter.properties.encoded[PROPERTY_HEADERS].data);
	dead_letter_clear(&letter);
	assert_false(letter.unreadable);
	frame.type = AMQP_FRAME_BODY;
	assert_false(dead_letter_add(&letter, &frame));
	buffer_free(&frames);
}

#define TEST(name)	cmocka_unit_test_setup_teardown(name, setup, teardown)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(every_kind_has_its_text),
		TEST(every_kind_stays_byte_for_byte),
		TEST(signs_of_death_go),
		TEST(no_header_is_left_alone),
		TEST(properties_stay),
		TEST(origin_of_one_death_is_kept),
		TEST(first_death_is_by_name),
		TEST(without_names_the_last_is_the_first),
		TEST(known_origin_counts_before_death),
		TEST(reprocessing_is_no_origin),
		TEST(empty_key_is_a_key),
		TEST(nothing_known_is_no_key),
		TEST(long_key_is_no_key),
		TEST(second_key_is_a_bcc),
		TEST(conditions),
		TEST(bad_conditions),
		TEST(malformed_is_read_no_further),
		TEST(malformed_content_is_noticed),
	};

	return cmocka_run_group_tests_name("dead_letter", tests, NULL, NULL);
}
