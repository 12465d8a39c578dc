/*
 * main.c
 *		acme-outbox-bridge: the command line.
 *
 * One table holds the commands with their help; their options come from
 * config.c's table. Here are also the texts around both, and the exit statuses.
 */
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "config.h"
#include "consume.h"
#include "log.h"
#include "relay.h"
#include "reprocess.h"

#ifndef BRIDGE_VERSION
#error "BRIDGE_VERSION comes from the Makefile, which reads the control file"
#endif

#define PROGRAM		"acme-outbox-bridge"

typedef enum exit_status (*command_run) (struct config *config,
										 const struct command_line *line);

/* A command that can be given. */
struct entry
{
	enum command id;
	const char *arguments;		/* beside the settings */
	const char *purpose;
	/* One of these. */
	command_run run;			/* with its settings loaded */
	enum exit_status (*run_plain) (const struct command_line *line);
};

static const struct entry commands[] = {
	{COMMAND_RELAY, "",
		"sends the entries of one origin to RabbitMQ until it is stopped",
	relay_run, NULL},
	{COMMAND_REPROCESS, "",
		"puts the messages of a dead-letter queue back into their queue, once "
		"the cause\n"
		"           is mended: each is copied, confirmed, then deleted",
	reprocess_run, NULL},
	{COMMAND_CONSUME, "",
		"hands the messages of a queue to a SQL function, each change exactly "
		"once",
	consume_run, NULL},
	{COMMAND_CHECK, " [--topic NAME,...]",
		"says whether a relay with these options would work, or with --dlq and\n"
		"           --queue a reprocessing, or with --queue, --consumer and --handler\n"
		"           a consumer; it changes nothing. --topic, repeatable, "
		"names\n"
		"           exchanges to look for",
	NULL, check_run},
};

#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

static const char settings_text[] =
"Settings: --name VALUE or --name=VALUE; else the variable ACME_OUTBOX_NAME;\n"
"else the file; else the default. A duration without unit is in seconds.\n"
"Passwords are taken from variables and files, never from options.\n";

static const char end_text[] =
"Signals: TERM or INT stops orderly, a second one at once (128 + signal);\n"
"HUP reloads the configuration file.\n"
"\n"
"Exit status:\n"
"   0  stopped orderly, or --once sent what was due\n"
"  64  usage or a bad setting\n"
"  65  the configuration file is missing or wrong\n"
"  66  reprocess: the queue or the dead-letter queue does not exist\n"
"  69  at start: database unreachable or login failed\n"
"  70  internal error\n"
"  73  reprocess: another run is at work on the queue\n"
"  74  at start: the broker refused the login, or TLS with it failed; reprocess: a right is missing; or stdout is closed\n"
"  75  --once, a stop or a reprocessing could not finish, try again\n"
"  76  at start: extension, inbox or handler missing, or the contract is unknown\n"
"  77  at start: not permitted, or this copy was not adopted\n"
"  78  check found something that fails";

static void
print_help(void)
{
	puts(PROGRAM " " BRIDGE_VERSION "\n"
		 "Carries events between the acme_outbox of a PostgreSQL database and "
		 "RabbitMQ.\n");
	for (size_t i = 0; i < COMMANDS; i++)
		printf("%s" PROGRAM " %s [options]%s\n", i ? "       " : "Usage: ",
			   command_name(commands[i].id), commands[i].arguments);
	puts("       " PROGRAM " COMMAND --help    the command's options\n"
		 "       " PROGRAM " --help | --version | --list-settings\n");
	for (size_t i = 0; i < COMMANDS; i++)
		printf("%-9s  %s\n", command_name(commands[i].id),
			   commands[i].purpose);
	printf("\n%s\n", settings_text);
	puts(end_text);
}

static void
print_command_help(const struct entry *entry)
{
	const char *name = command_name(entry->id);

	printf("Usage: " PROGRAM " %s [options]%s\n\n%-9s  %s\n\n", name,
		   entry->arguments, name, entry->purpose);
	puts("  --config FILE            read \"name = value\" lines (also: "
		 "ACME_OUTBOX_CONFIG)\n"
		 "  --dump-config            print the settings in force, passwords "
		 "masked\n");
	puts(settings_text);
	config_help(entry->id, stdout);
	printf("\n%s\n", end_text);
}

static bool
has_word(const struct command_line *line, const char *word)
{
	for (int i = 0; i < line->argc; i++)
		if (strcmp(line->argv[i], word) == 0)
			return true;
	return false;
}

static enum exit_status
run_loaded(command_run run, const struct command_line *line)
{
	struct config config;
	enum exit_status status = config_load(&config, line);

	if (status != EXIT_OK)
		fprintf(stderr, PROGRAM ": %s\n", config.error);
	else if (has_word(line, "--dump-config"))
		config_dump(&config, stdout);
	else
	{
		log_setup((enum log_level) config_number(&config, SET_LOG_LEVEL),
				  (enum log_format) config_number(&config, SET_LOG_FORMAT));
		status = run(&config, line);
	}
	config_free(&config);
	return status;
}

static enum exit_status
run_command(const struct entry *entry, const struct command_line *line)
{
	if (has_word(line, "--help"))
	{
		print_command_help(entry);
		return EXIT_OK;
	}
	return entry->run ? run_loaded(entry->run, line) :
		entry->run_plain(line);
}

static enum exit_status
complain(const char *word)
{
	fprintf(stderr, PROGRAM ": %s%s%s\nTry: " PROGRAM " --help\n",
			*word ? "there is no command \"" : "a command is missing", word,
			*word ? "\"" : "");
	return EXIT_USAGE;
}

int
main(int argc, char **argv)
{
	const char *word = argc > 1 ? argv[1] : "";

	for (size_t i = 0; i < COMMANDS; i++)
		if (strcmp(word, command_name(commands[i].id)) == 0)
			return run_command(&commands[i], &(struct command_line){
							   commands[i].id, argc - 2, argv + 2,
							   BRIDGE_VERSION});
	if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)
		print_help();
	else if (strcmp(word, "--version") == 0)
		puts(PROGRAM " " BRIDGE_VERSION);
	else if (strcmp(word, "--list-settings") == 0)
		config_list(stdout);
	else
		return complain(word);
	return EXIT_OK;
}
