#ifndef ACME_DELIVERIES_H
#define ACME_DELIVERIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "buffer.h"
#include "clock.h"

#define SHORT_TEXT_MAX		255 /* an AMQP short string */
#define SQLSTATE_LENGTH		5

/* Where the doubling of a message's backoff stops. */
#define RETRY_BACKOFF_MAX	60000

enum delivery_state
{
	DELIVERY_WAITING,			/* to be run, once it is due */
	DELIVERY_RUNNING,			/* in the batch under way */
	DELIVERY_DEAD,				/* given up, a copy has to be published */
	DELIVERY_COPIED,			/* the copy is sent and unconfirmed */
	DELIVERY_DONE,				/* to be acknowledged */
	DELIVERY_REFUSED,			/* given up, to be refused */
	DELIVERY_STATES
};

/* A short string as AMQP has it: any bytes. */
struct short_text
{
	size_t		length;
	char		bytes[SHORT_TEXT_MAX + 1];	/* a NUL behind */
};

/* Why a message was given up. */
struct failure
{
	char		sqlstate[SQLSTATE_LENGTH + 1];	/* empty: there is none */
	char	   *message;
	char	   *context;
};

/* One unacknowledged message. */
struct delivery
{
	struct delivery *next;
	struct delivery *previous;
	uint64_t	tag;			/* of its channel */
	enum delivery_state state;
	bool		redelivered;
	bool		unreadable;		/* its properties are */
	bool		suspect;		/* runs alone, its attempt counted before */
	bool		counted;		/* that is done for the attempt to come */
	bool		alone;			/* nothing else runs with it */
	int			attempts;		/* as far as they were counted */
	int			troubles;		/* in a row that were not its own fault */
	msec_t		due;
	uint64_t	copy_tag;		/* of its copy, on the lane's channel */
	struct failure failure;
	struct short_text exchange;
	struct short_text routing_key;
	struct buffer header;		/* the content header frame's payload */
	struct buffer body;
};

/* What the caller's settings say. */
struct delivery_policy
{
	int			max_attempts;
	msec_t		retry_backoff;
	bool		publishes;		/* there is an exchange for what is given up */
};

/* In the order they came, which is that of their tags. */
struct deliveries
{
	struct delivery *first;
	struct delivery *last;
	struct delivery_policy policy;
	int			count;
	int			in_state[DELIVERY_STATES];
};

/* What the broker is told about one or, if multiple, all up to the tag. */
struct settlement
{
	uint64_t	tag;
	bool		multiple;
	bool		refused;
};

typedef void (*settlement_handler) (void *context,
									const struct settlement *settlement);

struct delivery *delivery_new(void);
void		delivery_free(struct delivery *d);
void		deliveries_add(struct deliveries *set, struct delivery *d);
void		deliveries_clear(struct deliveries *set);

int			deliveries_pick(struct deliveries *set, msec_t now, int most,
							size_t bytes, struct delivery **members);
msec_t		deliveries_due(const struct deliveries *set);

void		delivery_done(struct deliveries *set, struct delivery *d);
void		delivery_later(struct deliveries *set, struct delivery *d);
void		delivery_give_up(struct deliveries *set, struct delivery *d,
							 const struct failure *failure);
void		delivery_failed(struct deliveries *set, struct delivery *d,
							int attempts, const struct failure *failure,
							msec_t now);
bool		delivery_may_run(struct deliveries *set, struct delivery *d,
							 int attempts);
void		deliveries_lost(struct deliveries *set, struct delivery **members,
							int count, const struct failure *failure,
							msec_t now);
void		deliveries_troubled(struct deliveries *set,
								struct delivery **members, int count,
								bool separate, msec_t now);

struct delivery *deliveries_dead(const struct deliveries *set);
void		delivery_copied(struct deliveries *set, struct delivery *d,
							uint64_t copy_tag);
void		delivery_refuse(struct deliveries *set, struct delivery *d);
int			deliveries_confirm(struct deliveries *set, uint64_t copy_tag,
							   bool multiple);
int			deliveries_nack(struct deliveries *set, uint64_t copy_tag,
							bool multiple);
int			deliveries_unconfirm(struct deliveries *set);

void		deliveries_settle(struct deliveries *set,
							  settlement_handler handler, void *context);

#endif							/* ACME_DELIVERIES_H */
