/*
 * worker.c
 *		A database's worker: notifies relays, runs duties.
 *
 * Committing publishers put their origins into the worker's slot and set its
 * latch (wake.c).  The worker collects for acme_outbox.wake_delay, then sends one
 * NOTIFY per origin in one transaction, so that no publisher ever waits for the
 * lock that NOTIFY takes at commit.  Every acme_outbox.duty_interval it calls
 * run_due_duties(), and again at once while a duty has more to do.
 *
 * Each step is a transaction of its own.  An error in it is logged as a warning
 * and the worker goes on: the next step is not tried before its time.  Between
 * steps the worker holds no lock and no snapshot.  Each step first looks whether
 * the extension is still there; without it the worker leaves.
 *
 * It runs as the bootstrap superuser with search_path pg_catalog, and touches the
 * extension's own tables; those of services' inboxes only as their owner (inbox_rights.c).
 */
#include "acme_outbox.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "commands/async.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "guc.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "slots.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"
#include "worker.h"

#define NOTIFY_CHANNEL "acme_outbox"

/* the whole of run_due_duties() is cancelled after this time */
#define DUTY_LIMIT_MS 60000

typedef enum StepResult
{
	STEP_DONE,
	STEP_MORE,					/* call again at once */
	STEP_GONE					/* the extension is not there */
} StepResult;

typedef StepResult (*Step) (void *argument);

static MemoryContext cycle;

/* End this worker, saying why. */
static void
leave(SlotEnd end)
{
	slot_ending(end);
	proc_exit(0);
}

static void
handle_interrupts(void)
{
	if (ProcDiePending && slot_leaving())
		leave(END_LEFT);
	if (ProcDiePending)
		proc_exit(1);
	QueryCancelPending = false; /* there is no query */
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
	if (slot_leaving())
		leave(END_LEFT);
}

static bool
extension_present(void)
{
	Oid			schema = get_namespace_oid(ACME_OUTBOX_SCHEMA, true);

	return OidIsValid(schema) &&
		OidIsValid(get_relname_relid("outbox_entry", schema)) &&
		OidIsValid(get_extension_oid("acme_outbox", true));
}

/* Ends the failed step's transaction and says what went wrong. */
static void
step_failed(const char *activity)
{
	ErrorData  *error;

	MemoryContextSwitchTo(cycle);
	error = CopyErrorData();
	FlushErrorState();
	disable_timeout(STATEMENT_TIMEOUT, false);
	QueryCancelPending = false;
	AbortCurrentTransaction();
	MemoryContextSwitchTo(cycle);
	ereport(WARNING,
			(errcode(error->sqlerrcode),
			 errmsg("outbox worker failed while %s: %s", activity, error->message),
			 error->detail ? errdetail_internal("%s", error->detail) : 0,
			 error->context ? errcontext("%s", error->context) : 0,
			 errhint("The worker goes on and tries again later.")));
}

/*
 * Runs a step in a transaction of its own; a step that fails is only warned about
 * and counts as done.
 */
static StepResult
run_step(const char *activity, Step step, void *argument)
{
	volatile StepResult result = STEP_DONE;

	PG_TRY();
	{
		pgstat_report_activity(STATE_RUNNING, activity);
		SetCurrentStatementStartTimestamp();
		StartTransactionCommand();
		PushActiveSnapshot(GetTransactionSnapshot());
		result = extension_present() ? step(argument) : STEP_GONE;
		PopActiveSnapshot();
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		step_failed(activity);
	}
	PG_END_TRY();

	pgstat_report_stat(true);
	pgstat_report_activity(STATE_IDLE, NULL);
	MemoryContextSwitchTo(cycle);
	MemoryContextReset(cycle);
	return result;
}

static StepResult
look_around(void *argument)
{
	return STEP_DONE;
}

static StepResult
notify_relays(void *argument)
{
	OriginSet  *origins = argument;

	for (int i = 0; i < origins->count; i++)
		Async_Notify(NOTIFY_CHANNEL, origins->name[i]);
	return STEP_DONE;
}

