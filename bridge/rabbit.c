/*
 * rabbit.c
 *		The publisher for RabbitMQ: a confirm channel over one connection.
 *
 * Channel 1 publishes, its unconfirmed messages are in the confirm window.
 * Channel 2 is thrown away whenever the broker closes it: it asks whether an
 * exchange exists (a passive declare, which needs no permission).
 *
 * When the broker closes channel 1, it names no message, and whatever was
 * pipelined behind the one at fault is lost. The rows of the window are offered
 * again ("again"), and the row at fault is narrowed down:
 *
 *	- after 404, every exchange of the window is checked on channel 2 first; one
 *	  that is missing makes its rows UNROUTABLE and the others go on at speed;
 *	- otherwise half as many messages may be unconfirmed as were, and no more
 *	  are sent until those are answered. Each further close halves the number,
 *	  each batch confirmed doubles it. A single message that closes the channel
 *	  alone is the one at fault. Rows stay in their order throughout, so the
 *	  order within a key does too.
 *
 * An exchange that refused us (403) cannot be asked about: when its hold is
 * over, the window is emptied and one row is sent alone.
 */
#include "rabbit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "confirm.h"
#include "log.h"
#include "message.h"
#include "topics.h"

#define PUBLISH_CHANNEL	1
#define CHECK_CHANNEL	2

#define POOL_PAGE		16384
#define SWEEP_INTERVAL	60000
#define TEXT_MAX		400
#define ERROR_MAX		1024

#define SIZE_LIMIT_TEXT		"larger than configured max size "
#define SIZE_LIMIT_MEMORY	60000

enum channel_state
{
	CHANNEL_CLOSED,
	CHANNEL_OPENING,			/* channel.open and confirm.select sent */
	CHANNEL_OPEN
};

/* The content of a basic.return, as far as it has come. */
struct returned
{
	bool		active;
	bool		has_header;
	uint64_t	missing;		/* bytes of the body */
};

struct rabbit
{
	struct publisher base;
	struct broker broker;
	enum channel_state channel;
	enum channel_state check_channel;
	struct confirm_window window;
	uint32_t	limit;			/* unconfirmed messages allowed */
	uint32_t	batch;			/* sent under a narrowed limit */
	uint32_t	verifying;		/* size of the window that a 404 closed */
	bool		found_missing;
	struct names topics;
	struct topic *checking;		/* asked about on channel 2 */
	msec_t		check_deadline;
	struct returned returned;
	amqp_pool_t pool;			/* for encoding */
	msec_t		confirm_timeout;
	msec_t		sweep_at;
	size_t		size_limit;		/* the broker's, learned from a 406; or 0 */
	msec_t		size_limit_until;	/* it may be raised: learn it again then */
	/* the close that confirm_restart() is answering */
	bool		alone;			/* one message was unconfirmed */
	bool		culprit_found;
	int			close_code;
	char		close_text[TEXT_MAX];
};

static struct rabbit *
rabbit_of(struct publisher *p)
{
	return (struct rabbit *) p;
}

static bool
is_narrowed(const struct rabbit *r)
{
	return r->limit < r->window.capacity;
}

static void
set_limit(struct rabbit *r, uint32_t limit)
{
	if (limit < 1)
		limit = 1;
	if (limit > r->window.capacity)
		limit = r->window.capacity;
	r->limit = limit;
	r->batch = 0;
}

/* ---- answers ---- */

static struct topic *
take_topic(struct row *row)
{
	struct topic *topic = row->note;

	row->note = NULL;
	return topic;
}

static void
decide(struct rabbit *r, struct row *row, enum outcome outcome,
	   const char *error)
{
	struct topic *topic = take_topic(row);

	if (topic)
		topics_drop(&r->topics, topic);
	r->base.events.decided(r->base.events.relay, row, outcome, error);
}

