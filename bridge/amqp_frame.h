#ifndef ACME_AMQP_FRAME_H
#define ACME_AMQP_FRAME_H

#include <amqp.h>
#include <amqp_framing.h>
#include <stdbool.h>

#include "buffer.h"

#define FRAME_HEADER_SIZE	7
#define FRAME_OVERHEAD		8	/* header and end byte */

/* What we offer at tune, and the most we accept before it. */
#define FRAME_MAX			131072
#define FRAME_MAX_MIN		4096

/* Nested tables and arrays: ours are refused beyond it, as are the broker's. */
#define TABLE_DEPTH_MAX		32

enum frame_status
{
	FRAME_OK,
	FRAME_PARTIAL,				/* more bytes are needed */
	FRAME_BAD					/* the connection is finished */
};

/* One whole frame in the input; payload points into it. */
struct frame
{
	uint8_t		type;
	uint16_t	channel;
	const uint8_t *payload;
	uint32_t	length;
	size_t		size;			/* with header and end byte */
};

enum frame_status frame_scan(const uint8_t *data, size_t length,
							 uint32_t frame_max, struct frame *frame,
							 const char **problem);
bool		frame_table_is_sane(const uint8_t *data, size_t length);
size_t		frame_value_size(const uint8_t *data, size_t length);
amqp_method_number_t frame_method_id(const struct frame *frame);
void	   *frame_decode_method(const struct frame *frame, amqp_pool_t *pool);
bool		frame_body_size(const struct frame *frame, uint64_t *body_size);
bool		frame_content_header(const struct frame *frame, uint64_t *body_size,
								 const uint8_t **properties, size_t *length);
bool		frame_decode_header(const struct frame *frame, amqp_pool_t *pool,
								uint64_t *body_size,
								amqp_basic_properties_t **properties);

bool		frame_put_method(struct buffer *out, uint16_t channel,
							 amqp_method_number_t id, void *method);
bool		frame_put_content(struct buffer *out, uint16_t channel,
							  uint32_t frame_max,
							  amqp_basic_properties_t *properties,
							  const void *body, size_t length);
bool		frame_put_encoded(struct buffer *out, uint16_t channel,
							  uint32_t frame_max, const uint8_t *properties,
							  size_t properties_length, const void *body,
							  size_t length);
void		frame_put_heartbeat(struct buffer *out);

#endif							/* ACME_AMQP_FRAME_H */
