/*
 * handout.h
 *		The rows that a claim hands to the relay.
 */
#ifndef ACME_OUTBOX_HANDOUT_H
#define ACME_OUTBOX_HANDOUT_H

#include "access/htup.h"
#include "executor/tuptable.h"
#include "utils/array.h"
#include "utils/tuplestore.h"

typedef struct HandoutRow
{
	int64		id;
	HeapTuple	row;			/* a claimed_entry */
} HandoutRow;

typedef struct Handout
{
	TupleDesc	desc;
	int64		claim_id;
	ArrayType  *optional_topics;	/* not published as mandatory */
	bool		for_dead_letters;	/* a copy that must not hold what is ruled */
	HandoutRow *rows;
	int			count;
	int			room;
} Handout;

extern void handout_begin(Handout *handout, TupleDesc desc, int room,
						  bool for_dead_letters);
extern void handout_add(Handout *handout, TupleTableSlot *slot);
extern void handout_return(Handout *handout, Tuplestorestate *result);

#endif							/* ACME_OUTBOX_HANDOUT_H */
