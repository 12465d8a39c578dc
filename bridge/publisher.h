#ifndef ACME_PUBLISHER_H
#define ACME_PUBLISHER_H

/*
 * The seam between the relay and whatever it publishes to. RabbitMQ
 * (rabbit.c) and stdout (sink_stdout.c) stand behind it; a second broker would
 * be a third file.
 *
 * The relay offers rows in order with publish(); the publisher answers for
 * each accepted row exactly once, through the relay's callbacks, unless it is
 * told to forget them all.
 */
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "clock.h"

/* What became of a row; the names are those of acme_outbox.settle_outcome. */
enum outcome
{
	OUTCOME_PUBLISHED,			/* confirmed, and not returned */
	OUTCOME_REJECTED,			/* the message's own fault: charged */
	OUTCOME_UNROUTABLE,			/* no binding, no exchange, no permission */
	OUTCOME_NACKED,				/* the broker would not take it now */
	OUTCOME_RELEASED,			/* unknown, or not sent */
	OUTCOMES
};

/* A row as it goes out; the texts belong to the claim. */
struct message
{
	const char *id;				/* the event id */
	const char *type;			/* the event name */
	const char *origin;
	const char *topic;			/* the exchange */
	const char *routing_key;
	const char *headers;		/* a JSON object, or NULL */
	const char *traceparent;	/* or NULL */
	const char *payload;
	size_t		payload_length;
	int64_t		created_at;		/* seconds since 1970 */
	bool		mandatory;
};

enum publish_result
{
	PUBLISH_SENT,				/* taken; the answer will come */
	PUBLISH_DECIDED,			/* the answer was already given */
	PUBLISH_LATER,				/* not this one now, perhaps the next */
	PUBLISH_FULL				/* nothing more now */
};

struct row;

/* How a publisher talks back. */
struct publisher_events
{
	void		(*decided) (void *relay, struct row *row, enum outcome outcome,
							const char *error);
	/* Outcome unknown, and the publisher wants to find out: offer it again. */
	void		(*again) (void *relay, struct row *row);
	/* The link is gone; every row it had was decided before. */
	void		(*lost) (void *relay);
	/* The broker refused the login, or stdout is closed. */
	void		(*refused) (void *relay, const char *reason);
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
	enum publish_result (*publish) (struct publisher *p, struct row *row,
									const struct message *m, msec_t now);
	/* Send what was published; nothing once send_until has passed. */
	void		(*flush) (struct publisher *p);
	bool		(*ready) (struct publisher *p);
	bool		(*idle) (struct publisher *p);	/* nothing unsent */
	int			(*unconfirmed) (struct publisher *p);
	/* Forget all rows without an answer, and make sure none can come late. */
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

#endif							/* ACME_PUBLISHER_H */
