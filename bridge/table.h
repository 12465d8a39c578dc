#ifndef ACME_TABLE_H
#define ACME_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "buffer.h"

/* Room for a field's text, its end included; longer ones are cut. */
#define FIELD_TEXT_MAX	256

/* Bytes that belong to somebody else; data NULL: there are none. */
struct span
{
	const uint8_t *data;
	size_t		length;
};

/* A field of a table or array; an array's have no name. */
struct field
{
	struct span name;
	struct span value;			/* its kind included */
	struct span encoded;		/* name and value as they stand there */
};

/* What is left to read of a table or array. */
struct fields
{
	struct span rest;
	bool		named;
};

struct fields table_fields(struct span table);
struct fields array_fields(const struct field *array);
bool		fields_next(struct fields *fields, struct field *field);
bool		table_find(struct span table, const char *name,
					   struct field *field);
struct span field_table(const struct field *field);
struct span field_string(const struct field *field);
bool		field_number(const struct field *field, int64_t *number);
bool		field_text(const struct field *field, char text[FIELD_TEXT_MAX]);

bool		span_is(struct span span, const char *text);
bool		span_begins(struct span span, const char *text);
void		span_copy(struct span span, char text[FIELD_TEXT_MAX]);

size_t		table_begin(struct buffer *out);
void		table_put_field(struct buffer *out, const struct field *field);
void		table_put_string(struct buffer *out, const char *name,
							 struct span value);
void		table_end(struct buffer *out, size_t begin);

#endif							/* ACME_TABLE_H */
