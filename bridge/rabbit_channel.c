/*
 * rabbit_channel.c
 *		A confirm channel: what was sent on it, and what the broker answered.
 *
 * Each lane has a channel of its own, so that a fault on one lane disturbs no
 * other. When the broker closes a channel, it names no message, and whatever
 * was pipelined behind the one at fault is lost. The copies of the window are
 * offered again ("again"), and the one at fault is narrowed down:
 *
 *	- after 404, every exchange of the window is checked first
 *	  (rabbit_topics.c); one that is missing makes its copies UNROUTABLE and the
 *	  others go on at speed;
 *	- otherwise fewer and fewer are sent at a time (narrow.c), until the one that
 *	  closes the channel alone is known. Copies stay in their order throughout,
 *	  so the order within a key does too.
 *
 * However often the channel was closed meanwhile, the log has one line of it.
 */
#include "rabbit_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "message.h"

#define SIZE_LIMIT_TEXT		"larger than configured max size "
#define SIZE_LIMIT_MEMORY	60000

/* ---- answers ---- */

static struct topic *
take_topic(struct copy *copy)
{
	struct topic *topic = copy->note;

	copy->note = NULL;
	return topic;
}

static void
drop_topic(struct channel *c, struct copy *copy)
{
	struct topic *topic = take_topic(copy);

	if (topic)
		topics_drop(&c->rabbit->topics, topic);
}

static void
answer(struct channel *c, struct copy *copy, enum outcome outcome,
	   const char *error)
{
	struct publisher_events *events = &c->rabbit->base.events;

	drop_topic(c, copy);
	events->answered(events->relay, copy, outcome, error);
}

static void
answer_returned(struct channel *c, struct copy *copy)
{
	struct topic *topic = copy->note;
	char		error[ERROR_MAX];

	snprintf(error, sizeof(error), "NO_ROUTE exchange=%s routing key=%s",
			 topic->name.text, copy->routing_key);
	answer(c, copy, OUTCOME_UNROUTABLE, error);
}

static void
answer_nacked(struct channel *c, struct copy *copy)
{
	struct topic *topic = copy->note;
	int			unlogged;

	if (refusals_note(&c->rabbit->refusals, topic->name.text, copy->routing_key,
					  clock_now(), &unlogged))
		log_warn("the broker refused a message (basic.nack)",
				 LOG_TEXT("exchange", topic->name.text),
				 LOG_TEXT("routing_key", copy->routing_key),
				 LOG_TEXT("lane", lane_name(c->lane)),
				 LOG_NUM("id", copy->id), LOG_NUM("more", unlogged),
				 LOG_TEXT("next_step", "see the queues bound for it: one is full "
						  "and rejects, or has lost too many of its nodes"));
	answer(c, copy, OUTCOME_NACKED, "the broker sent basic.nack");
}

/* The search ended without a culprit: whatever it was, it is over. */
static void
end_search(struct channel *c)
{
	if (c->incident.closes > 0)
		log_warn("broker closed the channel, no row was found at fault",
				 LOG_NUM("code", c->incident.code),
				 LOG_TEXT("text", c->incident.text),
				 LOG_NUM("unconfirmed", c->incident.unconfirmed),
				 LOG_NUM("closes", c->incident.closes),
				 LOG_TEXT("lane", lane_name(c->lane)));
	c->incident.closes = 0;
}

/* What the broker answered for one message of the window. */
static void
handle_answer(void *context, void *item, enum confirm_answer confirm)
{
	struct channel *c = context;
	struct copy *copy = item;

	switch (confirm)
	{
		case CONFIRM_ACKED:
			topics_good(copy->note);
			answer(c, copy, OUTCOME_PUBLISHED, NULL);
			break;
		case CONFIRM_RETURNED:
			topics_good(copy->note);
			answer_returned(c, copy);
			break;
		case CONFIRM_NACKED:
			answer_nacked(c, copy);
			break;
		case CONFIRM_UNKNOWN:
			answer(c, copy, OUTCOME_RELEASED,
				   "connection lost before the confirm");
			return;
	}
	narrow_answered(&c->rabbit->narrow, rabbit_open_total(c->rabbit));
	if (narrow_answered(&c->narrow, c->window.open))
		end_search(c);
}

static void
handle_confirm(struct channel *c, uint64_t tag, bool multiple, bool nack)
{
	if (confirm_settle(&c->window, tag, multiple, nack, handle_answer, c) == 0)
		log_warn("confirm for an unknown delivery tag ignored",
				 LOG_NUM("tag", tag), LOG_NUM("multiple", multiple),
				 LOG_NUM("next_tag", c->window.next));
}

