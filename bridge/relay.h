#ifndef ACME_RELAY_H
#define ACME_RELAY_H

#include "config.h"

/* How to load the configuration again. */
struct relay_arguments
{
	int			argc;
	char	  **argv;
	const char *version;
};

enum exit_status relay_run(struct config *config,
						   const struct relay_arguments *arguments);

#endif							/* ACME_RELAY_H */
