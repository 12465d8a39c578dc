#ifndef ACME_MESSAGE_H
#define ACME_MESSAGE_H

#include "amqp_frame.h"
#include "publisher.h"

/* AMQP's short strings: exchange, routing key, type, header names. */
#define SHORT_STRING_MAX	255

const char *message_put(struct buffer *out, uint16_t channel, uint32_t frame_max,
						const struct message *m, amqp_pool_t *pool);

#endif							/* ACME_MESSAGE_H */
