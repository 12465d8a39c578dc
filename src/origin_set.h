/*
 * origin_set.h
 *		A few origins by name, of fixed size: fit for shared memory and for commit callbacks.
 */
#ifndef ACME_OUTBOX_ORIGIN_SET_H
#define ACME_OUTBOX_ORIGIN_SET_H

/* Origins one notification round can name; more of them are "any", '*'. */
#define WAKE_ORIGINS 16
#define WAKE_NAME_SIZE 64
#define WAKE_ANY "*"

/* A set of origins; WAKE_ANY swallows all others. */
typedef struct OriginSet
{
	int			count;
	char		name[WAKE_ORIGINS][WAKE_NAME_SIZE];
} OriginSet;

extern void origin_set_add(OriginSet *set, const char *origin);
extern bool origin_set_has(const OriginSet *set, const char *origin);
extern void origin_set_remove(OriginSet *set, const char *origin);

#endif							/* ACME_OUTBOX_ORIGIN_SET_H */
