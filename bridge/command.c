/*
 * command.c
 *		The names of the commands.
 */
#include "command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct
{
	enum command command;
	const char *name;
}			names[COMMANDS] = {
	{COMMAND_RELAY, "relay"},
	{COMMAND_CONSUME, "consume"},
	{COMMAND_REPROCESS, "reprocess"},
	{COMMAND_CHECK, "check"},
};

const char *
command_name(enum command command)
{
	for (int i = 0; i < COMMANDS; i++)
		if (names[i].command == command)
			return names[i].name;
	abort();
}

/* "relay, check" */
void
command_names(int commands, char text[COMMANDS_TEXT_MAX])
{
	size_t		length = 0;

	text[0] = '\0';
	for (int i = 0; i < COMMANDS; i++)
		if (names[i].command & commands)
			length += (size_t) snprintf(text + length, COMMANDS_TEXT_MAX - length,
										"%s%s", length ? ", " : "",
										names[i].name);
}
