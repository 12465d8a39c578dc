/*
 * reprocess_steps.c
 *		A dead-letter queue, message by message, back into its queue.
 *
 *		CONNECTING -> OPENING -> FINDING_QUEUE -> FINDING_DLQ -> LOCKING
 *			-> SEEKING -> DECLARING -> BINDING
 *			-> (GETTING -> PUBLISHING) again and again
 *			-> UNBINDING -> DELETING -> CLOSING -> DONE
 *
 * The step changes only in enter(), which also sends what the step is about; a
 * step ends with its answer. A dry run goes from FINDING_DLQ to GETTING, and
 * stays there until it has seen enough.
 *
 * A copy, then a delete, never a move: the delivery is acknowledged once the
 * broker has confirmed the copy without returning it. A single copy is
 * unconfirmed at any time, so a process that is killed leaves one duplicate at
 * most. For that the acknowledgements must have reached the queue, too: of many, the
 * broker's channel saves some up and loses them when it ends. Ours never are many:
 * the basic.get for a message is answered only after all that went before it, and
 * one is sent after it.
 *
 * The next dead letter is fetched while a copy waits for its confirm. Each takes
 * half of the time.
 *
 * One channel does it all. Deliveries that stay (unmatched, without a key) are
 * held until the end and then given back, so that none is met twice.
 *
 * The lock is a queue that only this connection may use; the broker removes it
 * with the connection, however that ends. The exchange is not removed that way.
 * So a lost connection is made again once to remove it, and what a killed run
 * left is used and removed by the next.
 *
 * A message reaches the queue through the binding with the key "reprocess".
 * With its original key it is published with both: the broker's header BCC names
 * a second key, and is gone when the message arrives. So no binding per key is
 * needed, and none can be left over.
 */
#include "reprocess_internal.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crash.h"
#include "log.h"

#define CHANNEL			1

static void enter(struct reprocess *r, enum step step);

static amqp_bytes_t
bytes_of(const char *text)
{
	return (amqp_bytes_t){strlen(text), (void *) text};
}

static void
send_method(struct reprocess *r, amqp_method_number_t id, void *method)
{
	broker_send_method(&r->broker, CHANNEL, id, method);
}

/* ---- the end ---- */

/* Give back what is held, remove what was made. */
static void
wind_up(struct reprocess *r)
{
	amqp_basic_nack_t nack = {
		.delivery_tag = r->last_tag, .multiple = 1, .requeue = 1
	};

	if (!broker_is_open(&r->broker))
		enter(r, STEP_CLOSING);
	else if (!r->channel_open)
	{
		r->resume = STEP_UNBINDING;
		enter(r, r->may_exist ? STEP_OPENING : STEP_CLOSING);
	}
	else
	{
		if (r->unsettled > 0)
			send_method(r, AMQP_BASIC_NACK_METHOD, &nack);
		r->unsettled = 0;
		enter(r, r->may_exist ? STEP_UNBINDING : STEP_CLOSING);
	}
}

static void
set_outcome(struct reprocess *r, enum exit_status status, const char *next_step,
			const char *format, va_list arguments)
{
	if (r->ended)
		return;
	r->ended = true;
	r->status = status;
	vsnprintf(r->reason, sizeof(r->reason), format, arguments);
	snprintf(r->next_step, sizeof(r->next_step), "%s", next_step);
}

static bool
is_coming(const struct reprocess *r)
{
	return r->ahead == AHEAD_ASKED || r->ahead == AHEAD_COMING;
}

/*
 * The outcome, if it is the first; then the way out. What was asked for comes
 * first, to be given back with the others.
 */
static void __attribute__((format(printf, 4, 5)))
finish(struct reprocess *r, enum exit_status status, const char *next_step,
	   const char *format, ...)
{
	va_list		arguments;

	va_start(arguments, format);
	set_outcome(r, status, next_step, format, arguments);
	va_end(arguments);
	if (r->step == STEP_PUBLISHING && is_coming(r))
		enter(r, STEP_GETTING);
	else
		wind_up(r);
}

/* The same where there is no connection to wind up on. */
static void __attribute__((format(printf, 4, 5)))
note_outcome(struct reprocess *r, enum exit_status status,
			 const char *next_step, const char *format, ...)
{
	va_list		arguments;

	va_start(arguments, format);
	set_outcome(r, status, next_step, format, arguments);
	va_end(arguments);
}

