#ifndef ACME_CONNECTION_H
#define ACME_CONNECTION_H

#include "broker.h"
#include "config.h"

struct broker_settings connection_settings(const struct config *config,
										   const char *name,
										   const char *version);

#endif							/* ACME_CONNECTION_H */
