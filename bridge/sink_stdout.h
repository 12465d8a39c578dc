#ifndef ACME_SINK_STDOUT_H
#define ACME_SINK_STDOUT_H

#include "publisher.h"

struct publisher *sink_stdout_new(const struct publisher_events *events);

#endif							/* ACME_SINK_STDOUT_H */
