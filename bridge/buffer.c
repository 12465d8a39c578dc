/*
 * buffer.c
 *		A growing byte queue: the sockets' input and output, and the texts of
 *		statement parameters.
 *
 * Out of memory ends the process: a relay holds nothing that its database does
 * not, so stopping at once is safe, and no caller has to think about it.
 */
#include "buffer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An empty buffer that grew beyond this gives its memory back. */
#define BUFFER_KEEP		(1024 * 1024)
#define BUFFER_FIRST	4096

void
buffer_free(struct buffer *b)
{
	free(b->data);
	memset(b, 0, sizeof(*b));
}

void
buffer_clear(struct buffer *b)
{
	b->head = b->tail = 0;
	if (b->capacity > BUFFER_KEEP)
		buffer_free(b);
}

size_t
buffer_length(const struct buffer *b)
{
	return b->tail - b->head;
}

uint8_t *
buffer_head(struct buffer *b)
{
	return b->data + b->head;
}

static void
buffer_grow(struct buffer *b, size_t needed)
{
	size_t		capacity = b->capacity ? b->capacity : BUFFER_FIRST;

	while (capacity < needed)
		capacity *= 2;
	b->data = realloc(b->data, capacity);
	if (b->data == NULL)
	{
		fputs("out of memory\n", stderr);
		abort();
	}
	b->capacity = capacity;
}

/* Room for that many bytes after the tail; commit what was written. */
uint8_t *
buffer_reserve(struct buffer *b, size_t room)
{
	if (b->head > 0 && b->capacity - b->tail < room)
	{
		memmove(b->data, b->data + b->head, b->tail - b->head);
		b->tail -= b->head;
		b->head = 0;
	}
	if (b->data == NULL || b->capacity - b->tail < room)
		buffer_grow(b, b->tail + room);
	return b->data + b->tail;
}

void
buffer_commit(struct buffer *b, size_t length)
{
	b->tail += length;
}

/* Forget what was appended after the buffer held that many bytes. */
void
buffer_truncate(struct buffer *b, size_t length)
{
	b->tail = b->head + length;
}

void
buffer_consume(struct buffer *b, size_t length)
{
	b->head += length;
	if (b->head == b->tail)
		buffer_clear(b);
}

void
buffer_append(struct buffer *b, const void *data, size_t length)
{
	if (length == 0)
		return;
	memcpy(buffer_reserve(b, length), data, length);
	buffer_commit(b, length);
}

void
buffer_append_text(struct buffer *b, const char *text)
{
	buffer_append(b, text, strlen(text));
}

/* The content as a C string. */
const char *
buffer_text(struct buffer *b)
{
	*buffer_reserve(b, 1) = '\0';
	return (const char *) b->data + b->head;
}
