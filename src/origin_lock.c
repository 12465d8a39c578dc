/*
 * origin_lock.c
 *		The lock that lets claims of an origin take turns (docs/design.md 4).
 *
 * It is an entry of the lock table under the origin's number, not a row lock, so that a
 * claim that finds nothing assigns no xid and writes no WAL.  It is never waited for: who
 * finds it held has nothing to do this time.
 */
#include "acme_outbox.h"

#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "origin_lock.h"
#include "plans.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/sinvaladt.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

static KeptPlan origin_plan = {
	"SELECT origin_no FROM acme_outbox.outbox_origin WHERE origin = $1",
	1, {TEXTOID}
};

/* only a transaction that is older than the takeover */
static KeptPlan end_holder_plan = {
	"SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a, acme_outbox.relay_lease l"
	" WHERE a.pid = $1 AND l.epoch = $2 AND a.xact_start < l.acquired_at",
	2, {INT4OID, INT8OID}
};

static bool
origin_tag(const char *origin, LOCKTAG *tag)
{
	Datum		arg = CStringGetTextDatum(origin);
	bool		isnull;
	Oid			relation;
	int32		number;

	if (plan_run(&origin_plan, &arg, NULL, SPI_OK_SELECT) == 0)
		return false;
	number = DatumGetInt32(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc,
										 1, &isnull));
	relation = get_relname_relid("outbox_origin", get_namespace_oid(ACME_OUTBOX_SCHEMA, false));
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, relation, (uint32) number, LOCK_OF_ORIGIN);
	return true;
}

/*
 * A relay that was frozen, or cut off, in the middle of receiving a claim leaves a
 * session that waits for it to read on, with the origin locked.  When its lease was
 * taken over, that session is ended: nothing it could still do would count.
 */
static void
end_old_holder(const LOCKTAG *tag, const Lease *lease)
{
	VirtualTransactionId *holders = GetLockConflicts(tag, ExclusiveLock, NULL);
	PGPROC	   *holder;
	Datum		args[2];

	if (!VirtualTransactionIdIsValid(holders[0]) ||
		(holder = BackendIdGetProc(holders[0].backendId)) == NULL)
		return;
	args[0] = Int32GetDatum(holder->pid);
	args[1] = Int64GetDatum(lease->epoch);
	if (plan_run(&end_holder_plan, args, NULL, SPI_OK_SELECT) > 0)
		ereport(WARNING,
				(errmsg("ended session %d, which still held origin \"%s\" after its relay lost the lease",
						holder->pid, lease->origin)));
}

/* Locks and fences; false: a peer holds it, nothing to do this cycle. */
bool
origin_lock(const char *origin, int64 epoch, Lease *lease)
{
	LOCKTAG		tag;

	if (!origin_tag(origin, &tag))
	{
		lease_require(origin, epoch, lease);
		return false;
	}
	if (LockAcquire(&tag, ExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL)
	{
		lease_require(origin, epoch, lease);
		return true;
	}
	lease_require(origin, epoch, lease);
	if (lease->takeover_pending)
		end_old_holder(&tag, lease);
	return false;
}
