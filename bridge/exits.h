#ifndef ACME_EXITS_H
#define ACME_EXITS_H

/* Exit statuses, as --help prints them. Those from sysexits(3) keep its numbers. */
enum exit_status
{
	EXIT_OK = 0,
	EXIT_USAGE = 64,			/* usage, or a bad setting */
	EXIT_CONFIG_FILE = 65,		/* the configuration file */
	EXIT_NO_QUEUE = 66,			/* reprocess: a queue that does not exist */
	EXIT_DATABASE = 69,			/* database unreachable or login failed */
	EXIT_INTERNAL = 70,			/* a bug */
	EXIT_BUSY = 73,				/* reprocess: another run is at work on the queue */
	EXIT_PUBLISHER = 74,		/* broker refused the login, or stdout broke */
	EXIT_TEMPORARY = 75,		/* --once or stopping: not finished, try again */
	EXIT_NOT_INSTALLED = 76,	/* extension missing, or contract unknown */
	EXIT_NOT_PERMITTED = 77,	/* role not granted, or a copy not adopted */
	EXIT_CHECK_FAILED = 78		/* check: a line says FAIL */
};

#endif							/* ACME_EXITS_H */