/* ---- what each step sends ---- */

static void
begin_opening(struct reprocess *r)
{
	amqp_channel_open_t open = {.out_of_band = amqp_empty_bytes};
	amqp_confirm_select_t select = {0};

	r->channel_open = true;
	r->sent = 0;
	send_method(r, AMQP_CHANNEL_OPEN_METHOD, &open);
	send_method(r, AMQP_CONFIRM_SELECT_METHOD, &select);
}

static void
declare_queue(struct reprocess *r, const char *name, bool passive)
{
	amqp_queue_declare_t declare = {
		.queue = bytes_of(name),
		.passive = passive,
		.exclusive = !passive,
	};

	send_method(r, AMQP_QUEUE_DECLARE_METHOD, &declare);
}

static void
begin_finding_queue(struct reprocess *r)
{
	declare_queue(r, r->options.queue, true);
}

static void
begin_finding_dlq(struct reprocess *r)
{
	declare_queue(r, r->options.dlq, true);
}

static void
begin_locking(struct reprocess *r)
{
	declare_queue(r, r->lock, false);
}

static void
declare_exchange(struct reprocess *r, bool passive)
{
	amqp_exchange_declare_t declare = {
		.exchange = bytes_of(r->exchange),
		.type = bytes_of("direct"),
		.passive = passive,
	};

	send_method(r, AMQP_EXCHANGE_DECLARE_METHOD, &declare);
}

static void
begin_seeking(struct reprocess *r)
{
	declare_exchange(r, true);
}

static void
begin_declaring(struct reprocess *r)
{
	r->may_exist = true;
	declare_exchange(r, false);
}

static void
begin_binding(struct reprocess *r)
{
	amqp_queue_bind_t bind = {
		.queue = bytes_of(r->options.queue),
		.exchange = bytes_of(r->exchange),
		.routing_key = bytes_of(REPROCESS_KEY),
	};

	send_method(r, AMQP_QUEUE_BIND_METHOD, &bind);
}

static void
begin_getting(struct reprocess *r)
{
	amqp_basic_get_t get = {.queue = bytes_of(r->options.dlq)};

	if (r->ahead != AHEAD_NONE)
		return;
	dead_letter_clear(&r->next);
	send_method(r, AMQP_BASIC_GET_METHOD, &get);
	r->ahead = AHEAD_ASKED;
}

/* The copy is sent already; is another letter wanted after it? */
static void
begin_publishing(struct reprocess *r)
{
	const struct tally *t = &r->tally;
	bool		is_last = t->looked >= t->at_start ||
		(r->options.limit > 0 && t->done + 1 >= (uint64_t) r->options.limit);

	if (!is_last && !r->stopping)
		begin_getting(r);
}

static void
begin_unbinding(struct reprocess *r)
{
	amqp_queue_unbind_t unbind = {
		.queue = bytes_of(r->options.queue),
		.exchange = bytes_of(r->exchange),
		.routing_key = bytes_of(REPROCESS_KEY),
	};

	send_method(r, AMQP_QUEUE_UNBIND_METHOD, &unbind);
}

static void
begin_deleting(struct reprocess *r)
{
	amqp_exchange_delete_t delete = {.exchange = bytes_of(r->exchange)};

	send_method(r, AMQP_EXCHANGE_DELETE_METHOD, &delete);
}

static void
begin_closing(struct reprocess *r)
{
	broker_close(&r->broker, clock_now());
}

/* ---- one dead letter after the other ---- */

static bool
is_enough(const struct reprocess *r)
{
	const struct tally *t = &r->tally;

	return t->looked >= t->at_start ||
		(r->options.limit > 0 && t->done >= (uint64_t) r->options.limit);
}

static void
finish_well(struct reprocess *r)
{
	if (r->tally.keyless > 0)
		finish(r, EXIT_TEMPORARY, "run it again without --original-key for "
			   "those whose consumer does not look at the routing key",
			   "%llu messages tell no original key",
			   (unsigned long long) r->tally.keyless);
	else
		finish(r, EXIT_OK, "", "%s", "");
}

static void consider(struct reprocess *r);

/* The letter ahead becomes the one in hand. */
static void
take_next(struct reprocess *r)
{
	struct dead_letter spare = r->letter;

	r->letter = r->next;
	r->next = spare;
	r->tag = r->next_tag;
	r->ahead = AHEAD_NONE;
	consider(r);
}

