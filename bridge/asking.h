#ifndef ACME_ASKING_H
#define ACME_ASKING_H

#include "broker.h"
#include "config.h"

#define ASKING_TEXT_MAX		256

/* A connection to ask on, and the last answer. */
struct asking
{
	struct broker broker;
	bool		up;
	bool		refused;
	bool		lost;
	bool		channel_open;
	bool		answered;
	int			code;			/* of the answer; 0: yes */
	uint32_t	messages;		/* ready, where the answer is about a queue */
	char		text[ASKING_TEXT_MAX];	/* what the broker says to a no */
};

bool		asking_begin(struct asking *a, const struct config *config,
						 const char *version);
void		asking_end(struct asking *a);
bool		asking_ask(struct asking *a, amqp_method_number_t id, void *method);
bool		asking_exchange(struct asking *a, const char *name);
bool		asking_queue(struct asking *a, const char *name);
bool		asking_right(struct asking *a, const char *name,
						 const char *routing_key);

#endif							/* ACME_ASKING_H */
