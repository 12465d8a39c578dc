/*
 * confirm.c
 *		The window of unconfirmed messages, indexed by delivery tag.
 *
 * Section 9 of the design, line by line:
 *
 *	acked		basic.ack, one tag or all up to it (multiple), in any order. Acks
 *				are never counted: each answers the slots it names.
 *	returned	basic.return has no tag and comes before its ack. It is found by
 *				message id and only marks the slot; the ack that follows then
 *				answers RETURNED, which is a failure.
 *	nacked		the same shape as an ack. A nack of a returned message is a nack.
 *	unknown		link lost, channel closed, timeout: confirm_restart() answers
 *				every open slot UNKNOWN, in the order of sending, and tags begin
 *				at 1 again.
 *
 * The ring holds the tags low .. next-1; next-low never exceeds the capacity,
 * so no two open tags share a slot. A tag outside that range, or one whose
 * answer was given, names nothing: it is reported to the caller and ignored.
 *
 * Pure: no socket, no clock, no item is looked into.
 */
#include "confirm.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

bool
confirm_init(struct confirm_window *w, uint32_t capacity)
{
	memset(w, 0, sizeof(*w));
	w->slots = calloc(capacity, sizeof(*w->slots));
	w->capacity = capacity;
	w->low = w->next = w->return_hint = 1;
	return w->slots != NULL;
}

void
confirm_free(struct confirm_window *w)
{
	free(w->slots);
	memset(w, 0, sizeof(*w));
}

static struct confirm_slot *
slot_of(const struct confirm_window *w, uint64_t tag)
{
	return &w->slots[tag % w->capacity];
}

static bool
is_open(const struct confirm_window *w, uint64_t tag)
{
	return tag >= w->low && tag < w->next &&
		slot_of(w, tag)->state != SLOT_FREE;
}

bool
confirm_has_room(const struct confirm_window *w)
{
	return w->next - w->low < w->capacity;
}

/* Note a message that is about to be sent; returns the tag it will have. */
uint64_t
confirm_add(struct confirm_window *w, void *item, const char *message_id,
			msec_t now)
{
	uint64_t	tag = w->next;

	assert(confirm_has_room(w));
	*slot_of(w, tag) = (struct confirm_slot){SLOT_SENT, item, message_id, now};
	w->next++;
	w->open++;
	return tag;
}

/* Free the slot before the handler runs: it may look at the window. */
static void
answer(struct confirm_window *w, uint64_t tag, enum confirm_answer answer,
	   confirm_handler handler, void *context)
{
	struct confirm_slot slot = *slot_of(w, tag);

	memset(slot_of(w, tag), 0, sizeof(slot));
	w->open--;
	while (w->low < w->next && slot_of(w, w->low)->state == SLOT_FREE)
		w->low++;
	handler(context, slot.item, answer);
}

/* What an ack or nack says about one open tag. */
static enum confirm_answer
answer_for(const struct confirm_window *w, uint64_t tag, bool nack)
{
	if (nack)
		return CONFIRM_NACKED;
	return slot_of(w, tag)->state == SLOT_RETURNED ?
		CONFIRM_RETURNED : CONFIRM_ACKED;
}

/*
 * basic.ack or basic.nack. Returns how many messages it answered: 0 means that
 * the tag is unknown. Tag 0 with multiple means "all so far".
 */
int
confirm_settle(struct confirm_window *w, uint64_t tag, bool multiple,
			   bool nack, confirm_handler handler, void *context)
{
	uint64_t	from = tag;
	int			answered = 0;

	if (multiple)
	{
		from = w->low;
		if (tag == 0)
			tag = w->next - 1;
	}
	if (tag >= w->next)
		return 0;
	for (; from <= tag; from++)
		if (is_open(w, from))
		{
			answer(w, from, answer_for(w, from, nack), handler, context);
			answered++;
		}
	return answered;
}

static bool
slot_has_id(const struct confirm_slot *slot, const char *message_id,
			size_t length)
{
	return slot->state == SLOT_SENT &&
		strncmp(slot->message_id, message_id, length) == 0 &&
		slot->message_id[length] == '\0';
}

/*
 * basic.return: mark the message. Returns come in the order of sending, so the
 * search begins behind the last one and is short even if every message comes
 * back. NULL: no such message is open.
 */
void *
confirm_return(struct confirm_window *w, const char *message_id, size_t length)
{
	uint64_t	span = w->next - w->low;
	uint64_t	start = w->return_hint < w->low ? w->low : w->return_hint;

	for (uint64_t i = 0; i < span; i++)
	{
		uint64_t	tag = w->low + (start - w->low + i) % span;

		if (slot_has_id(slot_of(w, tag), message_id, length))
		{
			slot_of(w, tag)->state = SLOT_RETURNED;
			w->return_hint = tag + 1;
			return slot_of(w, tag)->item;
		}
	}
	return NULL;
}

/* The channel is gone: whatever is open is unknown, and tags begin anew. */
void
confirm_restart(struct confirm_window *w, confirm_handler handler,
				void *context)
{
	for (uint64_t tag = w->low; tag < w->next; tag++)
		if (is_open(w, tag))
			answer(w, tag, CONFIRM_UNKNOWN, handler, context);
	w->low = w->next = w->return_hint = 1;
}

/* When the longest waiting message was sent; CLOCK_NEVER if none waits. */
msec_t
confirm_oldest(const struct confirm_window *w)
{
	return w->open ? slot_of(w, w->low)->sent_at : CLOCK_NEVER;
}

/* A blocked broker confirms nothing: that time does not count. */
void
confirm_shift_clock(struct confirm_window *w, msec_t by)
{
	for (uint64_t tag = w->low; tag < w->next; tag++)
		if (is_open(w, tag))
			slot_of(w, tag)->sent_at += by;
}
