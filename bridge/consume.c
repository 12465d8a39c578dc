/*
 * consume.c
 *		Feeds one queue's messages into a SQL handler, each change exactly once.
 *
 *		STARTING	until the database was usable once
 *		RUNNING		take, handle in batches, acknowledge
 *		STOPPING	no more messages; finish the batch under way
 *		CLOSING		the broker connections' orderly end: it gives back the rest
 *		DONE
 *
 * One thread, one poll(). A batch is what has come by the time the database is
 * idle, so nothing waits for a full one; it is one statement, which is its own
 * transaction, committed durably. Only then its messages are acknowledged. What
 * is delivered again in between is a duplicate to the inbox.
 *
 * Tags belong to the channel they came on: when it is gone, so are all
 * deliveries, and the result of the batch under way is for the inbox alone.
 */
#include "consume_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "http.h"
#include "log.h"
#include "process.h"
#include "reload.h"
#include "signals.h"
#include "telemetry.h"

static const char *const state_names[] = {
	"starting", "running", "stopping", "closing", "done"
};

void
consume_set_state(struct consume *c, enum consume_state state)
{
	static const bool allowed[5][5] = {
		[CONSUME_STARTING] = {[CONSUME_RUNNING] = true,
		[CONSUME_CLOSING] = true},
		[CONSUME_RUNNING] = {[CONSUME_STOPPING] = true},
		[CONSUME_STOPPING] = {[CONSUME_CLOSING] = true},
		[CONSUME_CLOSING] = {[CONSUME_DONE] = true},
	};

	if (!allowed[c->state][state])
	{
		log_error("impossible state change of the consumer",
				  LOG_TEXT("from", state_names[c->state]),
				  LOG_TEXT("to", state_names[state]));
		abort();
	}
	log_debug("consumer state", LOG_TEXT("state", state_names[state]));
	c->state = state;
}

const char *
consume_state_name(const struct consume *c)
{
	return state_names[c->state];
}

msec_t
consume_span(const struct consume *c, enum setting setting)
{
	return config_number(c->config, setting);
}

bool
consume_is_once(const struct consume *c)
{
	return config_number(c->config, SET_ONCE) != 0;
}

/* Messages that were given up and whose dead letter is not confirmed. */
int
consume_uncopied(const struct consume *c)
{
	return c->deliveries.in_state[DELIVERY_DEAD] +
		c->deliveries.in_state[DELIVERY_COPIED];
}

static void
take_settings(struct consume *c)
{
	c->deliveries.policy = (struct delivery_policy){
		.max_attempts = (int) config_number(c->config, SET_MAX_ATTEMPTS),
		.retry_backoff = consume_span(c, SET_RETRY_BACKOFF),
		.publishes = config_text(c->config, SET_DEAD_LETTER_EXCHANGE) != NULL,
	};
}

static void
handle_signals(struct consume *c, msec_t now)
{
	signals_read();
	if (signals_take_reload())
	{
		reload_config(c->config, c->line);
		take_settings(c);
	}
	if (signals_stop_requested())
		consume_begin_stopping(c, "signal", now);
}

/* The next moment at which something is due though nothing comes in. */
static msec_t
next_deadline(struct consume *c)
{
	msec_t		deadline = c->summary_at;

	deadline = clock_earlier(deadline, db_deadline(&c->db));
	deadline = clock_earlier(deadline, consume_broker_deadline(c));
	deadline = clock_earlier(deadline, consume_stop_deadline(c));
	return clock_earlier(deadline, consume_batch_due(c));
}

static void
start_telling(struct consume *c)
{
	struct telemetry_source source = {
		.version = c->line->version,
		.command = command_name(c->config->command),
		.name = config_text(c->config, SET_CONSUMER),
		.states = state_names,
		.state_count = CONSUME_DONE + 1,
		.outcomes = {
			[COUNT_APPLIED] = "applied", [COUNT_DUPLICATE] = "duplicate",
			[COUNT_PARKED] = "parked", [COUNT_FAILED] = "failed",
			[COUNT_DEAD_LETTERED] = "dead_lettered"
		},
		.gives_up = c->deliveries.policy.publishes,
		.spans = 1U << SPAN_HANDLE,
	};

	telemetry_start(&source);
}

