/*
 * takeover.h
 *		What a relay that is gone left in flight.
 */
#ifndef ACME_OUTBOX_TAKEOVER_H
#define ACME_OUTBOX_TAKEOVER_H

#include "cursor.h"
#include "keyorder.h"
#include "lease.h"
#include "utils/array.h"

extern ArrayType *takeover_release(const Lease *lease);
extern uint64 takeover_release_orphans(EntryTable *table, Cursor *cursor);
extern void takeover_block_keys(KeyOrder *order, const ArrayType *left_open);

#endif							/* ACME_OUTBOX_TAKEOVER_H */
