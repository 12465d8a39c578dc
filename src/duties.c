/*
 * duties.c
 *		Runs the duties that are due: the reaper (reap.c), retention (purge.c), and
 *		what was consumed (consumed.c).
 *
 * A duty is a function that anyone permitted can call at any time.  It changes a
 * bounded number of rows, takes rows SKIP LOCKED and says whether it met a lock:
 * "contended" is not "nothing to do".  "more" means that it stopped at its bound.
 *
 * run_due_duties() is called by the worker and by every relay.  The lock on a
 * duty's row of duty_run keeps two from running it at once; each runs in a
 * subtransaction, so one that fails neither stops the other nor its caller.
 *
 * Relations are locked before anything else, each without waiting while others are
 * held: DROP EXTENSION locks the same tables in an order of its own, and a duty
 * must not be half of a deadlock.
 */
#include "acme_outbox.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "consumed.h"
#include "duties.h"
#include "funcapi.h"
#include "guc.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "plans.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"

/* after anything but "done", a duty is tried again this soon */
#define RETRY_INTERVAL_S 60

/* pause between attempts to lock tables */
#define LOCK_PAUSE_MS 10

/* how much of what was counted a crash can take along */
static const int save_interval = 60;

typedef struct Duty
{
	const char *name;
	DutyReport	(*run) (void);
	const int  *interval;		/* seconds */
} Duty;

static const Duty duties[] = {
	{"reap", reap_duty, &guc_reaper_interval},
	{"purge", purge_duty, &guc_retention_interval},
	{"consumed", consumed_duty, &save_interval},
};

PG_FUNCTION_INFO_V1(acme_outbox_run_due_duties);

#define IS_DUE \
	" started_at + CASE WHEN result = 'more' THEN 0" \
	" WHEN result IN ('contended', 'failed') THEN least($2, $3)" \
	" ELSE $2 END * interval '1 second' <= clock_timestamp()"

static KeptPlan seed_plan = {
	"INSERT INTO acme_outbox.duty_run (duty) SELECT $1 WHERE NOT EXISTS"
	" (SELECT FROM acme_outbox.duty_run WHERE duty = $1) ON CONFLICT DO NOTHING",
	1, {TEXTOID}
};

static KeptPlan due_plan = {
	"SELECT FROM acme_outbox.duty_run WHERE duty = $1 AND" IS_DUE,
	3, {TEXTOID, INT4OID, INT4OID}
};

static KeptPlan take_plan = {
	"SELECT FROM acme_outbox.duty_run WHERE duty = $1 FOR UPDATE SKIP LOCKED",
	1, {TEXTOID}
};

static KeptPlan record_plan = {
	"UPDATE acme_outbox.duty_run SET started_at = clock_timestamp(), result = $2,"
	" affected = $3 WHERE duty = $1",
	3, {TEXTOID, TEXTOID, INT8OID}
};

static KeptPlan origins_plan = {
	"WITH RECURSIVE o (origin) AS ("
	" (SELECT e.origin FROM ONLY acme_outbox.outbox_entry e ORDER BY e.origin, e.id LIMIT 1)"
	" UNION ALL SELECT (SELECT e.origin FROM ONLY acme_outbox.outbox_entry e"
	" WHERE e.origin > o.origin ORDER BY e.origin, e.id LIMIT 1)"
	" FROM o WHERE o.origin IS NOT NULL)"
	" SELECT origin FROM o WHERE origin IS NOT NULL",
	0, {0}
};

/*
 * What every duty needs
 */

const char *
duty_result_name(DutyResult result)
{
	switch (result)
	{
		case DUTY_DONE:
			return "done";
		case DUTY_MORE:
			return "more";
		case DUTY_CONTENDED:
			return "contended";
		case DUTY_FAILED:
			return "failed";
	}
	pg_unreachable();
}

