/*
 * plan_cache.c
 *		Entries with kept plans, by name, as many as a session may keep.
 *
 * A session that handles messages for many inboxes or with many handlers must not grow
 * without bound.  A cache that is full is emptied as a whole, by the first look-up of
 * another transaction: whoever was handed an entry is through by then, so nothing in use
 * is ever freed, and no entry need be pinned.  One transaction may exceed the limit.
 */
#include "acme_outbox.h"

#include "plan_cache.h"
#include "storage/proc.h"
#include "utils/memutils.h"

static void
create_entries(PlanCache *cache)
{
	HASHCTL		control = {
		.keysize = cache->keysize, .entrysize = cache->entrysize, .hcxt = TopMemoryContext
	};

	cache->entries = hash_create(cache->name, 16, &control,
								 HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
}

static void
empty(PlanCache *cache)
{
	HASH_SEQ_STATUS scan;
	void	   *entry;

	hash_seq_init(&scan, cache->entries);
	while ((entry = hash_seq_search(&scan)) != NULL)
		cache->free_entry(entry);
	hash_destroy(cache->entries);
	cache->entries = NULL;
}

static void
begin_look_up(PlanCache *cache)
{
	if (cache->entries != NULL && cache->used_in != MyProc->lxid &&
		hash_get_num_entries(cache->entries) >= cache->max_entries)
		empty(cache);
	if (cache->entries == NULL)
		create_entries(cache);
	cache->used_in = MyProc->lxid;
}

/* NULL: there is none of that name. */
void *
plan_cache_find(PlanCache *cache, const char *name)
{
	begin_look_up(cache);
	return hash_search(cache->entries, name, HASH_FIND, NULL);
}

/* The entry of that name, a new one zeroed behind its name. */
void *
plan_cache_enter(PlanCache *cache, const char *name)
{
	char	   *entry;
	bool		found;

	begin_look_up(cache);
	entry = hash_search(cache->entries, name, HASH_ENTER, &found);
	if (!found)
		memset(entry + cache->keysize, 0, cache->entrysize - cache->keysize);
	return entry;
}

/* Frees a plan and its text, which must have been allocated. */
void
plan_forget(KeptPlan *plan)
{
	if (plan->kept != NULL)
		SPI_freeplan(plan->kept);
	if (plan->sql != NULL)
		pfree((char *) plan->sql);
	plan->kept = NULL;
	plan->sql = NULL;
}
