#ifndef ACME_RABBIT_H
#define ACME_RABBIT_H

#include "broker.h"
#include "publisher.h"

struct publisher *rabbit_new(const struct broker_settings *settings,
							 const struct publisher_events *events,
							 const uint32_t windows[LANES],
							 msec_t confirm_timeout);

#endif							/* ACME_RABBIT_H */
