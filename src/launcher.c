/*
 * launcher.c
 *		Starts one worker per database that has the extension.
 *
 * Which databases have it can only be seen from inside, so the launcher starts a
 * worker in each database once; one that finds no extension leaves again, and the
 * database is then left alone until it asks: CREATE EXTENSION does, and so does a
 * commit that published without finding a worker.  Workers that fail come back
 * after 5 s, doubled to a minute.  Once a minute the list of databases is read
 * anew.
 *
 * The launcher alone reserves and frees slots (slots.c).  What it knows about
 * databases is its own memory: after a restart it adopts the workers that run and
 * looks at the other databases again.  It connects to no database, only to the
 * shared catalogs.  Databases that are templates or take no connections are never
 * entered.
 *
 * Vocabulary: a database is *wanted* until a worker was started in it, then
 * *served*, then *absent* (no extension) or *retried*.
 */
#include "acme_outbox.h"

#include "access/heapam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "counter_sets.h"
#include "guc.h"
#include "launcher.h"
#include "leave.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "shmem.h"
#include "slots.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "wake.h"
#include "worker.h"

#define LAUNCHER_RESTART_S 5
#define RETRY_FIRST_MS 5000
#define RETRY_LAST_MS 60000
#define RESCAN_MS 60000

typedef enum DatabaseState
{
	DATABASE_WANTED,			/* start a worker as soon as there is a slot */
	DATABASE_SERVED,			/* has a slot */
	DATABASE_ABSENT,			/* has no extension; until it asks */
	DATABASE_RETRIED			/* its worker failed; wait until retry_at */
} DatabaseState;

typedef struct Database
{
	Oid			oid;			/* hash key */
	NameData	name;
	DatabaseState state;
	TimestampTz retry_at;
	int			failures;		/* in a row */
	bool		asked_again;	/* asked for a worker while it had one */
	bool		complained;		/* no slot: said so */
	bool		seen;			/* by the scan under way */
} Database;

static HTAB *databases;
static BackgroundWorkerHandle **handles;	/* per slot; NULL: adopted */
static TimestampTz next_scan;
static bool was_held;			/* a wanted database was; it may be gone now */

/*
 * The list of databases
 */

static Database *
remember_database(Oid oid, const char *name)
{
	bool		found;
	Database   *database = hash_search(databases, &oid, HASH_ENTER, &found);

	if (!found)
	{
		MemSet(database, 0, sizeof(Database));
		database->oid = oid;
		database->state = DATABASE_WANTED;
	}
	namestrcpy(&database->name, name);
	database->seen = true;
	return database;
}

static Database *
find_database(Oid oid)
{
	return hash_search(databases, &oid, HASH_FIND, NULL);
}

static void
scan_pg_database(void)
{
	Relation	relation = table_open(DatabaseRelationId, AccessShareLock);
	TableScanDesc scan = table_beginscan_catalog(relation, 0, NULL);
	HeapTuple	tuple;

	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_database row = (Form_pg_database) GETSTRUCT(tuple);

		if (row->datallowconn && !row->datistemplate)
			remember_database(row->oid, NameStr(row->datname));
	}
	table_endscan(scan);
	table_close(relation, AccessShareLock);
}

/* Forgets databases that are gone; one whose worker still runs is kept. */
static void
forget_unseen(void)
{
	HASH_SEQ_STATUS sequence;
	Database   *database;

	hash_seq_init(&sequence, databases);
	while ((database = hash_seq_search(&sequence)) != NULL)
	{
		if (database->seen || database->state == DATABASE_SERVED)
			continue;
		shmem_forget_request(database->oid);
		counter_sets_forget(database->oid);
		hash_search(databases, &database->oid, HASH_REMOVE, NULL);
	}
}

/* Reads the list of databases anew. */
static void
scan_databases(void)
{
	HASH_SEQ_STATUS sequence;
	Database   *database;

	hash_seq_init(&sequence, databases);
	while ((database = hash_seq_search(&sequence)) != NULL)
		database->seen = false;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	pgstat_report_activity(STATE_RUNNING, "reading the list of databases");
	scan_pg_database();
	CommitTransactionCommand();
	pgstat_report_activity(STATE_IDLE, NULL);

	forget_unseen();
	next_scan = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), RESCAN_MS);
}

/*
 * Workers that ended
 */

