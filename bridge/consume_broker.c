/*
 * consume_broker.c
 *		The broker connection on which messages come and are acknowledged, and what
 *		its end means. Nothing is published on it (dead_letter_lane.c).
 *
 * Connecting goes on beside the database's; the queue is subscribed to once the
 * database was usable. At the start a refused login or a queue that may not be
 * read ends the process; a queue that does not exist is waited for, since
 * whoever declares it may come later.
 */
#include "consume_internal.h"

#include <stdio.h>

#include "connection.h"
#include "crash.h"
#include "log.h"

/* ---- deliveries ---- */

static void
on_delivered(void *owner, struct delivery *d)
{
	struct consume *c = owner;

	c->empty_answers = 0;
	deliveries_add(&c->deliveries, d);
}

/* The tags are void; what runs is for the inbox alone. */
static void
forget_deliveries(struct consume *c)
{
	c->batch.forgotten = true;
	c->batch.count = 0;
	c->empty_answers = 0;
	deliveries_clear(&c->deliveries);
}

static int
on_subscription_lost(void *owner, int code, const char *reason)
{
	struct consume *c = owner;
	int			held = c->deliveries.count;

	forget_deliveries(c);
	if (code != AMQP_ACCESS_REFUSED || c->subscription.was_active ||
		c->state != CONSUME_RUNNING)
		return held;
	log_error("cannot start: the queue may not be read",
			  LOG_TEXT("queue", config_text(c->config, SET_QUEUE)),
			  LOG_TEXT("reason", reason),
			  LOG_TEXT("next_step", "grant the broker's user read on the queue"));
	consume_give_up(c, EXIT_NOT_PERMITTED, clock_now());
	return -1;
}

static void
on_depth(void *owner, uint32_t messages)
{
	struct consume *c = owner;

	c->empty_answers = messages == 0 ? c->empty_answers + 1 : 0;
}

/* ---- the connection's events ---- */

static void
on_up(void *owner)
{
	struct consume *c = owner;

	c->not_ready_since = CLOCK_NEVER;
}

static void
on_down(void *owner, int code)
{
	struct consume *c = owner;

	(void) code;
	c->not_ready_since = clock_now();
	subscription_reset(&c->subscription);
	if (c->state == CONSUME_CLOSING)
		return;
	if (c->deliveries.count > 0)
		log_warn("messages forgotten, the broker will deliver them again",
				 LOG_NUM("messages", c->deliveries.count),
				 LOG_NUM("running", c->batch.count));
	forget_deliveries(c);
}

static void
on_frame(void *owner, const struct frame *frame, msec_t now)
{
	struct consume *c = owner;

	if (frame->channel == SUBSCRIPTION_CHANNEL)
		subscription_frame(&c->subscription, frame, now);
	else
		broker_drop(&c->broker, 0, "frame on an unknown channel", "");
}

/* The broker blocks none but those who publish. */
static void
on_unblocked(void *owner, msec_t blocked_for)
{
	(void) owner;
	(void) blocked_for;
}

/* After the start a person may mend it while we wait. */
static void
on_refused(void *owner, const char *reason)
{
	struct consume *c = owner;
	bool		starting = !broker_was_ready(&c->broker);

	broker_log_refusal(&c->broker, reason, starting);
	if (starting)
		consume_give_up(c, EXIT_PUBLISHER, clock_now());
}

/* ---- turns ---- */

static void
send_settlement(void *context, const struct settlement *settlement)
{
	struct consume *c = context;

	subscription_settle(&c->subscription, settlement);
}

/* All of the turn's acknowledgements leave in one send. */
void
consume_settle(struct consume *c)
{
	int			decided = c->deliveries.in_state[DELIVERY_DONE] +
		c->deliveries.in_state[DELIVERY_REFUSED];

	if (decided > 0)
		deliveries_settle(&c->deliveries, send_settlement, c);
	broker_flush(&c->broker);
	if (decided > 0)
		crash_here(CRASH_ACKNOWLEDGED);
}

void
consume_broker_turn(struct consume *c, short revents, msec_t now)
{
	broker_turn(&c->broker, revents, now);
	if (c->state == CONSUME_RUNNING)
		subscription_turn(&c->subscription, now);
}

void
consume_lane_turn(struct consume *c, short revents, msec_t now)
{
	lane_turn(&c->lane, revents, now);
	c->counts[COUNT_DEAD_LETTERED] += c->lane.confirmed;
	c->lane.confirmed = 0;
}

msec_t
consume_broker_deadline(struct consume *c)
{
	msec_t		deadline = broker_deadline(&c->broker);

	if (c->state == CONSUME_RUNNING)
		deadline = clock_earlier(deadline,
								 subscription_deadline(&c->subscription));
	return clock_earlier(deadline, lane_deadline(&c->lane));
}

void
consume_make_broker(struct consume *c)
{
	struct broker_settings settings =
		connection_settings(c->config, c->name, c->line->version);
	struct subscription_settings subscription = {
		.queue = config_text(c->config, SET_QUEUE),
		.tag = c->name,
		.prefetch = (int) config_number(c->config, SET_PREFETCH),
		.answer_timeout = settings.connect_timeout,
		.retry_min = settings.reconnect_min,
		.retry_max = settings.reconnect_max,
	};
	struct dead_copy_settings letters = {
		.exchange = config_text(c->config, SET_DEAD_LETTER_EXCHANGE),
		.service = config_text(c->config, SET_CONSUMER),
	};
	struct broker_events events = {on_up, on_down, on_frame, on_unblocked,
	on_refused, c};
	struct subscription_events deliveries = {on_delivered, on_subscription_lost,
	on_depth, c};

	broker_init(&c->broker, &settings, &events);
	subscription_init(&c->subscription, &c->broker, &subscription, &deliveries);
	lane_init(&c->lane, &settings, &c->deliveries, &letters,
			  consume_span(c, SET_CONFIRM_TIMEOUT));
}
