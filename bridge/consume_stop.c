/*
 * consume_stop.c
 *		The orderly end, its bounds, and when --once has nothing left.
 *
 * STOPPING takes no more messages, waits for the batch under way and for copies
 * that are unconfirmed, unless the broker takes none now, and acknowledges; then
 * CLOSING ends the connections, and the broker gives what was not handled to others.
 */
#include "consume_internal.h"

#include "log.h"

/* How long a queue that was not empty may be asked about again after. */
#define ASK_INTERVAL	50

static void
begin_closing(struct consume *c, msec_t now)
{
	consume_set_state(c, CONSUME_CLOSING);
	db_close(&c->db);
	broker_close(&c->broker, now);
	lane_close(&c->lane, now);
}

void
consume_begin_stopping(struct consume *c, const char *reason, msec_t now)
{
	if (c->state >= CONSUME_STOPPING)
		return;
	log_info("consumer stopping", LOG_TEXT("reason", reason),
			 LOG_NUM("running", c->batch.count),
			 LOG_NUM("unacknowledged", c->deliveries.count));
	c->stop_until = now + consume_span(c, SET_STOP_TIMEOUT);
	if (c->state == CONSUME_STARTING)
		begin_closing(c, now);
	else
		consume_set_state(c, CONSUME_STOPPING);
}

/* End with that status, orderly. */
void
consume_give_up(struct consume *c, enum exit_status status, msec_t now)
{
	if (c->state >= CONSUME_STOPPING)
		return;
	c->status = status;
	consume_begin_stopping(c, "cannot go on", now);
}

/* A blocked broker may be so for hours: the originals are still in their queue. */
static bool
is_finished(const struct consume *c)
{
	return c->batch.count == 0 &&
		(c->deliveries.in_state[DELIVERY_COPIED] == 0 || !lane_takes(&c->lane)) &&
		subscription_is_quiet(&c->subscription);
}

static void
keep_bounds(struct consume *c, msec_t now)
{
	subscription_end(&c->subscription, now);
	broker_flush(&c->broker);
	if (is_finished(c))
		begin_closing(c, now);
	else if (now >= c->stop_until)
	{
		log_warn("stop timeout: the broker will deliver again what is under way",
				 LOG_NUM("running", c->batch.count),
				 LOG_NUM("unconfirmed_copies",
						 c->deliveries.in_state[DELIVERY_COPIED]));
		c->status = EXIT_TEMPORARY;
		begin_closing(c, now);
	}
}

/* The broker may have been away already: then nothing more would wake us. */
void
consume_keep_stopping(struct consume *c, msec_t now)
{
	if (c->state == CONSUME_STOPPING)
		keep_bounds(c, now);
	if (c->state == CONSUME_CLOSING && c->broker.state == BROKER_DOWN &&
		lane_is_closed(&c->lane))
		consume_set_state(c, CONSUME_DONE);
}

/* How long --once waits for the broker: each host has its turn. */
static msec_t
patience(const struct consume *c)
{
	return consume_span(c, SET_CONNECT_TIMEOUT) * c->config->uri.count;
}

static void
give_up_waiting(struct consume *c, const char *what, msec_t now)
{
	log_error("--once cannot go on", LOG_TEXT("reason", what));
	consume_give_up(c, EXIT_TEMPORARY, now);
}

/* All that is held waits for its dead letter. */
static bool
only_dead_letters(const struct consume *c)
{
	return c->deliveries.count == consume_uncopied(c);
}

/* No more will come: the queue is empty, or may not give us more. */
static bool
got_all(const struct consume *c)
{
	return c->empty_answers >= 2 ||
		c->deliveries.count >= config_number(c->config, SET_PREFETCH);
}

/* The broker refuses dead letters; or there is no connection for them for long. */
static bool
lane_is_stuck(const struct consume *c, msec_t now)
{
	return c->lane.troubled || (c->lane.stuck_since != CLOCK_NEVER &&
								now - c->lane.stuck_since >= patience(c));
}

/*
 * With --once: all is done when nothing is unacknowledged and the queue was found
 * empty twice. What was on its way to us at the first answer is here before the
 * second. The queue is asked about beside dead letters, too: if they cannot leave,
 * all else is done first.
 */
void
consume_keep_once(struct consume *c, msec_t now)
{
	if (!consume_is_once(c) || c->state != CONSUME_RUNNING)
		return;
	if (c->not_ready_since != CLOCK_NEVER &&
		now - c->not_ready_since >= patience(c))
		give_up_waiting(c, "the broker is not reachable", now);
	else if (c->subscription.troubled)
		give_up_waiting(c, "the queue gives no messages", now);
	else if (c->deliveries.count > 0 && only_dead_letters(c) && got_all(c) &&
			 lane_is_stuck(c, now))
		give_up_waiting(c, "dead letters are not taken", now);
	else if (c->troubles > 0 && now - c->troubled_since >= patience(c))
		give_up_waiting(c, "the database takes no batch", now);
	else if (c->database_lost_at != CLOCK_NEVER &&
			 now - c->database_lost_at >= patience(c))
		give_up_waiting(c, "the database is not reachable", now);
	else if (c->deliveries.count == 0 && got_all(c))
		consume_begin_stopping(c, "drained", now);
	else if (only_dead_letters(c) && !got_all(c) && now >= c->ask_depth_at)
	{
		/* at once when it was empty, else the messages are on their way */
		c->ask_depth_at = c->empty_answers > 0 ? now : now + ASK_INTERVAL;
		subscription_ask_depth(&c->subscription);
		broker_flush(&c->broker);
	}
}

msec_t
consume_stop_deadline(const struct consume *c)
{
	if (c->state == CONSUME_STOPPING)
		return c->stop_until;
	if (!consume_is_once(c) || c->state != CONSUME_RUNNING)
		return CLOCK_NEVER;
	if (c->not_ready_since != CLOCK_NEVER)
		return c->not_ready_since + patience(c);
	if (!only_dead_letters(c))
		return CLOCK_NEVER;
	if (!got_all(c))
		return c->subscription.asking ? CLOCK_NEVER : c->ask_depth_at;
	return c->lane.stuck_since == CLOCK_NEVER ? CLOCK_NEVER :
		c->lane.stuck_since + patience(c);
}
