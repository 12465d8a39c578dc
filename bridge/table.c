/*
 * table.c
 *		AMQP field tables as the bytes they are.
 *
 * A message that is put back must carry every header exactly as it came, also
 * one whose type or spelling librabbitmq would encode differently. So fields
 * are read where they lie and copied byte by byte; nothing is decoded into a
 * structure and encoded again.
 *
 *		table: length(4) then per field name-length(1) name kind(1) value
 *		array: length(4) then per field kind(1) value
 *
 * Every length is checked against what is left, so that a malformed table ends
 * early and nothing outside is read. Pure: no socket, no clock.
 */
#include "table.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "amqp_frame.h"

#define LENGTH_SIZE		4

static uint64_t
get_big_endian(const uint8_t *data, size_t length)
{
	uint64_t	number = 0;

	while (length-- > 0)
		number = number << 8 | *data++;
	return number;
}

static void
put32(uint8_t *out, uint32_t number)
{
	for (int i = 0; i < LENGTH_SIZE; i++)
		out[i] = (uint8_t) (number >> (24 - 8 * i));
}

/* ---- spans ---- */

bool
span_is(struct span span, const char *text)
{
	return span.length == strlen(text) &&
		memcmp(span.data, text, span.length) == 0;
}

bool
span_begins(struct span span, const char *text)
{
	size_t		length = strlen(text);

	return span.length >= length && memcmp(span.data, text, length) == 0;
}

/* As a C string, cut to the capacity. */
void
span_copy(struct span span, char text[FIELD_TEXT_MAX])
{
	size_t		length = span.length < FIELD_TEXT_MAX ? span.length :
		FIELD_TEXT_MAX - 1;

	if (length > 0)
		memcpy(text, span.data, length);
	text[length] = '\0';
}

/* What the four bytes of length at the start say is there; empty if it is not. */
static struct span
counted(struct span span)
{
	size_t		length;

	if (span.length < LENGTH_SIZE)
		return (struct span){0};
	length = get_big_endian(span.data, LENGTH_SIZE);
	if (length > span.length - LENGTH_SIZE)
		return (struct span){0};
	return (struct span){span.data + LENGTH_SIZE, length};
}

static struct span
skipped(struct span span, size_t length)
{
	return (struct span){span.data + length, span.length - length};
}

/* ---- reading ---- */

/* The table with its length before it. */
struct fields
table_fields(struct span table)
{
	return (struct fields){.rest = counted(table), .named = true};
}

/* Empty if the field is no array. */
struct fields
array_fields(const struct field *array)
{
	struct fields fields = {.named = false};

	if (array->value.length > 0 && array->value.data[0] == 'A')
		fields.rest = counted(skipped(array->value, 1));
	return fields;
}

/* False at the end, and where it is malformed. */
bool
fields_next(struct fields *fields, struct field *field)
{
	struct span rest = fields->rest;
	size_t		size;

	if (rest.length == 0)
		return false;
	field->name = (struct span){0};
	if (fields->named)
	{
		if (1u + rest.data[0] > rest.length)
			return false;
		field->name = (struct span){rest.data + 1, rest.data[0]};
		rest = skipped(rest, 1u + rest.data[0]);
	}
	size = rest.length > 0 ? frame_value_size(rest.data, rest.length) : 0;
	if (size == 0)
		return false;
	field->value = (struct span){rest.data, size};
	field->encoded = (struct span){fields->rest.data,
		fields->rest.length - rest.length + size};
	fields->rest = skipped(rest, size);
	return true;
}

bool
table_find(struct span table, const char *name, struct field *field)
{
	struct fields fields = table_fields(table);

	while (fields_next(&fields, field))
		if (span_is(field->name, name))
			return true;
	return false;
}

/* With its length before it; empty if the field is no table. */
struct span
field_table(const struct field *field)
{
	if (field->value.data[0] != 'F')
		return (struct span){0};
	return skipped(field->value, 1);
}

/* Of a string or a byte array; data is NULL if it is neither. */
struct span
field_string(const struct field *field)
{
	if (field->value.data[0] != 'S' && field->value.data[0] != 'x')
		return (struct span){0};
	return counted(skipped(field->value, 1));
}

/* Of any integer, a time in seconds and a boolean among them. */
bool
field_number(const struct field *field, int64_t *number)
{
	size_t		size = field->value.length - 1;
	uint64_t	raw = size > 8 ? 0 : get_big_endian(field->value.data + 1, size);

	switch (field->value.data[0])
	{
		case 't': case 'B': case 'u': case 'i': case 'l': case 'L': case 'T':
			*number = (int64_t) raw;
			return true;
		case 'b':
			*number = (int8_t) raw;
			return true;
		case 's':
			*number = (int16_t) raw;
			return true;
		case 'I':
			*number = (int32_t) raw;
			return true;
		default:
			return false;
	}
}

/* Strings, integers and booleans have a text; others have none. */
bool
field_text(const struct field *field, char text[FIELD_TEXT_MAX])
{
	struct span string = field_string(field);
	int64_t		number;

	if (string.data)
		span_copy(string, text);
	else if (!field_number(field, &number))
		return false;
	else if (field->value.data[0] == 't')
		strcpy(text, number ? "true" : "false");
	else
		snprintf(text, FIELD_TEXT_MAX, "%" PRId64, number);
	return true;
}

/* ---- writing ---- */

/* Begin a table in the output; the result is table_end()'s. */
size_t
table_begin(struct buffer *out)
{
	size_t		begin = buffer_length(out);

	buffer_append(out, "\0\0\0\0", LENGTH_SIZE);
	return begin;
}

void
table_put_field(struct buffer *out, const struct field *field)
{
	buffer_append(out, field->encoded.data, field->encoded.length);
}

/* The name is a short one of ours. */
void
table_put_string(struct buffer *out, const char *name, struct span value)
{
	uint8_t		name_length = (uint8_t) strlen(name);
	uint8_t		length[LENGTH_SIZE];

	put32(length, (uint32_t) value.length);
	buffer_append(out, &name_length, 1);
	buffer_append(out, name, name_length);
	buffer_append(out, "S", 1);
	buffer_append(out, length, LENGTH_SIZE);
	buffer_append(out, value.data, value.length);
}

void
table_end(struct buffer *out, size_t begin)
{
	put32(buffer_head(out) + begin,
		  (uint32_t) (buffer_length(out) - begin - LENGTH_SIZE));
}
