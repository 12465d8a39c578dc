/*
 * dead_letter_lane.c
 *		Publishes the copies of what was given up, on a connection of its own.
 *
 * While RabbitMQ has an alarm (memory, disk) it stops reading from connections that
 * have published. The acknowledgements of a consumer that published on its own
 * connection would not be read either, and its queue would stand still for a few
 * dead letters. So those leave by another connection: it may be blocked, refused or
 * down, and messages go on being handled and acknowledged. It is opened for the
 * first dead letter, since most consumers never have one, and kept from then on.
 *
 * Its channel is		CLOSED -> OPENING -> OPEN, and back to CLOSED
 *
 * The copies are mandatory and confirmed, and only then their originals are
 * acknowledged. All go to one exchange with one routing key, so that one that is
 * returned speaks for those behind it: none under way counts then, and all are
 * sent again later; what was confirmed meanwhile becomes a second copy. The same
 * holds for a channel that the broker closes (no such exchange, no permission), a
 * confirm that does not come and a connection that is lost. A nack speaks for its own
 * copies only: a queue that is full takes some and not others, and sends its nacks
 * first; were those confirmed behind them sent again, they would fill it again.
 * Messages that wait here take part of the consumer's prefetch, which bounds them.
 *
 * One line is logged when the trouble begins, one when it is over; those of the
 * connection itself are the broker's (broker.c).
 */
#include "dead_letter_lane.h"

#include <stdio.h>

#include "amqp_text.h"
#include "crash.h"
#include "header_names.h"
#include "log.h"

#define POOL_PAGE		16384
#define RETRY_MIN		1000
#define RETRY_MAX		60000
#define TEXT_MAX		256

static int
under_way(const struct dead_letter_lane *lane)
{
	return lane->deliveries->in_state[DELIVERY_COPIED];
}

/* Messages whose dead letter is not confirmed. */
static int
waiting(const struct dead_letter_lane *lane)
{
	return lane->deliveries->in_state[DELIVERY_DEAD] + under_way(lane);
}

static const char *
next_step_for(int code)
{
	switch (code)
	{
		case AMQP_NO_ROUTE:
			return "bind a queue to the exchange for the routing key "
				DEAD_LETTER_KEY;
		case AMQP_NOT_FOUND:
			return "declare the exchange in this virtual host";
		case AMQP_ACCESS_REFUSED:
			return "grant the broker's user write on the exchange";
		default:
			return "";
	}
}

/* So many copies do not count; what else the broker says of this round backs off no more. */
static void
fail(struct dead_letter_lane *lane, int count, const char *reason, int code,
	 msec_t now)
{
	if (now >= lane->retry_at)
		lane->retry_at = now + backoff_next(&lane->backoff,
											(uint32_t) random());
	if (!lane->troubled)
		log_warn("dead letters are not taken, their messages stay in the queue",
				 LOG_TEXT("exchange", lane->settings.exchange),
				 LOG_TEXT("reason", reason), LOG_NUM("code", code),
				 LOG_NUM("messages", count),
				 LOG_NUM("retry_ms", lane->retry_at - now),
				 LOG_TEXT("next_step", next_step_for(code)));
	lane->troubled = true;
}

static void
forget_channel(struct dead_letter_lane *lane)
{
	lane->state = LANE_CLOSED;
	lane->returning = false;
}

static void
open_channel(struct dead_letter_lane *lane)
{
	broker_open_confirms(&lane->broker, LANE_CHANNEL);
	lane->state = LANE_OPENING;
	lane->next_tag = 1;
}

static void
publish(struct dead_letter_lane *lane, struct delivery *d, msec_t now)
{
	if (!dead_copy_put(&lane->broker.out, LANE_CHANNEL,
						 lane->broker.frame_max, &lane->settings, d,
						 &lane->pool))
	{
		log_warn("no copy can be made of a message, it is refused instead");
		delivery_refuse(lane->deliveries, d);
		return;
	}
	if (under_way(lane) == 0)
		lane->sent_at = now;
	delivery_copied(lane->deliveries, d, lane->next_tag++);
}

