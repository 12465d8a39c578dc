/*
 * asking.c
 *		Questions to a broker, for "check": one at a time, each waits for its
 *		answer.
 *
 * Asked on a channel that the broker closes to say no; the next question opens it
 * again. Each has the connect timeout.
 */
#include "asking.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "amqp_text.h"
#include "connection.h"

#define CHANNEL			1

static void
on_up(void *owner)
{
	((struct asking *) owner)->up = true;
}

static void
on_down(void *owner, int code)
{
	(void) code;
	((struct asking *) owner)->lost = true;
}

static void
on_refused(void *owner, const char *reason)
{
	struct asking *a = owner;

	a->refused = true;
	snprintf(a->text, sizeof(a->text), "%s", reason);
}

static void
on_unblocked(void *owner, msec_t blocked_for)
{
	(void) owner;
	(void) blocked_for;
}

static void
handle_channel_close(struct asking *a, const amqp_channel_close_t *close)
{
	a->channel_open = false;
	a->answered = true;
	a->code = close->reply_code;
	bytes_to_text(a->text, sizeof(a->text), close->reply_text);
	broker_answer_close(&a->broker, CHANNEL);
}

/* Is it one of the answers that say yes? */
static bool
is_yes(amqp_method_number_t id)
{
	return id == AMQP_EXCHANGE_DECLARE_OK_METHOD ||
		id == AMQP_EXCHANGE_DELETE_OK_METHOD ||
		id == AMQP_QUEUE_DECLARE_OK_METHOD ||
		id == AMQP_QUEUE_DELETE_OK_METHOD ||
		id == AMQP_QUEUE_BIND_OK_METHOD || id == AMQP_TX_ROLLBACK_OK_METHOD;
}

static void
on_frame(void *owner, const struct frame *frame, msec_t now)
{
	struct asking *a = owner;
	amqp_method_number_t id = frame_method_id(frame);
	void	   *method;

	(void) now;
	if (frame->type != AMQP_FRAME_METHOD)
		return;
	method = frame_decode_method(frame, &a->broker.pool);
	if (method && id == AMQP_CHANNEL_CLOSE_METHOD)
		handle_channel_close(a, method);
	else if (method && is_yes(id))
	{
		a->answered = true;
		a->code = 0;
		if (id == AMQP_QUEUE_DECLARE_OK_METHOD)
			a->messages = ((amqp_queue_declare_ok_t *) method)->message_count;
	}
}

static void
turn(struct asking *a, msec_t limit)
{
	struct pollfd pfd = {.fd = -1};
	msec_t		deadline = clock_earlier(broker_deadline(&a->broker), limit);
	msec_t		wait = deadline - clock_now();

	broker_poll_fd(&a->broker, &pfd);
	if (poll(&pfd, 1, wait < 0 ? 0 : wait > 1000 ? 1000 : (int) wait) < 0)
		pfd.revents = 0;
	broker_turn(&a->broker, pfd.revents, clock_now());
}

/* All hosts have failed once when the broker plans to wait. */
static bool
connect_broker(struct asking *a)
{
	while (!a->up && !a->refused)
	{
		turn(a, CLOCK_NEVER);
		if (a->broker.state == BROKER_DOWN &&
			a->broker.retry_at > clock_now())
			break;
	}
	return a->up;
}

static void
open_channel(struct asking *a)
{
	if (!a->channel_open)
		broker_open_channel(&a->broker, CHANNEL);
	a->channel_open = true;
	a->answered = false;
}

static bool
wait_for_answer(struct asking *a)
{
	msec_t		limit = clock_now() + a->broker.settings.connect_timeout;

	broker_flush(&a->broker);
	while (!a->answered && !a->lost && clock_now() < limit)
		turn(a, limit);
	return a->answered;
}

/*
 * Ask by this method. False if no answer came; else a->code is 0 for yes, or why
 * not.
 */
bool
asking_ask(struct asking *a, amqp_method_number_t id, void *method)
{
	open_channel(a);
	broker_send_method(&a->broker, CHANNEL, id, method);
	return wait_for_answer(a);
}

/* Does it exist? Needs no permission and changes nothing. */
bool
asking_exchange(struct asking *a, const char *name)
{
	amqp_exchange_declare_t declare = {
		.exchange = {strlen(name), (void *) name},
		.type = {6, "direct"},
		.passive = 1,
	};

	return asking_ask(a, AMQP_EXCHANGE_DECLARE_METHOD, &declare);
}

/* The same; and how many messages are ready. */
bool
asking_queue(struct asking *a, const char *name)
{
	amqp_queue_declare_t declare = {
		.queue = {strlen(name), (void *) name},
		.passive = 1,
	};

	return asking_ask(a, AMQP_QUEUE_DECLARE_METHOD, &declare);
}

/*
 * May the user publish to it? In an AMQP transaction that is rolled back: the
 * broker checks the right when the message comes, and routes it only at the commit
 * that never comes.
 */
bool
asking_right(struct asking *a, const char *name, const char *routing_key)
{
	amqp_tx_select_t select = {0};
	amqp_tx_rollback_t rollback = {0};
	amqp_basic_properties_t properties = {0};
	amqp_basic_publish_t publish = {
		.exchange = {strlen(name), (void *) name},
		.routing_key = {strlen(routing_key), (void *) routing_key},
	};

	open_channel(a);
	broker_send_method(&a->broker, CHANNEL, AMQP_TX_SELECT_METHOD, &select);
	broker_send_method(&a->broker, CHANNEL, AMQP_BASIC_PUBLISH_METHOD, &publish);
	if (!frame_put_content(&a->broker.out, CHANNEL, a->broker.frame_max,
						   &properties, "", 0))
		return false;
	broker_send_method(&a->broker, CHANNEL, AMQP_TX_ROLLBACK_METHOD, &rollback);
	return wait_for_answer(a);
}

/* Connect; false if that is not possible: a->refused and a->text say why. */
bool
asking_begin(struct asking *a, const struct config *config, const char *version)
{
	struct broker_settings settings =
		connection_settings(config, "acme-outbox-bridge check", version);
	struct broker_events events = {on_up, on_down, on_frame, on_unblocked,
	on_refused, a};

	memset(a, 0, sizeof(*a));
	broker_init(&a->broker, &settings, &events);
	return connect_broker(a);
}

void
asking_end(struct asking *a)
{
	msec_t		limit = clock_now() + BROKER_CLOSE_TIMEOUT;

	broker_close(&a->broker, clock_now());
	while (a->broker.state != BROKER_DOWN && clock_now() < limit)
		turn(a, limit);
	broker_free(&a->broker);
}

