/*
 * dead_letter_lane.c
 *		Publishes the copies of what was given up, on a channel of its own.
 *
 *		CLOSED -> OPENING -> OPEN, and back to CLOSED
 *
 * The copies are mandatory and confirmed, and only then their originals are
 * acknowledged. All go to one exchange with one routing key, so that one that is
 * returned speaks for those behind it: none under way counts then, and all are
 * sent again later; what was confirmed meanwhile becomes a second copy. The same
 * holds for a nack, a channel that the broker closes (no such exchange, no
 * permission) and a confirm that does not come. Meanwhile the consumer goes on
 * with what it has; messages that wait here take part of its prefetch.
 *
 * One line is logged when the trouble begins, one when it is over.
 */
#include "dead_letter_lane.h"

#include <stdio.h>

#include "crash.h"
#include "log.h"

#define POOL_PAGE		16384
#define RETRY_MIN		1000
#define RETRY_MAX		60000
#define TEXT_MAX		256

void
lane_init(struct dead_letter_lane *lane, struct broker *broker,
		  struct deliveries *deliveries,
		  const struct dead_copy_settings *settings, msec_t confirm_timeout)
{
	*lane = (struct dead_letter_lane){
		.broker = broker,
		.deliveries = deliveries,
		.settings = *settings,
		.confirm_timeout = confirm_timeout,
	};
	init_amqp_pool(&lane->pool, POOL_PAGE);
	backoff_init(&lane->backoff, RETRY_MIN, RETRY_MAX);
}

void
lane_free(struct dead_letter_lane *lane)
{
	empty_amqp_pool(&lane->pool);
}

/* The connection is gone, and the deliveries with it. */
void
lane_reset(struct dead_letter_lane *lane)
{
	lane->state = LANE_CLOSED;
	lane->returning = false;
}

static int
under_way(const struct dead_letter_lane *lane)
{
	return lane->deliveries->in_state[DELIVERY_COPIED];
}

static void
fail(struct dead_letter_lane *lane, const char *reason, int code, msec_t now)
{
	int			count = deliveries_unconfirm(lane->deliveries);
	msec_t		delay = backoff_next(&lane->backoff, (uint32_t) random());

	lane->retry_at = now + delay;
	if (!lane->troubled)
		log_warn("dead letters are not taken, their messages stay in the queue",
				 LOG_TEXT("exchange", lane->settings.exchange),
				 LOG_TEXT("reason", reason), LOG_NUM("code", code),
				 LOG_NUM("messages", count), LOG_NUM("retry_ms", delay));
	lane->troubled = true;
}

static void
open_channel(struct dead_letter_lane *lane)
{
	amqp_channel_open_t open = {.out_of_band = amqp_empty_bytes};
	amqp_confirm_select_t select = {0};

	broker_send_method(lane->broker, LANE_CHANNEL, AMQP_CHANNEL_OPEN_METHOD,
					   &open);
	broker_send_method(lane->broker, LANE_CHANNEL, AMQP_CONFIRM_SELECT_METHOD,
					   &select);
	lane->state = LANE_OPENING;
	lane->next_tag = 1;
}

static void
publish(struct dead_letter_lane *lane, struct delivery *d, msec_t now)
{
	if (!dead_copy_put(&lane->broker->out, LANE_CHANNEL,
						 lane->broker->frame_max, &lane->settings, d,
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

/* Send what waits, as much as the connection takes; keep the time. */
void
lane_pump(struct dead_letter_lane *lane, msec_t now)
{
	struct delivery *d = deliveries_dead(lane->deliveries);

	if (under_way(lane) > 0 && now >= lane->sent_at + lane->confirm_timeout)
		fail(lane, "not confirmed in time", 0, now);
	if (d == NULL || now < lane->retry_at ||
		lane->broker->state != BROKER_READY)
		return;
	if (lane->state == LANE_CLOSED)
		open_channel(lane);
	while (lane->state == LANE_OPEN && d &&
		   buffer_length(&lane->broker->out) < BROKER_HIGH_WATER)
	{
		publish(lane, d, now);
		d = deliveries_dead(lane->deliveries);
	}
}

msec_t
lane_deadline(const struct dead_letter_lane *lane)
{
	if (under_way(lane) > 0)
		return lane->sent_at + lane->confirm_timeout;
	if (lane->deliveries->in_state[DELIVERY_DEAD] > 0 &&
		lane->broker->state == BROKER_READY && lane->state != LANE_OPENING)
		return lane->retry_at;
	return CLOCK_NEVER;
}

/* ---- frames ---- */

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
	if (lane->troubled)
		log_info("dead letters are taken again",
				 LOG_TEXT("exchange", lane->settings.exchange));
	lane->troubled = false;
	backoff_reset(&lane->backoff);
	crash_here(CRASH_COPY_CONFIRMED);
}

static void
handle_close(struct dead_letter_lane *lane, const amqp_channel_close_t *close,
			 msec_t now)
{
	amqp_channel_close_ok_t close_ok = {0};
	char		text[TEXT_MAX];

	snprintf(text, sizeof(text), "%.*s", (int) close->reply_text.len,
			 (const char *) close->reply_text.bytes);
	broker_send_method(lane->broker, LANE_CHANNEL, AMQP_CHANNEL_CLOSE_OK_METHOD,
					   &close_ok);
	lane_reset(lane);
	fail(lane, text, close->reply_code, now);
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
			if (under_way(lane) > 0)
				fail(lane, "the broker sent basic.nack", 0, now);
			break;
		case AMQP_BASIC_RETURN_METHOD:
			lane->returning = true;
			lane->has_header = false;
			if (under_way(lane) > 0)
				fail(lane, "no queue is bound for routing key "
					 DEAD_COPY_KEY, AMQP_NO_ROUTE, now);
			break;
		case AMQP_CHANNEL_CLOSE_METHOD:
			handle_close(lane, method, now);
			break;
		default:
			broker_drop(lane->broker, 0, "method out of place",
						amqp_method_name(id));
	}
}

/* The content of a return is read and forgotten. */
static void
handle_content(struct dead_letter_lane *lane, const struct frame *frame)
{
	amqp_basic_properties_t *p;

	if (frame->type == AMQP_FRAME_HEADER && lane->returning &&
		!lane->has_header && frame_decode_header(frame, &lane->broker->pool,
												 &lane->missing, &p))
		lane->has_header = true;
	else if (frame->type == AMQP_FRAME_BODY && lane->has_header &&
			 frame->length <= lane->missing)
		lane->missing -= frame->length;
	else
	{
		broker_drop(lane->broker, 0, "content out of place", "");
		return;
	}
	lane->returning = lane->has_header = lane->missing > 0;
}

void
lane_frame(struct dead_letter_lane *lane, const struct frame *frame,
		   msec_t now)
{
	void	   *method;

	if (frame->type != AMQP_FRAME_METHOD)
	{
		handle_content(lane, frame);
		return;
	}
	method = frame_decode_method(frame, &lane->broker->pool);
	if (method == NULL || lane->returning)
		broker_drop(lane->broker, 0, "unexpected or malformed method", "");
	else
		handle_method(lane, frame_method_id(frame), method, now);
}
