/*
 * properties.c
 *		A message's property list, taken apart and put together without decoding
 *		any of it.
 *
 *		flags(2) then each property whose flag is set; the first has the highest
 *		bit. The lowest bit would announce more flags, which the basic class does
 *		not have.
 *
 * Pure: no socket, no clock.
 */
#include "properties.h"

#define FLAGS_SIZE		2
#define FLAG(property)	(1u << (15 - (property)))
#define KNOWN_FLAGS		((0xffffu << (16 - PROPERTIES)) & 0xffffu)

enum shape
{
	SHAPE_TEXT,					/* one byte of length before it */
	SHAPE_TABLE,
	SHAPE_OCTET,
	SHAPE_TIME
};

static enum shape
shape_of(enum property property)
{
	switch (property)
	{
		case PROPERTY_HEADERS:
			return SHAPE_TABLE;
		case PROPERTY_DELIVERY_MODE:
		case PROPERTY_PRIORITY:
			return SHAPE_OCTET;
		case PROPERTY_TIMESTAMP:
			return SHAPE_TIME;
		default:
			return SHAPE_TEXT;
	}
}

static size_t
table_size(struct span rest)
{
	if (rest.length < 4)
		return rest.length + 1;
	return 4 + ((size_t) rest.data[0] << 24 | (size_t) rest.data[1] << 16 |
				(size_t) rest.data[2] << 8 | rest.data[3]);
}

/* How long the property is that begins there; more than there is: malformed. */
static size_t
size_of(enum property property, struct span rest)
{
	switch (shape_of(property))
	{
		case SHAPE_TABLE:
			return table_size(rest);
		case SHAPE_OCTET:
			return 1;
		case SHAPE_TIME:
			return 8;
		case SHAPE_TEXT:
			break;
	}
	return rest.length > 0 ? 1u + rest.data[0] : 1;
}

/* The spans are the list's own bytes. False if it is malformed. */
bool
properties_parse(struct properties *properties, struct span list)
{
	struct span rest;
	unsigned	flags;

	*properties = (struct properties){0};
	if (list.length < FLAGS_SIZE)
		return false;
	flags = (unsigned) (list.data[0] << 8 | list.data[1]);
	if (flags & ~KNOWN_FLAGS)
		return false;
	rest = (struct span){list.data + FLAGS_SIZE, list.length - FLAGS_SIZE};
	for (int i = 0; i < PROPERTIES; i++)
	{
		size_t		size;

		if (!(flags & FLAG(i)))
			continue;
		size = size_of((enum property) i, rest);
		if (size > rest.length)
			return false;
		properties->encoded[i] = (struct span){rest.data, size};
		rest = (struct span){rest.data + size, rest.length - size};
	}
	return rest.length == 0;
}

/* Of one that is a text; data is NULL if it is absent. */
struct span
properties_text(const struct properties *properties, enum property property)
{
	struct span encoded = properties->encoded[property];

	if (encoded.data == NULL)
		return encoded;
	return (struct span){encoded.data + 1, encoded.length - 1};
}

void
properties_put(struct buffer *out, const struct properties *properties)
{
	unsigned	flags = 0;
	uint8_t		bytes[FLAGS_SIZE];

	for (int i = 0; i < PROPERTIES; i++)
		if (properties->encoded[i].data)
			flags |= FLAG(i);
	bytes[0] = (uint8_t) (flags >> 8);
	bytes[1] = (uint8_t) flags;
	buffer_append(out, bytes, FLAGS_SIZE);
	for (int i = 0; i < PROPERTIES; i++)
		buffer_append(out, properties->encoded[i].data,
					  properties->encoded[i].length);
}