static void
decide_returned(struct rabbit *r, struct row *row)
{
	struct topic *topic = row->note;
	char		error[ERROR_MAX];

	snprintf(error, sizeof(error), "NO_ROUTE exchange=%s routing key=%s",
			 topic->name.text, claims_routing_key(row));
	decide(r, row, OUTCOME_UNROUTABLE, error);
}

/* What the broker answered for one message of the window. */
static void
handle_answer(void *context, void *item, enum confirm_answer answer)
{
	struct rabbit *r = context;
	struct row *row = item;

	switch (answer)
	{
		case CONFIRM_ACKED:
			topics_good(row->note);
			decide(r, row, OUTCOME_PUBLISHED, NULL);
			break;
		case CONFIRM_RETURNED:
			topics_good(row->note);
			decide_returned(r, row);
			break;
		case CONFIRM_NACKED:
			decide(r, row, OUTCOME_NACKED, "the broker sent basic.nack");
			break;
		case CONFIRM_UNKNOWN:
			decide(r, row, OUTCOME_RELEASED,
				   "connection lost before the confirm");
			break;
	}
	/* A batch of a narrowed window went through: allow twice as many. */
	if (answer != CONFIRM_UNKNOWN && r->window.open == 0 && is_narrowed(r))
		set_limit(r, r->limit * 2);
}

static void
handle_confirm(struct rabbit *r, uint64_t tag, bool multiple, bool nack)
{
	if (confirm_settle(&r->window, tag, multiple, nack, handle_answer, r) == 0)
		log_warn("confirm for an unknown delivery tag ignored",
				 LOG_NUM("tag", tag), LOG_NUM("multiple", multiple),
				 LOG_NUM("next_tag", r->window.next));
}

/* ---- the publishing channel ---- */

static void
open_channel(struct rabbit *r, uint16_t channel)
{
	amqp_channel_open_t open = {.out_of_band = amqp_empty_bytes};

	broker_send_method(&r->broker, channel, AMQP_CHANNEL_OPEN_METHOD, &open);
}

static void
open_publish_channel(struct rabbit *r)
{
	amqp_confirm_select_t select = {0};

	open_channel(r, PUBLISH_CHANNEL);
	broker_send_method(&r->broker, PUBLISH_CHANNEL, AMQP_CONFIRM_SELECT_METHOD,
					   &select);
	r->channel = CHANNEL_OPENING;
}

static void
answer_channel_close(struct rabbit *r, uint16_t channel)
{
	amqp_channel_close_ok_t close_ok = {0};

	broker_send_method(&r->broker, channel, AMQP_CHANNEL_CLOSE_OK_METHOD,
					   &close_ok);
}

static bool
is_charged(int code)
{
	return code == AMQP_PRECONDITION_FAILED || code == AMQP_CONTENT_TOO_LARGE ||
		code == AMQP_FRAME_ERROR || code == AMQP_SYNTAX_ERROR ||
		code == AMQP_UNEXPECTED_FRAME;
}

/* The row was alone when the channel closed: it is the one at fault. */
static void
decide_fault(struct rabbit *r, struct row *row, int code, const char *text)
{
	struct topic *topic = row->note;
	msec_t		now = clock_now();
	char		reason[TOPIC_REASON_MAX];

	log_warn("broker closed the channel because of one row",
			 LOG_NUM("id", row->id), LOG_NUM("code", code),
			 LOG_TEXT("text", text));
	if (code == AMQP_NOT_FOUND)
	{
		snprintf(reason, sizeof(reason), "exchange \"%s\" does not exist",
				 topic->name.text);
		topics_hold(topic, TOPIC_MISSING, reason, now, (uint32_t) random());
		decide(r, row, OUTCOME_UNROUTABLE, reason);
	}
	else if (code == AMQP_ACCESS_REFUSED)
	{
		/* with topic permissions it is the routing key that is refused */
		if (strstr(text, "access to topic") == NULL)
			topics_hold(topic, TOPIC_REFUSED, text, now, (uint32_t) random());
		decide(r, row, OUTCOME_UNROUTABLE, text);
	}
	else
		decide(r, row, is_charged(code) ? OUTCOME_REJECTED : OUTCOME_NACKED,
			   text);
}