static void
go_on(struct reprocess *r)
{
	if (is_enough(r) || r->ahead == AHEAD_EMPTY)
		finish_well(r);
	else if (r->stopping)
		finish(r, EXIT_TEMPORARY, "run it again: what is left is in the "
			   "dead-letter queue", "stopped by a signal");
	else if (r->ahead == AHEAD_READY)
		take_next(r);
	else
		enter(r, STEP_GETTING);
}

/* False if it does not fit into a frame. */
static bool
put_copy(struct reprocess *r, const char *key, const char *also_to)
{
	struct dead_letter *letter = &r->letter;
	struct buffer list = {0};
	amqp_basic_publish_t publish = {
		.exchange = bytes_of(r->exchange),
		.routing_key = bytes_of(key),
		.mandatory = 1,
	};
	struct buffer *out = &r->broker.out;
	size_t		before = buffer_length(out);
	bool		fits;

	dead_letter_put_fresh(&list, letter, r->options.user, also_to);
	send_method(r, AMQP_BASIC_PUBLISH_METHOD, &publish);
	fits = frame_put_encoded(out, CHANNEL, r->broker.frame_max,
							 buffer_head(&list), buffer_length(&list),
							 buffer_head(&letter->body),
							 buffer_length(&letter->body));
	if (!fits)
		buffer_truncate(out, before);
	buffer_free(&list);
	return fits;
}

static void
publish(struct reprocess *r, const char *key)
{
	bool		fits = r->options.original_key ?
		put_copy(r, key, REPROCESS_KEY) : put_copy(r, REPROCESS_KEY, NULL);

	if (fits)
	{
		r->sent++;
		r->returned = false;
		if (crash_armed(CRASH_COPY_SENT))
			broker_flush(&r->broker);
		crash_here(CRASH_COPY_SENT);
		enter(r, STEP_PUBLISHING);
	}
	else
		finish(r, EXIT_TEMPORARY, "take that message out of the dead-letter "
			   "queue by hand", "the headers of a message do not fit into one "
			   "AMQP frame");
}

/* All of it is here: what becomes of it? */
static void
consider(struct reprocess *r)
{
	char		key[SHORT_TEXT_MAX] = "";
	bool		has_key = dead_letter_original_key(&r->letter, key);

	r->tally.looked++;
	if (!match_accepts(&r->options.match, &r->letter))
		r->tally.unmatched++;
	else if (r->options.original_key && !has_key)
		r->tally.keyless++;
	else if (r->options.dry_run)
	{
		r->tally.done++;
		report_letter(r);
	}
	else if (!r->stopping)
	{
		crash_here(CRASH_DEAD_LETTER_TAKEN);
		publish(r, key);
		return;
	}
	go_on(r);
}

/* Something ahead has changed: if we wait for that, go on. */
static void
note_ahead(struct reprocess *r, enum ahead ahead)
{
	r->ahead = ahead;
	if (r->step != STEP_GETTING || is_coming(r))
		return;
	if (r->ended)
		wind_up(r);
	else
		go_on(r);
}

static void
handle_get_ok(struct reprocess *r, const amqp_basic_get_ok_t *ok)
{
	r->next_tag = r->last_tag = ok->delivery_tag;
	r->unsettled++;
	r->tally.taken++;
	r->tally.behind = ok->message_count;
	note_ahead(r, AHEAD_COMING);
}

static void
handle_get_empty(struct reprocess *r)
{
	r->tally.behind = 0;
	note_ahead(r, AHEAD_EMPTY);
}

static void
handle_letter_content(struct reprocess *r, const struct frame *frame,
					  msec_t now)
{
	if (!dead_letter_add(&r->next, frame))
	{
		broker_drop(&r->broker, 0, "malformed content of a dead letter", "");
		return;
	}
	r->deadline = now + r->options.answer_timeout;
	if (dead_letter_is_whole(&r->next))
		note_ahead(r, AHEAD_READY);
}

/* ---- what becomes of its copy ---- */

static void
handle_confirmed(struct reprocess *r)
{
	amqp_basic_ack_t ack = {.delivery_tag = r->tag};

	crash_here(CRASH_COPY_CONFIRMED);
	send_method(r, AMQP_BASIC_ACK_METHOD, &ack);
	r->unsettled--;
	r->tally.done++;
	if (crash_armed(CRASH_DEAD_LETTER_ACKED))
		broker_flush(&r->broker);
	crash_here(CRASH_DEAD_LETTER_ACKED);
	go_on(r);
}

