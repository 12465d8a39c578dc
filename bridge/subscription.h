#ifndef ACME_SUBSCRIPTION_H
#define ACME_SUBSCRIPTION_H

#include "broker.h"
#include "deliveries.h"

#define SUBSCRIPTION_CHANNEL	1	/* of the consumer's own connection */

enum subscription_state
{
	SUBSCRIPTION_NONE,			/* no channel */
	SUBSCRIPTION_OPENING,		/* channel.open, qos, consume sent */
	SUBSCRIPTION_ACTIVE,		/* messages come */
	SUBSCRIPTION_CANCELLED,		/* by the broker; the channel is open */
	SUBSCRIPTION_RENEWING,		/* consume sent on the open channel */
	SUBSCRIPTION_ENDING,		/* our cancel sent */
	SUBSCRIPTION_ENDED			/* no more messages; the channel is open */
};

struct subscription_settings
{
	const char *queue;
	const char *tag;			/* of the consumer, for people */
	int			prefetch;
	msec_t		answer_timeout;
	msec_t		retry_min;
	msec_t		retry_max;
};

struct subscription_events
{
	void		(*delivered) (void *owner, struct delivery *d); /* takes it */
	/*
	 * The broker closed the channel: tags are void. Returns how many messages were
	 * held, or -1 if that is the end, and was logged.
	 */
	int			(*lost) (void *owner, int code, const char *reason);
	/* How many messages are ready in the queue. */
	void		(*depth) (void *owner, uint32_t messages);
	void	   *owner;
};

struct subscription
{
	struct broker *broker;
	struct subscription_settings settings;
	struct subscription_events events;
	enum subscription_state state;
	struct backoff backoff;
	msec_t		retry_at;
	msec_t		deadline;		/* of the answer awaited, or CLOCK_NEVER */
	bool		was_active;		/* once, in this process */
	bool		troubled;		/* and that was logged */
	bool		asking;			/* for the depth */
	struct delivery *incoming;	/* whose content has not all come */
	uint64_t	missing;
};

void		subscription_init(struct subscription *s, struct broker *broker,
							  const struct subscription_settings *settings,
							  const struct subscription_events *events);
void		subscription_reset(struct subscription *s);
void		subscription_turn(struct subscription *s, msec_t now);
msec_t		subscription_deadline(const struct subscription *s);
void		subscription_frame(struct subscription *s,
							   const struct frame *frame, msec_t now);
void		subscription_settle(struct subscription *s,
								const struct settlement *settlement);
void		subscription_ask_depth(struct subscription *s);
void		subscription_end(struct subscription *s, msec_t now);
bool		subscription_is_quiet(const struct subscription *s);

#endif							/* ACME_SUBSCRIPTION_H */
