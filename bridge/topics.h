#ifndef ACME_TOPICS_H
#define ACME_TOPICS_H

#include <stdbool.h>

#include "backoff.h"
#include "names.h"

/* How long an exchange at fault is left alone: doubled from MIN to MAX. */
#define TOPIC_HOLD_MIN		1000
#define TOPIC_HOLD_MAX		8000

/* An exchange at fault that no row names is forgotten after this. */
#define TOPIC_FORGET		60000

#define TOPIC_REASON_MAX	512

enum topic_state
{
	TOPIC_GOOD,					/* publish to it */
	TOPIC_CHECKING,				/* does it exist? its rows wait */
	TOPIC_MISSING,				/* it did not exist; check after retry_at */
	TOPIC_REFUSED				/* we may not write to it; try after retry_at */
};

struct topic
{
	struct name name;
	enum topic_state state;
	bool		known;			/* the broker has said that it is there */
	msec_t		retry_at;
	struct backoff backoff;
	char		reason[TOPIC_REASON_MAX];
};

struct topic *topics_use(struct names *topics, const char *text);
void		topics_drop(struct names *topics, struct topic *topic);
void		topics_good(struct topic *topic);
void		topics_trust(struct topic *topic);
void		topics_check(struct topic *topic);
void		topics_hold(struct topic *topic, enum topic_state state,
						const char *reason, msec_t now, uint32_t random);
struct topic *topics_to_check(struct names *topics);
void		topics_sweep(struct names *topics, msec_t now);

#endif							/* ACME_TOPICS_H */
