#ifndef ACME_PUBLISHER_H
#define ACME_PUBLISHER_H

/*
 * The seam between the relay and whatever it publishes to. RabbitMQ
 * (rabbit.c) and stdout (sink_stdout.c) stand behind it; a second broker would
 * be a third file.
 *
 * A row is sent as one or two copies, one on each lane it has to go. The relay
 * offers copies in order with publish(); the publisher answers for each copy it
 * accepted exactly once, through the relay's callbacks, unless it is told to
 * forget them all. What the answers make of a row is the claims' affair
 * (row.c).
 */
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "clock.h"

/* The ways that copies go; on each they have an order and faults of their own. */
enum lane
{
	LANE_BUSINESS,				/* to the exchange that the row names */
	LANE_AUDIT,					/* to the audit feed, maybe redacted */
	LANE_DEAD_LETTER,			/* of a row that was given up, with its error */
	LANES
};

/* What became of a row; the names are those of acme_outbox.settle_outcome. */
enum outcome
{
	OUTCOME_PUBLISHED,			/* confirmed, and not returned */
	OUTCOME_REJECTED,			/* the message's own fault: charged */
	OUTCOME_UNROUTABLE,			/* no binding, no exchange, no permission */
	OUTCOME_NACKED,				/* the broker would not take it now */
	OUTCOME_RELEASED,			/* unknown, or not sent */
	OUTCOME_ARCHIVED,			/* of rows alone: the dead-letter copy is confirmed */
	OUTCOMES
};

enum copy_state
{
	COPY_NONE,					/* the row does not go on that lane */
	COPY_WAITING,				/* not with the publisher */
	COPY_SENT,					/* with the publisher, unanswered */
	COPY_ANSWERED
};

struct row;

/* One message of a row. */
struct copy
{
	struct row *row;
	enum lane	lane;
	enum copy_state state;		/* changed by row.c alone */
	enum outcome outcome;
	char	   *error;
	int64_t		id;				/* the row's, for logs */
	/* the publisher's own, while it has the copy */
	void	   *note;
	const char *routing_key;
	size_t		length;
};

/* A header that is added to those of the row. */
struct message_header
{
	const char *name;
	const char *text;			/* NULL: the number counts */
	int64_t		number;
	bool		is_time;		/* seconds since 1970 */
};

/* A copy as it goes out; the texts belong to the claim. */
struct message
{
	const char *id;				/* the event id */
	const char *type;			/* the event name */
	const char *origin;
	const char *exchange;
	const char *routing_key;
	const char *headers;		/* a JSON object, or NULL */
	const char *traceparent;	/* or NULL */
	const struct message_header *extra; /* they win over headers of their names */
	int			extra_count;
	const char *payload;
	size_t		payload_length;
	int64_t		created_at;		/* seconds since 1970 */
	bool		mandatory;
	bool		sidetracked;	/* headers that name further keys are left out */
};

enum publish_result
{
	PUBLISH_SENT,				/* taken; the answer will come */
	PUBLISH_DECIDED,			/* the answer was already given */
	PUBLISH_LATER,				/* not this one now, perhaps the next */
	PUBLISH_FULL				/* nothing more on this lane now */
};

/* How a publisher talks back. */
struct publisher_events
{
	void		(*answered) (void *relay, struct copy *copy,
							 enum outcome outcome, const char *error);
	/* Outcome unknown, and the publisher wants to find out: offer it again. */
	void		(*again) (void *relay, struct copy *copy);
	/* The link is gone; every copy it had was answered before. */
	void		(*lost) (void *relay);
	/* There is no use in waiting for it; it has logged why. */
	void		(*failed) (void *relay);
	void	   *relay;
};

struct publisher;

struct publisher_ops
{
	const char *name;
	/* Adds at most one descriptor; returns how many. */
	int			(*poll_fd) (struct publisher *p, struct pollfd *pfd);
	msec_t		(*deadline) (struct publisher *p);
	/* Read, answer, keep time. */
	void		(*turn) (struct publisher *p, short revents, msec_t now);
	enum publish_result (*publish) (struct publisher *p, struct copy *copy,
									const struct message *m, msec_t now);
	/* Send what was published; nothing once send_until has passed. */
	void		(*flush) (struct publisher *p);
	bool		(*ready) (struct publisher *p);	/* for the business lane */
	bool		(*idle) (struct publisher *p);	/* nothing unsent */
	int			(*unconfirmed) (struct publisher *p);
	/* Forget all copies without an answer, and make sure none can come late. */
	void		(*forget) (struct publisher *p, const char *reason);
	/* Begin an orderly end; closed() says when it is over. */
	void		(*close) (struct publisher *p, msec_t now);
	bool		(*closed) (struct publisher *p);
	void		(*free) (struct publisher *p);
};

struct publisher
{
	const struct publisher_ops *ops;
	struct publisher_events events;
	msec_t		send_until;		/* the lease's deadline */
};

const char *lane_name(enum lane lane);
const char *outcome_name(enum outcome outcome);

#endif							/* ACME_PUBLISHER_H */
