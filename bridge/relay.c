/*
 * relay.c
 *		Drains one origin: claim, publish, confirm, settle.
 *
 *		OFFLINE	no database connection
 *		STANDBY	another relay may be active: ask for the lease every second
 *		ACTIVE	ours: claim ahead while the window is being confirmed
 *		STOPPING	no new claims; confirms, settles, then release the lease
 *		CLOSING	the publisher's orderly end
 *		DONE
 *
 * One thread, one poll(). The database connection runs one statement at a time;
 * relay_next_statement() picks it. What waits is offered to the publisher each turn.
 *
 * Three rules keep the promise (design, sections 4, 5 and 9):
 *	- a row is offered only after the claim that handed it out has committed;
 *	- nothing is sent past the lease's deadline, counted from before the
 *	  acquire or renew was sent (the publisher checks it before every send);
 *	- whoever loses the database or the lease forgets its window: the next epoch
 *	  hands the rows out again.
 */
#include "relay_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>

#include "http.h"
#include "log.h"
#include "process.h"
#include "reload.h"
#include "signals.h"
#include "telemetry.h"

static const char *const state_names[] = {
	"offline", "standby", "active", "stopping", "closing", "done"
};

void
relay_set_state(struct relay *r, enum relay_state state)
{
	static const bool allowed[6][6] = {
		[RELAY_OFFLINE] = {[RELAY_STANDBY] = true, [RELAY_CLOSING] = true},
		[RELAY_STANDBY] = {[RELAY_OFFLINE] = true, [RELAY_ACTIVE] = true,
		[RELAY_STOPPING] = true, [RELAY_CLOSING] = true},
		[RELAY_ACTIVE] = {[RELAY_OFFLINE] = true, [RELAY_STANDBY] = true,
		[RELAY_STOPPING] = true},
		[RELAY_STOPPING] = {[RELAY_CLOSING] = true},
		[RELAY_CLOSING] = {[RELAY_DONE] = true},
	};

	if (!allowed[r->state][state])
	{
		log_error("impossible state change of the relay",
				  LOG_TEXT("from", state_names[r->state]),
				  LOG_TEXT("to", state_names[state]));
		abort();
	}
	log_debug("relay state", LOG_TEXT("state", state_names[state]));
	r->state = state;
}

const char *
relay_state_name(const struct relay *r)
{
	return state_names[r->state];
}

msec_t
relay_span(const struct relay *r, enum setting setting)
{
	return config_number(r->config, setting);
}

bool
relay_is_once(const struct relay *r)
{
	return config_number(r->config, SET_ONCE) != 0;
}

/* Entries handed out and not settled, dead letters among them. */
int
relay_rows(const struct relay *r)
{
	return r->claims.rows + r->failed.rows;
}

/* Messages with the publisher. */
int
relay_unconfirmed(const struct relay *r)
{
	return r->claims.sent + r->failed.sent;
}

void
relay_release_rows(struct relay *r, bool sent_too, const char *reason,
				   msec_t now)
{
	claims_release(&r->claims, sent_too, reason, now);
	claims_release(&r->failed, sent_too, reason, now);
}

static void
handle_signals(struct relay *r, msec_t now)
{
	signals_read();
	if (signals_take_reload())
		reload_config(r->config, r->line);
	if (signals_stop_requested())
		relay_begin_stopping(r, "signal", now);
}

/* The next moment at which something is due though nothing comes in. */
static msec_t
next_deadline(struct relay *r)
{
	msec_t		deadline = r->summary_at;

	deadline = clock_earlier(deadline, db_deadline(&r->db));
	deadline = clock_earlier(deadline,
							 r->publisher->ops->deadline(r->publisher));
	if (r->state == RELAY_STOPPING)
	{
		deadline = clock_earlier(deadline, r->stop_until);
		if (relay_unconfirmed(r) > 0)
			deadline = clock_earlier(deadline, r->confirm_until);
	}
	if (relay_is_once(r) && r->not_ready_since != CLOCK_NEVER)
		deadline = clock_earlier(deadline, r->not_ready_since +
								 relay_publisher_patience(r));
	if (r->db.state != DB_IDLE)
		return deadline;
	if (r->state == RELAY_STANDBY)
		return clock_earlier(deadline, r->acquire_at);
	deadline = clock_earlier(deadline, r->renew_at);
	deadline = clock_earlier(deadline, claims_settle_due(&r->claims));
	deadline = clock_earlier(deadline, claims_settle_due(&r->failed));
	if (r->state != RELAY_ACTIVE)
		return deadline;
	deadline = clock_earlier(deadline, relay_claim_due(r));
	deadline = clock_earlier(deadline, relay_failed_due(r));
	return clock_earlier(deadline, r->duty_at);
}

