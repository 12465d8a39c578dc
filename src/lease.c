/*
 * lease.c
 *		The right to be the active relay of an origin (P 1, G 5.4).
 *
 * One row per origin: who, until when, and the *epoch*, a number from one sequence
 * that fences every later call.  A lease can be taken when there is none, when it
 * has expired, or by the same relay again, always under a new epoch: a process that
 * asks again has forgotten what it had in flight.  Renewing works as long as the
 * epoch is the current one, even late: nobody else can hold it.  A lease that was handed
 * over is not renewed and claims no more; settling what is known stays possible.
 *
 * Times are clock_timestamp() of the database, never the relay's.  The row lock in
 * relay_acquire makes two standbys take turns; claim and settle only read.
 */
#include "acme_outbox.h"

#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "guc.h"
#include "lease.h"
#include "miscadmin.h"
#include "plans.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

PG_FUNCTION_INFO_V1(acme_outbox_relay_acquire);
PG_FUNCTION_INFO_V1(acme_outbox_relay_renew);
PG_FUNCTION_INFO_V1(acme_outbox_relay_release);

static KeptPlan grant_plan = {
	"SELECT role_name FROM acme_outbox.relay_grant WHERE origin = $1",
	1, {TEXTOID}
};

static KeptPlan foreign_plan = {
	"SELECT 1 FROM acme_outbox.installation i WHERE (i.system_identifier, i.database_oid)"
	" IS DISTINCT FROM ($1, $2) UNION ALL SELECT 1 WHERE NOT EXISTS"
	" (SELECT FROM acme_outbox.installation) LIMIT 1",
	2, {INT8OID, OIDOID}
};

static KeptPlan origin_plan = {
	"INSERT INTO acme_outbox.outbox_origin (origin) VALUES ($1) ON CONFLICT DO NOTHING",
	1, {TEXTOID}
};

/*
 * No row while another relay's lease lasts.  The SELECT looks first, so that standing
 * by uses up no epochs; the WHERE at the end decides when two ask at once.
 */
static KeptPlan acquire_plan = {
	"INSERT INTO acme_outbox.relay_lease AS l (origin, epoch, relay, acquired_at,"
	" renewed_at, expires_at, takeover_pending)"
	" SELECT $1, nextval('acme_outbox.relay_epoch_seq'), $2, clock_timestamp(),"
	" clock_timestamp(), clock_timestamp() + $3 * interval '1 ms', true"
	" WHERE NOT EXISTS (SELECT FROM acme_outbox.relay_lease h WHERE h.origin = $1"
	" AND h.expires_at > clock_timestamp() AND h.relay <> $2)"
	" ON CONFLICT (origin) DO UPDATE SET epoch = excluded.epoch, relay = excluded.relay,"
	" acquired_at = excluded.acquired_at, renewed_at = excluded.renewed_at,"
	" expires_at = excluded.expires_at, takeover_pending = true, released = false"
	" WHERE l.expires_at <= clock_timestamp() OR l.relay = excluded.relay"
	" RETURNING epoch",
	3, {TEXTOID, TEXTOID, INT4OID}
};

static KeptPlan renew_plan = {
	"UPDATE acme_outbox.relay_lease SET renewed_at = clock_timestamp(),"
	" expires_at = clock_timestamp() + $3 * interval '1 ms'"
	" WHERE origin = $1 AND epoch = $2 AND NOT released",
	3, {TEXTOID, INT8OID, INT4OID}
};

static KeptPlan release_plan = {
	"UPDATE acme_outbox.relay_lease SET expires_at = clock_timestamp(), released = true"
	" WHERE origin = $1 AND epoch = $2 AND NOT released"
	" RETURNING pg_notify('acme_outbox', origin)",
	2, {TEXTOID, INT8OID}
};

#define LEASE_COLUMNS "origin, relay, epoch, takeover_pending, released"

static KeptPlan by_origin_plan = {
	"SELECT " LEASE_COLUMNS " FROM acme_outbox.relay_lease WHERE origin = $1",
	1, {TEXTOID}
};

static KeptPlan by_epoch_plan = {
	"SELECT " LEASE_COLUMNS " FROM acme_outbox.relay_lease WHERE epoch = $1",
	1, {INT8OID}
};

/* The relay's functions are not STRICT: no rows would mean "stand by" or "nothing". */
void
lease_check_arguments(FunctionCallInfo fcinfo)
{
	for (int i = 0; i < PG_NARGS(); i++)
		if (PG_ARGISNULL(i))
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("argument %d of %s is null", i + 1,
							get_func_name(fcinfo->flinfo->fn_oid))));
}

/*
 * The role that calls (SET ROLE counts, the function's owner does not) must be, or
 * be a member of, a role that was granted the origin.
 */
void
lease_check_grant(const char *origin)
{
	Oid			caller = GetOuterUserId();
	Datum		args[] = {CStringGetTextDatum(origin)};

	if (superuser_arg(caller))
		return;
	plan_run(&grant_plan, args, NULL, SPI_OK_SELECT);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		Oid			role = get_role_oid(SPI_getvalue(SPI_tuptable->vals[i],
													 SPI_tuptable->tupdesc, 1), true);

		if (OidIsValid(role) && has_privs_of_role(caller, role))
			return;
	}
	ereport(ERROR,
			(errcode(ERRCODE_OX_NOT_GRANTED),
			 errmsg("role \"%s\" may not relay origin \"%s\"",
					GetUserNameFromId(caller, false), origin),
			 errhint("An administrator allows it: SELECT acme_outbox.grant_relay('%s', '%s')",
					 GetUserNameFromId(caller, false), origin)));
}

