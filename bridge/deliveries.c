/*
 * deliveries.c
 *		The unacknowledged messages of one channel, and what is next for each.
 *
 *		WAITING -> RUNNING -> DONE, or back to WAITING
 *				   RUNNING -> DEAD <-> COPIED -> DONE, or REFUSED
 *
 * changed only in set_state(). DONE and REFUSED leave with deliveries_settle().
 *
 * Who is to blame. A handler that raises is charged: its message waits, longer
 * each time, and is given up after max_attempts. But a batch that ends without
 * any result - its session is gone, it was cancelled, its COMMIT failed - does
 * not say whose fault it was, and a message that ends its session leaves no
 * trace. So its messages become suspect. A suspect message runs alone, and its
 * attempt is counted, and that committed, right before; if that run has no result
 * either, it is the culprit and is charged. A message that was delivered before
 * is suspect from the start, since its last consumer may have died of it. So
 * neither a restart of the bridge nor one of the server lets a culprit run more
 * often than max_attempts (and once more, among others, while nobody knew), and
 * an innocent message is charged only for what cut its own run off.
 *
 * What is nobody's fault (deadlock, no disk, ...) is not charged, and an attempt
 * that was counted for it is still to be used.
 *
 * Pure: no socket, no clock.
 */
#include "deliveries.h"

#include <stdlib.h>
#include <string.h>

#include "log.h"

static const char *const state_names[DELIVERY_STATES] = {
	"waiting", "running", "dead", "copied", "done", "refused"
};

/* The only place where the state changes; nonsense ends the process. */
static void
set_state(struct deliveries *set, struct delivery *d, enum delivery_state state)
{
	static const bool allowed[DELIVERY_STATES][DELIVERY_STATES] = {
		[DELIVERY_WAITING] = {[DELIVERY_RUNNING] = true, [DELIVERY_DEAD] = true,
		[DELIVERY_REFUSED] = true},
		[DELIVERY_RUNNING] = {[DELIVERY_WAITING] = true, [DELIVERY_DEAD] = true,
		[DELIVERY_REFUSED] = true, [DELIVERY_DONE] = true},
		[DELIVERY_DEAD] = {[DELIVERY_COPIED] = true, [DELIVERY_REFUSED] = true},
		[DELIVERY_COPIED] = {[DELIVERY_DEAD] = true, [DELIVERY_DONE] = true},
	};

	if (!allowed[d->state][state])
	{
		log_error("impossible state change of a delivery",
				  LOG_TEXT("from", state_names[d->state]),
				  LOG_TEXT("to", state_names[state]));
		abort();
	}
	set->in_state[d->state]--;
	set->in_state[state]++;
	d->state = state;
}

struct delivery *
delivery_new(void)
{
	struct delivery *d = calloc(1, sizeof(*d));

	if (d == NULL)
		abort();
	return d;
}

static void
clear_failure(struct failure *failure)
{
	free(failure->message);
	free(failure->context);
	memset(failure, 0, sizeof(*failure));
}

void
delivery_free(struct delivery *d)
{
	if (d == NULL)
		return;
	clear_failure(&d->failure);
	buffer_free(&d->header);
	buffer_free(&d->body);
	free(d);
}

void
deliveries_add(struct deliveries *set, struct delivery *d)
{
	d->suspect = d->redelivered;
	d->previous = set->last;
	if (set->last)
		set->last->next = d;
	else
		set->first = d;
	set->last = d;
	set->count++;
	set->in_state[d->state]++;
}

static void
forget(struct deliveries *set, struct delivery *d)
{
	*(d->previous ? &d->previous->next : &set->first) = d->next;
	*(d->next ? &d->next->previous : &set->last) = d->previous;
	set->count--;
	set->in_state[d->state]--;
	delivery_free(d);
}

void
deliveries_clear(struct deliveries *set)
{
	while (set->first)
		forget(set, set->first);
}

/* ---- choosing a batch ---- */

static bool
is_due(const struct delivery *d, msec_t now)
{
	return d->state == DELIVERY_WAITING && d->due <= now;
}

static bool
goes_alone(const struct delivery *d)
{
	return d->suspect || d->alone;
}