static void
handle_unroutable(struct reprocess *r)
{
	finish(r, EXIT_TEMPORARY, "see that the queue exists and that nobody unbinds "
		   "it, then run it again", "the broker returned a message: queue \"%s\" "
		   "is not bound to \"%s\" any more. It stays in the dead-letter queue",
		   r->options.queue, r->exchange);
}

static void
handle_nacked(struct reprocess *r)
{
	finish(r, EXIT_TEMPORARY, "is it full (x-max-length, reject-publish)? Make "
		   "room, then run it again", "queue \"%s\" refused a message. It stays "
		   "in the dead-letter queue", r->options.queue);
}

/* The content of a basic.return, which we have already. */
static void
handle_returned_content(struct reprocess *r, const struct frame *frame)
{
	const uint8_t *list;
	size_t		length;

	if (frame->type == AMQP_FRAME_HEADER && !r->returned_header &&
		frame_content_header(frame, &r->returned_missing, &list, &length))
		r->returned_header = true;
	else if (frame->type == AMQP_FRAME_BODY && r->returned_header &&
			 frame->length <= r->returned_missing)
		r->returned_missing -= frame->length;
	else
		broker_drop(&r->broker, 0, "content out of place", "");
}

/* An answer about the one message that is unconfirmed; others are no answer. */
static void
handle_confirm(struct reprocess *r, uint64_t tag, bool multiple, bool nack)
{
	if (tag != r->sent && !(multiple && (tag == 0 || tag > r->sent)))
		return;
	if (r->returned)
		handle_unroutable(r);
	else if (nack)
		handle_nacked(r);
	else
		handle_confirmed(r);
}

/* ---- answers ---- */

static void
answer_opening(struct reprocess *r, void *method)
{
	(void) method;
	enter(r, r->resume);
}

static void
answer_finding_queue(struct reprocess *r, void *method)
{
	(void) method;
	enter(r, STEP_FINDING_DLQ);
}

static void
answer_finding_dlq(struct reprocess *r, void *method)
{
	r->tally.at_start = r->tally.behind =
		((amqp_queue_declare_ok_t *) method)->message_count;
	if (!r->options.dry_run)
		enter(r, STEP_LOCKING);
	else
	{
		r->started_at = clock_now();
		go_on(r);
	}
}

static void
answer_locking(struct reprocess *r, void *method)
{
	(void) method;
	enter(r, r->recovering ? STEP_UNBINDING : STEP_SEEKING);
}

static void
answer_seeking(struct reprocess *r, void *method)
{
	(void) method;
	r->left_over = true;
	log_warn("using the exchange that a run left which did not end orderly",
			 LOG_TEXT("exchange", r->exchange));
	enter(r, STEP_DECLARING);
}

static void
answer_declaring(struct reprocess *r, void *method)
{
	(void) method;
	enter(r, STEP_BINDING);
}

static void
answer_binding(struct reprocess *r, void *method)
{
	(void) method;
	crash_here(CRASH_REPROCESS_BOUND);
	r->started_at = clock_now();
	go_on(r);
}

static void
answer_unbinding(struct reprocess *r, void *method)
{
	(void) method;
	crash_here(CRASH_REPROCESS_UNBOUND);
	enter(r, STEP_DELETING);
}

static void
answer_deleting(struct reprocess *r, void *method)
{
	(void) method;
	r->may_exist = false;
	enter(r, STEP_CLOSING);
}

/* ---- the table of steps ---- */

#define AFTER(step)		(1u << (step))
#define ANY_STEP		(~0u)

struct step_rule
{
	const char *what;			/* "the broker refused to ..." */
	unsigned	from;			/* the steps it may follow */
	void		(*begin) (struct reprocess *r);
	amqp_method_number_t answer;
	void		(*answered) (struct reprocess *r, void *method);
};

