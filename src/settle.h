/*
 * settle.h
 *		Records what the broker did with the entries of a claim.
 */
#ifndef ACME_OUTBOX_SETTLE_H
#define ACME_OUTBOX_SETTLE_H

#include "outcome.h"
#include "storage/itemptr.h"
#include "utils/array.h"

/* What a row is found to be; everything but FOUND_OURS is not settled. */
typedef enum Found
{
	FOUND_OURS,					/* PUBLISHING under this claim, and not locked */
	FOUND_MOVED,
	FOUND_GONE,
	FOUND_LOCKED				/* by another session, or just changed by it */
} Found;

typedef struct SettleRow
{
	int64		id;
	Outcome		outcome;
	int16		lanes;
	const char *error;
	/* as read */
	Found		found;
	const char *status;
	ItemPointerData tid;
	char	   *key;
	char	   *topic;
	int16		lanes_done;
	text	   *redacted;		/* payload to store instead; NULL: as it is */
	EntryHistory past;
	/* what was done */
	bool		changed;
	bool		key_is_free;	/* it is out of its key's way for good */
} SettleRow;

extern ArrayType *settle_lock_claim(int64 claim_id, int64 epoch);
extern void settle_rows(const char *origin, int64 claim_id, ArrayType *claim_ids,
						SettleRow *rows, int n);
extern void settle_sort(SettleRow *rows, int n);
extern void settle_release(const char *origin, int64 claim_id, ArrayType *ids);

#endif							/* ACME_OUTBOX_SETTLE_H */
