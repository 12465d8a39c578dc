/*
 * dead_letter.c
 *		A message of a dead-letter queue: what it tells about its death, and how
 *		it looks when it is put back.
 *
 * Put back, it must look fresh to whatever counts redeliveries, and be the same
 * in all else. So what tells of the death goes: x-death, x-first-death-*,
 * x-last-death-*, x-delivery-count, and the x-error-* of our own consumers. Body,
 * properties and other headers stay byte for byte. Three things are added or
 * changed, because they would be lost or refused otherwise:
 *
 *	- x-original-routing-key and x-original-exchange, if only x-death knew them:
 *	  a second death would tell of the reprocessing alone.
 *	- user_id of another user, which the broker takes from nobody else: it moves
 *	  to x-original-user-id.
 *	- with a second key, the header BCC, which the broker obeys and removes.
 *
 * Which of its deaths was the first: x-first-death-queue and -reason name it.
 * The order of x-death alone does not tell, because a death that repeats moves
 * to the front. Without them the last entry is the oldest.
 *
 * Pure: no socket, no clock.
 */
#include "dead_letter.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "reprocess_names.h"

/* ---- as it is received ---- */

void
dead_letter_clear(struct dead_letter *letter)
{
	buffer_clear(&letter->list);
	buffer_clear(&letter->body);
	letter->properties = (struct properties){0};
	letter->missing = 0;
	letter->has_header = letter->unreadable = false;
}

void
dead_letter_free(struct dead_letter *letter)
{
	buffer_free(&letter->list);
	buffer_free(&letter->body);
}

static bool
parse_properties(struct dead_letter *letter, const struct frame *frame)
{
	struct span list;
	uint64_t	size;

	if (!frame_content_header(frame, &size, &list.data, &list.length))
		return false;
	buffer_append(&letter->list, list.data, list.length);
	list.data = buffer_head(&letter->list);
	return properties_parse(&letter->properties, list);
}

/* Properties that cannot be read must not keep the run from those behind. */
static bool
add_header(struct dead_letter *letter, const struct frame *frame)
{
	if (!frame_body_size(frame, &letter->missing))
		return false;
	letter->has_header = true;
	letter->unreadable = !parse_properties(letter, frame);
	if (letter->unreadable)
		letter->properties = (struct properties){0};
	return true;
}

/* The next frame of the content; false if it does not belong there. */
bool
dead_letter_add(struct dead_letter *letter, const struct frame *frame)
{
	if (frame->type == AMQP_FRAME_HEADER && !letter->has_header)
		return add_header(letter, frame);
	if (frame->type != AMQP_FRAME_BODY || !letter->has_header ||
		frame->length > letter->missing)
		return false;
	buffer_append(&letter->body, frame->payload, frame->length);
	letter->missing -= frame->length;
	return true;
}

bool
dead_letter_is_whole(const struct dead_letter *letter)
{
	return letter->has_header && letter->missing == 0;
}

/* ---- what it tells ---- */

static struct span
headers_of(const struct dead_letter *letter)
{
	return letter->properties.encoded[PROPERTY_HEADERS];
}

/* A header that is a string; data is NULL if there is none. */
static struct span
header_string(const struct dead_letter *letter, const char *name)
{
	struct field field;

	if (!table_find(headers_of(letter), name, &field))
		return (struct span){0};
	return field_string(&field);
}

static bool
is_same(struct span a, struct span b)
{
	return a.data && b.data && a.length == b.length &&
		memcmp(a.data, b.data, a.length) == 0;
}

static struct span
string_in(struct span table, const char *name)
{
	struct field field;

	return table_find(table, name, &field) ? field_string(&field) :
		(struct span){0};
}

/* The deaths, the latest first; none if there is no such header. */
static struct fields
deaths_of(const struct dead_letter *letter)
{
	struct field field;

	if (!table_find(headers_of(letter), HEADER_DEATHS, &field))
		return (struct fields){0};
	return array_fields(&field);
}