/* Send what waits, as much as the connection takes. */
static void
pump(struct dead_letter_lane *lane, msec_t now)
{
	struct delivery *d = deliveries_dead(lane->deliveries);

	if (d == NULL || now < lane->retry_at || lane->broker.state != BROKER_READY)
		return;
	if (lane->state == LANE_CLOSED)
		open_channel(lane);
	while (lane->state == LANE_OPEN && d &&
		   buffer_length(&lane->broker.out) < BROKER_HIGH_WATER)
	{
		publish(lane, d, now);
		d = deliveries_dead(lane->deliveries);
	}
}

/* When the oldest copy has waited too long; never while the broker blocks us. */
static msec_t
confirm_deadline(const struct dead_letter_lane *lane)
{
	if (under_way(lane) == 0 || lane->broker.state != BROKER_READY)
		return CLOCK_NEVER;
	return lane->sent_at + lane->confirm_timeout;
}

/* ---- frames ---- */

/* Those confirmed beside a nack are no sign that more are taken. */
static void
note_recovery(struct dead_letter_lane *lane, msec_t now)
{
	if (now < lane->retry_at)
		return;
	if (lane->troubled)
		log_info("dead letters are taken again",
				 LOG_TEXT("exchange", lane->settings.exchange));
	lane->troubled = false;
	backoff_reset(&lane->backoff);
}

static void
handle_nack(struct dead_letter_lane *lane, const amqp_basic_nack_t *nack,
			msec_t now)
{
	int			count = deliveries_nack(lane->deliveries, nack->delivery_tag,
										nack->multiple);

	if (count > 0)
		fail(lane, count, "the broker sent basic.nack", 0, now);
}

static void
handle_confirm(struct dead_letter_lane *lane, const amqp_basic_ack_t *ack,
			   msec_t now)
{
	int			count = deliveries_confirm(lane->deliveries,
										   ack->delivery_tag, ack->multiple);

	if (count == 0)
		return;
	lane->confirmed += (uint64_t) count;
	lane->sent_at = now;
	note_recovery(lane, now);
	crash_here(CRASH_COPY_CONFIRMED);
}

static void
handle_close(struct dead_letter_lane *lane, const amqp_channel_close_t *close,
			 msec_t now)
{
	char		text[TEXT_MAX];

	bytes_to_text(text, sizeof(text), close->reply_text);
	broker_answer_close(&lane->broker, LANE_CHANNEL);
	forget_channel(lane);
	fail(lane, deliveries_unconfirm(lane->deliveries), text, close->reply_code,
		 now);
}

static void
handle_method(struct dead_letter_lane *lane, amqp_method_number_t id,
			  void *method, msec_t now)
{
	switch (id)
	{
		case AMQP_CHANNEL_OPEN_OK_METHOD:
			break;
		case AMQP_CONFIRM_SELECT_OK_METHOD:
			lane->state = LANE_OPEN;
			break;
		case AMQP_BASIC_ACK_METHOD:
			handle_confirm(lane, method, now);
			break;
		case AMQP_BASIC_NACK_METHOD:
			handle_nack(lane, method, now);
			break;
		case AMQP_BASIC_RETURN_METHOD:
			lane->returning = true;
			lane->has_header = false;
			if (under_way(lane) > 0)
				fail(lane, deliveries_unconfirm(lane->deliveries),
					 "no queue is bound for routing key " DEAD_LETTER_KEY,
					 AMQP_NO_ROUTE, now);
			break;
		case AMQP_CHANNEL_CLOSE_METHOD:
			handle_close(lane, method, now);
			break;
		default:
			broker_drop(&lane->broker, 0, "method out of place",
						amqp_method_name(id));
	}
}

/* The content of a return is read and forgotten. */
static void
handle_content(struct dead_letter_lane *lane, const struct frame *frame)
{
	amqp_basic_properties_t *p;

	if (frame->type == AMQP_FRAME_HEADER && lane->returning &&
		!lane->has_header && frame_decode_header(frame, &lane->broker.pool,
												 &lane->missing, &p))
		lane->has_header = true;
	else if (frame->type == AMQP_FRAME_BODY && lane->has_header &&
			 frame->length <= lane->missing)
		lane->missing -= frame->length;
	else
	{
		broker_drop(&lane->broker, 0, "content out of place", "");
		return;
	}
	lane->returning = lane->has_header = lane->missing > 0;
}

