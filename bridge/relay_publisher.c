/*
 * relay_publisher.c
 *		The publisher: made, fed with what waits, listened to.
 *
 * Dead letters are offered last. At the start a refused login ends the process;
 * later a person may mend it while we wait.
 */
#include "relay_internal.h"

#include "connection.h"
#include "crash.h"
#include "log.h"
#include "rabbit.h"
#include "sink_stdout.h"
#include "telemetry.h"

static void
on_answered(void *owner, struct copy *copy, enum outcome outcome,
			const char *error)
{
	(void) owner;
	telemetry_copy(copy->lane, outcome);
	if (outcome == OUTCOME_PUBLISHED && copy->lane == LANE_BUSINESS)
		telemetry_observe(SPAN_CONFIRM, claims_age(copy));
	claims_answer(copy, outcome, error, clock_now());
}

static void
on_again(void *owner, struct copy *copy)
{
	struct relay *r = owner;

	claims_again(copy);
	if (r->state == RELAY_STOPPING)
		claims_answer(copy, OUTCOME_RELEASED,
					  "relay stopped before sending again", clock_now());
}

/* What was not sent is given back: the broker may be away for long. */
static void
on_lost(void *owner)
{
	struct relay *r = owner;

	if (r->epoch[0] == '\0')
		return;					/* the window is being forgotten */
	relay_release_rows(r, false, "broker connection lost before sending",
					   clock_now());
}

static void
on_failed(void *owner)
{
	relay_give_up(owner, EXIT_PUBLISHER, clock_now());
}

static enum publish_result
offer_copy(void *context, struct copy *copy, const struct message *m)
{
	struct relay *r = context;

	/* for the mid-window crash point: no more than half of the claim */
	if (crash_armed(CRASH_MID_WINDOW) && copy->lane != LANE_DEAD_LETTER &&
		r->claims.sent >= (r->claims.first->count + 1) / 2)
		return PUBLISH_FULL;
	return r->publisher->ops->publish(r->publisher, copy, m, clock_now());
}

/* Offer what waits, and send it. */
void
relay_pump(struct relay *r, msec_t now)
{
	r->claims.strict = config_number(r->config, SET_STRICT_ORDER) != 0;
	if (r->state == RELAY_ACTIVE && now < r->lease_until &&
		r->publisher->ops->ready(r->publisher))
	{
		if (r->claims.waiting > 0)
			claims_offer(&r->claims, offer_copy, r);
		if (r->failed.waiting > 0)
			claims_offer(&r->failed, offer_copy, r);
	}
	r->publisher->ops->flush(r->publisher);
	if (crash_armed(CRASH_MID_WINDOW) && r->claims.first &&
		r->claims.sent >= (r->claims.first->count + 1) / 2 &&
		r->publisher->ops->idle(r->publisher))
		crash_here(CRASH_MID_WINDOW);
}

/* How long --once waits for the publisher: each host has its turn. */
msec_t
relay_publisher_patience(const struct relay *r)
{
	return relay_span(r, SET_CONNECT_TIMEOUT) * r->config->uri.count;
}

/* Is the publisher ready? With --once it must be so within bounds. */
void
relay_watch_publisher(struct relay *r, msec_t now)
{
	if (r->publisher->ops->ready(r->publisher))
	{
		r->not_ready_since = CLOCK_NEVER;
		return;
	}
	if (r->not_ready_since == CLOCK_NEVER)
		r->not_ready_since = now;
	if (relay_is_once(r) && r->state == RELAY_ACTIVE &&
		now - r->not_ready_since >= relay_publisher_patience(r))
	{
		log_error("the broker is not reachable or blocked, giving up");
		relay_give_up(r, EXIT_TEMPORARY, now);
	}
}

void
relay_make_publisher(struct relay *r)
{
	struct publisher_events events = {on_answered, on_again, on_lost, on_failed,
	r};
	struct broker_settings settings =
		connection_settings(r->config, r->name, r->line->version);
	uint32_t	window = (uint32_t) config_number(r->config, SET_WINDOW);
	uint32_t	windows[LANES] = {
		[LANE_BUSINESS] = window,
		[LANE_AUDIT] = config_text(r->config, SET_AUDIT_EXCHANGE) ? window : 0,
		[LANE_DEAD_LETTER] = relay_has_dead_letters(r) ? DEAD_LETTER_ROWS : 0,
	};

	if (config_number(r->config, SET_SINK) == SINK_STDOUT)
		r->publisher = sink_stdout_new(&events);
	else
		r->publisher = rabbit_new(&settings, &events, windows,
								  relay_span(r, SET_CONFIRM_TIMEOUT));
}