/* A table; empty if it never died, as far as the broker says. */
static struct span
first_death(const struct dead_letter *letter)
{
	struct span queue = header_string(letter, HEADER_FIRST_DEATH_QUEUE);
	struct span reason = header_string(letter, HEADER_FIRST_DEATH_REASON);
	struct fields deaths = deaths_of(letter);
	struct field death;
	struct span first = {0};

	while (fields_next(&deaths, &death))
	{
		first = field_table(&death);
		if (is_same(string_in(first, "queue"), queue) &&
			is_same(string_in(first, "reason"), reason))
			break;
	}
	return first;
}

static struct span
latest_death(const struct dead_letter *letter)
{
	struct fields deaths = deaths_of(letter);
	struct field death;

	return fields_next(&deaths, &death) ? field_table(&death) :
		(struct span){0};
}

/* The first of a death's routing keys; the others come from a CC header. */
static struct span
key_of_death(struct span death)
{
	struct field field;
	struct fields keys;

	if (!table_find(death, "routing-keys", &field))
		return (struct span){0};
	keys = array_fields(&field);
	return fields_next(&keys, &field) ? field_string(&field) :
		(struct span){0};
}

/* A death after a reprocessing that knew no original key tells of that alone. */
static bool
is_of_reprocessing(struct span exchange, struct span key)
{
	size_t		suffix = strlen(REPROCESS_SUFFIX);

	return span_is(key, REPROCESS_KEY) && exchange.length > suffix &&
		memcmp(exchange.data + exchange.length - suffix, REPROCESS_SUFFIX,
			   suffix) == 0;
}

struct origin
{
	struct span key;
	struct span exchange;
};

/* Where x-death says that it was published; without data if it does not. */
static struct origin
origin_by_death(const struct dead_letter *letter)
{
	struct span death = first_death(letter);
	struct origin origin = {
		.key = key_of_death(death),
		.exchange = string_in(death, "exchange"),
	};

	if (origin.key.length >= SHORT_TEXT_MAX ||
		is_of_reprocessing(origin.exchange, origin.key))
		origin = (struct origin){0};
	return origin;
}

/* False if there is none to be found; an empty one is a key too. */
bool
dead_letter_original_key(const struct dead_letter *letter,
						 char key[SHORT_TEXT_MAX])
{
	struct span known = header_string(letter, HEADER_ORIGINAL_KEY);

	if (known.data == NULL || known.length >= SHORT_TEXT_MAX)
		known = origin_by_death(letter).key;
	if (known.data == NULL || memchr(known.data, '\0', known.length))
		return false;
	span_copy(known, key);
	return true;
}

static bool
copy_string(struct span string, char text[FIELD_TEXT_MAX])
{
	if (string.data)
		span_copy(string, text);
	return string.data != NULL;
}

static bool
copy_header(const struct dead_letter *letter, const char *name,
			char text[FIELD_TEXT_MAX])
{
	struct field field;

	return table_find(headers_of(letter), name, &field) &&
		field_text(&field, text);
}

/* False if the letter does not have it, or if it is no plain value. */
bool
dead_letter_text(const struct dead_letter *letter, enum letter_field field,
				 const char *header, char text[FIELD_TEXT_MAX])
{
	const struct properties *p = &letter->properties;

	switch (field)
	{
		case LETTER_EVENT_NAME:
			return copy_string(properties_text(p, PROPERTY_TYPE), text);
		case LETTER_EVENT_ID:
			return copy_string(properties_text(p, PROPERTY_MESSAGE_ID), text);
		case LETTER_ORIGIN:
			return copy_string(properties_text(p, PROPERTY_APP_ID), text);
		case LETTER_ROUTING_KEY:
			return dead_letter_original_key(letter, text);
		case LETTER_QUEUE:
			return copy_string(string_in(first_death(letter), "queue"), text);
		case LETTER_CONSUMER:
			return copy_header(letter, HEADER_ERROR_SERVICE, text);
		case LETTER_SQLSTATE:
			return copy_header(letter, HEADER_ERROR_SQLSTATE, text);
		case LETTER_HEADER:
			return copy_header(letter, header, text);
	}
	return false;
}

/* When it died last, in seconds since 1970, as far as the broker tells. */
bool
dead_letter_death_time(const struct dead_letter *letter, int64_t *seconds)
{
	struct field field;

	return table_find(latest_death(letter), "time", &field) &&
		field_number(&field, seconds);
}

