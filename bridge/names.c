/*
 * names.c
 *		A small hash table from a text to an entry: the message keys in memory
 *		and the exchanges we know of.
 *
 * Entries are counted by their users; who drops the last use decides whether
 * the entry goes. Bounded by the rows in memory, so it never grows.
 */
#include "names.h"

#include <stdlib.h>
#include <string.h>

void
names_init(struct names *table, size_t entry_size)
{
	memset(table, 0, sizeof(*table));
	table->entry_size = entry_size;
}

void
names_free(struct names *table)
{
	struct name *name;

	while ((name = names_first(table)) != NULL)
		names_remove(table, name);
}

static uint32_t
names_hash(const char *text)
{
	uint32_t	hash = 2166136261u;

	for (; *text; text++)
		hash = (hash ^ (uint8_t) *text) * 16777619u;
	return hash;
}

/* Find or make the entry, and count one more use of it. */
void *
names_use(struct names *table, const char *text)
{
	uint32_t	hash = names_hash(text);
	struct name **bucket = &table->buckets[hash % NAMES_BUCKETS];
	struct name *name;
	size_t		length;

	for (name = *bucket; name; name = name->next)
		if (name->hash == hash && strcmp(name->text, text) == 0)
		{
			name->users++;
			return name;
		}
	length = strlen(text) + 1;
	name = calloc(1, table->entry_size + length);
	if (name == NULL)
		abort();
	name->text = memcpy((char *) name + table->entry_size, text, length);
	name->hash = hash;
	name->users = 1;
	name->next = *bucket;
	*bucket = name;
	table->count++;
	return name;
}

void
names_remove(struct names *table, struct name *name)
{
	struct name **link = &table->buckets[name->hash % NAMES_BUCKETS];

	while (*link != name)
		link = &(*link)->next;
	*link = name->next;
	table->count--;
	free(name);
}

static void *
names_from(struct names *table, uint32_t bucket)
{
	for (; bucket < NAMES_BUCKETS; bucket++)
		if (table->buckets[bucket])
			return table->buckets[bucket];
	return NULL;
}

void *
names_first(struct names *table)
{
	return names_from(table, 0);
}

/* The order is arbitrary, but stable while nothing is added or removed. */
void *
names_next(struct names *table, const struct name *name)
{
	if (name->next)
		return name->next;
	return names_from(table, name->hash % NAMES_BUCKETS + 1);
}