static void
database_failed(Database *database, TimestampTz ran_since)
{
	TimestampTz now = GetCurrentTimestamp();
	int			wait;

	if (ran_since != 0 &&
		TimestampDifferenceExceeds(ran_since, now, RETRY_LAST_MS))
		database->failures = 0;
	wait = Min(RETRY_FIRST_MS << Min(database->failures, 8), RETRY_LAST_MS);
	database->failures++;
	database->state = DATABASE_RETRIED;
	database->retry_at = TimestampTzPlusMilliseconds(now, wait);
}

/* The database's worker is gone, and why: what next? */
static void
worker_ended(Database *database, SlotEnd end, TimestampTz ran_since)
{
	switch (end)
	{
		case END_ABSENT:
			database->state = DATABASE_ABSENT;
			if (database->asked_again)
				database->state = DATABASE_WANTED;
			database->failures = 0;
			break;
		case END_LEFT:
			database->state = DATABASE_WANTED;
			database->failures = 0;
			break;
		case END_FAILED:
			database_failed(database, ran_since);
			break;
	}
	shmem_forget_request(database->oid);
}

/* Frees a slot whose worker is gone. */
static void
check_slot(int slot)
{
	BgwHandleStatus status = BGWH_STARTED;
	SlotInfo	info;
	Database   *database;
	pid_t		pid;

	/* the process first: a slot that is read later cannot be older news */
	if (handles[slot])
		status = GetBackgroundWorkerPid(handles[slot], &pid);
	slot_read(slot, &info);
	if (info.state == SLOT_FREE)
		return;
	if (info.state != SLOT_ENDED && status != BGWH_STOPPED)
		return;

	if (handles[slot])
		pfree(handles[slot]);
	handles[slot] = NULL;
	slot_free(slot);
	database = find_database(info.dboid);
	if (!database)
		return;
	worker_ended(database, info.end, info.started_at);
	if (info.end == END_FAILED)
		next_scan = GetCurrentTimestamp();	/* it may have been dropped */
}

/*
 * Workers to start
 */

static BackgroundWorkerHandle *
register_worker(int slot, Database *database, uint32 generation)
{
	BackgroundWorkerHandle *handle;
	BackgroundWorker worker = {0};
	WorkerArgument argument = {0};

	argument.slot = slot;
	argument.generation = generation;
	argument.dboid = database->oid;
	StaticAssertStmt(sizeof(argument) <= BGW_EXTRALEN, "argument is too long");
	memcpy(worker.bgw_extra, &argument, sizeof(argument));

	snprintf(worker.bgw_name, BGW_MAXLEN, "acme_outbox worker for %s",
			 NameStr(database->name));
	strlcpy(worker.bgw_type, "acme_outbox worker", BGW_MAXLEN);
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker.bgw_library_name, "acme_outbox", BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, "acme_outbox_worker_main", BGW_MAXLEN);
	worker.bgw_notify_pid = MyProcPid;
	return RegisterDynamicBackgroundWorker(&worker, &handle) ? handle : NULL;
}

static void
complain(Database *database, const char *detail, const char *setting)
{
	if (database->complained)
		return;
	database->complained = true;
	ereport(WARNING,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("no worker can be started for database \"%s\"",
					NameStr(database->name)),
			 errdetail("%s", detail),
			 errhint("Consider increasing the setting \"%s\".", setting)));
}

/* Starts the database's worker; false if nothing more can be started now. */
static bool
start_worker(Database *database)
{
	uint32		generation;
	int			slot = slot_reserve(database->oid, &generation);

	if (slot < 0)
	{
		complain(database, "All of the outbox's workers are in use.",
				 "acme_outbox.max_workers");
		return false;
	}
	handles[slot] = register_worker(slot, database, generation);
	if (!handles[slot])
	{
		slot_free(slot);
		complain(database, "All of the server's background workers are in use.",
				 "max_worker_processes");
		return false;
	}
	database->state = DATABASE_SERVED;
	database->asked_again = false;
	database->complained = false;
	shmem_forget_request(database->oid);
	return true;
}

/* Starts what is wanted, as far as there are slots. */
static void
start_workers(void)
{
	TimestampTz now = GetCurrentTimestamp();
	HASH_SEQ_STATUS sequence;
	Database   *database;
	bool		room = true;

	was_held = false;
	hash_seq_init(&sequence, databases);
	while ((database = hash_seq_search(&sequence)) != NULL)
	{
		if (database->state == DATABASE_RETRIED && database->retry_at <= now)
			database->state = DATABASE_WANTED;
		if (database->state != DATABASE_WANTED)
			continue;
		if (shmem_held(database->oid))
			was_held = true;
		else if (room)
			room = start_worker(database);
	}
}

/*
 * Requests
 */

