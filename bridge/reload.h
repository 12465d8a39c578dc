#ifndef ACME_RELOAD_H
#define ACME_RELOAD_H

#include "config.h"

void		reload_config(struct config *config,
						  const struct command_line *line);

#endif							/* ACME_RELOAD_H */
