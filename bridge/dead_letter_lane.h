#ifndef ACME_DEAD_LETTER_LANE_H
#define ACME_DEAD_LETTER_LANE_H

#include "broker.h"
#include "dead_copy.h"

#define LANE_CHANNEL		2

enum lane_state
{
	LANE_CLOSED,
	LANE_OPENING,				/* channel.open and confirm.select sent */
	LANE_OPEN
};

struct dead_letter_lane
{
	struct broker *broker;
	struct deliveries *deliveries;
	struct dead_copy_settings settings;
	enum lane_state state;
	uint64_t	next_tag;
	msec_t		confirm_timeout;
	msec_t		sent_at;		/* the oldest copy under way */
	struct backoff backoff;
	msec_t		retry_at;		/* not before */
	bool		troubled;		/* and that was logged */
	bool		returning;		/* inside the content of a return */
	bool		has_header;
	uint64_t	missing;
	uint64_t	confirmed;		/* copies, taken by who counts them */
	amqp_pool_t pool;
};

void		lane_init(struct dead_letter_lane *lane, struct broker *broker,
					  struct deliveries *deliveries,
					  const struct dead_copy_settings *settings,
					  msec_t confirm_timeout);
void		lane_free(struct dead_letter_lane *lane);
void		lane_reset(struct dead_letter_lane *lane);
void		lane_frame(struct dead_letter_lane *lane,
					   const struct frame *frame, msec_t now);
void		lane_pump(struct dead_letter_lane *lane, msec_t now);
msec_t		lane_deadline(const struct dead_letter_lane *lane);

#endif							/* ACME_DEAD_LETTER_LANE_H */