/* ---- opened, closed, lost ---- */

void
channel_open(struct channel *c)
{
	broker_open_confirms(&c->rabbit->broker, c->number);
	c->state = CHANNEL_OPENING;
}

/* With the connection: nothing is asked or half received any more. */
void
channel_reset(struct channel *c)
{
	c->state = CHANNEL_CLOSED;
	c->verifying = 0;
	memset(&c->returned, 0, sizeof(c->returned));
}

bool
rabbit_code_is_charged(int code)
{
	return code == AMQP_PRECONDITION_FAILED || code == AMQP_CONTENT_TOO_LARGE ||
		code == AMQP_FRAME_ERROR || code == AMQP_SYNTAX_ERROR ||
		code == AMQP_UNEXPECTED_FRAME;
}

static const char *
next_step_of(int code)
{
	switch (code)
	{
		case AMQP_NOT_FOUND:
			return "declare the exchange in this virtual host";
		case AMQP_ACCESS_REFUSED:
			return "let the bridge's user write to the exchange: rabbitmqctl "
				"set_permissions";
		case AMQP_PRECONDITION_FAILED:
		case AMQP_CONTENT_TOO_LARGE:
			return "raise the broker's limit, or mend what is published";
		default:
			return "";
	}
}

/* One line for a close, however many rows it was the fault of. */
static void
log_culprit(struct channel *c, const struct copy *copy)
{
	const struct incident *incident = &c->incident;

	if (incident->culprit_found)
		return;
	log_warn("broker closed the channel because of one row",
			 LOG_NUM("id", copy->id), LOG_NUM("code", incident->code),
			 LOG_TEXT("text", incident->text),
			 LOG_TEXT("exchange", ((struct topic *) copy->note)->name.text),
			 LOG_TEXT("lane", lane_name(c->lane)),
			 LOG_NUM("unconfirmed", incident->unconfirmed),
			 LOG_NUM("closes", incident->closes),
			 LOG_TEXT("next_step", next_step_of(incident->code)));
}

/* The copy was alone when the channel closed: it is the one at fault. */
static void
answer_fault(struct channel *c, struct copy *copy)
{
	struct topic *topic = copy->note;
	const struct incident *incident = &c->incident;
	msec_t		now = clock_now();
	char		reason[TOPIC_REASON_MAX];

	log_culprit(c, copy);
	c->incident.culprit_found = true;
	if (incident->code == AMQP_NOT_FOUND)
	{
		snprintf(reason, sizeof(reason), "exchange \"%s\" does not exist",
				 topic->name.text);
		topics_hold(topic, TOPIC_MISSING, reason, now, (uint32_t) random());
		answer(c, copy, OUTCOME_UNROUTABLE, reason);
	}
	else if (incident->code == AMQP_ACCESS_REFUSED)
	{
		/* with topic permissions it is the routing key that is refused */
		if (strstr(incident->text, "access to topic") == NULL)
			topics_hold(topic, TOPIC_REFUSED, incident->text, now,
						(uint32_t) random());
		answer(c, copy, OUTCOME_UNROUTABLE, incident->text);
	}
	else
		answer(c, copy, rabbit_code_is_charged(incident->code) ?
			   OUTCOME_REJECTED : OUTCOME_NACKED, incident->text);
}

/*
 * "message size 300 is larger than configured max size 200": the messages beyond
 * the limit are at fault, whichever closed the channel.
 */
static void
learn_size_limit(struct channel *c, msec_t now)
{
	const char *number = strstr(c->incident.text, SIZE_LIMIT_TEXT);

	if (c->incident.code != AMQP_PRECONDITION_FAILED || number == NULL)
		return;
	c->rabbit->size_limit = strtoull(number + strlen(SIZE_LIMIT_TEXT), NULL, 10);
	c->rabbit->size_limit_until = now + SIZE_LIMIT_MEMORY;
}

static bool
is_too_large(const struct rabbit *r, size_t length)
{
	return r->size_limit > 0 && length > r->size_limit;
}