/*
 * "message size 300 is larger than configured max size 200": the rows beyond
 * the limit are at fault, whichever closed the channel.
 */
static void
learn_size_limit(struct rabbit *r, msec_t now)
{
	const char *number = strstr(r->close_text, SIZE_LIMIT_TEXT);

	if (r->close_code != AMQP_PRECONDITION_FAILED || number == NULL)
		return;
	r->size_limit = strtoull(number + strlen(SIZE_LIMIT_TEXT), NULL, 10);
	r->size_limit_until = now + SIZE_LIMIT_MEMORY;
}

static bool
is_too_large(const struct rabbit *r, size_t length)
{
	return r->size_limit > 0 && length > r->size_limit;
}

/* One row of a window that the broker's channel.close made unknown. */
static void
handle_closed_row(void *context, void *item, enum confirm_answer answer)
{
	struct rabbit *r = context;
	struct row *row = item;
	struct topic *topic = row->note;

	(void) answer;
	if (r->alone || is_too_large(r, claims_payload_length(row)))
	{
		r->culprit_found = true;
		decide_fault(r, row, r->close_code, r->close_text);
		return;
	}
	/* the default exchange exists, and cannot be declared */
	if (r->close_code == AMQP_NOT_FOUND && topic->name.text[0] != '\0')
		topics_check(topic);
	topics_drop(&r->topics, take_topic(row));
	r->base.events.again(r->base.events.relay, row);
}

/*
 * Decide how to go on after n messages became unknown. A known culprit leaves
 * the others free to go at full speed; a charged one may have neighbours of its
 * kind, so the window then grows again step by step.
 */
static void
narrow_down(struct rabbit *r, uint32_t n, int code)
{
	if (n == 0)
		return;
	if (r->culprit_found)
		set_limit(r, is_charged(code) && r->size_limit == 0 ? 1 :
				  r->window.capacity);
	else if (code == AMQP_NOT_FOUND)
	{
		r->verifying = n;
		r->found_missing = false;
	}
	else
		set_limit(r, n / 2);
}

static void
copy_text(char *to, size_t capacity, amqp_bytes_t from)
{
	size_t		length = from.len < capacity - 1 ? from.len : capacity - 1;

	if (length > 0)
		memcpy(to, from.bytes, length);
	to[length] = '\0';
}

static void
handle_publish_close(struct rabbit *r, const amqp_channel_close_t *close)
{
	uint32_t	n = r->window.open;

	r->close_code = close->reply_code;
	copy_text(r->close_text, sizeof(r->close_text), close->reply_text);
	log_warn("broker closed the channel", LOG_NUM("code", r->close_code),
			 LOG_TEXT("text", r->close_text), LOG_NUM("unconfirmed", n));
	answer_channel_close(r, PUBLISH_CHANNEL);
	memset(&r->returned, 0, sizeof(r->returned));
	r->alone = n == 1;
	r->culprit_found = false;
	learn_size_limit(r, clock_now());
	confirm_restart(&r->window, handle_closed_row, r);
	narrow_down(r, n, r->close_code);
	open_publish_channel(r);
}

/* ---- exchanges ---- */

static void
ask_for_topic(struct rabbit *r, struct topic *topic, msec_t now)
{
	amqp_exchange_declare_t declare = {
		.exchange = {strlen(topic->name.text), topic->name.text},
		.type = {6, "direct"},
		.passive = 1,
	};

	if (r->check_channel == CHANNEL_CLOSED)
		open_channel(r, CHECK_CHANNEL);
	broker_send_method(&r->broker, CHECK_CHANNEL, AMQP_EXCHANGE_DECLARE_METHOD,
					   &declare);
	r->check_channel = CHANNEL_OPEN;
	r->checking = topic;
	topic->name.users++;		/* ours, until the answer came */
	r->check_deadline = now + r->broker.settings.connect_timeout;
}

