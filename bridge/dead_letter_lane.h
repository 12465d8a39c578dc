#ifndef ACME_DEAD_LETTER_LANE_H
#define ACME_DEAD_LETTER_LANE_H

#include "broker.h"
#include "dead_copy.h"

#define LANE_CHANNEL		1
#define LANE_NAME_MAX		600

enum lane_state
{
	LANE_CLOSED,
	LANE_OPENING,				/* channel.open and confirm.select sent */
	LANE_OPEN
};

struct dead_letter_lane
{
	struct broker broker;		/* a connection of its own */
	char		name[LANE_NAME_MAX];	/* that connection's */
	bool		needed;			/* there was a dead letter: it is kept from then on */
	struct deliveries *deliveries;
	struct dead_copy_settings settings;
	enum lane_state state;		/* of the channel */
	uint64_t	next_tag;
	msec_t		confirm_timeout;
	msec_t		sent_at;		/* the oldest copy under way */
	struct backoff backoff;
	msec_t		retry_at;		/* not before */
	bool		troubled;		/* and that was logged */
	msec_t		stuck_since;	/* no dead letter gets through, or CLOCK_NEVER */
	bool		returning;		/* inside the content of a return */
	bool		has_header;
	uint64_t	missing;
	uint64_t	confirmed;		/* copies, taken by who counts them */
	amqp_pool_t pool;
};

void		lane_init(struct dead_letter_lane *lane,
					  const struct broker_settings *connection,
					  struct deliveries *deliveries,
					  const struct dead_copy_settings *settings,
					  msec_t confirm_timeout);
void		lane_free(struct dead_letter_lane *lane);
int			lane_poll_fd(struct dead_letter_lane *lane, struct pollfd *pfd);
msec_t		lane_deadline(struct dead_letter_lane *lane);
void		lane_turn(struct dead_letter_lane *lane, short revents, msec_t now);
bool		lane_takes(const struct dead_letter_lane *lane);
void		lane_close(struct dead_letter_lane *lane, msec_t now);
bool		lane_is_closed(const struct dead_letter_lane *lane);

#endif							/* ACME_DEAD_LETTER_LANE_H */
