#ifndef ACME_DEAD_COPY_H
#define ACME_DEAD_COPY_H

#include <amqp.h>
#include <stdint.h>

#include "deliveries.h"

/* Where a copy goes, and whose name it bears. */
struct dead_copy_settings
{
	const char *exchange;
	const char *service;
};

bool		dead_copy_put(struct buffer *out, uint16_t channel,
							uint32_t frame_max,
							const struct dead_copy_settings *settings,
							const struct delivery *d, amqp_pool_t *pool);

#endif							/* ACME_DEAD_COPY_H */
