/*
 * subscription.c
 *		A consumer of one queue, on a channel of its own.
 *
 *		NONE -> OPENING -> ACTIVE -> ENDING -> ENDED
 *						   ACTIVE -> CANCELLED -> RENEWING -> ACTIVE
 *
 * and back to NONE, changed only in set_state(). The broker cancels when the
 * queue is deleted or moves: the channel lives on, and what was delivered on it
 * can be acknowledged. A channel that the broker closes (no such queue, no
 * permission, a message held for longer than its consumer_timeout) takes all
 * tags with it: the broker will deliver again what is forgotten then. Both are
 * tried again, later each time; one line is logged when that begins, one when it is
 * over.
 *
 * A delivery is a method, a content header and body frames; it is passed on when
 * it is complete, also with properties that cannot be read: any publisher can send
 * such, and the connection's end would bring them back for ever.
 */
#include "subscription.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "amqp_text.h"
#include "log.h"

#define TEXT_MAX		256

/* No broker sends more; its own limit is 512 MiB. */
#define BODY_MAX		(512u * 1024 * 1024)

static const char *const state_names[] = {
	"none", "opening", "active", "cancelled", "renewing", "ending", "ended"
};

/* The only place where the state changes; nonsense ends the process. */
static void
set_state(struct subscription *s, enum subscription_state state)
{
	enum subscription_state from = s->state;
	bool		allowed = false;

	switch (state)
	{
		case SUBSCRIPTION_NONE:
			allowed = true;
			break;
		case SUBSCRIPTION_OPENING:
			allowed = from == SUBSCRIPTION_NONE;
			break;
		case SUBSCRIPTION_ACTIVE:
			allowed = from == SUBSCRIPTION_OPENING ||
				from == SUBSCRIPTION_RENEWING;
			break;
		case SUBSCRIPTION_CANCELLED:
			allowed = from == SUBSCRIPTION_ACTIVE;
			break;
		case SUBSCRIPTION_RENEWING:
			allowed = from == SUBSCRIPTION_CANCELLED;
			break;
		case SUBSCRIPTION_ENDING:
			allowed = from == SUBSCRIPTION_ACTIVE;
			break;
		case SUBSCRIPTION_ENDED:
			allowed = from == SUBSCRIPTION_ENDING;
			break;
	}
	if (!allowed)
	{
		log_error("impossible state change of the subscription",
				  LOG_TEXT("from", state_names[from]),
				  LOG_TEXT("to", state_names[state]));
		abort();
	}
	log_debug("subscription state", LOG_TEXT("state", state_names[state]));
	s->state = state;
}

void
subscription_init(struct subscription *s, struct broker *broker,
				  const struct subscription_settings *settings,
				  const struct subscription_events *events)
{
	*s = (struct subscription){
		.broker = broker,
		.settings = *settings,
		.events = *events,
		.deadline = CLOCK_NEVER,
	};
	backoff_init(&s->backoff, settings->retry_min, settings->retry_max);
}

/* The connection is gone. */
void
subscription_reset(struct subscription *s)
{
	delivery_free(s->incoming);
	s->incoming = NULL;
	s->asking = false;
	s->deadline = CLOCK_NEVER;
	set_state(s, SUBSCRIPTION_NONE);
}

/* ---- opening, and again ---- */

static void
send_consume(struct subscription *s, msec_t now)
{
	amqp_basic_consume_t consume = {
		.queue = bytes_of(s->settings.queue),
		.consumer_tag = bytes_of(s->settings.tag),
	};

	broker_send_method(s->broker, SUBSCRIPTION_CHANNEL,
					   AMQP_BASIC_CONSUME_METHOD, &consume);
	s->deadline = now + s->settings.answer_timeout;
}

static void
open_channel(struct subscription *s, msec_t now)
{
	amqp_basic_qos_t qos = {.prefetch_count = (uint16_t) s->settings.prefetch};

	set_state(s, SUBSCRIPTION_OPENING);
	broker_open_channel(s->broker, SUBSCRIPTION_CHANNEL);
	broker_send_method(s->broker, SUBSCRIPTION_CHANNEL, AMQP_BASIC_QOS_METHOD,
					   &qos);
	send_consume(s, now);
}

static void
renew(struct subscription *s, msec_t now)
{
	set_state(s, SUBSCRIPTION_RENEWING);
	send_consume(s, now);
}

void
subscription_turn(struct subscription *s, msec_t now)
{
	if (!broker_is_open(s->broker))
		return;
	if (now >= s->deadline)
		broker_drop(s->broker, 0, "no answer to a subscription", "");
	else if (s->state == SUBSCRIPTION_NONE && now >= s->retry_at)
		open_channel(s, now);
	else if (s->state == SUBSCRIPTION_CANCELLED && now >= s->retry_at)
		renew(s, now);
}