/* Opens SPI; until duty_end() the duties' own lock timeout holds. */
int
duty_begin(void)
{
	int			guc_level = NewGUCNestLevel();
	char		milliseconds[16];

	snprintf(milliseconds, sizeof(milliseconds), "%d", guc_duty_lock_timeout_ms);
	(void) set_config_option("lock_timeout", milliseconds, PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	SPI_connect();
	return guc_level;
}

void
duty_end(int guc_level)
{
	SPI_finish();
	AtEOXact_GUC(true, guc_level);
}

static bool
try_tables(const Oid *oids, int n)
{
	for (int i = 0; i < n; i++)
	{
		if (ConditionalLockRelationOid(oids[i], RowExclusiveLock))
			continue;
		while (--i >= 0)
			UnlockRelationOid(oids[i], RowExclusiveLock);
		return false;
	}
	return true;
}

/*
 * duty_lock_tables
 *		Locks tables of the extension against being dropped or altered; false if
 *		that takes longer than acme_outbox.duty_lock_timeout.
 */
bool
duty_lock_tables(const char *const *tables, int n)
{
	Oid			schema = get_namespace_oid(ACME_OUTBOX_SCHEMA, false);
	Oid		   *oids = palloc(sizeof(Oid) * n);
	TimestampTz give_up = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
													  guc_duty_lock_timeout_ms);

	for (int i = 0; i < n; i++)
		oids[i] = get_relname_relid(tables[i], schema);
	while (!try_tables(oids, n))
	{
		if (GetCurrentTimestamp() >= give_up)
			return false;
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 LOCK_PAUSE_MS, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	return true;
}

/* duty_origins: all origins that have entries, as C strings; inside SPI. */
List *
duty_origins(void)
{
	List	   *origins = NIL;

	plan_run(&origins_plan, NULL, NULL, SPI_OK_SELECT);
	for (uint64 i = 0; i < SPI_processed; i++)
		origins = lappend(origins, SPI_getvalue(SPI_tuptable->vals[i],
												SPI_tuptable->tupdesc, 1));
	return origins;
}

/*
 * The duties that are due
 */

/* A lock that could not be had is contention; a cancelled call is not caught. */
static DutyReport
duty_error(const Duty *duty, ErrorData *error)
{
	DutyReport	report = {DUTY_FAILED, 0};

	switch (error->sqlerrcode)
	{
		case ERRCODE_QUERY_CANCELED:
		case ERRCODE_ADMIN_SHUTDOWN:
			ReThrowError(error);
			break;
		case ERRCODE_LOCK_NOT_AVAILABLE:
		case ERRCODE_T_R_DEADLOCK_DETECTED:
			report.result = DUTY_CONTENDED;
			break;
		default:
			ereport(WARNING,
					(errcode(error->sqlerrcode),
					 errmsg("outbox duty \"%s\" failed: %s", duty->name,
							error->message),
					 error->detail ? errdetail_internal("%s", error->detail) : 0,
					 error->hint ? errhint("%s", error->hint) : 0));
	}
	return report;
}

/* Runs a duty in a subtransaction of its own. */
static DutyReport
run_protected(const Duty *duty)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	DutyReport	report;

	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		report = duty->run();
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		report = duty_error(duty, error);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return report;
}

/* Runs a duty if it is due; false if it is not. */
static bool
run_if_due(const Duty *duty, DutyReport *report)
{
	Datum		args[] = {CStringGetTextDatum(duty->name),
	Int32GetDatum(*duty->interval), Int32GetDatum(RETRY_INTERVAL_S)};
	Datum		outcome[3];

	plan_run(&seed_plan, args, NULL, SPI_OK_INSERT);
	if (plan_run(&due_plan, args, NULL, SPI_OK_SELECT) == 0)
		return false;
	report->result = DUTY_CONTENDED;
	report->affected = 0;
	if (plan_run(&take_plan, args, NULL, SPI_OK_SELECT) == 0)
		return true;
	/* somebody may have run it between the two looks */
	if (plan_run(&due_plan, args, NULL, SPI_OK_SELECT) == 0)
		return false;

	*report = run_protected(duty);
	outcome[0] = args[0];
	outcome[1] = CStringGetTextDatum(duty_result_name(report->result));
	outcome[2] = Int64GetDatum(report->affected);
	plan_run(&record_plan, outcome, NULL, SPI_OK_UPDATE);
	return true;
}

/*
 * run_due_duties() RETURNS TABLE (duty text, result text, affected bigint)
 */
Datum
acme_outbox_run_due_duties(PG_FUNCTION_ARGS)
{
	static const char *const tables[] = {"duty_run"};
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int			guc_level;
	bool		locked;

	InitMaterializedSRF(fcinfo, 0);
	guc_level = duty_begin();
	locked = duty_lock_tables(tables, lengthof(tables));
	for (int i = 0; i < lengthof(duties); i++)
	{
		DutyReport	report = {DUTY_CONTENDED, 0};
		Datum		values[3];
		bool		nulls[3] = {false, false, false};

		if (locked && !run_if_due(&duties[i], &report))
			continue;
		values[0] = CStringGetTextDatum(duties[i].name);
		values[1] = CStringGetTextDatum(duty_result_name(report.result));
		values[2] = Int64GetDatum(report.affected);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	duty_end(guc_level);
	PG_RETURN_NULL();
}
