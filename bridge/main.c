/*
 * main.c
 *		acme-outbox-bridge: the command line.
 *
 * One table holds the commands with their help; their options come from
 * settings.c's table, their exit statuses from exits.c. Here are the texts around them.
 */
#include <assert.h>
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

#define STOPS	"TERM or INT stops orderly, a second one at once (128 + signal)"
#define RELOADS	";\nHUP reloads the configuration file"

/* A command that can be given. */
struct entry
{
	enum command id;
	const char *arguments;		/* beside the settings */
	const char *purpose;
	const char *signals;
	/* One of these. */
	command_run run;			/* with its settings loaded */
	enum exit_status (*run_plain) (const struct command_line *line);
};

static const struct entry commands[] = {
	{COMMAND_RELAY, "",
		"sends the entries of one origin to RabbitMQ until it is stopped",
	STOPS RELOADS, relay_run, NULL},
	{COMMAND_REPROCESS, "",
		"puts the messages of a dead-letter queue back into their queue, once "
		"the cause\n"
		"           is mended: each is copied, confirmed, then deleted",
	STOPS, reprocess_run, NULL},
	{COMMAND_CONSUME, "",
		"hands the messages of a queue to a SQL function, each change exactly "
		"once",
	STOPS RELOADS, consume_run, NULL},
	{COMMAND_CHECK, " [--topic NAME,...]",
		"says whether a relay with these options would work, or with --dlq and\n"
		"           --queue a reprocessing, or with --queue, --consumer and --handler\n"
		"           a consumer; it changes nothing. --topic, repeatable, "
		"names\n"
		"           exchanges to look for",
	NULL, NULL, check_run},
};

_Static_assert(sizeof(commands) / sizeof(commands[0]) == COMMANDS,
			   "each command has an entry");

static const char settings_text[] =
"Settings: --name VALUE or --name=VALUE; else the variable ACME_OUTBOX_NAME;\n"
"else the file; else the default. A duration without unit is in seconds.\n"
"Passwords are taken from variables and files, never from options.\n";

static void
print_help(void)
{
	puts(PROGRAM " " BRIDGE_VERSION "\n"
		 "Carries events between the acme_outbox of a PostgreSQL database and "
		 "RabbitMQ.\n");
	for (int i = 0; i < COMMANDS; i++)
		printf("%s" PROGRAM " %s [options]%s\n", i ? "       " : "Usage: ",
			   command_name(commands[i].id), commands[i].arguments);
	puts("       " PROGRAM " COMMAND --help    the command's options\n"
		 "       " PROGRAM " --help | --version | --list-settings\n");
	for (int i = 0; i < COMMANDS; i++)
		printf("%-9s  %s\n", command_name(commands[i].id),
			   commands[i].purpose);
	printf("\n%s\n", settings_text);
	exits_help_all(stdout);
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
	if (entry->signals)
		printf("\nSignals: %s.\n", entry->signals);
	putchar('\n');
	exits_help(entry->id, stdout);
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
	enum exit_status status;

	if (has_word(line, "--help"))
	{
		print_command_help(entry);
		return EXIT_OK;
	}
	status = entry->run ? run_loaded(entry->run, line) : entry->run_plain(line);
	assert(exits_has(entry->id, status));
	return status;
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

	for (int i = 0; i < COMMANDS; i++)
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
