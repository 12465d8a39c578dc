/*
 * inbox_batch.h
 *		Messages for one handler, each with its own outcome.
 */
#ifndef ACME_OUTBOX_INBOX_BATCH_H
#define ACME_OUTBOX_INBOX_BATCH_H

#include "handler.h"
#include "inbox.h"

typedef enum MessageOutcome
{
	MESSAGE_PENDING,			/* to be run */
	MESSAGE_APPLIED,
	MESSAGE_DUPLICATE,
	MESSAGE_PARKED,
	MESSAGE_FAILED,
	MESSAGE_INVALID,
	MESSAGE_LATER
} MessageOutcome;

/* A message of a batch. */
typedef struct Delivery
{
	Jsonb	   *envelope;
	Jsonb	   *message;
	const char *event_id;
	MessageOutcome outcome;
	const ErrorData *error;		/* of a failed one */
} Delivery;

typedef struct Batch
{
	Inbox	   *inbox;
	Handler    *handler;
	const char *consumer;
	Delivery   *deliveries;
	int			n;
	int			committed;		/* subtransactions */
} Batch;

extern void inbox_batch_run(Batch *batch);
extern MessageOutcome inbox_batch_deliver(const Batch *batch, const Delivery *delivery);
extern void inbox_batch_count(const Batch *batch, const Delivery *delivery);
extern const char *message_outcome_name(MessageOutcome outcome);

#endif							/* ACME_OUTBOX_INBOX_BATCH_H */