_Static_assert(OUTCOMES <= TELEMETRY_OUTCOMES && LANES <= TELEMETRY_LANES,
			   "too much to tell");

static void
start_telling(struct relay *r)
{
	struct telemetry_source source = {
		.version = r->line->version,
		.command = command_name(r->config->command),
		.name = config_text(r->config, SET_ORIGIN),
		.states = state_names,
		.state_count = RELAY_DONE + 1,
		.copy_outcomes = OUTCOME_ARCHIVED,	/* which only rows can have */
		.spans = 1U << SPAN_CONFIRM | 1U << SPAN_CLAIM | 1U << SPAN_SETTLE,
	};

	for (int i = 0; i < OUTCOMES; i++)
		source.outcomes[i] = outcome_name((enum outcome) i);
	for (int i = 0; i < LANES; i++)
		source.lanes[i] = lane_name((enum lane) i);
	telemetry_start(&source);
}

/* For whoever reads the metrics. */
static void
tell(struct relay *r)
{
	struct telemetry_now now = {
		.state = (int) r->state,
		.serving = r->state == RELAY_STANDBY || r->state == RELAY_ACTIVE,
		.database = r->db.state >= DB_IDLE,
		.broker = r->publisher->ops->ready(r->publisher),
		.in_flight = relay_unconfirmed(r),
		.waiting = r->claims.waiting,
	};

	telemetry_turn(&now);
}

static void
turn(struct relay *r)
{
	struct pollfd fds[3] = {
		{.fd = signals_fd(), .events = POLLIN},
		{.fd = -1},				/* poll() passes over those not in use */
		{.fd = -1},
	};
	msec_t		now;
	int			wait;

	db_poll_fd(&r->db, &fds[1]);
	r->publisher->ops->poll_fd(r->publisher, &fds[2]);
	wait = clock_poll_timeout(next_deadline(r));
	telemetry_sleep(clock_now() + wait);
	if (poll(fds, 3, wait) < 0)
	{
		if (errno != EINTR)
			abort();
		fds[1].revents = fds[2].revents = 0;
	}
	now = clock_now();
	telemetry_awake(now);
	handle_signals(r, now);
	db_turn(&r->db, fds[1].revents, now);
	r->publisher->ops->turn(r->publisher, fds[2].revents, now);
	relay_watch_publisher(r, now);
	relay_pump(r, now);
	relay_next_statement(r, now);
	relay_keep_stopping(r, now);
	relay_keep_summary(r, now);
	tell(r);
}

enum exit_status
relay_run(struct config *config, const struct command_line *line)
{
	struct relay relay = {
		.config = config,
		.line = line,
		.state = RELAY_OFFLINE,
		.not_ready_since = CLOCK_NEVER,
		.started_at = clock_now(),
	};
	struct claim_settings claim_settings = {
		.origin = config_text(config, SET_ORIGIN),
		.audit_exchange = config_text(config, SET_AUDIT_EXCHANGE),
		.window = (int) config_number(config, SET_WINDOW),
	};
	struct relay *r = &relay;
	const char *name = config_text(config, SET_RELAY_NAME);

	r->summary_since = r->started_at;
	r->summary_at = r->summary_since + relay_span(r, SET_SUMMARY_INTERVAL);
	process_make_name(r->name, sizeof(r->name), name ? name : process_host());
	signals_setup();
	log_info("relay starting", LOG_TEXT("version", line->version),
			 LOG_TEXT("origin", config_text(config, SET_ORIGIN)),
			 LOG_TEXT("relay", r->name), LOG_NUM("contract", CONTRACT_VERSION));
	start_telling(r);
	if (!http_start(config_text(config, SET_HTTP)))
		return EXIT_USAGE;
	claims_init(&r->claims, &claim_settings);
	relay_make_dead_letters(r);
	backoff_init(&r->claim_backoff, relay_span(r, SET_RECONNECT_MIN),
				 relay_span(r, SET_RECONNECT_MAX));
	r->settle_backoff = r->claim_backoff;
	relay_make_publisher(r);
	relay_make_db(r);
	while (r->state != RELAY_DONE)
		turn(r);
	relay_keep_summary(r, 0);
	relay_log_summary(r, "relay stopped", r->totals, clock_now() - r->started_at);
	claims_clear(&r->claims);
	claims_clear(&r->failed);
	r->publisher->ops->free(r->publisher);
	db_free(&r->db);
	http_stop();
	return r->status;
}
