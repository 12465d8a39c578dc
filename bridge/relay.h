#ifndef ACME_RELAY_H
#define ACME_RELAY_H

#include "config.h"

enum exit_status relay_run(struct config *config,
						   const struct command_line *line);

#endif							/* ACME_RELAY_H */
