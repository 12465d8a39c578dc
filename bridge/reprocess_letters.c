/*
 * reprocess_letters.c
 *		The work of a reprocessing: fetch a dead letter, decide about it, send its
 *		copy, wait for the confirm, acknowledge.
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
 * Letters that stay (unmatched, without a key) are held until the end and then
 * given back together, so that none is met twice and they keep their order.
 *
 * A message reaches the queue through the binding with the key "reprocess". With
 * its original key it is published with both: the broker's header BCC names a
 * second key, and is gone when the message arrives. So no binding per key is
 * needed, and none can be left over.
 */
#include "reprocess_internal.h"

#include <string.h>

#include "crash.h"

/* Asked for, and not all there. */
bool
letters_coming(const struct reprocess *r)
{
	return r->ahead == AHEAD_ASKED || r->ahead == AHEAD_COMING;
}

/* ---- fetching ---- */

/* Unless there is one already, or it was asked for. */
void
letters_ask(struct reprocess *r)
{
	amqp_basic_get_t get = {.queue = bytes_of(r->options.dlq)};

	if (r->ahead != AHEAD_NONE)
		return;
	dead_letter_clear(&r->next);
	reprocess_send(r, AMQP_BASIC_GET_METHOD, &get);
	r->ahead = AHEAD_ASKED;
}

/* A copy was sent; if another letter is wanted after it, ask for that one. */
void
letters_sent(struct reprocess *r)
{
	const struct tally *t = &r->tally;
	bool		is_last = t->looked >= t->at_start ||
		(r->options.limit > 0 && t->done + 1 >= (uint64_t) r->options.limit);

	if (!is_last && !r->stopping)
		letters_ask(r);
}

/* ---- one after the other ---- */

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
		reprocess_finish(r, EXIT_TEMPORARY, "run it again without --original-key "
						 "for those whose consumer does not look at the routing "
						 "key", "%llu messages tell no original key",
						 (unsigned long long) r->tally.keyless);
	else if (r->tally.unreadable > 0)
		reprocess_finish(r, EXIT_TEMPORARY, "take them out of the dead-letter "
						 "queue by hand", "%llu messages have headers that are "
						 "malformed or nested too deep",
						 (unsigned long long) r->tally.unreadable);
	else
		reprocess_finish(r, EXIT_OK, "", "%s", "");
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

void
letters_go_on(struct reprocess *r)
{
	if (is_enough(r) || r->ahead == AHEAD_EMPTY)
		finish_well(r);
	else if (r->stopping)
		reprocess_finish(r, EXIT_TEMPORARY, "run it again: what is left is in the "
						 "dead-letter queue", "stopped by a signal");
	else if (r->ahead == AHEAD_READY)
		take_next(r);
	else
		reprocess_enter(r, STEP_GETTING);
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
	reprocess_send(r, AMQP_BASIC_PUBLISH_METHOD, &publish);
	fits = frame_put_encoded(out, REPROCESS_CHANNEL, r->broker.frame_max,
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
		reprocess_enter(r, STEP_PUBLISHING);
	}
	else
		reprocess_finish(r, EXIT_TEMPORARY, "take that message out of the "
						 "dead-letter queue by hand", "the headers of a message "
						 "do not fit into one AMQP frame");
}

/* All of it is here: what becomes of it? */
static void
consider(struct reprocess *r)
{
	char		key[SHORT_TEXT_MAX] = "";
	bool		has_key = !r->letter.unreadable &&
		dead_letter_original_key(&r->letter, key);

	r->tally.looked++;
	if (r->letter.unreadable)
		r->tally.unreadable++;
	else if (!match_accepts(&r->options.match, &r->letter))
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
	letters_go_on(r);
}

/* ---- what was fetched ---- */

/* Something ahead has changed: if we wait for that, go on. */
static void
note_ahead(struct reprocess *r, enum ahead ahead)
{
	r->ahead = ahead;
	if (r->step != STEP_GETTING || letters_coming(r))
		return;
	if (r->ended)
		reprocess_wind_up(r);
	else
		letters_go_on(r);
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

/* ---- what becomes of a copy ---- */

static void
handle_confirmed(struct reprocess *r)
{
	amqp_basic_ack_t ack = {.delivery_tag = r->tag};

	crash_here(CRASH_COPY_CONFIRMED);
	reprocess_send(r, AMQP_BASIC_ACK_METHOD, &ack);
	r->unsettled--;
	r->tally.done++;
	if (crash_armed(CRASH_DEAD_LETTER_ACKED))
		broker_flush(&r->broker);
	crash_here(CRASH_DEAD_LETTER_ACKED);
	letters_go_on(r);
}

static void
handle_unroutable(struct reprocess *r)
{
	reprocess_finish(r, EXIT_TEMPORARY, "see that the queue exists and that nobody "
					 "unbinds it, then run it again", "the broker returned a "
					 "message: queue \"%s\" is not bound to \"%s\" any more. It "
					 "stays in the dead-letter queue", r->options.queue,
					 r->exchange);
}

static void
handle_nacked(struct reprocess *r)
{
	reprocess_finish(r, EXIT_TEMPORARY, "is it full (x-max-length, "
					 "reject-publish)? Make room, then run it again",
					 "queue \"%s\" refused a message. It stays in the dead-letter "
					 "queue", r->options.queue);
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

/* ---- frames ---- */

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

/* False if the method does not belong there. */
bool
letters_method(struct reprocess *r, amqp_method_number_t id, void *method)
{
	if (r->step == STEP_PUBLISHING && handle_publishing_method(r, id, method))
		return true;
	return handle_getting_method(r, id, method);
}

void
letters_content(struct reprocess *r, const struct frame *frame, msec_t now)
{
	if (r->ahead == AHEAD_COMING)
		handle_letter_content(r, frame, now);
	else if (r->step == STEP_PUBLISHING && r->returned)
		handle_returned_content(r, frame);
	else
		broker_drop(&r->broker, 0, "content out of place", "");
}
