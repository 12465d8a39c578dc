/*
 * exits.c
 *		Which exit statuses each command has, and what they mean: for --help, and
 *		for main(), which asserts that no other one is used.
 */
#include "exits.h"

static const struct
{
	enum exit_status status;
	int			commands;
	const char *meaning;
}			exits[] = {
	{EXIT_OK, COMMAND_RELAY,
	"stopped orderly, or --once sent what was due"},
	{EXIT_OK, COMMAND_CONSUME,
	"stopped orderly, or --once handled what the queue held"},
	{EXIT_OK, COMMAND_REPROCESS,
	"all that were meant are put back"},
	{EXIT_OK, COMMAND_CHECK,
	"nothing fails"},
	{EXIT_USAGE, COMMANDS_ALL,
	"usage or a bad setting"},
	{EXIT_CONFIG_FILE, COMMANDS_ALL,
	"the configuration file is missing or wrong"},
	{EXIT_NO_QUEUE, COMMAND_REPROCESS,
	"the queue or the dead-letter queue does not exist"},
	{EXIT_DATABASE, COMMAND_RELAY | COMMAND_CONSUME,
	"at start: database unreachable or login failed"},
	{EXIT_BUSY, COMMAND_REPROCESS,
	"another run is at work on the queue"},
	{EXIT_PUBLISHER, COMMAND_RELAY,
	"at start: the broker refused the login, or TLS with it failed; or stdout is closed"},
	{EXIT_PUBLISHER, COMMAND_CONSUME,
	"at start: the broker refused the login, or TLS with it failed"},
	{EXIT_PUBLISHER, COMMAND_REPROCESS,
	"the broker refused the login, TLS with it failed, or a right is missing"},
	{EXIT_TEMPORARY, COMMAND_RELAY | COMMAND_CONSUME,
	"--once or a stop could not finish, try again"},
	{EXIT_TEMPORARY, COMMAND_REPROCESS,
	"it could not finish, run it again"},
	{EXIT_NOT_INSTALLED, COMMAND_RELAY,
	"at start: the extension is missing, or its contract is unknown"},
	{EXIT_NOT_INSTALLED, COMMAND_CONSUME,
	"at start: extension, inbox or handler missing, or the contract is unknown"},
	{EXIT_NOT_PERMITTED, COMMAND_RELAY,
	"at start: not permitted, or this copy was not adopted"},
	{EXIT_NOT_PERMITTED, COMMAND_CONSUME,
	"at start: not permitted"},
	{EXIT_CHECK_FAILED, COMMAND_CHECK,
	"something fails"},
};

#define EXITS (sizeof(exits) / sizeof(exits[0]))

bool
exits_has(enum command command, enum exit_status status)
{
	for (size_t i = 0; i < EXITS; i++)
		if (exits[i].status == status && exits[i].commands & command)
			return true;
	return false;
}

/* Those of one command. */
void
exits_help(enum command command, FILE *out)
{
	fputs("Exit status:\n", out);
	for (size_t i = 0; i < EXITS; i++)
		if (exits[i].commands & command)
			fprintf(out, "  %2d  %s\n", exits[i].status, exits[i].meaning);
}

/* All, and whose they are. */
void
exits_help_all(FILE *out)
{
	char		names[COMMANDS_TEXT_MAX];

	fputs("Exit status:\n", out);
	for (size_t i = 0; i < EXITS; i++)
	{
		command_names(exits[i].commands, names);
		fprintf(out, "  %2d  %-14s  %s\n", exits[i].status,
				exits[i].commands == COMMANDS_ALL ? "all" : names,
				exits[i].meaning);
	}
}
