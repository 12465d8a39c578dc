#ifndef ACME_REPROCESS_H
#define ACME_REPROCESS_H

#include "config.h"

enum exit_status reprocess_run(struct config *config,
							   const struct command_line *line);

#endif							/* ACME_REPROCESS_H */