/* One copy of a window that the broker's channel.close made unknown. */
static void
handle_closed_copy(void *context, void *item, enum confirm_answer confirm)
{
	struct channel *c = context;
	struct copy *copy = item;
	struct topic *topic = copy->note;

	(void) confirm;
	if (c->incident.alone || is_too_large(c->rabbit, copy->length))
	{
		answer_fault(c, copy);
		return;
	}
	/* the default exchange exists, and cannot be declared */
	if (c->incident.code == AMQP_NOT_FOUND && topic->name.text[0] != '\0')
		topics_check(topic);
	drop_topic(c, copy);
	c->rabbit->base.events.again(c->rabbit->base.events.relay, copy);
}

/*
 * Decide how to go on after n messages became unknown. A known culprit leaves
 * the others free to go at full speed; a charged one may have neighbours of its
 * kind, so the window then grows again step by step.
 */
static void
narrow_down(struct channel *c, uint32_t n)
{
	int			code = c->incident.code;

	if (n == 0)
		end_search(c);
	else if (c->incident.culprit_found)
	{
		c->incident.closes = 0;
		narrow_set(&c->narrow, rabbit_code_is_charged(code) &&
				   c->rabbit->size_limit == 0 ? 1 : c->narrow.capacity);
	}
	else if (code == AMQP_NOT_FOUND)
	{
		c->verifying = n;
		c->found_missing = false;
	}
	else
		narrow_set(&c->narrow, n / 2);
}

/* All exchanges are known: if none is missing, the 404 must be narrowed down. */
void
channel_verified(struct channel *c)
{
	if (c->verifying == 0)
		return;
	if (c->found_missing)
		c->incident.closes = 0; /* the log has a line of the exchange */
	else
		narrow_set(&c->narrow, c->verifying / 2);
	c->verifying = 0;
}

static void
handle_close(struct channel *c, const amqp_channel_close_t *close)
{
	struct incident *incident = &c->incident;
	uint32_t	n = c->window.open;

	if (incident->closes++ == 0)
		incident->unconfirmed = n;
	incident->code = close->reply_code;
	bytes_to_text(incident->text, sizeof(incident->text), close->reply_text);
	log_debug("broker closed the channel", LOG_NUM("code", incident->code),
			  LOG_TEXT("text", incident->text), LOG_NUM("unconfirmed", n),
			  LOG_TEXT("lane", lane_name(c->lane)));
	broker_answer_close(&c->rabbit->broker, c->number);
	memset(&c->returned, 0, sizeof(c->returned));
	incident->alone = n == 1;
	incident->culprit_found = false;
	learn_size_limit(c, clock_now());
	confirm_restart(&c->window, handle_closed_copy, c);
	narrow_down(c, n);
	channel_open(c);
}

static void
reject_last(void *context, void *item, enum confirm_answer confirm)
{
	struct channel *c = context;
	char		error[ERROR_MAX];

	(void) confirm;
	snprintf(error, sizeof(error),
			 "the broker closed the connection because of it, code %d",
			 c->incident.code);
	answer(c, item, OUTCOME_REJECTED, error);
}

/*
 * The connection is gone: everything open is unknown, but for a message that was
 * alone on it when the broker closed it for what that did.
 */
void
channel_lose(struct channel *c, int code, bool alone)
{
	c->incident.code = code;
	confirm_restart(&c->window, alone ? reject_last : handle_answer, c);
}

static void
forget_copy(void *context, void *item, enum confirm_answer confirm)
{
	(void) confirm;
	drop_topic(context, item);
}

/* The copies are about to be freed. */
void
channel_forget(struct channel *c)
{
	confirm_restart(&c->window, forget_copy, c);
}

/* ---- frames ---- */

static void
log_returned(struct channel *c, const struct copy *copy)
{
	const struct topic *topic = copy->note;
	int			unlogged;

	if (refusals_note(&c->rabbit->refusals, topic->name.text, copy->routing_key,
					  clock_now(), &unlogged))
		log_warn("a message came back, no queue is bound for it",
				 LOG_TEXT("exchange", topic->name.text),
				 LOG_TEXT("routing_key", copy->routing_key),
				 LOG_NUM("code", c->returned.code),
				 LOG_TEXT("text", c->returned.text),
				 LOG_TEXT("lane", lane_name(c->lane)),
				 LOG_NUM("id", copy->id), LOG_NUM("more", unlogged),
				 LOG_TEXT("next_step", "bind a queue to the exchange for this "
						  "routing key: it is then sent by itself"));
}

