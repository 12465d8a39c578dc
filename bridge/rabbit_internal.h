#ifndef ACME_RABBIT_INTERNAL_H
#define ACME_RABBIT_INTERNAL_H

/* What the files rabbit*.c share; everybody else includes rabbit.h. */
#include "amqp_text.h"
#include "confirm.h"
#include "narrow.h"
#include "rabbit.h"
#include "refusals.h"
#include "topics.h"

/* Channel numbers: one for each lane, and one that the broker may close. */
#define CHECK_CHANNEL	2

#define TEXT_MAX		400
#define ERROR_MAX		1024

enum channel_state
{
	CHANNEL_CLOSED,
	CHANNEL_OPENING,			/* channel.open and confirm.select sent */
	CHANNEL_OPEN
};

/* The content of a basic.return, as far as it has come. */
struct returned
{
	bool		active;
	bool		has_header;
	uint64_t	missing;		/* bytes of the body */
	int			code;
	char		text[64];
};

/* The closes of a channel until their cause is known, for one line in the log. */
struct incident
{
	int			closes;
	uint32_t	unconfirmed;	/* at the first of them */
	int			code;			/* of the last */
	char		text[TEXT_MAX];
	bool		alone;			/* one message was unconfirmed */
	bool		culprit_found;
};

/* A confirm channel: the copies of one lane go over it. */
struct channel
{
	struct rabbit *rabbit;
	enum lane	lane;
	uint16_t	number;			/* 0: the lane is not in use */
	enum channel_state state;
	struct confirm_window window;
	struct narrow narrow;
	uint32_t	verifying;		/* size of the window that a 404 closed */
	bool		found_missing;
	struct returned returned;
	struct incident incident;
};

struct rabbit
{
	struct publisher base;
	struct broker broker;
	struct channel channels[LANES];
	struct narrow narrow;		/* over all of them */
	/* exchanges */
	enum channel_state check_channel;
	struct names topics;
	struct topic *checking;		/* asked about on the check channel */
	msec_t		check_deadline;
	msec_t		sweep_at;
	struct refusals refusals;
	amqp_pool_t pool;			/* for encoding */
	msec_t		confirm_timeout;
	size_t		size_limit;		/* the broker's, learned from a 406; or 0 */
	msec_t		size_limit_until;	/* it may be raised: learn it again then */
};

/* rabbit.c */
uint32_t	rabbit_open_total(const struct rabbit *r);

/* rabbit_channel.c */
void		channel_open(struct channel *c);
void		channel_reset(struct channel *c);
void		channel_lose(struct channel *c, int code, bool alone);
void		channel_forget(struct channel *c);
enum publish_result channel_publish(struct channel *c, struct copy *copy,
									const struct message *m, msec_t now);
void		channel_handle_method(struct channel *c, amqp_method_number_t id,
								  void *method);
void		channel_handle_content(struct channel *c, const struct frame *frame);
void		channel_verified(struct channel *c);
bool		rabbit_code_is_charged(int code);

/* rabbit_topics.c */
void		rabbit_check_topics(struct rabbit *r, msec_t now);
void		rabbit_handle_check(struct rabbit *r, amqp_method_number_t id,
								void *method, msec_t now);
void		rabbit_forget_checks(struct rabbit *r);
enum publish_result rabbit_ask_topic(struct channel *c, struct topic *topic,
									 msec_t now);

#endif							/* ACME_RABBIT_INTERNAL_H */
