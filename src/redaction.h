/*
 * redaction.h
 *		Which parts of an event must not outlive its delivery, and their removal.
 */
#ifndef ACME_OUTBOX_REDACTION_H
#define ACME_OUTBOX_REDACTION_H

#include "nodes/pg_list.h"

/* One step of a path: a member's name, an element's index, or any of either. */
typedef struct RedactionStep
{
	char	   *name;
	int			name_len;
	int64		index;			/* -1: the step is no index */
	bool		any;
} RedactionStep;

typedef struct RedactionPath
{
	int			nsteps;
	RedactionStep *steps;		/* from the envelope's root */
} RedactionPath;

/* redaction_rules.c; the paths live until the next change of the rules */
extern List *redaction_paths(const char *event_name);
extern bool redaction_has_rules(void);

/* redaction.c */
extern text *redaction_apply(List *paths, text *envelope);
extern const char *redaction_error(const char *error);

#endif							/* ACME_OUTBOX_REDACTION_H */
