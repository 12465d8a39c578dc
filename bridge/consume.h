#ifndef ACME_CONSUME_H
#define ACME_CONSUME_H

#include "config.h"

enum exit_status consume_run(struct config *config,
							 const struct command_line *line);

#endif							/* ACME_CONSUME_H */
