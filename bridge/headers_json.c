/*
 * headers_json.c
 *		A message's headers as a JSON object, for acme_outbox.message().
 *
 * The reverse of message.c: strings, numbers, booleans, tables and arrays as
 * what they are; a timestamp as its seconds. What jsonb cannot hold (bytes that
 * are no text, infinity) becomes null: a header must not make its message fail.
 * The nesting was bounded when the frame was scanned.
 */
#include "headers_json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "utf8.h"

#define NUMBER_TEXT_MAX	64

static void put_value(struct buffer *out, const amqp_field_value_t *value);

/* A JSON string, or null if the bytes are no text. */
void
headers_put_text(struct buffer *out, const void *bytes, size_t length)
{
	const unsigned char *s = bytes;
	char		escape[8];

	if (!utf8_is_text(bytes, length))
	{
		buffer_append_text(out, "null");
		return;
	}
	buffer_append_text(out, "\"");
	for (size_t i = 0; i < length; i++)
	{
		if (s[i] == '"' || s[i] == '\\')
			buffer_append_text(out, "\\");
		if (s[i] >= 0x20)
			buffer_append(out, &s[i], 1);
		else
		{
			snprintf(escape, sizeof(escape), "\\u%04x", (unsigned) s[i]);
			buffer_append_text(out, escape);
		}
	}
	buffer_append_text(out, "\"");
}

static void
put_signed(struct buffer *out, int64_t number)
{
	char		text[NUMBER_TEXT_MAX];

	snprintf(text, sizeof(text), "%" PRId64, number);
	buffer_append_text(out, text);
}

static void
put_unsigned(struct buffer *out, uint64_t number)
{
	char		text[NUMBER_TEXT_MAX];

	snprintf(text, sizeof(text), "%" PRIu64, number);
	buffer_append_text(out, text);
}

static void
put_double(struct buffer *out, double number)
{
	char		text[NUMBER_TEXT_MAX];

	if (isfinite(number))
		snprintf(text, sizeof(text), "%.17g", number);
	else
		snprintf(text, sizeof(text), "null");
	buffer_append_text(out, text);
}

/* value * 10^-decimals; a JSON number takes the exponent. */
static void
put_decimal(struct buffer *out, const amqp_decimal_t *decimal)
{
	char		text[NUMBER_TEXT_MAX];

	snprintf(text, sizeof(text), "%" PRIu32 "e-%u", decimal->value,
			 (unsigned) decimal->decimals);
	buffer_append_text(out, text);
}

static void
put_array(struct buffer *out, const amqp_array_t *array)
{
	buffer_append_text(out, "[");
	for (int i = 0; i < array->num_entries; i++)
	{
		if (i > 0)
			buffer_append_text(out, ",");
		put_value(out, &array->entries[i]);
	}
	buffer_append_text(out, "]");
}

static void
put_value(struct buffer *out, const amqp_field_value_t *value)
{
	switch (value->kind)
	{
		case AMQP_FIELD_KIND_BOOLEAN:
			buffer_append_text(out, value->value.boolean ? "true" : "false");
			break;
		case AMQP_FIELD_KIND_I8:
			put_signed(out, value->value.i8);
			break;
		case AMQP_FIELD_KIND_U8:
			put_unsigned(out, value->value.u8);
			break;
		case AMQP_FIELD_KIND_I16:
			put_signed(out, value->value.i16);
			break;
		case AMQP_FIELD_KIND_U16:
			put_unsigned(out, value->value.u16);
			break;
		case AMQP_FIELD_KIND_I32:
			put_signed(out, value->value.i32);
			break;
		case AMQP_FIELD_KIND_U32:
			put_unsigned(out, value->value.u32);
			break;
		case AMQP_FIELD_KIND_I64:
			put_signed(out, value->value.i64);
			break;
		case AMQP_FIELD_KIND_U64:
		case AMQP_FIELD_KIND_TIMESTAMP:
			put_unsigned(out, value->value.u64);
			break;
		case AMQP_FIELD_KIND_F32:
			put_double(out, value->value.f32);
			break;
		case AMQP_FIELD_KIND_F64:
			put_double(out, value->value.f64);
			break;
		case AMQP_FIELD_KIND_DECIMAL:
			put_decimal(out, &value->value.decimal);
			break;
		case AMQP_FIELD_KIND_UTF8:
		case AMQP_FIELD_KIND_BYTES:
			headers_put_text(out, value->value.bytes.bytes,
							 value->value.bytes.len);
			break;
		case AMQP_FIELD_KIND_ARRAY:
			put_array(out, &value->value.array);
			break;
		case AMQP_FIELD_KIND_TABLE:
			headers_put_table(out, &value->value.table);
			break;
		default:
			buffer_append_text(out, "null");
	}
}

/* A name that is no text cannot be shown: its entry is left out. */
void
headers_put_table(struct buffer *out, const amqp_table_t *table)
{
	const char *comma = "";

	buffer_append_text(out, "{");
	for (int i = 0; i < table->num_entries; i++)
	{
		const amqp_table_entry_t *entry = &table->entries[i];

		if (!utf8_is_text(entry->key.bytes, entry->key.len))
			continue;
		buffer_append_text(out, comma);
		headers_put_text(out, entry->key.bytes, entry->key.len);
		buffer_append_text(out, ":");
		put_value(out, &entry->value);
		comma = ",";
	}
	buffer_append_text(out, "}");
}
