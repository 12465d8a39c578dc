/*
 * parked.h
 *		A parked message: delivered fine, but the domain cannot accept it.
 */
#ifndef ACME_OUTBOX_PARKED_H
#define ACME_OUTBOX_PARKED_H

#include "inbox.h"
#include "utils/uuid.h"

/* What is written into parked_message; NULL means nothing. */
typedef struct ParkedMessage
{
	const char *consumer;
	const char *event_id;
	Jsonb	   *envelope;
	Jsonb	   *message;
	const char *reason;
	const char *entity_type;
	const char *entity_id;
	bool		guarded;		/* its transaction recorded the event as processed */
} ParkedMessage;

#endif							/* ACME_OUTBOX_PARKED_H */