/* All exchanges are known: if none is missing, the 404 must be narrowed down. */
static void
finish_verifying(struct rabbit *r)
{
	if (r->verifying == 0 || r->checking || topics_to_check(&r->topics))
		return;
	if (!r->found_missing)
		set_limit(r, r->verifying / 2);
	r->verifying = 0;
}

static void
check_next_topic(struct rabbit *r, msec_t now)
{
	struct topic *topic;

	if (r->checking || !broker_is_open(&r->broker))
		return;
	topic = topics_to_check(&r->topics);
	if (topic)
		ask_for_topic(r, topic, now);
	else
		finish_verifying(r);
}

static void
handle_check_ok(struct rabbit *r)
{
	if (r->checking == NULL)
		return;
	topics_good(r->checking);
	topics_drop(&r->topics, r->checking);
	r->checking = NULL;
}

static void
handle_check_close(struct rabbit *r, const amqp_channel_close_t *close,
				   msec_t now)
{
	struct topic *topic = r->checking;
	char		text[TEXT_MAX];
	char		reason[TOPIC_REASON_MAX];

	answer_channel_close(r, CHECK_CHANNEL);
	r->check_channel = CHANNEL_CLOSED;
	r->checking = NULL;
	if (topic == NULL)
		return;
	copy_text(text, sizeof(text), close->reply_text);
	if (close->reply_code == AMQP_NOT_FOUND)
		snprintf(reason, sizeof(reason), "exchange \"%s\" does not exist",
				 topic->name.text);
	else
		snprintf(reason, sizeof(reason), "exchange cannot be checked: %s", text);
	topics_hold(topic, TOPIC_MISSING, reason, now, (uint32_t) random());
	r->found_missing = true;
	log_warn("exchange is missing, its rows are held back",
			 LOG_TEXT("exchange", topic->name.text), LOG_TEXT("reason", reason),
			 LOG_NUM("check_again_ms", topic->retry_at - now));
	topics_drop(&r->topics, topic);
}

/* ---- frames ---- */

static void
handle_return_header(struct rabbit *r, const struct frame *frame)
{
	amqp_basic_properties_t *p;

	if (!frame_decode_header(frame, &r->broker.pool, &r->returned.missing, &p))
	{
		broker_drop(&r->broker, 0, "malformed properties in a return", "");
		return;
	}
	r->returned.has_header = true;
	if (!(p->_flags & AMQP_BASIC_MESSAGE_ID_FLAG) ||
		confirm_return(&r->window, p->message_id.bytes,
					   p->message_id.len) == NULL)
		log_warn("returned message is not in the window, ignored");
	if (r->returned.missing == 0)
		r->returned.active = false;
}

static void
handle_content(struct rabbit *r, const struct frame *frame)
{
	struct returned *returned = &r->returned;

	if (frame->type == AMQP_FRAME_HEADER && returned->active &&
		!returned->has_header)
		handle_return_header(r, frame);
	else if (frame->type == AMQP_FRAME_BODY && returned->active &&
			 returned->has_header && frame->length <= returned->missing)
	{
		returned->missing -= frame->length;
		returned->active = returned->missing > 0;
	}
	else
		broker_drop(&r->broker, 0, "content out of place", "");
}

static void
handle_publish_method(struct rabbit *r, amqp_method_number_t id, void *method)
{
	amqp_basic_ack_t *ack = method;
	amqp_basic_nack_t *nack = method;

	switch (id)
	{
		case AMQP_BASIC_ACK_METHOD:
			handle_confirm(r, ack->delivery_tag, ack->multiple, false);
			break;
		case AMQP_BASIC_NACK_METHOD:
			handle_confirm(r, nack->delivery_tag, nack->multiple, true);
			break;
		case AMQP_BASIC_RETURN_METHOD:
			r->returned = (struct returned){.active = true};
			break;
		case AMQP_CHANNEL_OPEN_OK_METHOD:
			break;
		case AMQP_CONFIRM_SELECT_OK_METHOD:
			r->channel = CHANNEL_OPEN;
			break;
		case AMQP_CHANNEL_CLOSE_METHOD:
			handle_publish_close(r, method);
			break;
		default:
			broker_drop(&r->broker, 0, "method out of place",
						amqp_method_name(id));
	}
}

