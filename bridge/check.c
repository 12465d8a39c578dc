/*
 * check.c
 *		"acme-outbox-bridge check": would a relay with these settings work here?
 *
 * It asks both servers and prints one line per question. It changes nothing,
 * takes no lease and publishes nothing; each question has the connect timeout.
 * The relay's settings apply as they are; --topic is an option of this command
 * alone. With --dlq and --queue it is about a reprocessing, and about a relay only
 * if it is told the origin.
 */
#include "check.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "log.h"

void
check_add_topic(struct check_topics *topics, const char *name, size_t length)
{
	for (int i = 0; i < topics->count; i++)
		if (strlen(topics->names[i]) == length &&
			memcmp(topics->names[i], name, length) == 0)
			return;
	if (length >= CHECK_TOPIC_MAX || topics->count == CHECK_TOPICS_MAX)
	{
		topics->too_many = true;
		return;
	}
	memcpy(topics->names[topics->count], name, length);
	topics->names[topics->count++][length] = '\0';
}

/* "a,b": exchange names are free to hold a comma, but nobody does that. */
static void
add_topic_list(struct check_topics *topics, const char *list)
{
	while (*list)
	{
		size_t		length = strcspn(list, ",");

		if (length > 0)
			check_add_topic(topics, list, length);
		list += length + (list[length] == ',');
	}
}

/* Take --topic out of the words; the others are settings. */
static int
take_topics(int argc, char **argv, struct check_topics *topics)
{
	int			kept = 0;

	for (int i = 0; i < argc; i++)
	{
		if (strncmp(argv[i], "--topic=", 8) == 0)
			add_topic_list(topics, argv[i] + 8);
		else if (strcmp(argv[i], "--topic") == 0 && i + 1 < argc)
			add_topic_list(topics, argv[++i]);
		else
			argv[kept++] = argv[i];
	}
	return kept;
}

static void
report_settings(struct report *report, const struct config *config)
{
	const char *origin = config_text(config, SET_ORIGIN);

	report_line(report, VERDICT_OK, "settings", NULL, "valid%s%s%s",
				origin ? "; origin \"" : "", origin ? origin : "",
				origin ? "\"" : "");
	if (config->uri.tls && config_number(config, SET_TLS_VERIFY) == 0)
		report_line(report, VERDICT_WARN, "settings",
					"remove tls-verify = false, give tls-ca-file",
					"the broker's certificate is not verified");
}

enum exit_status
check_run(const struct command_line *line)
{
	struct command_line settings = *line;
	static struct check_topics topics;
	struct report report = {0};
	struct config config;
	enum exit_status status;

	settings.argc = take_topics(line->argc, line->argv, &topics);
	status = config_load(&config, &settings);
	if (status != EXIT_OK)
		report_line(&report, VERDICT_FAIL, "settings",
					"a relay wants --origin; a consumer --queue, --consumer and "
					"--handler; a reprocessing --dlq and --queue; see "
					"acme-outbox-bridge check --help", "%s", config.error);
	else
	{
		/* what the connections log is in the report; --log-level debug shows it */
		log_setup(config_number(&config, SET_LOG_LEVEL) == LOG_DEBUG ?
				  LOG_DEBUG : LOG_ERROR,
				  (enum log_format) config_number(&config, SET_LOG_FORMAT));
		signal(SIGPIPE, SIG_IGN);
		srandom((unsigned) (getpid() ^ clock_now()));
		report_settings(&report, &config);
		if (config_text(&config, SET_ORIGIN) ||
			config_text(&config, SET_CONSUMER))
			check_database(&report, &config, &topics);
		else
			report_line(&report, VERDICT_SKIP, "database", NULL,
						"a reprocessing needs none");
		check_broker(&report, &config, &topics, line->version);
		status = EXIT_OK;
	}
	config_free(&config);
	if (!report_end(&report) && status == EXIT_OK)
		status = EXIT_CHECK_FAILED;
	return status;
}
