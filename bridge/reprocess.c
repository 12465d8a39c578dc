/*
 * reprocess.c
 *		"acme-outbox-bridge reprocess": puts the messages of a dead-letter queue
 *		back into their queue, once their cause is mended.
 *
 * Here are the options and the loop; the connection, the steps, the work on each
 * letter and the report have files of their own. It needs the broker alone, and there no more
 * than what a service may do with names that begin with its own.
 *
 * A run looks at as many messages as the queue held when it began, so that one
 * that fails again at once is not put back again and again. What it reports goes
 * to stdout, what the connection logs to stderr.
 */
#include "reprocess.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "connection.h"
#include "log.h"
#include "process.h"
#include "reprocess_internal.h"
#include "signals.h"

#define PROGRESS_INTERVAL	1000

_Static_assert(CONFIG_QUEUE_MAX + sizeof(LOCK_SUFFIX) == REPROCESS_NAME_MAX,
			   "the lock's name must fit into an AMQP short string");

/* The conditions, one a line. */
static bool
read_match(struct reprocess_options *options, const char *lines)
{
	char		error[MATCH_ERROR_MAX];
	char	   *copy = strdup(lines ? lines : "");
	char	   *rest = copy;
	char	   *line;
	bool		good = copy != NULL;

	while (good && (line = strsep(&rest, "\n")) != NULL)
	{
		if (*line == '\0')
			continue;
		good = match_add(&options->match, line, error);
		if (!good)
			fprintf(stderr, "acme-outbox-bridge: setting \"match\": %s\n",
					error);
	}
	free(copy);
	return good;
}

static bool
read_options(struct reprocess_options *options, const struct config *config)
{
	options->dlq = config_text(config, SET_DLQ);
	options->queue = config_text(config, SET_QUEUE);
	options->user = config->uri.auth == AUTH_EXTERNAL ? "" : config->uri.user;
	options->limit = config_number(config, SET_LIMIT);
	options->original_key = config_number(config, SET_ORIGINAL_KEY) != 0;
	options->dry_run = config_number(config, SET_DRY_RUN) != 0;
	options->answer_timeout = config_number(config, SET_CONFIRM_TIMEOUT);
	options->stop_timeout = config_number(config, SET_STOP_TIMEOUT);
	options->connect_timeout = config_number(config, SET_CONNECT_TIMEOUT);
	return read_match(options, config_text(config, SET_MATCH));
}

static void
turn(struct reprocess *r, msec_t limit)
{
	struct pollfd pfds[2] = {
		{.fd = signals_fd(), .events = POLLIN}, {.fd = -1}
	};
	msec_t		deadline = clock_earlier(reprocess_deadline(r), limit);
	msec_t		wait = deadline - clock_now();

	broker_poll_fd(&r->broker, &pfds[1]);
	if (poll(pfds, 2, wait < 0 ? 0 : wait > 1000 ? 1000 : (int) wait) < 0)
		pfds[0].revents = pfds[1].revents = 0;
	if (pfds[0].revents)
		signals_read();
	/* whoever reads the list may have seen enough */
	if (signals_stop_requested() || ferror(stdout))
		reprocess_stop(r, clock_now());
	reprocess_turn(r, pfds[1].revents, clock_now());
}

static void
run(struct reprocess *r)
{
	msec_t		report_at = clock_now() + PROGRESS_INTERVAL;
	uint64_t	done_before = 0;

	while (r->step != STEP_DONE)
	{
		msec_t		now;

		turn(r, report_at);
		now = clock_now();
		if (now < report_at)
			continue;
		if (r->started_at > 0 && !r->options.dry_run && !r->ended)
			report_progress(r, now, r->tally.done - done_before);
		done_before = r->tally.done;
		report_at = now + PROGRESS_INTERVAL;
	}
}

enum exit_status
reprocess_run(struct config *config, const struct command_line *line)
{
	struct reprocess r = {0};
	struct broker_settings settings;

	if (!read_options(&r.options, config))
		return EXIT_USAGE;
	snprintf(r.exchange, sizeof(r.exchange), "%s" REPROCESS_SUFFIX,
			 r.options.queue);
	snprintf(r.lock, sizeof(r.lock), "%s" LOCK_SUFFIX, r.options.queue);
	signals_setup();
	process_make_name(r.name, sizeof(r.name), r.exchange);
	settings = connection_settings(config, r.name, line->version);
	reprocess_connect(&r, &settings);
	run(&r);
	report_summary(&r, clock_now());
	dead_letter_free(&r.letter);
	dead_letter_free(&r.next);
	broker_free(&r.broker);
	return r.status;
}