static void
handle_check_method(struct rabbit *r, amqp_method_number_t id, void *method,
					msec_t now)
{
	if (id == AMQP_EXCHANGE_DECLARE_OK_METHOD)
		handle_check_ok(r);
	else if (id == AMQP_CHANNEL_CLOSE_METHOD)
		handle_check_close(r, method, now);
	else if (id != AMQP_CHANNEL_OPEN_OK_METHOD)
		broker_drop(&r->broker, 0, "method out of place", amqp_method_name(id));
}

static void
answer_flow(struct rabbit *r, uint16_t channel, const amqp_channel_flow_t *flow)
{
	amqp_channel_flow_ok_t flow_ok = {.active = flow->active};

	broker_send_method(&r->broker, channel, AMQP_CHANNEL_FLOW_OK_METHOD,
					   &flow_ok);
}

static void
handle_frame(void *owner, const struct frame *frame, msec_t now)
{
	struct rabbit *r = owner;
	amqp_method_number_t id = frame_method_id(frame);
	void	   *method;

	if (frame->type != AMQP_FRAME_METHOD)
	{
		handle_content(r, frame);
		return;
	}
	method = frame_decode_method(frame, &r->broker.pool);
	if (method == NULL ||
		(r->returned.active && frame->channel == PUBLISH_CHANNEL))
		broker_drop(&r->broker, 0, "unexpected or malformed method", "");
	else if (id == AMQP_CHANNEL_FLOW_METHOD)
		answer_flow(r, frame->channel, method);
	else if (frame->channel == PUBLISH_CHANNEL)
		handle_publish_method(r, id, method);
	else if (frame->channel == CHECK_CHANNEL)
		handle_check_method(r, id, method, now);
	else
		broker_drop(&r->broker, 0, "frame on an unknown channel", "");
}

/* ---- the connection's events ---- */

static void
handle_up(void *owner)
{
	open_publish_channel(owner);
}

/* No exchange can be asked about now; those in doubt get the doubt's benefit. */
static void
reset_channels(struct rabbit *r)
{
	struct topic *topic;

	r->channel = r->check_channel = CHANNEL_CLOSED;
	if (r->checking)
		topics_drop(&r->topics, r->checking);
	r->checking = NULL;
	r->verifying = 0;
	memset(&r->returned, 0, sizeof(r->returned));
	while ((topic = topics_to_check(&r->topics)) != NULL)
	{
		topic->name.users++;
		topics_good(topic);
		topics_drop(&r->topics, topic);
	}
}

static void
reject_last(void *context, void *item, enum confirm_answer answer)
{
	struct rabbit *r = context;
	struct row *row = item;
	char		error[ERROR_MAX];

	(void) answer;
	snprintf(error, sizeof(error),
			 "the broker closed the connection because of it, code %d",
			 r->close_code);
	decide(r, row, OUTCOME_REJECTED, error);
}

/*
 * Everything open is unknown. If the broker closed the connection for what a
 * message did (a frame or content error), the same rows would close it again:
 * narrow down across connections.
 */
static void
handle_down(void *owner, int code)
{
	struct rabbit *r = owner;
	uint32_t	n = r->window.open;

	r->close_code = code;
	reset_channels(r);
	if (n > 0 && is_charged(code))
		set_limit(r, n / 2);
	confirm_restart(&r->window, n == 1 && is_charged(code) ? reject_last :
					handle_answer, r);
	r->base.events.lost(r->base.events.relay);
}