static const struct step_rule steps[] = {
	[STEP_CONNECTING] = {"connect", ANY_STEP & ~AFTER(STEP_DONE),
	NULL, 0, NULL},
	[STEP_OPENING] = {"open a channel", ANY_STEP & ~AFTER(STEP_DONE),
		begin_opening, AMQP_CONFIRM_SELECT_OK_METHOD, answer_opening},
	[STEP_FINDING_QUEUE] = {"tell about the queue", AFTER(STEP_OPENING),
		begin_finding_queue, AMQP_QUEUE_DECLARE_OK_METHOD,
		answer_finding_queue},
	[STEP_FINDING_DLQ] = {"tell about the dead-letter queue",
		AFTER(STEP_FINDING_QUEUE), begin_finding_dlq,
		AMQP_QUEUE_DECLARE_OK_METHOD, answer_finding_dlq},
	[STEP_LOCKING] = {"make the lock",
		AFTER(STEP_FINDING_DLQ) | AFTER(STEP_OPENING), begin_locking,
		AMQP_QUEUE_DECLARE_OK_METHOD, answer_locking},
	[STEP_SEEKING] = {"tell about the exchange", AFTER(STEP_LOCKING),
		begin_seeking, AMQP_EXCHANGE_DECLARE_OK_METHOD, answer_seeking},
	[STEP_DECLARING] = {"make the exchange",
		AFTER(STEP_SEEKING) | AFTER(STEP_OPENING), begin_declaring,
		AMQP_EXCHANGE_DECLARE_OK_METHOD, answer_declaring},
	[STEP_BINDING] = {"bind the queue", AFTER(STEP_DECLARING),
		begin_binding, AMQP_QUEUE_BIND_OK_METHOD, answer_binding},
	[STEP_GETTING] = {"hand out a dead letter",
		AFTER(STEP_BINDING) | AFTER(STEP_FINDING_DLQ) | AFTER(STEP_GETTING) |
		AFTER(STEP_PUBLISHING), begin_getting, 0, NULL},
	[STEP_PUBLISHING] = {"confirm a message",
		AFTER(STEP_GETTING) | AFTER(STEP_PUBLISHING), begin_publishing, 0, NULL},
	[STEP_UNBINDING] = {"unbind the queue",
		AFTER(STEP_BINDING) | AFTER(STEP_GETTING) | AFTER(STEP_PUBLISHING) |
		AFTER(STEP_LOCKING) | AFTER(STEP_OPENING) | AFTER(STEP_DECLARING),
		begin_unbinding, AMQP_QUEUE_UNBIND_OK_METHOD, answer_unbinding},
	[STEP_DELETING] = {"delete the exchange",
		AFTER(STEP_UNBINDING) | AFTER(STEP_OPENING), begin_deleting,
		AMQP_EXCHANGE_DELETE_OK_METHOD, answer_deleting},
	[STEP_CLOSING] = {"close the connection", ANY_STEP & ~AFTER(STEP_DONE),
		begin_closing, 0, NULL},
	[STEP_DONE] = {"end", ANY_STEP & ~AFTER(STEP_DONE), NULL, 0, NULL},
};

/* The only place where the step changes; nonsense ends the process. */
static void
enter(struct reprocess *r, enum step step)
{
	if (!(steps[step].from & AFTER(r->step)))
	{
		log_error("impossible step of the reprocessing",
				  LOG_TEXT("from", steps[r->step].what),
				  LOG_TEXT("to", steps[step].what));
		abort();
	}
	log_debug("reprocessing step", LOG_TEXT("step", steps[step].what));
	r->step = step;
	r->deadline = step >= STEP_CLOSING ? CLOCK_NEVER :
		clock_now() + (step == STEP_CONNECTING ? r->options.connect_timeout :
					   r->options.answer_timeout);
	if (steps[step].begin)
		steps[step].begin(r);
}

/* ---- refusals ---- */

static void
fail_missing(struct reprocess *r, const char *what, const char *name)
{
	finish(r, EXIT_NO_QUEUE, "check its name, and the virtual host in "
		   "RABBITMQ_URI", "%s \"%s\" does not exist in virtual host \"%s\"",
		   what, name, r->broker.settings.uri.vhost);
}

/* Whatever else the broker says about a step. */
static void
fail_refused(struct reprocess *r, int code, const char *text)
{
	char		grant[REPROCESS_TEXT_MAX];
	bool		is_right = code == AMQP_ACCESS_REFUSED;

	snprintf(grant, sizeof(grant), is_right ? "the user needs configure, write "
			 "and read on \"%s\", \"%s\" and \"%s\", and read on \"%s\"" :
			 "mend that, then run it again", r->options.queue, r->exchange,
			 r->lock, r->options.dlq);
	finish(r, is_right ? EXIT_PUBLISHER : EXIT_TEMPORARY, grant,
		   "the broker refused to %s: %s", steps[r->step].what, text);
}

