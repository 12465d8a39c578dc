#ifndef ACME_REFUSALS_H
#define ACME_REFUSALS_H

#include <stdbool.h>
#include <stdint.h>

#include "clock.h"

/* Exchanges and routing keys remembered; the longest silent one makes room. */
#define REFUSALS_MAX		64

/* At most one line for each of them in this time. */
#define REFUSALS_PERIOD		60000

struct refusal
{
	uint64_t	hash;			/* 0: free */
	msec_t		logged_at;
	int			unlogged;		/* since then */
};

struct refusals
{
	struct refusal known[REFUSALS_MAX];
};

bool		refusals_note(struct refusals *refusals, const char *exchange,
						  const char *routing_key, msec_t now, int *unlogged);

#endif							/* ACME_REFUSALS_H */
