/*
 * message.h
 *		The message being handled, and what is read from an envelope.
 */
#ifndef ACME_OUTBOX_MESSAGE_H
#define ACME_OUTBOX_MESSAGE_H

#include "utils/jsonb.h"

/* One frame per handler that runs; a handler may process another message itself. */
typedef struct Handling
{
	const char *consumer;
	const char *event_id;
	Jsonb	   *envelope;
	Jsonb	   *message;		/* what the transport said; NULL: nothing */
	SubTransactionId parked_in; /* where park() was called; invalid: it was not */
	struct Handling *outer;
} Handling;

extern void message_begin(Handling *handling);
extern void message_end(Handling *handling);
extern Handling *message_current(void);

extern const char *message_traceparent(void);
extern const char *message_trace_id(void);

extern char *envelope_string(Jsonb *envelope, const char *part, const char *key);
extern char *envelope_event_id(Jsonb *envelope);

#endif							/* ACME_OUTBOX_MESSAGE_H */
