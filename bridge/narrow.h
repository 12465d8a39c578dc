#ifndef ACME_NARROW_H
#define ACME_NARROW_H

#include <stdbool.h>
#include <stdint.h>

/* How many messages may be unconfirmed, and how many of those were sent. */
struct narrow
{
	uint32_t	capacity;		/* when nothing is looked for */
	uint32_t	limit;
	uint32_t	batch;			/* sent since nothing was unconfirmed */
};

void		narrow_init(struct narrow *n, uint32_t capacity);
void		narrow_set(struct narrow *n, uint32_t limit);
bool		narrow_is_on(const struct narrow *n);
bool		narrow_is_full(const struct narrow *n, uint32_t open);
void		narrow_sending(struct narrow *n, uint32_t open);
bool		narrow_answered(struct narrow *n, uint32_t open);

#endif							/* ACME_NARROW_H */
