/*
 * origin_lock.h
 *		The lock that lets claims of an origin take turns.
 */
#ifndef ACME_OUTBOX_ORIGIN_LOCK_H
#define ACME_OUTBOX_ORIGIN_LOCK_H

#include "lease.h"

extern bool origin_lock(const char *origin, int64 epoch, Lease *lease);

#endif							/* ACME_OUTBOX_ORIGIN_LOCK_H */