/*
 * The next batch, now RUNNING: the oldest message that is due, and, unless it
 * goes alone, the following ones that do not, up to the bounds.
 */
int
deliveries_pick(struct deliveries *set, msec_t now, int most, size_t bytes,
				struct delivery **members)
{
	int			count = 0;
	size_t		sum = 0;

	for (struct delivery *d = set->first; d && count < most; d = d->next)
	{
		if (!is_due(d, now) || (count > 0 && goes_alone(d)))
			continue;
		sum += buffer_length(&d->body);
		if (count > 0 && sum > bytes)
			break;
		set_state(set, d, DELIVERY_RUNNING);
		members[count++] = d;
		if (goes_alone(d))
			break;
	}
	return count;
}

/* When the next one is due; CLOCK_NEVER without one. */
msec_t
deliveries_due(const struct deliveries *set)
{
	msec_t		due = CLOCK_NEVER;

	if (set->in_state[DELIVERY_WAITING] == 0)
		return due;
	for (const struct delivery *d = set->first; d; d = d->next)
		if (d->state == DELIVERY_WAITING)
			due = clock_earlier(due, d->due);
	return due;
}

/* ---- results ---- */

/* The wait after the nth failure. */
static msec_t
backoff_after(const struct deliveries *set, int n)
{
	msec_t		wait = set->policy.retry_backoff;

	while (--n > 0 && wait < RETRY_BACKOFF_MAX)
		wait *= 2;
	return wait < RETRY_BACKOFF_MAX ? wait : RETRY_BACKOFF_MAX;
}

static char *
copy_text(const char *text)
{
	char	   *copy = text ? strdup(text) : NULL;

	if (text && copy == NULL)
		abort();
	return copy;
}

static void
keep_failure(struct delivery *d, const struct failure *failure)
{
	struct failure kept = {.message = copy_text(failure->message),
	.context = copy_text(failure->context)};

	memcpy(kept.sqlstate, failure->sqlstate, sizeof(kept.sqlstate));
	clear_failure(&d->failure);
	d->failure = kept;
}

void
delivery_done(struct deliveries *set, struct delivery *d)
{
	set_state(set, d, DELIVERY_DONE);
}

/* Not handled this time: again with the next batch. */
void
delivery_later(struct deliveries *set, struct delivery *d)
{
	set_state(set, d, DELIVERY_WAITING);
}

/* failure NULL: what is known from before. */
void
delivery_give_up(struct deliveries *set, struct delivery *d,
				 const struct failure *failure)
{
	if (failure)
		keep_failure(d, failure);
	set_state(set, d, set->policy.publishes ? DELIVERY_DEAD : DELIVERY_REFUSED);
}

static void
charge(struct deliveries *set, struct delivery *d,
	   const struct failure *failure, msec_t now)
{
	d->counted = false;
	d->troubles = 0;
	if (d->attempts >= set->policy.max_attempts)
	{
		delivery_give_up(set, d, failure);
		return;
	}
	keep_failure(d, failure);
	d->due = now + backoff_after(set, d->attempts);
	set_state(set, d, DELIVERY_WAITING);
}

/*
 * Its handler raised; its session did not end with it. attempts is the number
 * kept in the database, or 0 if this one was counted before.
 */
void
delivery_failed(struct deliveries *set, struct delivery *d, int attempts,
				const struct failure *failure, msec_t now)
{
	if (attempts > 0)
		d->attempts = attempts;
	d->suspect = d->alone = false;
	charge(set, d, failure, now);
}

/* The attempt of a suspect message was counted; false: it is one too many. */
bool
delivery_may_run(struct deliveries *set, struct delivery *d, int attempts)
{
	static const struct failure unknown = {
		.message = "it was tried as often as allowed without any result",
	};

	d->attempts = attempts;
	d->counted = true;
	if (attempts <= set->policy.max_attempts)
		return true;
	d->attempts--;				/* this one is not run */
	delivery_give_up(set, d, d->failure.message ? NULL : &unknown);
	return false;
}

