#ifndef ACME_AMQP_TEXT_H
#define ACME_AMQP_TEXT_H

/* AMQP's short strings, which have a length, and C strings, which have an end. */
#include <amqp.h>
#include <string.h>

static inline amqp_bytes_t
bytes_of(const char *text)
{
	return (amqp_bytes_t){strlen(text), (void *) text};
}

/* Cut to the capacity. */
static inline void
bytes_to_text(char *to, size_t capacity, amqp_bytes_t from)
{
	size_t		length = from.len < capacity - 1 ? from.len : capacity - 1;

	if (length > 0)
		memcpy(to, from.bytes, length);
	to[length] = '\0';
}

#endif							/* ACME_AMQP_TEXT_H */
