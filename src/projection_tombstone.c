/*
 * projection_tombstone.c
 *		What was deleted from projections, so that an older event does not bring it back.
 *
 * A tombstone is (target, digest of the key, time and id of the delete).  It exists only
 * while the row does not: a newer event that makes the row again removes it.  It is
 * written and removed as the owner of the extension's table, so consumers need no right
 * on it; read by its index, without the planner, under the newest snapshot even at
 * REPEATABLE READ.
 *
 * A delete of an absent row and an insert of it do not meet in the target's index, so they
 * meet in the lock table: whoever inserts shares a lock on the key, whoever deletes holds
 * it alone, until the end of the transaction.  Updates need none, the row is there.  A
 * transaction locks KEY_LOCKS keys one by one; after those it locks buckets of keys, so
 * that a bulk load does not fill the lock table.  Everybody locks the bucket as well, in
 * a mode that only conflicts with bulk:
 *
 *		            bucket          key
 *		insert      RowShare        Share
 *		delete      RowExclusive    Exclusive
 *		insert, bulk    Share
 *		delete, bulk    Exclusive
 */
#include "acme_outbox.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "guc.h"
#include "miscadmin.h"
#include "plans.h"
#include "projection.h"
#include "storage/bufmgr.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#define KEY_LOCKS 256
#define KEY_BUCKETS 1024

/* columns of projection_tombstone (sql/28_projection.sql) */
enum
{
	TOMBSTONE_TARGET = 1, TOMBSTONE_DIGEST, TOMBSTONE_KEY, TOMBSTONE_AT, TOMBSTONE_ID
};

static KeptPlan put_plan = {
	"INSERT INTO acme_outbox.projection_tombstone AS t"
	" (target, key_digest, key, last_event_at, last_event_id, deleted_at)"
	" VALUES ($1, $2, $3, $4, $5, pg_catalog.clock_timestamp())"
	" ON CONFLICT (target, key_digest) DO UPDATE SET last_event_at = excluded.last_event_at,"
	" last_event_id = excluded.last_event_id, deleted_at = excluded.deleted_at",
	5, {REGCLASSOID, BYTEAOID, JSONBOID, TIMESTAMPTZOID, TEXTOID}
};

static KeptPlan remove_plan = {
	"DELETE FROM acme_outbox.projection_tombstone"
	" WHERE target OPERATOR(pg_catalog.=) $1 AND key_digest OPERATOR(pg_catalog.=) $2",
	2, {REGCLASSOID, BYTEAOID}
};

/* $1 rows, $2 seconds kept */
static KeptPlan old_plan = {
	"DELETE FROM acme_outbox.projection_tombstone WHERE ctid = ANY (ARRAY("
	" SELECT t.ctid FROM acme_outbox.projection_tombstone t"
	" WHERE t.deleted_at < clock_timestamp() - $2 * interval '1 second'"
	" ORDER BY t.deleted_at LIMIT $1 FOR UPDATE SKIP LOCKED))",
	2, {INT4OID, INT4OID}
};

/* $1 rows: what belongs to dropped tables; targets are found by hops along the index */
static KeptPlan dropped_plan = {
	"WITH RECURSIVE d (target) AS ("
	" (SELECT t.target FROM acme_outbox.projection_tombstone t ORDER BY t.target LIMIT 1)"
	" UNION ALL SELECT (SELECT t.target FROM acme_outbox.projection_tombstone t"
	" WHERE t.target > d.target ORDER BY t.target LIMIT 1) FROM d WHERE d.target IS NOT NULL)"
	" DELETE FROM acme_outbox.projection_tombstone WHERE ctid = ANY (ARRAY("
	" SELECT t.ctid FROM d JOIN acme_outbox.projection_tombstone t ON t.target = d.target"
	" WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = d.target)"
	" LIMIT $1 FOR UPDATE OF t SKIP LOCKED))",
	1, {INT4OID}
};

void
projection_lock_key(Oid target, const ProjectionKey *key, bool deleting)
{
	static LocalTransactionId transaction = InvalidLocalTransactionId;
	static int	taken;
	uint64		hash = hash_bytes_extended((const unsigned char *) key->text,
										   strlen(key->text), target);
	LOCKTAG		bucket;
	LOCKTAG		tag;

	if (transaction != MyProc->lxid)
		taken = 0;
	transaction = MyProc->lxid;

	SET_LOCKTAG_ADVISORY(bucket, MyDatabaseId, target, (uint32) (hash % KEY_BUCKETS),
						 LOCK_OF_KEY_BUCKET);
	if (taken >= KEY_LOCKS)
	{
		(void) LockAcquire(&bucket, deleting ? ExclusiveLock : ShareLock, false, false);
		return;
	}
	taken++;
	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, (uint32) (hash >> 32), (uint32) hash,
						 LOCK_OF_PROJECTED_KEY);
	(void) LockAcquire(&bucket, deleting ? RowExclusiveLock : RowShareLock, false, false);
	(void) LockAcquire(&tag, deleting ? ExclusiveLock : ShareLock, false, false);
}