static void
fail_locked(struct reprocess *r)
{
	finish(r, EXIT_BUSY, "wait for its end; the lock of a run that was killed "
		   "goes with its connection", "another run is at work on queue \"%s\"",
		   r->options.queue);
}

/* The broker has taken back what was not acknowledged. */
static void
forget_channel(struct reprocess *r)
{
	r->channel_open = false;
	r->unsettled = 0;
	r->ahead = AHEAD_NONE;
	r->returned = false;
}

static void
note_channel_closed(struct reprocess *r)
{
	amqp_channel_close_ok_t close_ok = {0};

	send_method(r, AMQP_CHANNEL_CLOSE_OK_METHOD, &close_ok);
	forget_channel(r);
}

/* Go on with that step on a new channel. */
static void
reopen(struct reprocess *r, enum step step)
{
	r->resume = step;
	enter(r, STEP_OPENING);
}

static void
handle_channel_close(struct reprocess *r, const amqp_channel_close_t *close)
{
	int			code = close->reply_code;
	char		text[SHORT_TEXT_MAX];

	snprintf(text, sizeof(text), "%.*s", (int) close->reply_text.len,
			 (const char *) close->reply_text.bytes);
	note_channel_closed(r);
	if (r->step == STEP_FINDING_QUEUE && code == AMQP_NOT_FOUND)
		fail_missing(r, "queue", r->options.queue);
	else if (r->step == STEP_FINDING_DLQ && code == AMQP_NOT_FOUND)
		fail_missing(r, "dead-letter queue", r->options.dlq);
	else if (r->step == STEP_LOCKING && r->recovering)
		enter(r, STEP_CLOSING);	/* the next run has it, and will remove it */
	else if (r->step == STEP_LOCKING && code == AMQP_RESOURCE_LOCKED)
		fail_locked(r);
	else if (r->step == STEP_SEEKING && code == AMQP_NOT_FOUND)
		reopen(r, STEP_DECLARING);
	else if (r->step == STEP_UNBINDING)
		reopen(r, STEP_DELETING);
	else if (r->step == STEP_DELETING)
		enter(r, STEP_CLOSING);
	else
	{
		/* what could not be declared is not ours to remove */
		if (r->step == STEP_DECLARING)
			r->may_exist = false;
		fail_refused(r, code, text);
	}
}

/* ---- frames ---- */

static void
answer_flow(struct reprocess *r, const amqp_channel_flow_t *flow)
{
	amqp_channel_flow_ok_t flow_ok = {.active = flow->active};

	send_method(r, AMQP_CHANNEL_FLOW_OK_METHOD, &flow_ok);
}

static bool
handle_publishing_method(struct reprocess *r, amqp_method_number_t id,
						 void *method)
{
	amqp_basic_ack_t *ack = method;
	amqp_basic_nack_t *nack = method;

	if (id == AMQP_BASIC_ACK_METHOD)
		handle_confirm(r, ack->delivery_tag, ack->multiple, false);
	else if (id == AMQP_BASIC_NACK_METHOD)
		handle_confirm(r, nack->delivery_tag, nack->multiple, true);
	else if (id == AMQP_BASIC_RETURN_METHOD)
	{
		r->returned = true;
		r->returned_header = false;
		r->returned_missing = 0;
	}
	else
		return false;
	return true;
}

/* The answer to basic.get, which may come while a copy waits for its confirm. */
static bool
handle_getting_method(struct reprocess *r, amqp_method_number_t id,
					  void *method)
{
	if (r->ahead != AHEAD_ASKED)
		return false;
	if (id == AMQP_BASIC_GET_OK_METHOD)
		handle_get_ok(r, method);
	else if (id == AMQP_BASIC_GET_EMPTY_METHOD)
		handle_get_empty(r);
	else
		return false;
	return true;
}

/* The methods of the step at hand; false: this one does not belong there. */
static bool
handle_step_method(struct reprocess *r, amqp_method_number_t id, void *method)
{
	const struct step_rule *rule = &steps[r->step];

	if (rule->answer != 0 && id == rule->answer)
	{
		rule->answered(r, method);
		return true;
	}
	if (r->step == STEP_OPENING)
		return id == AMQP_CHANNEL_OPEN_OK_METHOD;
	if (r->step == STEP_PUBLISHING && handle_publishing_method(r, id, method))
		return true;
	return handle_getting_method(r, id, method);
}