/* For whoever reads the metrics. */
static void
tell(struct consume *c)
{
	struct telemetry_now now = {
		.state = (int) c->state,
		.serving = c->state == CONSUME_RUNNING,
		.database = c->db.state >= DB_IDLE && c->probed,
		.broker = c->not_ready_since == CLOCK_NEVER,
		.in_flight = c->deliveries.count,
		.waiting = c->deliveries.in_state[DELIVERY_WAITING],
		.uncopied = consume_uncopied(c),
		.letters_taken = lane_takes(&c->lane),
	};

	now.stalled = !now.letters_taken &&
		now.uncopied >= config_number(c->config, SET_PREFETCH);

	for (int i = 0; i < COUNTERS; i++)
		telemetry_count_is(i, c->totals[i] + c->counts[i]);
	telemetry_turn(&now);
}

static void
turn(struct consume *c)
{
	struct pollfd fds[4] = {
		{.fd = signals_fd(), .events = POLLIN},
		{.fd = -1},				/* poll() passes over those not in use */
		{.fd = -1},
		{.fd = -1},
	};
	msec_t		now;
	int			wait;

	db_poll_fd(&c->db, &fds[1]);
	broker_poll_fd(&c->broker, &fds[2]);
	lane_poll_fd(&c->lane, &fds[3]);
	wait = clock_poll_timeout(next_deadline(c));
	telemetry_sleep(clock_now() + wait);
	if (poll(fds, 4, wait) < 0)
	{
		if (errno != EINTR)
			abort();
		fds[1].revents = fds[2].revents = fds[3].revents = 0;
	}
	now = clock_now();
	telemetry_awake(now);
	handle_signals(c, now);
	db_turn(&c->db, fds[1].revents, now);
	consume_broker_turn(c, fds[2].revents, now);
	consume_lane_turn(c, fds[3].revents, now);
	consume_next_batch(c, now);
	consume_settle(c);
	consume_keep_once(c, now);
	consume_keep_stopping(c, now);
	consume_keep_summary(c, now);
	tell(c);
}

/* Who we are, at the broker: it shows connection names and consumer tags. */
static void
make_name(struct consume *c)
{
	char		what[CONSUME_NAME_MAX / 2];

	snprintf(what, sizeof(what), "%.100s:%.100s",
			 config_text(c->config, SET_CONSUMER), process_host());
	process_make_name(c->name, sizeof(c->name), what);
}

static void
log_start(const struct consume *c)
{
	const char *exchange = config_text(c->config, SET_DEAD_LETTER_EXCHANGE);

	log_info("consumer starting", LOG_TEXT("version", c->line->version),
			 LOG_TEXT("queue", config_text(c->config, SET_QUEUE)),
			 LOG_TEXT("consumer", config_text(c->config, SET_CONSUMER)),
			 LOG_TEXT("handler", config_text(c->config, SET_HANDLER)),
			 LOG_TEXT("dead_letters", exchange ? exchange : "the queue's own"),
			 LOG_NUM("contract", CONTRACT_VERSION));
}

enum exit_status
consume_run(struct config *config, const struct command_line *line)
{
	static struct consume consume;
	struct consume *c = &consume;

	c->config = config;
	c->line = line;
	c->started_at = c->summary_since = clock_now();
	c->summary_at = c->summary_since + consume_span(c, SET_SUMMARY_INTERVAL);
	c->not_ready_since = c->started_at;
	c->database_lost_at = CLOCK_NEVER;
	c->limit = BATCH_MAX;
	take_settings(c);
	make_name(c);
	signals_setup();
	log_start(c);
	start_telling(c);
	if (!http_start(config_text(config, SET_HTTP)))
		return EXIT_USAGE;
	backoff_init(&c->pause_backoff, consume_span(c, SET_RECONNECT_MIN),
				 consume_span(c, SET_RECONNECT_MAX));
	consume_make_broker(c);
	consume_make_db(c);
	while (c->state != CONSUME_DONE)
		turn(c);
	consume_keep_summary(c, 0);
	consume_log_summary(c, "consumer stopped", c->totals,
						clock_now() - c->started_at);
	subscription_reset(&c->subscription);
	deliveries_clear(&c->deliveries);
	lane_free(&c->lane);
	broker_free(&c->broker);
	db_free(&c->db);
	http_stop();
	return c->status;
}