static void
handle_unblocked(void *owner, msec_t blocked_for)
{
	struct rabbit *r = owner;

	confirm_shift_clock(&r->window, blocked_for);
}

static void
handle_refused(void *owner, const char *reason)
{
	struct rabbit *r = owner;

	r->base.events.refused(r->base.events.relay, reason);
}

/* ---- the publisher's interface ---- */

static int
rabbit_poll_fd(struct publisher *p, struct pollfd *pfd)
{
	return broker_poll_fd(&rabbit_of(p)->broker, pfd);
}

/* When the oldest message has waited too long; never while blocked. */
static msec_t
confirm_deadline(const struct rabbit *r)
{
	msec_t		oldest = confirm_oldest(&r->window);

	if (oldest == CLOCK_NEVER || r->broker.state != BROKER_READY)
		return CLOCK_NEVER;
	return oldest + r->confirm_timeout;
}

static msec_t
rabbit_deadline(struct publisher *p)
{
	struct rabbit *r = rabbit_of(p);
	msec_t		deadline = broker_deadline(&r->broker);

	deadline = clock_earlier(deadline, confirm_deadline(r));
	if (r->checking)
		deadline = clock_earlier(deadline, r->check_deadline);
	return deadline;
}

static void
rabbit_turn(struct publisher *p, short revents, msec_t now)
{
	struct rabbit *r = rabbit_of(p);

	r->broker.send_until = p->send_until;
	broker_turn(&r->broker, revents, now);
	if (now >= confirm_deadline(r))
		broker_drop(&r->broker, 0, "confirm timeout", "");
	if (r->checking && now >= r->check_deadline)
		broker_drop(&r->broker, 0, "no answer about an exchange", "");
	check_next_topic(r, now);
	if (now >= r->size_limit_until)
		r->size_limit = 0;
	if (now >= r->sweep_at)
	{
		topics_sweep(&r->topics, now);
		r->sweep_at = now + SWEEP_INTERVAL;
	}
}

static bool
rabbit_ready(struct publisher *p)
{
	struct rabbit *r = rabbit_of(p);

	return r->broker.state == BROKER_READY && r->channel == CHANNEL_OPEN;
}

static bool
is_full(const struct rabbit *r)
{
	return !confirm_has_room(&r->window) ||
		r->window.open >= r->limit ||
		(is_narrowed(r) && r->batch >= r->limit) ||
		buffer_length(&r->broker.out) >= BROKER_HIGH_WATER;
}

/* May a message for this exchange go now? PUBLISH_SENT: yes. */
static enum publish_result
ask_topic(struct rabbit *r, struct topic *topic, msec_t now)
{
	switch (topic->state)
	{
		case TOPIC_GOOD:
			return PUBLISH_SENT;
		case TOPIC_CHECKING:
			return PUBLISH_LATER;
		case TOPIC_MISSING:
			if (now < topic->retry_at)
				return PUBLISH_DECIDED;
			topics_check(topic);
			return PUBLISH_LATER;
		case TOPIC_REFUSED:
			if (now < topic->retry_at)
				return PUBLISH_DECIDED;
			/* alone, so that a refusal concerns no other row */
			if (r->window.open > 0)
				return PUBLISH_FULL;
			set_limit(r, 1);
			return PUBLISH_SENT;
	}
	return PUBLISH_FULL;
}

static enum publish_result
put_message(struct rabbit *r, struct row *row, const struct message *m,
			msec_t now)
{
	const char *problem;

	if (is_too_large(r, m->payload_length))
		problem = "message is larger than the broker's limit";
	else
		problem = message_put(&r->broker.out, PUBLISH_CHANNEL,
							  r->broker.frame_max, m, &r->pool);
	if (problem)
	{
		decide(r, row, OUTCOME_REJECTED, problem);
		return PUBLISH_DECIDED;
	}
	r->broker.guarded = true;
	confirm_add(&r->window, row, m->id, now);
	r->batch++;
	return PUBLISH_SENT;
}

