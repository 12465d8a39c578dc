/*
 * lease.h
 *		The right to be the active relay of an origin.
 */
#ifndef ACME_OUTBOX_LEASE_H
#define ACME_OUTBOX_LEASE_H

#include "fmgr.h"

typedef struct Lease
{
	char	   *origin;
	char	   *relay;
	int64		epoch;
	bool		takeover_pending;	/* older epochs may have left claims open */
	bool		released;		/* handed over */
} Lease;

extern void lease_check_arguments(FunctionCallInfo fcinfo);
extern void lease_check_grant(const char *origin);
extern void lease_require(const char *origin, int64 epoch, Lease *lease);
extern void lease_of_epoch(int64 epoch, Lease *lease);

#endif							/* ACME_OUTBOX_LEASE_H */
