/*
 * main.c
 *		acme-outbox-bridge: the command line.
 *
 * Commands are few and their options come from config.c's table; here are only
 * the help text around it and the exit statuses.
 */
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "config.h"
#include "log.h"
#include "relay.h"

#ifndef BRIDGE_VERSION
#error "BRIDGE_VERSION comes from the Makefile, which reads the control file"
#endif

static void
print_help(void)
{
	puts("acme-outbox-bridge " BRIDGE_VERSION "\n"
		 "Drains the acme_outbox of one origin to RabbitMQ, with confirms.\n"
		 "\n"
		 "Usage: acme-outbox-bridge relay [options]\n"
		 "       acme-outbox-bridge check [options] [--topic NAME,...]\n"
		 "       acme-outbox-bridge --help | --version | --list-settings\n"
		 "\n"
		 "relay  sends the entries until it is stopped\n"
		 "check  says whether a relay with these options would work; it changes "
		 "nothing.\n"
		 "       --topic, repeatable, names exchanges to look for\n"
		 "\n"
		 "  --config FILE            read \"name = value\" lines (also: "
		 "ACME_OUTBOX_CONFIG)\n"
		 "  --dump-config            print the settings in force, passwords "
		 "masked\n"
		 "\n"
		 "Settings: --name VALUE or --name=VALUE; else the variable "
		 "ACME_OUTBOX_NAME;\n"
		 "else the file; else the default. A duration without unit is in "
		 "seconds.\n"
		 "Passwords are taken from variables and files, never from options.\n");
	config_help(stdout);
	puts("\n"
		 "Signals: TERM or INT stops orderly, a second one at once (128 + "
		 "signal);\n"
		 "HUP reloads the configuration file.\n"
		 "\n"
		 "Exit status:\n"
		 "   0  stopped orderly, or --once sent what was due\n"
		 "  64  usage or a bad setting\n"
		 "  65  the configuration file is missing or wrong\n"
		 "  69  at start: database unreachable or login failed\n"
		 "  70  internal error\n"
		 "  74  at start: the broker refused the login, or TLS with it failed; or stdout is closed\n"
		 "  75  --once or a stop could not finish, try again\n"
		 "  76  at start: extension missing, or its contract is unknown\n"
		 "  77  at start: not permitted, or this copy was not adopted\n"
		 "  78  check found something that fails");
}

static int
complain(const struct config *config, enum exit_status status)
{
	fprintf(stderr, "acme-outbox-bridge: %s\n", config->error);
	return status;
}

static bool
has_word(int argc, char **argv, const char *word)
{
	for (int i = 0; i < argc; i++)
		if (strcmp(argv[i], word) == 0)
			return true;
	return false;
}

static int
run_relay(int argc, char **argv)
{
	struct relay_arguments arguments = {argc, argv, BRIDGE_VERSION};
	struct config config;
	enum exit_status status;

	if (has_word(argc, argv, "--help"))
	{
		print_help();
		return EXIT_OK;
	}
	status = config_load(&config, argc, argv);
	if (status == EXIT_OK && has_word(argc, argv, "--dump-config"))
		config_dump(&config, stdout);
	else if (status == EXIT_OK)
	{
		log_setup((enum log_level) config_number(&config, SET_LOG_LEVEL),
				  (enum log_format) config_number(&config, SET_LOG_FORMAT));
		status = relay_run(&config, &arguments);
	}
	else
		complain(&config, status);
	config_free(&config);
	return status;
}

int
main(int argc, char **argv)
{
	const char *command = argc > 1 ? argv[1] : "";

	if (strcmp(command, "relay") == 0)
		return run_relay(argc - 2, argv + 2);
	if (strcmp(command, "check") == 0)
	{
		if (has_word(argc, argv, "--help"))
			print_help();
		else
			return check_run(argc - 2, argv + 2, BRIDGE_VERSION);
		return EXIT_OK;
	}
	if (strcmp(command, "--help") == 0 || strcmp(command, "-h") == 0)
		print_help();
	else if (strcmp(command, "--version") == 0)
		puts("acme-outbox-bridge " BRIDGE_VERSION);
	else if (strcmp(command, "--list-settings") == 0)
		config_list(stdout);
	else
	{
		fprintf(stderr, "acme-outbox-bridge: %s%s%s\n"
				"Try: acme-outbox-bridge --help\n",
				*command ? "there is no command \"" : "a command is missing",
				command, *command ? "\"" : "");
		return EXIT_USAGE;
	}
	return EXIT_OK;
}
