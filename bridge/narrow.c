/*
 * narrow.c
 *		Finding the message at fault when the broker names none.
 *
 * Half as many messages may be unconfirmed as were, and no more are sent until
 * those are answered. Each further failure halves the number, each batch that
 * went through doubles it. A message that fails alone is the one at fault.
 */
#include "narrow.h"

void
narrow_init(struct narrow *n, uint32_t capacity)
{
	n->capacity = n->limit = capacity;
	n->batch = 0;
}

void
narrow_set(struct narrow *n, uint32_t limit)
{
	n->limit = limit < 1 ? 1 : limit > n->capacity ? n->capacity : limit;
	n->batch = 0;
}

bool
narrow_is_on(const struct narrow *n)
{
	return n->limit < n->capacity;
}

bool
narrow_is_full(const struct narrow *n, uint32_t open)
{
	return open >= n->limit ||
		(narrow_is_on(n) && open > 0 && n->batch >= n->limit);
}

/* A message is sent while so many are unconfirmed. */
void
narrow_sending(struct narrow *n, uint32_t open)
{
	if (open == 0)
		n->batch = 0;
	n->batch++;
}

/*
 * A message was answered, and so many are still unconfirmed. True when that
 * ended the search: all that may be sent can be again.
 */
bool
narrow_answered(struct narrow *n, uint32_t open)
{
	if (open > 0 || !narrow_is_on(n))
		return false;
	narrow_set(n, n->limit * 2);
	return !narrow_is_on(n);
}