static Oid
our_relation(const char *name)
{
	Oid			oid = get_relname_relid(name, get_namespace_oid(ACME_OUTBOX_SCHEMA, false));

	if (!OidIsValid(oid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation \"" ACME_OUTBOX_SCHEMA ".%s\" does not exist", name),
				 errhint("Restore it as CREATE EXTENSION acme_outbox makes it.")));
	return oid;
}

static void
read_tombstone(HeapTuple tuple, TupleDesc desc, TimestampTz *at, char **id)
{
	bool		isnull;
	Datum		value;

	*at = DatumGetTimestampTz(heap_getattr(tuple, TOMBSTONE_AT, desc, &isnull));
	value = heap_getattr(tuple, TOMBSTONE_ID, desc, &isnull);
	*id = isnull ? NULL : TextDatumGetCString(value);
}

static bool
find_by_index(Relation relation, Oid target, ProjectionKey *key, TimestampTz *at, char **id)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&keys[0], TOMBSTONE_TARGET, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(target));
	ScanKeyInit(&keys[1], TOMBSTONE_DIGEST, BTEqualStrategyNumber, F_BYTEAEQ,
				PointerGetDatum(projection_digest(key)));
	scan = systable_beginscan(relation, our_relation("projection_tombstone_pkey"), true,
							  snapshot, 2, keys);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		read_tombstone(tuple, RelationGetDescr(relation), at, id);
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	return HeapTupleIsValid(tuple);
}

/*
 * The key's tombstone, committed or of this transaction.  Where nothing was ever deleted, or
 * all of it was vacuumed away, the table has no page, and that is seen without a look-up: the
 * key is locked, so nobody else is writing its tombstone.
 */
bool
tombstone_find(Oid target, ProjectionKey *key, TimestampTz *at, char **id)
{
	Relation	relation = table_open(our_relation("projection_tombstone"), AccessShareLock);
	bool		found = RelationGetNumberOfBlocks(relation) > 0 &&
	find_by_index(relation, target, key, at, id);

	table_close(relation, AccessShareLock);
	return found;
}

/* Runs one of our own statements with the rights of the table's owner. */
static void
run_as_owner(KeptPlan *plan, Datum *values, const char *nulls, int expected)
{
	Relation	relation = table_open(our_relation("projection_tombstone"), RowExclusiveLock);
	Oid			user;
	int			context;

	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(relation->rd_rel->relowner, context | SECURITY_LOCAL_USERID_CHANGE);
	(void) plan_run(plan, values, nulls, expected);
	SetUserIdAndSecContext(user, context);
	table_close(relation, NoLock);
}

void
tombstone_put(const ProjectionEvent *event, ProjectionKey *key)
{
	const char *id = projection_id(event);
	Datum		values[] = {ObjectIdGetDatum(event->target->oid),
		PointerGetDatum(projection_digest(key)),
		JsonbPGetDatum(key->json), TimestampTzGetDatum(event->at),
	id != NULL ? CStringGetTextDatum(id) : (Datum) 0};

	run_as_owner(&put_plan, values, id != NULL ? NULL : "    n", SPI_OK_INSERT);
}

void
tombstone_remove(Oid target, ProjectionKey *key)
{
	Datum		values[] = {ObjectIdGetDatum(target), PointerGetDatum(projection_digest(key))};

	run_as_owner(&remove_plan, values, NULL, SPI_OK_DELETE);
}

/* Retention, inside duty_begin() and duty_end(); the table is ours, so are its rights. */
DutyReport
tombstone_purge(void)
{
	DutyReport	report = {DUTY_DONE, 0};
	Datum		args[] = {Int32GetDatum(guc_duty_batch_rows), Int32GetDatum(guc_retention_tombstones)};
	uint64		old = 0;
	uint64		dropped;

	if (guc_retention_tombstones > 0)
		old = plan_run(&old_plan, args, NULL, SPI_OK_DELETE);
	dropped = plan_run(&dropped_plan, args, NULL, SPI_OK_DELETE);
	if (old >= guc_duty_batch_rows || dropped >= guc_duty_batch_rows)
		report.result = DUTY_MORE;
	report.affected = (int64) (old + dropped);
	return report;
}
