/*
 * idempotency.h
 *		HTTP idempotency keys: a financial request runs once, whoever retries it.
 */
#ifndef ACME_OUTBOX_IDEMPOTENCY_H
#define ACME_OUTBOX_IDEMPOTENCY_H

#include "duties.h"

extern DutyReport idempotency_purge(void);

#endif							/* ACME_OUTBOX_IDEMPOTENCY_H */