/* A batch ended without a result. */
void
deliveries_lost(struct deliveries *set, struct delivery **members, int count,
				const struct failure *failure, msec_t now)
{
	for (int i = 0; i < count; i++)
	{
		struct delivery *d = members[i];

		if (d->suspect)
			charge(set, d, failure, now);
		else
			set_state(set, d, DELIVERY_WAITING);
		d->suspect = true;
	}
}

/*
 * A batch failed, and it is nobody's fault; to separate, each goes alone: it may
 * be one message that always meets a deadlock. That one waits, longer each time.
 */
void
deliveries_troubled(struct deliveries *set, struct delivery **members,
					int count, bool separate, msec_t now)
{
	for (int i = 0; i < count; i++)
	{
		struct delivery *d = members[i];

		if (goes_alone(d))
			d->due = now + backoff_after(set, ++d->troubles);
		d->alone |= separate;
		set_state(set, d, DELIVERY_WAITING);
	}
}

/* ---- dead letters ---- */

/* The first one without a copy, or NULL. */
struct delivery *
deliveries_dead(const struct deliveries *set)
{
	struct delivery *d = set->in_state[DELIVERY_DEAD] > 0 ? set->first : NULL;

	while (d && d->state != DELIVERY_DEAD)
		d = d->next;
	return d;
}

void
delivery_copied(struct deliveries *set, struct delivery *d, uint64_t copy_tag)
{
	d->copy_tag = copy_tag;
	set_state(set, d, DELIVERY_COPIED);
}

/* No copy can be made of it. */
void
delivery_refuse(struct deliveries *set, struct delivery *d)
{
	set_state(set, d, DELIVERY_REFUSED);
}

/* What became of copies under way, up to that tag or that one. Returns how many. */
static int
decide_copies(struct deliveries *set, uint64_t copy_tag, bool multiple,
			  enum delivery_state state)
{
	int			decided = 0;

	for (struct delivery *d = set->first; d; d = d->next)
		if (d->state == DELIVERY_COPIED &&
			(multiple ? d->copy_tag <= copy_tag : d->copy_tag == copy_tag))
		{
			set_state(set, d, state);
			decided++;
		}
	return decided;
}

/* The broker has the copies. Returns how many. */
int
deliveries_confirm(struct deliveries *set, uint64_t copy_tag, bool multiple)
{
	return decide_copies(set, copy_tag, multiple, DELIVERY_DONE);
}

/* It has not, and takes them later. Returns how many. */
int
deliveries_nack(struct deliveries *set, uint64_t copy_tag, bool multiple)
{
	return decide_copies(set, copy_tag, multiple, DELIVERY_DEAD);
}

/* No copy that is under way counts. Returns how many. */
int
deliveries_unconfirm(struct deliveries *set)
{
	return decide_copies(set, UINT64_MAX, true, DELIVERY_DEAD);
}

/* ---- acknowledging ---- */

static void
settle_one(struct deliveries *set, struct delivery *d,
		   settlement_handler handler, void *context)
{
	struct settlement settlement = {.tag = d->tag,
	.refused = d->state == DELIVERY_REFUSED};

	handler(context, &settlement);
	forget(set, d);
}

static void
settle_each(struct deliveries *set, enum delivery_state state,
			settlement_handler handler, void *context)
{
	struct delivery *next;

	for (struct delivery *d = set->first; d && set->in_state[state] > 0;
		 d = next)
	{
		next = d->next;
		if (d->state == state)
			settle_one(set, d, handler, context);
	}
}

/* One acknowledgement for all that are done from the first one on. */
static void
settle_prefix(struct deliveries *set, settlement_handler handler, void *context)
{
	struct settlement settlement = {0};
	int			count = 0;

	while (set->first && set->first->state == DELIVERY_DONE)
	{
		settlement.tag = set->first->tag;
		settlement.multiple = ++count > 1;
		forget(set, set->first);
	}
	if (count > 0)
		handler(context, &settlement);
}

/*
 * Tell the broker what is decided, in as few words as possible, and forget it.
 * Refusals first: a multiple acknowledgement would cover them, too.
 */
void
deliveries_settle(struct deliveries *set, settlement_handler handler,
				  void *context)
{
	settle_each(set, DELIVERY_REFUSED, handler, context);
	settle_prefix(set, handler, context);
	settle_each(set, DELIVERY_DONE, handler, context);
}
