#ifndef ACME_NAMES_H
#define ACME_NAMES_H

#include <stddef.h>
#include <stdint.h>

#define NAMES_BUCKETS	1024

/* The head of every entry; what a user of the table adds follows it. */
struct name
{
	struct name *next;
	char	   *text;
	uint32_t	hash;
	int			users;			/* rows in memory that bear this name */
};

struct names
{
	size_t		entry_size;
	int			count;
	struct name *buckets[NAMES_BUCKETS];
};

void		names_init(struct names *table, size_t entry_size);
void		names_free(struct names *table);
void	   *names_use(struct names *table, const char *text);
void		names_remove(struct names *table, struct name *name);
void	   *names_first(struct names *table);
void	   *names_next(struct names *table, const struct name *name);

#endif							/* ACME_NAMES_H */