static void
on_frame(void *owner, const struct frame *frame, msec_t now)
{
	struct dead_letter_lane *lane = owner;
	void	   *method;

	if (frame->channel != LANE_CHANNEL)
		broker_drop(&lane->broker, 0, "frame on an unknown channel", "");
	else if (frame->type != AMQP_FRAME_METHOD)
		handle_content(lane, frame);
	else if ((method = frame_decode_method(frame, &lane->broker.pool)) == NULL ||
			 lane->returning)
		broker_drop(&lane->broker, 0, "unexpected or malformed method", "");
	else
		handle_method(lane, frame_method_id(frame), method, now);
}

/* ---- the connection's events ---- */

static void
on_up(void *owner)
{
	(void) owner;				/* the channel is opened for what waits */
}

static void
on_down(void *owner, int code)
{
	struct dead_letter_lane *lane = owner;

	(void) code;
	forget_channel(lane);
	deliveries_unconfirm(lane->deliveries);
}

/* A confirm could not come meanwhile. */
static void
on_unblocked(void *owner, msec_t blocked_for)
{
	struct dead_letter_lane *lane = owner;

	lane->sent_at += blocked_for;
}

/* The consumer's own connection is logged in: a person may mend it while we wait. */
static void
on_refused(void *owner, const char *reason)
{
	struct dead_letter_lane *lane = owner;

	broker_log_refusal(&lane->broker, reason, false);
}

/* ---- the consumer's view ---- */

void
lane_init(struct dead_letter_lane *lane,
		  const struct broker_settings *connection,
		  struct deliveries *deliveries,
		  const struct dead_copy_settings *settings, msec_t confirm_timeout)
{
	struct broker_settings own = *connection;
	struct broker_events events = {on_up, on_down, on_frame, on_unblocked,
	on_refused, lane};

	*lane = (struct dead_letter_lane){
		.deliveries = deliveries,
		.settings = *settings,
		.confirm_timeout = confirm_timeout,
		.stuck_since = CLOCK_NEVER,
	};
	snprintf(lane->name, sizeof(lane->name), "%s dead letters",
			 connection->connection_name);
	own.connection_name = lane->name;
	broker_init(&lane->broker, &own, &events);
	init_amqp_pool(&lane->pool, POOL_PAGE);
	backoff_init(&lane->backoff, RETRY_MIN, RETRY_MAX);
}

void
lane_free(struct dead_letter_lane *lane)
{
	broker_free(&lane->broker);
	empty_amqp_pool(&lane->pool);
}

int
lane_poll_fd(struct dead_letter_lane *lane, struct pollfd *pfd)
{
	return broker_poll_fd(&lane->broker, pfd);
}

/* Would a dead letter that is sent now be confirmed, as far as is known? */
bool
lane_takes(const struct dead_letter_lane *lane)
{
	return !lane->troubled && (!lane->needed || lane->broker.state == BROKER_READY);
}

static void
note_stuck(struct dead_letter_lane *lane, msec_t now)
{
	if (waiting(lane) == 0 || lane_takes(lane))
		lane->stuck_since = CLOCK_NEVER;
	else if (lane->stuck_since == CLOCK_NEVER)
		lane->stuck_since = now;
}

msec_t
lane_deadline(struct dead_letter_lane *lane)
{
	msec_t		deadline;

	if (!lane->needed)
		return waiting(lane) > 0 ? 0 : CLOCK_NEVER;
	deadline = clock_earlier(broker_deadline(&lane->broker),
							 confirm_deadline(lane));
	if (lane->deliveries->in_state[DELIVERY_DEAD] > 0 &&
		lane->broker.state == BROKER_READY && lane->state != LANE_OPENING &&
		buffer_length(&lane->broker.out) < BROKER_HIGH_WATER)
		deadline = clock_earlier(deadline, lane->retry_at);
	return deadline;
}

void
lane_turn(struct dead_letter_lane *lane, short revents, msec_t now)
{
	lane->needed |= waiting(lane) > 0;
	if (!lane->needed)
		return;
	broker_turn(&lane->broker, revents, now);
	if (now >= confirm_deadline(lane))
		broker_drop(&lane->broker, 0, "confirm timeout", "");
	pump(lane, now);
	broker_flush(&lane->broker);
	note_stuck(lane, now);
}

void
lane_close(struct dead_letter_lane *lane, msec_t now)
{
	broker_close(&lane->broker, now);
}

bool
lane_is_closed(const struct dead_letter_lane *lane)
{
	return lane->broker.state == BROKER_DOWN;
}