msec_t
subscription_deadline(const struct subscription *s)
{
	if (!broker_is_open(s->broker))
		return CLOCK_NEVER;
	if (s->state == SUBSCRIPTION_NONE || s->state == SUBSCRIPTION_CANCELLED)
		return s->retry_at;
	return s->deadline;
}

static const char *
next_step_for(int code)
{
	if (code == AMQP_NOT_FOUND)
		return "declare the queue, or check its name and the virtual host in "
			"RABBITMQ_URI";
	if (code == AMQP_ACCESS_REFUSED)
		return "grant the broker's user read on the queue";
	return "";
}

static void
note_trouble(struct subscription *s, int code, const char *reason, int forgotten,
			 msec_t now)
{
	msec_t		delay = backoff_next(&s->backoff, (uint32_t) random());

	s->retry_at = now + delay;
	if (!s->troubled)
		log_warn("the queue gives no messages, retrying",
				 LOG_TEXT("queue", s->settings.queue), LOG_NUM("code", code),
				 LOG_TEXT("reason", reason), LOG_NUM("retry_ms", delay),
				 LOG_NUM("forgotten", forgotten),
				 LOG_TEXT("next_step", next_step_for(code)));
	s->troubled = true;
}

static void
become_active(struct subscription *s)
{
	set_state(s, SUBSCRIPTION_ACTIVE);
	s->deadline = CLOCK_NEVER;
	backoff_reset(&s->backoff);
	log_info("consuming", LOG_TEXT("queue", s->settings.queue),
			 LOG_NUM("prefetch", s->settings.prefetch));
	s->was_active = true;
	s->troubled = false;
}

/* ---- ending ---- */

/* No more messages, please; what was delivered can still be acknowledged. */
void
subscription_end(struct subscription *s, msec_t now)
{
	amqp_basic_cancel_t cancel = {.consumer_tag = bytes_of(s->settings.tag)};

	if (s->state != SUBSCRIPTION_ACTIVE)
		return;
	set_state(s, SUBSCRIPTION_ENDING);
	broker_send_method(s->broker, SUBSCRIPTION_CHANNEL,
					   AMQP_BASIC_CANCEL_METHOD, &cancel);
	s->deadline = now + s->settings.answer_timeout;
}

/* Can no message come any more? */
bool
subscription_is_quiet(const struct subscription *s)
{
	return s->state == SUBSCRIPTION_NONE || s->state == SUBSCRIPTION_ENDED ||
		s->state == SUBSCRIPTION_CANCELLED;
}

/* ---- what we tell the broker ---- */

void
subscription_settle(struct subscription *s, const struct settlement *settlement)
{
	amqp_basic_ack_t ack = {settlement->tag, settlement->multiple};
	amqp_basic_nack_t nack = {settlement->tag, settlement->multiple, 0};

	if (settlement->refused)
		broker_send_method(s->broker, SUBSCRIPTION_CHANNEL,
						   AMQP_BASIC_NACK_METHOD, &nack);
	else
		broker_send_method(s->broker, SUBSCRIPTION_CHANNEL,
						   AMQP_BASIC_ACK_METHOD, &ack);
}

void
subscription_ask_depth(struct subscription *s)
{
	amqp_queue_declare_t declare = {
		.queue = bytes_of(s->settings.queue),
		.passive = 1,
	};

	if (s->asking || s->state != SUBSCRIPTION_ACTIVE)
		return;
	s->asking = true;
	broker_send_method(s->broker, SUBSCRIPTION_CHANNEL,
					   AMQP_QUEUE_DECLARE_METHOD, &declare);
}

/* ---- frames ---- */

static void
copy_short(struct short_text *to, amqp_bytes_t from)
{
	/* a short string cannot be longer */
	to->length = from.len < SHORT_TEXT_MAX ? from.len : SHORT_TEXT_MAX;
	if (to->length > 0)
		memcpy(to->bytes, from.bytes, to->length);
	to->bytes[to->length] = '\0';
}

static void
begin_delivery(struct subscription *s, const amqp_basic_deliver_t *deliver)
{
	struct delivery *d = delivery_new();

	d->tag = deliver->delivery_tag;
	d->redelivered = deliver->redelivered;
	copy_short(&d->exchange, deliver->exchange);
	copy_short(&d->routing_key, deliver->routing_key);
	s->incoming = d;
	s->missing = 0;
}

/* After our cancel nobody wants them: the channel's end gives them back. */
static void
finish_delivery(struct subscription *s)
{
	struct delivery *d = s->incoming;

	s->incoming = NULL;
	if (s->state == SUBSCRIPTION_ENDING)
		delivery_free(d);
	else
		s->events.delivered(s->events.owner, d);
}

