#ifndef ACME_HEADERS_JSON_H
#define ACME_HEADERS_JSON_H

#include <amqp.h>

#include "buffer.h"

void		headers_put_text(struct buffer *out, const void *bytes,
							 size_t length);
void		headers_put_table(struct buffer *out, const amqp_table_t *table);

#endif							/* ACME_HEADERS_JSON_H */
