/*
 * plan_cache.h
 *		Entries with kept plans, by name, as many as a session may keep.
 */
#ifndef ACME_OUTBOX_PLAN_CACHE_H
#define ACME_OUTBOX_PLAN_CACHE_H

#include "plans.h"
#include "storage/lock.h"

/* Initialise the first five; an entry begins with its name, of keysize bytes. */
typedef struct PlanCache
{
	const char *name;
	Size		keysize;
	Size		entrysize;
	int			max_entries;
	void		(*free_entry) (void *entry);
	HTAB	   *entries;
	LocalTransactionId used_in;
} PlanCache;

extern void *plan_cache_find(PlanCache *cache, const char *name);
extern void *plan_cache_enter(PlanCache *cache, const char *name);
extern void plan_forget(KeptPlan *plan);

#endif							/* ACME_OUTBOX_PLAN_CACHE_H */
