/*
 * pause.h
 *		What an operator has paused of an origin.
 */
#ifndef ACME_OUTBOX_PAUSE_H
#define ACME_OUTBOX_PAUSE_H

#include "entries.h"
#include "nodes/pg_list.h"

typedef struct Paused
{
	bool		all;			/* the whole origin */
	List	   *topics;			/* names */
	List	   *resumed;		/* their entries are to be let go */
} Paused;

extern void pause_read(const char *origin, Paused *paused);
extern bool pause_holds(const Paused *paused, TupleTableSlot *slot);
extern bool pause_let_go(const char *origin, const Paused *paused, EntryTable *table);

#endif							/* ACME_OUTBOX_PAUSE_H */
