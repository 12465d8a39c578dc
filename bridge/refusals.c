/*
 * refusals.c
 *		Which refused messages are worth a line in the log: one for each exchange
 *		and routing key in a minute, with the number of those not logged before.
 *
 * A consumer counts its handler's failures so, by routing key and SQLSTATE.
 *
 * Bounded: routing keys may be as many as there are orders.
 */
#include "refusals.h"

static uint64_t
add_text(uint64_t hash, const char *text)
{
	for (; *text; text++)
		hash = (hash ^ (uint8_t) *text) * 1099511628211u;
	return hash * 1099511628211u;
}

/* The one of that hash, or the one to be given up for it. */
static struct refusal *
find(struct refusals *refusals, uint64_t hash)
{
	struct refusal *oldest = &refusals->known[0];

	for (int i = 0; i < REFUSALS_MAX; i++)
	{
		if (refusals->known[i].hash == hash)
			return &refusals->known[i];
		if (refusals->known[i].logged_at < oldest->logged_at)
			oldest = &refusals->known[i];
	}
	return oldest;
}

/* True: log it, and that so many like it were not. */
bool
refusals_note(struct refusals *refusals, const char *exchange,
			  const char *routing_key, msec_t now, int *unlogged)
{
	uint64_t	hash = add_text(add_text(14695981039346656037u, exchange),
								routing_key) | 1;
	struct refusal *refusal = find(refusals, hash);

	if (refusal->hash == hash && now - refusal->logged_at < REFUSALS_PERIOD)
	{
		refusal->unlogged++;
		return false;
	}
	*unlogged = refusal->hash == hash ? refusal->unlogged : 0;
	*refusal = (struct refusal){.hash = hash, .logged_at = now};
	return true;
}
