/*
 * settle.h
 *		Records what the broker did with the entries of a claim.
 */
#ifndef ACME_OUTBOX_SETTLE_H
#define ACME_OUTBOX_SETTLE_H

#include "utils/array.h"

extern void settle_release(const char *origin, int64 claim_id, ArrayType *ids);

#endif							/* ACME_OUTBOX_SETTLE_H */
