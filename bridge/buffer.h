#ifndef ACME_BUFFER_H
#define ACME_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes wait between head and tail; the space before head is reused. */
struct buffer
{
	uint8_t    *data;
	size_t		head;
	size_t		tail;
	size_t		capacity;
};

void		buffer_free(struct buffer *b);
void		buffer_clear(struct buffer *b);
size_t		buffer_length(const struct buffer *b);
uint8_t    *buffer_head(struct buffer *b);
uint8_t    *buffer_reserve(struct buffer *b, size_t room);
void		buffer_commit(struct buffer *b, size_t length);
void		buffer_truncate(struct buffer *b, size_t length);
void		buffer_consume(struct buffer *b, size_t length);
void		buffer_append(struct buffer *b, const void *data, size_t length);
void		buffer_append_text(struct buffer *b, const char *text);
const char *buffer_text(struct buffer *b);

#endif							/* ACME_BUFFER_H */