/* Why it is here, for a person: our consumer's words, else the broker's. */
void
dead_letter_reason(const struct dead_letter *letter, char text[FIELD_TEXT_MAX])
{
	struct span death = latest_death(letter);
	char		first[FIELD_TEXT_MAX] = "";
	char		second[FIELD_TEXT_MAX] = "";

	text[0] = '\0';
	if (copy_header(letter, HEADER_ERROR_MESSAGE, second))
	{
		copy_header(letter, HEADER_ERROR_SQLSTATE, first);
		snprintf(text, FIELD_TEXT_MAX, "%.40s%s%.200s", first, *first ? " " : "",
				 second);
	}
	else if (copy_string(string_in(death, "reason"), first) &&
			 copy_string(string_in(death, "queue"), second))
		snprintf(text, FIELD_TEXT_MAX, "%.40s in %.200s", first, second);
}

/* ---- as it is put back ---- */

/* Does the header tell of a death? */
static bool
is_of_death(struct span name)
{
	return span_is(name, HEADER_DEATHS) || span_is(name, HEADER_DELIVERY_COUNT) ||
		span_begins(name, HEADER_FIRST_DEATH_PREFIX) ||
		span_begins(name, HEADER_LAST_DEATH_PREFIX) ||
		span_begins(name, HEADER_ERROR_PREFIX);
}

static bool
has_header(const struct dead_letter *letter, const char *name)
{
	struct field field;

	return table_find(headers_of(letter), name, &field);
}

/* Unless it is there already: then it tells of an earlier death. */
static void
put_new_string(struct buffer *out, const struct dead_letter *letter,
			   const char *name, struct span value)
{
	if (value.data && !has_header(letter, name))
		table_put_string(out, name, value);
}

/* An array of one key. */
static void
put_bcc(struct buffer *out, const char *key)
{
	uint8_t		length = (uint8_t) strlen(key);
	uint8_t		array_length = (uint8_t) (1 + 4 + length);

	buffer_append(out, "\3" HEADER_BCC "A\0\0\0", 8);
	buffer_append(out, &array_length, 1);
	buffer_append(out, "S\0\0\0", 4);
	buffer_append(out, &length, 1);
	buffer_append(out, key, length);
}

static void
put_headers(struct buffer *out, const struct dead_letter *letter,
			struct span other_user, const char *also_to)
{
	struct fields fields = table_fields(headers_of(letter));
	struct origin origin = origin_by_death(letter);
	struct field field;
	size_t		begin = table_begin(out);

	while (fields_next(&fields, &field))
		if (!is_of_death(field.name) &&
			!(also_to && span_is(field.name, HEADER_BCC)))
			table_put_field(out, &field);
	put_new_string(out, letter, HEADER_ORIGINAL_KEY, origin.key);
	put_new_string(out, letter, HEADER_ORIGINAL_EXCHANGE, origin.exchange);
	put_new_string(out, letter, HEADER_ORIGINAL_USER, other_user);
	if (also_to)
		put_bcc(out, also_to);
	table_end(out, begin);
}

/*
 * Append its properties as they are put back by this user. also_to is a second
 * routing key, at most 200 bytes long, or NULL.
 */
void
dead_letter_put_fresh(struct buffer *out, const struct dead_letter *letter,
					  const char *user, const char *also_to)
{
	struct properties fresh = letter->properties;
	struct buffer headers = {0};
	struct span author = properties_text(&fresh, PROPERTY_USER_ID);

	if (author.data && span_is(author, user))
		author = (struct span){0};
	else
		fresh.encoded[PROPERTY_USER_ID] = (struct span){0};
	put_headers(&headers, letter, author, also_to);
	fresh.encoded[PROPERTY_HEADERS] = (struct span){
		buffer_head(&headers), buffer_length(&headers)
	};
	/* it had none before it died */
	if (buffer_length(&headers) == 4)
		fresh.encoded[PROPERTY_HEADERS] = (struct span){0};
	properties_put(out, &fresh);
	buffer_free(&headers);
}
