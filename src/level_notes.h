/*
 * level_notes.h
 *		Notes of what a transaction did, each with the nesting level that did it.
 */
#ifndef ACME_OUTBOX_LEVEL_NOTES_H
#define ACME_OUTBOX_LEVEL_NOTES_H

#include "access/xact.h"

/* Of a note that is to go; levels begin at 1. */
#define NO_LEVEL 0

/* What every note begins with. */
typedef struct LevelNote
{
	int			level;
} LevelNote;

extern bool level_notes_over(XactEvent event);
extern int	level_notes_after(SubXactEvent event, void *notes, int n, Size size,
							  void (*release) (void *note));

#endif							/* ACME_OUTBOX_LEVEL_NOTES_H */