static void
database_asked(Oid dboid)
{
	Database   *database = find_database(dboid);

	if (!database)
	{
		scan_databases();
		database = find_database(dboid);
	}
	if (!database)
	{
		/* a template, or dropped meanwhile */
		shmem_forget_request(dboid);
		return;
	}
	if (database->state == DATABASE_SERVED)
	{
		database->asked_again = true;
		shmem_forget_request(dboid);
	}
	else if (database->state == DATABASE_ABSENT)
		database->state = DATABASE_WANTED;
}

/* Requests were lost: any database may have asked. */
static void
all_asked(void)
{
	HASH_SEQ_STATUS sequence;
	Database   *database;

	scan_databases();
	hash_seq_init(&sequence, databases);
	while ((database = hash_seq_search(&sequence)) != NULL)
	{
		if (database->state == DATABASE_ABSENT)
			database->state = DATABASE_WANTED;
	}
}

static void
take_requests(void)
{
	Oid			dboids[SHMEM_REQUESTS];
	bool		overflowed;
	int			n = shmem_take_requests(dboids, lengthof(dboids), &overflowed);

	for (int i = 0; i < n; i++)
		database_asked(dboids[i]);
	if (overflowed)
		all_asked();
}

/*
 * The loop
 */

static void
start_launcher(void)
{
	HASHCTL		control = {0};

	control.keysize = sizeof(Oid);
	control.entrysize = sizeof(Database);
	databases = hash_create("acme_outbox databases", 64, &control,
							HASH_ELEM | HASH_BLOBS);
	handles = palloc0(sizeof(BackgroundWorkerHandle *) * slots_count());

	shmem_launcher_attach();
	scan_databases();
	for (int slot = 0; slot < slots_count(); slot++)
	{
		Oid			dboid = slot_adopt(slot);
		Database   *database = find_database(dboid);

		if (database)
			database->state = DATABASE_SERVED;
	}
}

static void
stop_workers(void)
{
	for (int slot = 0; slot < slots_count(); slot++)
	{
		SlotInfo	info;

		slot_read(slot, &info);
		if (info.state == SLOT_STARTING || info.state == SLOT_RUNNING)
			slot_ask_to_leave(slot);
	}
}

/* One turn; returns how long to sleep, in milliseconds. */
static long
launch(void)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz next;
	HASH_SEQ_STATUS sequence;
	Database   *database;

	for (int slot = 0; slot < slots_count(); slot++)
		check_slot(slot);
	if (next_scan <= now || was_held)
		scan_databases();
	take_requests();
	if (guc_worker)
		start_workers();
	else
		stop_workers();

	next = next_scan;
	hash_seq_init(&sequence, databases);
	while ((database = hash_seq_search(&sequence)) != NULL)
	{
		if (guc_worker && database->state == DATABASE_RETRIED)
			next = Min(next, database->retry_at);
	}
	return TimestampDifferenceMilliseconds(GetCurrentTimestamp(), next) + 1;
}

static void
reload_settings(void)
{
	if (!ConfigReloadPending)
		return;
	ConfigReloadPending = false;
	ProcessConfigFile(PGC_SIGHUP);
}

/*
 * acme_outbox_launcher_main
 *		Entry point.  Ends only by SIGTERM, and then with 1: exit status 0 would
 *		keep the postmaster from ever starting it again.
 */
void
acme_outbox_launcher_main(Datum main_arg)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	MemoryContextSwitchTo(TopMemoryContext);
	start_launcher();
	for (;;)
	{
		long		timeout = launch();

		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 timeout, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		if (ProcDiePending)
			proc_exit(1);
		CHECK_FOR_INTERRUPTS();
		reload_settings();
	}
}

/*
 * launcher_register
 *		Registers the launcher; called while the postmaster preloads us.
 */
void
launcher_register(void)
{
	BackgroundWorker worker = {0};

	if (IsBinaryUpgrade)
		return;
	strlcpy(worker.bgw_name, "acme_outbox launcher", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "acme_outbox launcher", BGW_MAXLEN);
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = LAUNCHER_RESTART_S;
	strlcpy(worker.bgw_library_name, "acme_outbox", BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, "acme_outbox_launcher_main", BGW_MAXLEN);
	RegisterBackgroundWorker(&worker);
	leave_init();
}

PG_FUNCTION_INFO_V1(acme_outbox_worker_start);

/*
 * worker_start()
 *		Has the launcher start this database's worker when the transaction
 *		commits; false without the launcher.
 */
Datum
acme_outbox_worker_start(PG_FUNCTION_ARGS)
{
	wake_note_check();
	PG_RETURN_BOOL(shmem_attached());
}
