#ifndef ACME_COMMAND_H
#define ACME_COMMAND_H

/* What the program can be told to do; a setting may be for several of them. */
enum command
{
	COMMAND_RELAY = 1 << 0,
	COMMAND_CONSUME = 1 << 1,
	COMMAND_REPROCESS = 1 << 2,
	COMMAND_CHECK = 1 << 3
};

#define COMMANDS			4
#define COMMANDS_ALL		((1 << COMMANDS) - 1)
#define COMMANDS_TEXT_MAX	64

/* How the process was called, kept for a reload. */
struct command_line
{
	enum command command;
	int			argc;			/* the words after the command */
	char	  **argv;
	const char *version;
};

const char *command_name(enum command command);
void		command_names(int commands, char text[COMMANDS_TEXT_MAX]);

#endif							/* ACME_COMMAND_H */
