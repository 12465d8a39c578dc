/*
 * rabbit.c
 *		The publisher for RabbitMQ: a connection, and a confirm channel a lane.
 *
 * Here are the connection's events and the publisher's interface. What happens
 * on a channel is in rabbit_channel.c, what is known of exchanges in
 * rabbit_topics.c. A lane that is not in use has no channel.
 */
#include "rabbit_internal.h"

#include <stdlib.h>
#include <string.h>

#include "log.h"

#define POOL_PAGE		16384
#define SWEEP_INTERVAL	60000

static const uint16_t channel_numbers[LANES] = {
	[LANE_BUSINESS] = 1,
	[LANE_AUDIT] = 3,
	[LANE_DEAD_LETTER] = 4,
};

static struct rabbit *
rabbit_of(struct publisher *p)
{
	return (struct rabbit *) p;
}

/* Messages without an answer, on all channels. */
uint32_t
rabbit_open_total(const struct rabbit *r)
{
	uint32_t	open = 0;

	for (int lane = 0; lane < LANES; lane++)
		open += r->channels[lane].window.open;
	return open;
}

/* ---- channels ---- */

static struct channel *
channel_of(struct rabbit *r, uint16_t number)
{
	for (int lane = 0; lane < LANES; lane++)
		if (r->channels[lane].number == number && number > 0)
			return &r->channels[lane];
	return NULL;
}

static void
answer_flow(struct rabbit *r, uint16_t channel, const amqp_channel_flow_t *flow)
{
	amqp_channel_flow_ok_t flow_ok = {.active = flow->active};

	broker_send_method(&r->broker, channel, AMQP_CHANNEL_FLOW_OK_METHOD,
					   &flow_ok);
}

static void
handle_method(struct rabbit *r, const struct frame *frame, msec_t now)
{
	amqp_method_number_t id = frame_method_id(frame);
	struct channel *channel = channel_of(r, frame->channel);
	void	   *method = frame_decode_method(frame, &r->broker.pool);

	if (method == NULL || (channel && channel->returned.active))
		broker_drop(&r->broker, 0, "unexpected or malformed method", "");
	else if (id == AMQP_CHANNEL_FLOW_METHOD)
		answer_flow(r, frame->channel, method);
	else if (channel)
		channel_handle_method(channel, id, method);
	else if (frame->channel == CHECK_CHANNEL)
		rabbit_handle_check(r, id, method, now);
	else
		broker_drop(&r->broker, 0, "frame on an unknown channel", "");
}

static void
handle_frame(void *owner, const struct frame *frame, msec_t now)
{
	struct rabbit *r = owner;
	struct channel *channel;

	if (frame->type == AMQP_FRAME_METHOD)
		handle_method(r, frame, now);
	else if ((channel = channel_of(r, frame->channel)) != NULL)
		channel_handle_content(channel, frame);
	else
		broker_drop(&r->broker, 0, "content out of place", "");
}

/* ---- the connection's events ---- */

static void
handle_up(void *owner)
{
	struct rabbit *r = owner;

	for (int lane = 0; lane < LANES; lane++)
		if (r->channels[lane].number > 0)
			channel_open(&r->channels[lane]);
}

/*
 * Everything open is unknown. If the broker closed the connection for what a
 * message did (a frame or content error), the same messages would close it
 * again: narrow down across connections, and over all lanes.
 */
static void
handle_down(void *owner, int code)
{
	struct rabbit *r = owner;
	uint32_t	n = rabbit_open_total(r);
	bool		charged = n > 0 && rabbit_code_is_charged(code);

	rabbit_forget_checks(r);
	if (charged)
		narrow_set(&r->narrow, n / 2);
	for (int lane = 0; lane < LANES; lane++)
	{
		channel_reset(&r->channels[lane]);
		channel_lose(&r->channels[lane], code, charged && n == 1);
	}
	r->base.events.lost(r->base.events.relay);
}

static void
handle_unblocked(void *owner, msec_t blocked_for)
{
	struct rabbit *r = owner;

	for (int lane = 0; lane < LANES; lane++)
		confirm_shift_clock(&r->channels[lane].window, blocked_for);
}

/* After the start a person may mend it while we wait. */
static void
handle_refused(void *owner, const char *reason)
{
	struct rabbit *r = owner;
	bool		starting = !broker_was_ready(&r->broker);

	broker_log_refusal(&r->broker, reason, starting);
	if (starting)
		r->base.events.failed(r->base.events.relay);
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
	msec_t		oldest = CLOCK_NEVER;

	for (int lane = 0; lane < LANES; lane++)
		oldest = clock_earlier(oldest,
							   confirm_oldest(&r->channels[lane].window));
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
	rabbit_check_topics(r, now);
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

	return r->broker.state == BROKER_READY &&
		r->channels[LANE_BUSINESS].state == CHANNEL_OPEN;
}

static enum publish_result
rabbit_publish(struct publisher *p, struct copy *copy, const struct message *m,
			   msec_t now)
{
	return channel_publish(&rabbit_of(p)->channels[copy->lane], copy, m, now);
}

static void
rabbit_flush(struct publisher *p)
{
	struct rabbit *r = rabbit_of(p);

	r->broker.send_until = p->send_until;
	rabbit_check_topics(r, clock_now());
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
	return (int) rabbit_open_total(rabbit_of(p));
}

/*
 * The copies are about to be freed. A connection that has any of them, even
 * unsent, is dropped, so that no late answer meets a new tag.
 */
static void
rabbit_forget(struct publisher *p, const char *reason)
{
	struct rabbit *r = rabbit_of(p);

	/* An empty window's channel stays open, and so its tags must go on. */
	if (rabbit_open_total(r) == 0 && !r->broker.guarded)
		return;
	for (int lane = 0; lane < LANES; lane++)
		channel_forget(&r->channels[lane]);
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
	for (int lane = 0; lane < LANES; lane++)
		confirm_free(&r->channels[lane].window);
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

static void
init_channel(struct rabbit *r, enum lane lane, uint32_t window)
{
	struct channel *c = &r->channels[lane];

	c->rabbit = r;
	c->lane = lane;
	if (window == 0)
		return;
	c->number = channel_numbers[lane];
	if (!confirm_init(&c->window, window))
		abort();
	narrow_init(&c->narrow, window);
}

/* windows: unconfirmed messages at most, by lane; 0: it is not in use. */
struct publisher *
rabbit_new(const struct broker_settings *settings,
		   const struct publisher_events *events, const uint32_t windows[LANES],
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
	uint32_t	total = 0;

	if (r == NULL)
		abort();
	r->base.ops = &rabbit_ops;
	r->base.events = *events;
	for (int lane = 0; lane < LANES; lane++)
	{
		init_channel(r, (enum lane) lane, windows[lane]);
		total += windows[lane];
	}
	narrow_init(&r->narrow, total);
	r->confirm_timeout = confirm_timeout;
	names_init(&r->topics, sizeof(struct topic));
	init_amqp_pool(&r->pool, POOL_PAGE);
	broker_init(&r->broker, settings, &broker_events);
	return &r->base;
}