static void
handle_content(struct reprocess *r, const struct frame *frame, msec_t now)
{
	if (r->ahead == AHEAD_COMING)
		handle_letter_content(r, frame, now);
	else if (r->step == STEP_PUBLISHING && r->returned)
		handle_returned_content(r, frame);
	else
		broker_drop(&r->broker, 0, "content out of place", "");
}

static void
on_frame(void *owner, const struct frame *frame, msec_t now)
{
	struct reprocess *r = owner;
	amqp_method_number_t id = frame_method_id(frame);
	void	   *method;

	if (frame->type != AMQP_FRAME_METHOD)
	{
		handle_content(r, frame, now);
		return;
	}
	method = frame_decode_method(frame, &r->broker.pool);
	if (method == NULL || frame->channel != CHANNEL)
		broker_drop(&r->broker, 0, "unexpected or malformed method", "");
	else if (id == AMQP_CHANNEL_CLOSE_METHOD)
		handle_channel_close(r, method);
	else if (id == AMQP_CHANNEL_FLOW_METHOD)
		answer_flow(r, method);
	else if (!handle_step_method(r, id, method))
		broker_drop(&r->broker, 0, "method out of place", amqp_method_name(id));
}

/* ---- the connection ---- */

static void
on_up(void *owner)
{
	struct reprocess *r = owner;

	r->resume = r->recovering ? STEP_LOCKING : STEP_FINDING_QUEUE;
	enter(r, STEP_OPENING);
}

/* An exchange that was made is still there. */
static void
on_down(void *owner, int code)
{
	struct reprocess *r = owner;
	bool		in_doubt = r->step == STEP_PUBLISHING;

	(void) code;
	forget_channel(r);
	if (r->step == STEP_CLOSING)
	{
		enter(r, STEP_DONE);
		return;
	}
	note_outcome(r, EXIT_TEMPORARY, "run it again when the broker is back",
				 "the connection was lost: %s. The dead-letter queue keeps what "
				 "was not republished%s", r->broker.problem, in_doubt ?
				 "; one message may now be in both queues" : "");
	if (!r->may_exist || r->recovering)
		enter(r, STEP_CLOSING);
	else
	{
		r->recovering = true;
		enter(r, STEP_CONNECTING);
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

	finish(r, EXIT_PUBLISHER, "check the user, password and virtual host in "
		   "RABBITMQ_URI, and the tls-* settings", "the broker refused the "
		   "login: %s", reason);
}

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
		finish(r, EXIT_TEMPORARY, "check host and port in RABBITMQ_URI, and that "
			   "the broker runs", "the broker is not reachable: %s",
			   r->broker.problem);
	else if (r->step == STEP_CLOSING && r->broker.state == BROKER_DOWN)
		enter(r, STEP_DONE);
	else if (r->step < STEP_CLOSING && is_overdue(r, now))
	{
		char		late[64];

		snprintf(late, sizeof(late), "it did not %s in time", steps[r->step].what);
		/* a stop has waited long enough: no further connection */
		r->recovering |= r->stopping;
		if (r->broker.state == BROKER_DOWN)
			enter(r, STEP_CLOSING);
		else
			broker_drop(&r->broker, 0, "no answer from the broker", late);
	}
}

void
reprocess_steps_begin(struct reprocess *r,
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

	r->step = STEP_CONNECTING;
	r->deadline = CLOCK_NEVER;
	broker_init(&r->broker, settings, &events);
}

void
reprocess_steps_turn(struct reprocess *r, short revents, msec_t now)
{
	broker_turn(&r->broker, revents, now);
	keep_time(r, now);
	broker_flush(&r->broker);
}

/* Asked to stop: the message in hand is finished first. */
void
reprocess_steps_stop(struct reprocess *r, msec_t now)
{
	if (r->stopping)
		return;
	log_info("stopping: the message in hand is finished first");
	r->stopping = true;
	r->stop_deadline = now + r->options.stop_timeout;
	if (r->step == STEP_CONNECTING)
		finish(r, EXIT_TEMPORARY, "run it again", "stopped by a signal before "
			   "anything was done");
}

msec_t
reprocess_steps_deadline(struct reprocess *r)
{
	msec_t		deadline = clock_earlier(broker_deadline(&r->broker),
										 r->deadline);

	return r->stopping ? clock_earlier(deadline, r->stop_deadline) : deadline;
}
