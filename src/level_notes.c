/*
 * level_notes.c
 *		Notes of what a transaction did, each with the nesting level that did it.
 *
 * Wake-ups (wake.c) and counts (counters.c) take effect when the transaction has committed.
 * Until then they are notes in an array: a rolled-back savepoint takes its own along, a
 * released one hands them to its parent.  All this runs within commit and abort: nothing is
 * allocated, nothing fails.
 *
 * PREPARE TRANSACTION forgets them, as COMMIT PREPARED runs in a session that knows nothing
 * of them.
 */
#include "acme_outbox.h"

#include "level_notes.h"

/* Are a transaction's notes to be forgotten now (after a commit: once they took effect)? */
bool
level_notes_over(XactEvent event)
{
	return event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT ||
		event == XACT_EVENT_PREPARE;
}

static LevelNote *
note_at(void *notes, int i, Size size)
{
	return (LevelNote *) ((char *) notes + i * size);
}

/* Closes the gaps that notes without a level leave; returns how many there are now. */
static int
close_gaps(void *notes, int n, Size size)
{
	int			kept = 0;

	for (int i = 0; i < n; i++)
	{
		if (note_at(notes, i, size)->level == NO_LEVEL)
			continue;
		if (kept != i)
			memcpy(note_at(notes, kept, size), note_at(notes, i, size), size);
		kept++;
	}
	return kept;
}

/*
 * level_notes_after
 *		The end of a subtransaction; returns how many notes are left.  release() gives one of
 *		a released subtransaction's to its parent, or adds it to one there and sets NO_LEVEL.
 */
int
level_notes_after(SubXactEvent event, void *notes, int n, Size size,
				  void (*release) (void *note))
{
	int			level;

	if (n == 0 || (event != SUBXACT_EVENT_COMMIT_SUB && event != SUBXACT_EVENT_ABORT_SUB))
		return n;
	level = GetCurrentTransactionNestLevel();
	for (int i = 0; i < n; i++)
	{
		LevelNote  *note = note_at(notes, i, size);

		if (note->level < level)
			continue;
		if (event == SUBXACT_EVENT_COMMIT_SUB)
			release(note);
		else
			note->level = NO_LEVEL;
	}
	return close_gaps(notes, n, size);
}
