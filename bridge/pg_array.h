#ifndef ACME_PG_ARRAY_H
#define ACME_PG_ARRAY_H

#include "buffer.h"

/* The types' OIDs, which PostgreSQL never changes. */
enum pg_array_type
{
	PG_ARRAY_TEXT = 25,
	PG_ARRAY_JSONB = 3802
};

/* An array parameter in binary; the buffer holds the value. */
struct pg_array
{
	struct buffer out;
	enum pg_array_type type;
	int			count;
};

void		pg_array_begin(struct pg_array *array, enum pg_array_type type);
void		pg_array_add(struct pg_array *array, const void *bytes,
						 size_t length);
const char *pg_array_end(struct pg_array *array, int *length);
void		pg_array_free(struct pg_array *array);

#endif							/* ACME_PG_ARRAY_H */
