#ifndef ACME_EXITS_H
#define ACME_EXITS_H

#include <stdbool.h>
#include <stdio.h>

#include "command.h"

/* Exit statuses; what they mean is in exits.c. Those from sysexits(3) keep its numbers. */
enum exit_status
{
	EXIT_OK = 0,
	EXIT_USAGE = 64,
	EXIT_CONFIG_FILE = 65,
	EXIT_NO_QUEUE = 66,
	EXIT_DATABASE = 69,
	EXIT_BUSY = 73,
	EXIT_PUBLISHER = 74,
	EXIT_TEMPORARY = 75,
	EXIT_NOT_INSTALLED = 76,
	EXIT_NOT_PERMITTED = 77,
	EXIT_CHECK_FAILED = 78
};

bool		exits_has(enum command command, enum exit_status status);
void		exits_help(enum command command, FILE *out);
void		exits_help_all(FILE *out);

#endif							/* ACME_EXITS_H */
