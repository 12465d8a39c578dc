/*
 * reprocess_steps.c
 *		The steps of a reprocessing, each with what it sends and what its answer
 *		leads to.
 *
 *		CONNECTING -> OPENING -> FINDING_QUEUE -> FINDING_DLQ -> LOCKING
 *			-> SEEKING -> DECLARING -> BINDING
 *			-> (GETTING -> PUBLISHING) again and again
 *			-> UNBINDING -> DELETING -> CLOSING -> DONE
 *
 * The step changes only in reprocess_enter(), which also sends what the step is
 * about. A dry run goes from FINDING_DLQ to GETTING, and stays there until it has
 * seen enough. From wherever it fails, a run goes on with UNBINDING, if it may have
 * made the exchange; with a new channel where the broker has closed the old one.
 *
 * What a killed run left is found in SEEKING, used, and removed in the end.
 */
#include "reprocess_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crash.h"
#include "log.h"

void
reprocess_send(struct reprocess *r, amqp_method_number_t id, void *method)
{
	broker_send_method(&r->broker, REPROCESS_CHANNEL, id, method);
}

/* ---- the end ---- */

/* Give back what is held, remove what was made. */
void
reprocess_wind_up(struct reprocess *r)
{
	amqp_basic_nack_t nack = {
		.delivery_tag = r->last_tag, .multiple = 1, .requeue = 1
	};

	if (!broker_is_open(&r->broker))
		reprocess_enter(r, STEP_CLOSING);
	else if (!r->channel_open)
	{
		r->resume = STEP_UNBINDING;
		reprocess_enter(r, r->may_exist ? STEP_OPENING : STEP_CLOSING);
	}
	else
	{
		if (r->unsettled > 0)
			reprocess_send(r, AMQP_BASIC_NACK_METHOD, &nack);
		r->unsettled = 0;
		reprocess_enter(r, r->may_exist ? STEP_UNBINDING : STEP_CLOSING);
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

/*
 * The outcome, if it is the first; then the way out. What was asked for comes
 * first, to be given back with the others.
 */
void
reprocess_finish(struct reprocess *r, enum exit_status status,
				 const char *next_step, const char *format, ...)
{
	va_list		arguments;

	va_start(arguments, format);
	set_outcome(r, status, next_step, format, arguments);
	va_end(arguments);
	if (r->step == STEP_PUBLISHING && letters_coming(r))
		reprocess_enter(r, STEP_GETTING);
	else
		reprocess_wind_up(r);
}

/* The same where there is no connection to wind up on. */
void
reprocess_note_outcome(struct reprocess *r, enum exit_status status,
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
	r->channel_open = true;
	r->sent = 0;
	broker_open_confirms(&r->broker, REPROCESS_CHANNEL);
}

static void
declare_queue(struct reprocess *r, const char *name, bool passive)
{
	amqp_queue_declare_t declare = {
		.queue = bytes_of(name),
		.passive = passive,
		.exclusive = !passive,
	};

	reprocess_send(r, AMQP_QUEUE_DECLARE_METHOD, &declare);
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

	reprocess_send(r, AMQP_EXCHANGE_DECLARE_METHOD, &declare);
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

	reprocess_send(r, AMQP_QUEUE_BIND_METHOD, &bind);
}

static void
begin_unbinding(struct reprocess *r)
{
	amqp_queue_unbind_t unbind = {
		.queue = bytes_of(r->options.queue),
		.exchange = bytes_of(r->exchange),
		.routing_key = bytes_of(REPROCESS_KEY),
	};

	reprocess_send(r, AMQP_QUEUE_UNBIND_METHOD, &unbind);
}

static void
begin_deleting(struct reprocess *r)
{
	amqp_exchange_delete_t delete = {.exchange = bytes_of(r->exchange)};

	reprocess_send(r, AMQP_EXCHANGE_DELETE_METHOD, &delete);
}

static void
begin_closing(struct reprocess *r)
{
	broker_close(&r->broker, clock_now());
}

/* ---- answers ---- */

static void
answer_opening(struct reprocess *r, void *method)
{
	(void) method;
	reprocess_enter(r, r->resume);
}

static void
answer_finding_dlq(struct reprocess *r, void *method)
{
	r->tally.at_start = r->tally.behind =
		((amqp_queue_declare_ok_t *) method)->message_count;
	if (!r->options.dry_run)
		reprocess_enter(r, STEP_LOCKING);
	else
	{
		r->started_at = clock_now();
		letters_go_on(r);
	}
}

static void
answer_locking(struct reprocess *r, void *method)
{
	(void) method;
	reprocess_enter(r, r->recovering ? STEP_UNBINDING : STEP_SEEKING);
}

static void
answer_seeking(struct reprocess *r, void *method)
{
	(void) method;
	log_warn("using the exchange that a run left which did not end orderly",
			 LOG_TEXT("exchange", r->exchange));
	reprocess_enter(r, STEP_DECLARING);
}

static void
answer_binding(struct reprocess *r, void *method)
{
	(void) method;
	crash_here(CRASH_REPROCESS_BOUND);
	r->started_at = clock_now();
	letters_go_on(r);
}

static void
answer_unbinding(struct reprocess *r, void *method)
{
	(void) method;
	crash_here(CRASH_REPROCESS_UNBOUND);
	reprocess_enter(r, STEP_DELETING);
}

static void
answer_deleting(struct reprocess *r, void *method)
{
	(void) method;
	r->may_exist = false;
	reprocess_enter(r, STEP_CLOSING);
}

/* ---- the table of steps ---- */

#define AFTER(step)		(1u << (step))
#define ANY_STEP		(~AFTER(STEP_DONE))

struct step_rule
{
	const char *what;			/* "the broker refused to ..." */
	unsigned	from;			/* the steps it may follow */
	void		(*begin) (struct reprocess *r);
	amqp_method_number_t answer;	/* 0: there is not just one */
	void		(*answered) (struct reprocess *r, void *method);
	enum step	next;			/* where answered is NULL */
};

static const struct step_rule steps[] = {
	[STEP_CONNECTING] = {"connect", ANY_STEP, NULL, 0, NULL, 0},
	[STEP_OPENING] = {"open a channel", ANY_STEP,
		begin_opening, AMQP_CONFIRM_SELECT_OK_METHOD, answer_opening, 0},
	[STEP_FINDING_QUEUE] = {"tell about the queue", AFTER(STEP_OPENING),
		begin_finding_queue, AMQP_QUEUE_DECLARE_OK_METHOD, NULL,
	STEP_FINDING_DLQ},
	[STEP_FINDING_DLQ] = {"tell about the dead-letter queue",
		AFTER(STEP_FINDING_QUEUE), begin_finding_dlq,
		AMQP_QUEUE_DECLARE_OK_METHOD, answer_finding_dlq, 0},
	[STEP_LOCKING] = {"make the lock",
		AFTER(STEP_FINDING_DLQ) | AFTER(STEP_OPENING), begin_locking,
		AMQP_QUEUE_DECLARE_OK_METHOD, answer_locking, 0},
	[STEP_SEEKING] = {"tell about the exchange", AFTER(STEP_LOCKING),
		begin_seeking, AMQP_EXCHANGE_DECLARE_OK_METHOD, answer_seeking, 0},
	[STEP_DECLARING] = {"make the exchange",
		AFTER(STEP_SEEKING) | AFTER(STEP_OPENING), begin_declaring,
		AMQP_EXCHANGE_DECLARE_OK_METHOD, NULL, STEP_BINDING},
	[STEP_BINDING] = {"bind the queue", AFTER(STEP_DECLARING),
		begin_binding, AMQP_QUEUE_BIND_OK_METHOD, answer_binding, 0},
	[STEP_GETTING] = {"hand out a dead letter",
		AFTER(STEP_BINDING) | AFTER(STEP_FINDING_DLQ) | AFTER(STEP_GETTING) |
		AFTER(STEP_PUBLISHING), letters_ask, 0, NULL, 0},
	[STEP_PUBLISHING] = {"confirm a message",
		AFTER(STEP_GETTING) | AFTER(STEP_PUBLISHING), letters_sent, 0, NULL, 0},
	[STEP_UNBINDING] = {"unbind the queue",
		AFTER(STEP_BINDING) | AFTER(STEP_GETTING) | AFTER(STEP_PUBLISHING) |
		AFTER(STEP_LOCKING) | AFTER(STEP_OPENING), begin_unbinding,
		AMQP_QUEUE_UNBIND_OK_METHOD, answer_unbinding, 0},
	[STEP_DELETING] = {"delete the exchange",
		AFTER(STEP_UNBINDING) | AFTER(STEP_OPENING), begin_deleting,
		AMQP_EXCHANGE_DELETE_OK_METHOD, answer_deleting, 0},
	[STEP_CLOSING] = {"close the connection", ANY_STEP, begin_closing, 0, NULL, 0},
	[STEP_DONE] = {"end", ANY_STEP, NULL, 0, NULL, 0},
};

/* As in "the broker refused to ...". */
const char *
reprocess_step_name(const struct reprocess *r)
{
	return steps[r->step].what;
}

/* The only place where the step changes; nonsense ends the process. */
void
reprocess_enter(struct reprocess *r, enum step step)
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
	reprocess_finish(r, EXIT_NO_QUEUE, "check its name, and the virtual host in "
					 "RABBITMQ_URI", "%s \"%s\" does not exist in virtual host "
					 "\"%s\"", what, name, r->broker.settings.uri.vhost);
}

static void
fail_forbidden(struct reprocess *r, const char *text)
{
	char		next_step[REPROCESS_TEXT_MAX];

	snprintf(next_step, sizeof(next_step), "the user needs configure, write and "
			 "read on \"%s\" and names that begin with it, and read on \"%s\"",
			 r->options.queue, r->options.dlq);
	reprocess_finish(r, EXIT_PUBLISHER, next_step, "the broker refused to %s: %s",
					 steps[r->step].what, text);
}

static void
fail_locked(struct reprocess *r)
{
	reprocess_finish(r, EXIT_BUSY, "wait for its end; the lock of a run that was "
					 "killed goes with its connection",
					 "another run is at work on queue \"%s\"", r->options.queue);
}

/* The broker has taken back what was not acknowledged. */
void
reprocess_forget_channel(struct reprocess *r)
{
	r->channel_open = false;
	r->unsettled = 0;
	r->ahead = AHEAD_NONE;
	r->returned = false;
}

static void
note_channel_closed(struct reprocess *r)
{
	broker_answer_close(&r->broker, REPROCESS_CHANNEL);
	reprocess_forget_channel(r);
}

/* Go on with that step on a new channel. */
static void
reopen(struct reprocess *r, enum step step)
{
	r->resume = step;
	reprocess_enter(r, STEP_OPENING);
}

void
reprocess_channel_closed(struct reprocess *r, const amqp_channel_close_t *close)
{
	int			code = close->reply_code;
	char		text[SHORT_TEXT_MAX];

	bytes_to_text(text, sizeof(text), close->reply_text);
	note_channel_closed(r);
	/* what could not be declared is not ours to remove */
	if (r->step == STEP_DECLARING)
		r->may_exist = false;
	if (r->step == STEP_FINDING_QUEUE && code == AMQP_NOT_FOUND)
		fail_missing(r, "queue", r->options.queue);
	else if (r->step == STEP_FINDING_DLQ && code == AMQP_NOT_FOUND)
		fail_missing(r, "dead-letter queue", r->options.dlq);
	else if (r->step == STEP_LOCKING && r->recovering)
		reprocess_enter(r, STEP_CLOSING);	/* the next run removes it */
	else if (r->step == STEP_LOCKING && code == AMQP_RESOURCE_LOCKED)
		fail_locked(r);
	else if (r->step == STEP_SEEKING && code == AMQP_NOT_FOUND)
		reopen(r, STEP_DECLARING);
	else if (r->step == STEP_UNBINDING)
		reopen(r, STEP_DELETING);
	else if (r->step == STEP_DELETING)
		reprocess_enter(r, STEP_CLOSING);
	else if (code == AMQP_ACCESS_REFUSED)
		fail_forbidden(r, text);
	else
		reprocess_finish(r, EXIT_TEMPORARY, "mend that, then run it again",
						 "the broker refused to %s: %s", steps[r->step].what,
						 text);
}

/* The methods of the step at hand; false: this one does not belong there. */
bool
reprocess_answered(struct reprocess *r, amqp_method_number_t id, void *method)
{
	const struct step_rule *rule = &steps[r->step];

	if (rule->answer != 0 && id == rule->answer)
	{
		if (rule->answered)
			rule->answered(r, method);
		else
			reprocess_enter(r, rule->next);
		return true;
	}
	if (r->step == STEP_OPENING)
		return id == AMQP_CHANNEL_OPEN_OK_METHOD;
	return letters_method(r, id, method);
}
