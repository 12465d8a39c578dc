/*
 * random_bytes.c
 *		Random bytes for ids: of events, traces, spans and claims.
 *
 * A call of the server's generator costs as much for eight bytes as for a block, and an
 * event needs three of them: a sixth of what publish() cost.  So a block is drawn at a
 * time, per session, and each byte of it is given out once.
 */
#include "acme_outbox.h"

#include "random_bytes.h"

#define BLOCK_BYTES 1024

static unsigned char block[BLOCK_BYTES];
static Size left;

void
random_bytes(void *out, Size n)
{
	Assert(n <= RANDOM_BYTES_MAX);
	if (left < n)
	{
		left = 0;
		if (!pg_strong_random(block, BLOCK_BYTES))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate random values")));
		left = BLOCK_BYTES;
	}
	left -= n;
	memcpy(out, block + left, n);
	memset(block + left, 0, n);
}
