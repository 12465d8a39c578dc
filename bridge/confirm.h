#ifndef ACME_CONFIRM_H
#define ACME_CONFIRM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "clock.h"

/* What is known about one delivery tag. */
enum slot_state
{
	SLOT_FREE,					/* no message, or its answer was given */
	SLOT_SENT,					/* unconfirmed */
	SLOT_RETURNED				/* basic.return came, its ack has yet to come */
};

/* How a message left the window. */
enum confirm_answer
{
	CONFIRM_ACKED,				/* confirmed, and not returned */
	CONFIRM_RETURNED,			/* confirmed, but returned: nobody got it */
	CONFIRM_NACKED,				/* the broker would not take it */
	CONFIRM_UNKNOWN				/* link or channel lost, or timed out */
};

struct confirm_slot
{
	enum slot_state state;
	void	   *item;			/* whose message it is */
	const char *message_id;		/* the item's */
	msec_t		sent_at;
};

struct confirm_window
{
	struct confirm_slot *slots; /* slot of tag t: t % capacity */
	uint32_t	capacity;
	uint32_t	open;			/* slots that are not free */
	uint64_t	low;			/* the lowest tag that may be open */
	uint64_t	next;			/* the tag of the next message */
	uint64_t	return_hint;	/* where the next return is likely found */
};

typedef void (*confirm_handler) (void *context, void *item,
								 enum confirm_answer answer);

bool		confirm_init(struct confirm_window *w, uint32_t capacity);
void		confirm_free(struct confirm_window *w);
bool		confirm_has_room(const struct confirm_window *w);
uint64_t	confirm_add(struct confirm_window *w, void *item,
						const char *message_id, msec_t now);
int			confirm_settle(struct confirm_window *w, uint64_t tag, bool multiple,
						   bool nack, confirm_handler handler, void *context);
void	   *confirm_return(struct confirm_window *w, const char *message_id,
						   size_t length);
void		confirm_restart(struct confirm_window *w, confirm_handler handler,
							void *context);
msec_t		confirm_oldest(const struct confirm_window *w);
void		confirm_shift_clock(struct confirm_window *w, msec_t by);

#endif							/* ACME_CONFIRM_H */
