/*
 * reprocess_connection.c
 *		A reprocessing's connection: frames to whom they concern, the clock, and
 *		what becomes of the run when the connection ends.
 *
 * The lock is a queue that only this connection may use; the broker removes it
 * with the connection, however that ends. The exchange is not removed that way. So
 * a lost connection is made again once to remove it, for as long as a connection
 * may take.
 *
 * Every answer has its time. A broker that has blocked publishing has more: that
 * clock stands still.
 */
#include "reprocess_internal.h"

#include <stdio.h>

#include "log.h"

/* ---- frames ---- */

static void
answer_flow(struct reprocess *r, const amqp_channel_flow_t *flow)
{
	amqp_channel_flow_ok_t flow_ok = {.active = flow->active};

	reprocess_send(r, AMQP_CHANNEL_FLOW_OK_METHOD, &flow_ok);
}

static void
on_frame(void *owner, const struct frame *frame, msec_t now)
{
	struct reprocess *r = owner;
	amqp_method_number_t id = frame_method_id(frame);
	void	   *method;

	if (frame->type != AMQP_FRAME_METHOD)
	{
		letters_content(r, frame, now);
		return;
	}
	method = frame_decode_method(frame, &r->broker.pool);
	if (method == NULL || frame->channel != REPROCESS_CHANNEL)
		broker_drop(&r->broker, 0, "unexpected or malformed method", "");
	else if (id == AMQP_CHANNEL_CLOSE_METHOD)
		reprocess_channel_closed(r, method);
	else if (id == AMQP_CHANNEL_FLOW_METHOD)
		answer_flow(r, method);
	else if (!reprocess_answered(r, id, method))
		broker_drop(&r->broker, 0, "method out of place", amqp_method_name(id));
}

/* ---- events ---- */

static void
on_up(void *owner)
{
	struct reprocess *r = owner;

	r->resume = r->recovering ? STEP_LOCKING : STEP_FINDING_QUEUE;
	reprocess_enter(r, STEP_OPENING);
}

/* An exchange that was made is still there. */
static void
on_down(void *owner, int code)
{
	struct reprocess *r = owner;
	bool		in_doubt = r->step == STEP_PUBLISHING;

	(void) code;
	reprocess_forget_channel(r);
	if (r->step == STEP_CLOSING)
	{
		reprocess_enter(r, STEP_DONE);
		return;
	}
	reprocess_note_outcome(r, EXIT_TEMPORARY, "run it again when the broker is "
						   "back", "the connection was lost: %s. The dead-letter "
						   "queue keeps what was not republished%s",
						   r->broker.problem, in_doubt ? "; one message may now "
						   "be in both queues" : "");
	if (!r->may_exist || r->recovering)
		reprocess_enter(r, STEP_CLOSING);
	else
	{
		r->recovering = true;
		reprocess_enter(r, STEP_CONNECTING);
	}
}

static void
on_unblocked(void *owner, msec_t blocked_for)
{
	struct reprocess *r = owner;

	if (r->deadline != CLOCK_NEVER)
		r->deadline += blocked_for;
}

static void
on_refused(void *owner, const char *reason)
{
	struct reprocess *r = owner;

	reprocess_finish(r, EXIT_PUBLISHER, "check the user, password and virtual host "
					 "in RABBITMQ_URI, and the tls-* settings",
					 "the broker refused the login: %s", reason);
}

/* ---- the clock ---- */

/* Every host has failed once; or the time to come back and clean up is over. */
static bool
is_unreachable(const struct reprocess *r, msec_t now)
{
	if (r->step != STEP_CONNECTING)
		return false;
	if (r->recovering)
		return now >= r->deadline;
	return r->broker.state == BROKER_DOWN && r->broker.problem[0] != '\0' &&
		r->broker.retry_at > now;
}

static bool
is_overdue(const struct reprocess *r, msec_t now)
{
	if (r->stopping && now >= r->stop_deadline)
		return true;
	return r->step != STEP_CONNECTING && now >= r->deadline &&
		r->broker.state != BROKER_BLOCKED;
}

static void
keep_time(struct reprocess *r, msec_t now)
{
	if (is_unreachable(r, now))
		reprocess_finish(r, EXIT_TEMPORARY, "check host and port in RABBITMQ_URI, "
						 "and that the broker runs", "the broker is not reachable: "
						 "%s", r->broker.problem);
	else if (r->step == STEP_CLOSING && r->broker.state == BROKER_DOWN)
		reprocess_enter(r, STEP_DONE);
	else if (r->step < STEP_CLOSING && is_overdue(r, now))
	{
		char		late[64];

		snprintf(late, sizeof(late), "it did not %s in time",
				 reprocess_step_name(r));
		/* a stop has waited long enough: no further connection */
		r->recovering |= r->stopping;
		if (r->broker.state == BROKER_DOWN)
			reprocess_enter(r, STEP_CLOSING);
		else
			broker_drop(&r->broker, 0, "no answer from the broker", late);
	}
}

/* ---- the loop's view ---- */

void
reprocess_connect(struct reprocess *r,
				  const struct broker_settings *settings)
{
	struct broker_events events = {
		.up = on_up,
		.down = on_down,
		.frame = on_frame,
		.unblocked = on_unblocked,
		.refused = on_refused,
		.owner = r,
	};

	r->deadline = CLOCK_NEVER;
	broker_init(&r->broker, settings, &events);
}

void
reprocess_turn(struct reprocess *r, short revents, msec_t now)
{
	broker_turn(&r->broker, revents, now);
	keep_time(r, now);
	broker_flush(&r->broker);
}

/* Asked to stop: the message in hand is finished first. */
void
reprocess_stop(struct reprocess *r, msec_t now)
{
	if (r->stopping)
		return;
	log_info("stopping: the message in hand is finished first");
	r->stopping = true;
	r->stop_deadline = now + r->options.stop_timeout;
	if (r->step == STEP_CONNECTING)
		reprocess_finish(r, EXIT_TEMPORARY, "run it again", "stopped by a signal "
						 "before anything was done");
}

msec_t
reprocess_deadline(struct reprocess *r)
{
	msec_t		deadline = clock_earlier(broker_deadline(&r->broker),
										 r->deadline);

	return r->stopping ? clock_earlier(deadline, r->stop_deadline) : deadline;
}