/* A restored dump or a database made from a template must not send by itself. */
static void
check_adopted(void)
{
	Datum		args[] = {Int64GetDatum((int64) GetSystemIdentifier()),
	ObjectIdGetDatum(MyDatabaseId)};

	if (plan_run(&foreign_plan, args, NULL, SPI_OK_SELECT) == 0)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_OX_NOT_ADOPTED),
			 errmsg("this database is a copy whose outbox was not adopted"),
			 errdetail("Its entries were published in another cluster or database, which may still send them."),
			 errhint("If this copy is to send them, an administrator calls: SELECT acme_outbox.adopt()")));
}

static void
check_names(const char *origin, const char *relay)
{
	if (origin[0] == '\0' || strlen(origin) > MAX_SHORT_STRING ||
		relay[0] == '\0' || strlen(relay) > MAX_SHORT_STRING)
		ereport(ERROR,
				(errcode(ERRCODE_OX_ARGUMENT),
				 errmsg("origin and relay have 1 to %d bytes", MAX_SHORT_STRING)));
}

static bool
read_lease(KeptPlan *plan, Datum key, Lease *lease)
{
	bool		isnull;
	HeapTuple	row;
	TupleDesc	desc;

	if (plan_run(plan, &key, NULL, SPI_OK_SELECT) == 0)
		return false;
	row = SPI_tuptable->vals[0];
	desc = SPI_tuptable->tupdesc;
	lease->origin = SPI_getvalue(row, desc, 1);
	lease->relay = SPI_getvalue(row, desc, 2);
	lease->epoch = DatumGetInt64(SPI_getbinval(row, desc, 3, &isnull));
	lease->takeover_pending = DatumGetBool(SPI_getbinval(row, desc, 4, &isnull));
	lease->released = DatumGetBool(SPI_getbinval(row, desc, 5, &isnull));
	return true;
}

static void
fenced(int64 epoch)
{
	ereport(ERROR,
			(errcode(ERRCODE_OX_FENCED),
			 errmsg("epoch " INT64_FORMAT " is not the current one", epoch),
			 errdetail("Another relay has taken over, or this one acquired again or released it."),
			 errhint("Forget what was claimed under it and call relay_acquire.")));
}

/* Claim's fence: the caller's epoch must be the origin's current one, and not released. */
void
lease_require(const char *origin, int64 epoch, Lease *lease)
{
	if (!read_lease(&by_origin_plan, CStringGetTextDatum(origin), lease) ||
		lease->epoch != epoch || lease->released)
		fenced(epoch);
}

/* Settle's fence: the epoch alone names the origin. */
void
lease_of_epoch(int64 epoch, Lease *lease)
{
	if (!read_lease(&by_epoch_plan, Int64GetDatum(epoch), lease))
		fenced(epoch);
}

Datum
acme_outbox_relay_acquire(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	char	   *origin;
	Datum		args[3];
	Datum		result[2];
	bool		nulls[2] = {false, false};

	lease_check_arguments(fcinfo);
	args[0] = PG_GETARG_DATUM(0);
	args[1] = PG_GETARG_DATUM(1);
	args[2] = Int32GetDatum(guc_lease_duration);
	origin = TextDatumGetCString(args[0]);
	check_names(origin, TextDatumGetCString(args[1]));
	InitMaterializedSRF(fcinfo, 0);
	SPI_connect();
	lease_check_grant(origin);
	check_adopted();
	plan_run(&origin_plan, args, NULL, SPI_OK_INSERT);
	if (plan_run(&acquire_plan, args, NULL, SPI_OK_INSERT_RETURNING) == 1)
	{
		result[0] = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &nulls[0]);
		result[1] = Int32GetDatum(guc_lease_duration);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, result, nulls);
	}
	SPI_finish();
	PG_RETURN_NULL();
}

Datum
acme_outbox_relay_renew(PG_FUNCTION_ARGS)
{
	Datum		args[] = {PG_GETARG_DATUM(0), PG_GETARG_DATUM(1),
	Int32GetDatum(guc_lease_duration)};
	bool		renewed;

	lease_check_arguments(fcinfo);
	SPI_connect();
	lease_check_grant(TextDatumGetCString(args[0]));
	renewed = plan_run(&renew_plan, args, NULL, SPI_OK_UPDATE) == 1;
	SPI_finish();
	PG_RETURN_BOOL(renewed);
}

Datum
acme_outbox_relay_release(PG_FUNCTION_ARGS)
{
	Datum		args[] = {PG_GETARG_DATUM(0), PG_GETARG_DATUM(1)};
	bool		released;

	lease_check_arguments(fcinfo);
	SPI_connect();
	lease_check_grant(TextDatumGetCString(args[0]));
	released = plan_run(&release_plan, args, NULL, SPI_OK_UPDATE_RETURNING) == 1;
	SPI_finish();
	PG_RETURN_BOOL(released);
}
