/*
 * pg_array.c
 *		Arrays as binary statement parameters: no quoting of message bodies, and
 *		no parsing of it in the server.
 *
 *		dimensions(4) has_null(4) type(4) count(4) lower_bound(4)
 *		and for each element length(4) bytes		all big-endian
 *
 * A jsonb element has the format's version, 1, before its text.
 */
#include "pg_array.h"

#include <arpa/inet.h>

#define COUNT_AT		12			/* where the count stands */
#define JSONB_VERSION	1

static void
put32(struct buffer *out, uint32_t value)
{
	value = htonl(value);
	buffer_append(out, &value, sizeof(value));
}

void
pg_array_begin(struct pg_array *array, enum pg_array_type type)
{
	*array = (struct pg_array){.type = type};
	put32(&array->out, 1);
	put32(&array->out, 0);
	put32(&array->out, type);
	put32(&array->out, 0);		/* the count, when it is known */
	put32(&array->out, 1);
}

void
pg_array_add(struct pg_array *array, const void *bytes, size_t length)
{
	static const uint8_t version = JSONB_VERSION;
	bool		is_jsonb = array->type == PG_ARRAY_JSONB;

	put32(&array->out, (uint32_t) (length + is_jsonb));
	buffer_append(&array->out, &version, is_jsonb);
	buffer_append(&array->out, bytes, length);
	array->count++;
}

/* The value, which lives as long as the array. */
const char *
pg_array_end(struct pg_array *array, int *length)
{
	uint32_t	count = htonl((uint32_t) array->count);
	uint8_t    *value = buffer_head(&array->out);

	for (size_t i = 0; i < sizeof(count); i++)
		value[COUNT_AT + i] = ((uint8_t *) &count)[i];
	*length = (int) buffer_length(&array->out);
	return (const char *) value;
}

void
pg_array_free(struct pg_array *array)
{
	buffer_free(&array->out);
}