static void
handle_header(struct subscription *s, const struct frame *frame)
{
	amqp_basic_properties_t *p;
	uint64_t	size;

	if (!frame_body_size(frame, &s->missing) || s->missing > BODY_MAX)
	{
		broker_drop(s->broker, 0, "malformed header of a message", "");
		return;
	}
	s->incoming->unreadable = !frame_decode_header(frame, &s->broker->pool,
												   &size, &p);
	buffer_append(&s->incoming->header, frame->payload, frame->length);
	buffer_reserve(&s->incoming->body, s->missing);
	if (s->missing == 0)
		finish_delivery(s);
}

static void
handle_content(struct subscription *s, const struct frame *frame)
{
	struct delivery *d = s->incoming;
	bool		has_header = d && buffer_length(&d->header) > 0;

	if (frame->type == AMQP_FRAME_HEADER && d && !has_header)
		handle_header(s, frame);
	else if (frame->type == AMQP_FRAME_BODY && has_header &&
			 frame->length <= s->missing)
	{
		buffer_append(&d->body, frame->payload, frame->length);
		s->missing -= frame->length;
		if (s->missing == 0)
			finish_delivery(s);
	}
	else
		broker_drop(s->broker, 0, "content out of place", "");
}

static void
handle_close(struct subscription *s, const amqp_channel_close_t *close,
			 msec_t now)
{
	char		text[TEXT_MAX];
	int			forgotten;

	bytes_to_text(text, sizeof(text), close->reply_text);
	broker_answer_close(s->broker, SUBSCRIPTION_CHANNEL);
	subscription_reset(s);
	forgotten = s->events.lost(s->events.owner, close->reply_code, text);
	if (forgotten >= 0)
		note_trouble(s, close->reply_code, text, forgotten, now);
}

static void
handle_cancel(struct subscription *s, msec_t now)
{
	if (s->state != SUBSCRIPTION_ACTIVE)
		return;					/* our own cancel was on its way */
	set_state(s, SUBSCRIPTION_CANCELLED);
	s->asking = false;
	note_trouble(s, 0, "cancelled by the broker: the queue was deleted or "
				 "moved", 0, now);
}

static void
handle_depth(struct subscription *s, const amqp_queue_declare_ok_t *ok)
{
	s->asking = false;
	s->events.depth(s->events.owner, ok->message_count);
}

static void
handle_method(struct subscription *s, amqp_method_number_t id, void *method,
			  msec_t now)
{
	switch (id)
	{
		case AMQP_BASIC_DELIVER_METHOD:
			begin_delivery(s, method);
			break;
		case AMQP_CHANNEL_OPEN_OK_METHOD:
		case AMQP_BASIC_QOS_OK_METHOD:
			break;
		case AMQP_BASIC_CONSUME_OK_METHOD:
			become_active(s);
			break;
		case AMQP_BASIC_CANCEL_METHOD:
			handle_cancel(s, now);
			break;
		case AMQP_BASIC_CANCEL_OK_METHOD:
			s->deadline = CLOCK_NEVER;
			set_state(s, SUBSCRIPTION_ENDED);
			break;
		case AMQP_QUEUE_DECLARE_OK_METHOD:
			handle_depth(s, method);
			break;
		case AMQP_CHANNEL_CLOSE_METHOD:
			handle_close(s, method, now);
			break;
		default:
			broker_drop(s->broker, 0, "method out of place",
						amqp_method_name(id));
	}
}

/* May this method come now? A content must be complete before the next. */
static bool
is_in_place(const struct subscription *s, amqp_method_number_t id)
{
	bool		opening = s->state == SUBSCRIPTION_OPENING ||
		s->state == SUBSCRIPTION_RENEWING;

	if (s->incoming)
		return false;
	if (id == AMQP_BASIC_CONSUME_OK_METHOD)
		return opening;
	if (id == AMQP_BASIC_CANCEL_OK_METHOD)
		return s->state == SUBSCRIPTION_ENDING;
	return s->state != SUBSCRIPTION_NONE;
}

void
subscription_frame(struct subscription *s, const struct frame *frame,
				   msec_t now)
{
	amqp_method_number_t id = frame_method_id(frame);
	void	   *method;

	if (frame->type != AMQP_FRAME_METHOD)
	{
		handle_content(s, frame);
		return;
	}
	method = frame_decode_method(frame, &s->broker->pool);
	if (method == NULL || !is_in_place(s, id))
		broker_drop(s->broker, 0, "unexpected or malformed method", "");
	else
		handle_method(s, id, method, now);
}