static void
handle_return_header(struct channel *c, const struct frame *frame)
{
	struct broker *broker = &c->rabbit->broker;
	amqp_basic_properties_t *p;
	struct copy *copy = NULL;

	if (!frame_decode_header(frame, &broker->pool, &c->returned.missing, &p))
	{
		broker_drop(broker, 0, "malformed properties in a return", "");
		return;
	}
	c->returned.has_header = true;
	if (p->_flags & AMQP_BASIC_MESSAGE_ID_FLAG)
		copy = confirm_return(&c->window, p->message_id.bytes,
							  p->message_id.len);
	if (copy)
		log_returned(c, copy);
	else
		log_warn("returned message is not in the window, ignored");
	if (c->returned.missing == 0)
		c->returned.active = false;
}

void
channel_handle_content(struct channel *c, const struct frame *frame)
{
	struct returned *returned = &c->returned;

	if (frame->type == AMQP_FRAME_HEADER && returned->active &&
		!returned->has_header)
		handle_return_header(c, frame);
	else if (frame->type == AMQP_FRAME_BODY && returned->active &&
			 returned->has_header && frame->length <= returned->missing)
	{
		returned->missing -= frame->length;
		returned->active = returned->missing > 0;
	}
	else
		broker_drop(&c->rabbit->broker, 0, "content out of place", "");
}

static void
begin_return(struct channel *c, const amqp_basic_return_t *method)
{
	c->returned = (struct returned){.active = true, .code = method->reply_code};
	bytes_to_text(c->returned.text, sizeof(c->returned.text),
				  method->reply_text);
}

void
channel_handle_method(struct channel *c, amqp_method_number_t id, void *method)
{
	amqp_basic_ack_t *ack = method;
	amqp_basic_nack_t *nack = method;

	switch (id)
	{
		case AMQP_BASIC_ACK_METHOD:
			handle_confirm(c, ack->delivery_tag, ack->multiple, false);
			break;
		case AMQP_BASIC_NACK_METHOD:
			handle_confirm(c, nack->delivery_tag, nack->multiple, true);
			break;
		case AMQP_BASIC_RETURN_METHOD:
			begin_return(c, method);
			break;
		case AMQP_CHANNEL_OPEN_OK_METHOD:
			break;
		case AMQP_CONFIRM_SELECT_OK_METHOD:
			c->state = CHANNEL_OPEN;
			break;
		case AMQP_CHANNEL_CLOSE_METHOD:
			handle_close(c, method);
			break;
		default:
			broker_drop(&c->rabbit->broker, 0, "method out of place",
						amqp_method_name(id));
	}
}

/* ---- publishing ---- */

static bool
is_full(const struct channel *c)
{
	const struct rabbit *r = c->rabbit;

	return !confirm_has_room(&c->window) ||
		narrow_is_full(&c->narrow, c->window.open) ||
		narrow_is_full(&r->narrow, rabbit_open_total(r)) ||
		buffer_length(&r->broker.out) >= BROKER_HIGH_WATER;
}

static enum publish_result
put_message(struct channel *c, struct copy *copy, const struct message *m,
			msec_t now)
{
	struct rabbit *r = c->rabbit;
	const char *problem;

	if (is_too_large(r, m->payload_length))
		problem = "message is larger than the broker's limit";
	else
		problem = message_put(&r->broker.out, c->number, r->broker.frame_max, m,
							  &r->pool);
	if (problem)
	{
		answer(c, copy, OUTCOME_REJECTED, problem);
		return PUBLISH_DECIDED;
	}
	r->broker.guarded = true;
	narrow_sending(&r->narrow, rabbit_open_total(r));
	narrow_sending(&c->narrow, c->window.open);
	confirm_add(&c->window, copy, m->id, now);
	return PUBLISH_SENT;
}

enum publish_result
channel_publish(struct channel *c, struct copy *copy, const struct message *m,
				msec_t now)
{
	struct topic *topic;
	enum publish_result result;

	if (c->rabbit->broker.state != BROKER_READY || c->state != CHANNEL_OPEN ||
		is_full(c))
		return PUBLISH_FULL;
	topic = topics_use(&c->rabbit->topics, m->exchange);
	result = rabbit_ask_topic(c, topic, now);
	copy->note = topic;
	copy->routing_key = m->routing_key;
	copy->length = m->payload_length;
	if (result == PUBLISH_SENT)
		return put_message(c, copy, m, now);
	if (result == PUBLISH_DECIDED)
		answer(c, copy, OUTCOME_UNROUTABLE, topic->reason);
	else
		drop_topic(c, copy);
	return result;
}
