/*
 * origin_set.c
 *		A few origins by name.
 *
 * Nothing here allocates or can fail: it is called at commit, and with a spinlock held.
 * What does not fit becomes WAKE_ANY, which stands for all origins.
 */
#include "acme_outbox.h"

#include "origin_set.h"

/*
 * origin_set_add
 *		Adds an origin; one that is too long, or one too many, makes it "any".
 */
void
origin_set_add(OriginSet *set, const char *origin)
{
	for (int i = 0; i < set->count; i++)
	{
		if (strcmp(set->name[i], origin) == 0 ||
			strcmp(set->name[i], WAKE_ANY) == 0)
			return;
	}
	if (set->count == WAKE_ORIGINS || strlen(origin) >= WAKE_NAME_SIZE)
		origin = WAKE_ANY;
	if (strcmp(origin, WAKE_ANY) == 0)
		set->count = 0;
	strlcpy(set->name[set->count++], origin, WAKE_NAME_SIZE);
}

/* origin_set_has: is the origin in the set, by its name or as one of "any"? */
bool
origin_set_has(const OriginSet *set, const char *origin)
{
	for (int i = 0; i < set->count; i++)
	{
		if (strcmp(set->name[i], origin) == 0 ||
			strcmp(set->name[i], WAKE_ANY) == 0)
			return true;
	}
	return false;
}

/* origin_set_remove: takes the origin out, if it is there by its name. */
void
origin_set_remove(OriginSet *set, const char *origin)
{
	for (int i = 0; i < set->count; i++)
	{
		if (strcmp(set->name[i], origin) == 0)
		{
			if (i != --set->count)
				strlcpy(set->name[i], set->name[set->count], WAKE_NAME_SIZE);
			return;
		}
	}
}