static enum publish_result
rabbit_publish(struct publisher *p, struct row *row, const struct message *m,
			   msec_t now)
{
	struct rabbit *r = rabbit_of(p);
	struct topic *topic;
	enum publish_result result;

	if (r->window.open == 0)
		r->batch = 0;
	if (!rabbit_ready(p) || is_full(r))
		return PUBLISH_FULL;
	topic = topics_use(&r->topics, m->topic);
	result = ask_topic(r, topic, now);
	row->note = topic;
	if (result == PUBLISH_SENT)
		return put_message(r, row, m, now);
	if (result == PUBLISH_DECIDED)
		decide(r, row, OUTCOME_UNROUTABLE, topic->reason);
	else
		topics_drop(&r->topics, take_topic(row));
	return result;
}

static void
rabbit_flush(struct publisher *p)
{
	struct rabbit *r = rabbit_of(p);

	r->broker.send_until = p->send_until;
	check_next_topic(r, clock_now());
	broker_flush(&r->broker);
}

static bool
rabbit_idle(struct publisher *p)
{
	return buffer_length(&rabbit_of(p)->broker.out) == 0;
}

static int
rabbit_unconfirmed(struct publisher *p)
{
	return (int) rabbit_of(p)->window.open;
}

static void
forget_row(void *context, void *item, enum confirm_answer answer)
{
	struct rabbit *r = context;
	struct row *row = item;

	(void) answer;
	topics_drop(&r->topics, take_topic(row));
}

/*
 * The rows are about to be freed. A connection that has any of them, even
 * unsent, is dropped, so that no late answer meets a new tag.
 */
static void
rabbit_forget(struct publisher *p, const char *reason)
{
	struct rabbit *r = rabbit_of(p);

	/* An empty window's channel stays open, and so its tags must go on. */
	if (r->window.open == 0 && !r->broker.guarded)
		return;
	confirm_restart(&r->window, forget_row, r);
	broker_drop(&r->broker, 0, reason, "unconfirmed messages are forgotten");
}

static void
rabbit_close(struct publisher *p, msec_t now)
{
	broker_close(&rabbit_of(p)->broker, now);
}

static bool
rabbit_closed(struct publisher *p)
{
	return rabbit_of(p)->broker.state == BROKER_DOWN;
}

static void
rabbit_free(struct publisher *p)
{
	struct rabbit *r = rabbit_of(p);

	broker_free(&r->broker);
	confirm_free(&r->window);
	names_free(&r->topics);
	empty_amqp_pool(&r->pool);
	free(r);
}

static const struct publisher_ops rabbit_ops = {
	.name = "rabbitmq",
	.poll_fd = rabbit_poll_fd,
	.deadline = rabbit_deadline,
	.turn = rabbit_turn,
	.publish = rabbit_publish,
	.flush = rabbit_flush,
	.ready = rabbit_ready,
	.idle = rabbit_idle,
	.unconfirmed = rabbit_unconfirmed,
	.forget = rabbit_forget,
	.close = rabbit_close,
	.closed = rabbit_closed,
	.free = rabbit_free,
};

struct publisher *
rabbit_new(const struct broker_settings *settings,
		   const struct publisher_events *events, uint32_t window,
		   msec_t confirm_timeout)
{
	struct rabbit *r = calloc(1, sizeof(*r));
	struct broker_events broker_events = {
		.up = handle_up,
		.down = handle_down,
		.frame = handle_frame,
		.unblocked = handle_unblocked,
		.refused = handle_refused,
		.owner = r,
	};

	if (r == NULL || !confirm_init(&r->window, window))
		abort();
	r->base.ops = &rabbit_ops;
	r->base.events = *events;
	r->limit = window;
	r->confirm_timeout = confirm_timeout;
	names_init(&r->topics, sizeof(struct topic));
	init_amqp_pool(&r->pool, POOL_PAGE);
	broker_init(&r->broker, settings, &broker_events);
	return &r->base;
}