static StepResult
run_duties(void *argument)
{
	StepResult	result = STEP_DONE;

	SPI_connect();
	enable_timeout_after(STATEMENT_TIMEOUT, DUTY_LIMIT_MS);
	if (SPI_execute("SELECT duty FROM acme_outbox.run_due_duties()"
					" WHERE result OPERATOR(pg_catalog.=) 'more'",
					false, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not call run_due_duties()");
	if (SPI_processed > 0)
		result = STEP_MORE;
	disable_timeout(STATEMENT_TIMEOUT, false);
	SPI_finish();
	return result;
}

/* Sleeps for acme_outbox.wake_delay, whatever sets the latch meanwhile. */
static void
collect_wakeups(void)
{
	if (guc_wake_delay_ms == 0)
		return;
	(void) WaitLatch(MyLatch, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 guc_wake_delay_ms, PG_WAIT_EXTENSION);
	handle_interrupts();
}

/* Tells the relays what was published; or, if nothing was, only looks around. */
static StepResult
serve_wakeup(void)
{
	OriginSet	origins;
	StepResult	result;

	if (!slot_take_pending(NULL))
		return run_step("looking for the extension", look_around, NULL);
	collect_wakeups();
	slot_take_pending(&origins);
	result = run_step("notifying relays", notify_relays, &origins);
	if (result == STEP_DONE)
		slot_count_wake(origins.count);
	return result;
}

/* When to look for duties again, if nothing was left to do. */
static TimestampTz
next_look(void)
{
	return TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
									   guc_duty_interval * 1000);
}

static StepResult
serve_duties(TimestampTz *next_duty)
{
	StepResult	result = run_step("running duties", run_duties, NULL);

	slot_count_duty();
	*next_duty = result == STEP_MORE ? GetCurrentTimestamp() : next_look();
	return result;
}

/* Waits for the latch or the next duty; true if woken by the latch. */
static bool
wait_for_work(TimestampTz next_duty)
{
	long		timeout;
	int			events;

	timeout = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), next_duty);
	events = WaitLatch(MyLatch,
					   WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					   timeout, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	handle_interrupts();
	return (events & WL_LATCH_SET) != 0;
}

/* The loop; returns when the extension is gone. */
static void
serve(void)
{
	TimestampTz next_duty;
	StepResult	result;
	bool		first = true;

	result = run_step("looking for the extension", look_around, NULL);
	next_duty = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
											guc_reaper_first_delay * 1000);
	while (result != STEP_GONE)
	{
		bool		woken = wait_for_work(next_duty);

		if (woken || slot_take_pending(NULL))
			result = serve_wakeup();
		if (!first)
			next_duty = Min(next_duty, next_look());	/* after a reload */
		if (result != STEP_GONE && GetCurrentTimestamp() >= next_duty)
		{
			result = serve_duties(&next_duty);
			first = false;
		}
	}
}

/* What the database's settings may say otherwise. */
static void
fix_settings(void)
{
	static const char *const fixed[][2] = {
		{"search_path", "pg_catalog"},
		{"synchronous_commit", "off"},
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"},
		{"default_transaction_deferrable", "off"},
		{"statement_timeout", "0"}
	};

	for (int i = 0; i < lengthof(fixed); i++)
		SetConfigOption(fixed[i][0], fixed[i][1], PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("application_name", MyBgworkerEntry->bgw_name, PGC_USERSET,
					PGC_S_OVERRIDE);
}

/*
 * acme_outbox_worker_main
 *		Entry point.  The launcher, not the postmaster, starts it again.
 */
void
acme_outbox_worker_main(Datum main_arg)
{
	WorkerArgument argument;

	memcpy(&argument, MyBgworkerEntry->bgw_extra, sizeof(argument));
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	if (!slot_attach(argument.slot, argument.generation))
		proc_exit(0);
	if (slot_leaving())
		leave(END_LEFT);
	BackgroundWorkerInitializeConnectionByOid(argument.dboid, InvalidOid, 0);

	cycle = AllocSetContextCreate(TopMemoryContext, "acme_outbox worker cycle",
								  ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(cycle);
	fix_settings();
	handle_interrupts();
	serve();
	leave(END_ABSENT);
}
