/*
 * shmem.c
 *		The shared memory between publishers, the launcher and the workers.
 *
 * Here is what is for the launcher: its latch, the databases that ask for a worker, and
 * the databases whose worker must stay away for the moment.  Behind it are the workers'
 * slots (slots.c).
 *
 * What a committing publisher calls is short, allocates nothing and cannot fail.  A crash
 * of any process resets all of it with the rest of shared memory.
 */
#include "acme_outbox.h"

#include "miscadmin.h"
#include "shmem.h"
#include "slots.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "storage/spin.h"

#define SHMEM_NAME "acme_outbox"
#define SHMEM_HOLDS 16

typedef struct Request
{
	Oid			dboid;
	bool		fresh;			/* not seen by the launcher yet */
} Request;

typedef struct Hold
{
	Oid			dboid;
	pid_t		pid;			/* the session that needs the database */
} Hold;

typedef struct SharedState
{
	slock_t		mutex;			/* protects all of it */
	Latch	   *launcher;
	int			n_requests;
	bool		overflowed;		/* requests did not fit */
	Request		requests[SHMEM_REQUESTS];
	Hold		holds[SHMEM_HOLDS];
} SharedState;

/* the slots come behind it */
#define SLOTS_OFFSET MAXALIGN(sizeof(SharedState))

static SharedState *shared = NULL;

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

static void
request_shared_memory(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	RequestAddinShmemSpace(add_size(SLOTS_OFFSET, slots_size()));
}

static void
start_shared_memory(void)
{
	bool		found;

	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	shared = ShmemInitStruct(SHMEM_NAME, add_size(SLOTS_OFFSET, slots_size()), &found);
	if (!found)
	{
		MemSet(shared, 0, add_size(SLOTS_OFFSET, slots_size()));
		SpinLockInit(&shared->mutex);
	}
	slots_start((char *) shared + SLOTS_OFFSET, found);
	LWLockRelease(AddinShmemInitLock);
}

/*
 * shmem_init
 *		Asks for the shared memory; called while the postmaster preloads us.
 */
void
shmem_init(void)
{
	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = request_shared_memory;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = start_shared_memory;
}

/* Is there shared memory at all, that is: were we preloaded? */
bool
shmem_attached(void)
{
	return shared != NULL;
}

/*
 * Requests to the launcher
 */

/* Adds a request; returns the latch to set, or NULL.  Caller holds the lock. */
static Latch *
add_request(Oid dboid, bool again)
{
	for (int i = 0; i < shared->n_requests; i++)
	{
		Request    *request = &shared->requests[i];

		if (request->dboid != dboid)
			continue;
		if (!again || request->fresh)
			return NULL;
		request->fresh = true;
		return shared->launcher;
	}
	if (shared->n_requests == SHMEM_REQUESTS)
	{
		bool		first = !shared->overflowed;

		shared->overflowed = true;
		return first ? shared->launcher : NULL;
	}
	shared->requests[shared->n_requests].dboid = dboid;
	shared->requests[shared->n_requests].fresh = true;
	shared->n_requests++;
	return shared->launcher;
}

/*
 * Asks for a worker.  Without "again" a request the launcher already knows of does
 * not wake it: it may be out of slots, and publishers commit often.
 */
static void
request_worker(Oid dboid, bool again)
{
	Latch	   *latch;

	SpinLockAcquire(&shared->mutex);
	latch = add_request(dboid, again);
	SpinLockRelease(&shared->mutex);
	if (latch)
		SetLatch(latch);
}

/*
 * shmem_request_worker
 *		Has the launcher look at a database, whatever it knew about it.
 */
void
shmem_request_worker(Oid dboid)
{
	if (shared)
		request_worker(dboid, true);
}

/*
 * shmem_wake
 *		Hands origins to the database's worker, or has one started.
 */
void
shmem_wake(Oid dboid, const OriginSet *origins)
{
	if (!slot_wake(dboid, origins))
		request_worker(dboid, false);
}

/*
 * shmem_take_requests
 *		Copies the databases that asked since the last call.  They stay listed,
 *		so that they do not ask again, until shmem_forget_request().
 */
int
shmem_take_requests(Oid *dboids, int max, bool *overflowed)
{
	int			n = 0;

	SpinLockAcquire(&shared->mutex);
	for (int i = 0; i < shared->n_requests && n < max; i++)
	{
		if (!shared->requests[i].fresh)
			continue;
		shared->requests[i].fresh = false;
		dboids[n++] = shared->requests[i].dboid;
	}
	*overflowed = shared->overflowed;
	shared->overflowed = false;
	SpinLockRelease(&shared->mutex);
	return n;
}

/* Unlists a database, so that it can ask again; a fresh request stays. */
void
shmem_forget_request(Oid dboid)
{
	SpinLockAcquire(&shared->mutex);
	for (int i = 0; i < shared->n_requests; i++)
	{
		if (shared->requests[i].dboid == dboid && !shared->requests[i].fresh)
		{
			shared->requests[i] = shared->requests[--shared->n_requests];
			break;
		}
	}
	SpinLockRelease(&shared->mutex);
}

static void
detach_launcher(int code, Datum argument)
{
	SpinLockAcquire(&shared->mutex);
	shared->launcher = NULL;
	SpinLockRelease(&shared->mutex);
}

/* shmem_launcher_attach: from now on, requests set this process's latch. */
void
shmem_launcher_attach(void)
{
	before_shmem_exit(detach_launcher, (Datum) 0);
	SpinLockAcquire(&shared->mutex);
	shared->launcher = MyLatch;
	SpinLockRelease(&shared->mutex);
}

void
shmem_wake_launcher(void)
{
	Latch	   *latch;

	SpinLockAcquire(&shared->mutex);
	latch = shared->launcher;
	SpinLockRelease(&shared->mutex);
	if (latch)
		SetLatch(latch);
}

/*
 * Holds: a session is about to do what no other session may be in the way of
 */

/*
 * shmem_hold
 *		Sends a database's worker away and keeps it away until shmem_unhold().
 */
void
shmem_hold(Oid dboid)
{
	if (!shared)
		return;
	SpinLockAcquire(&shared->mutex);
	for (int i = 0; i < SHMEM_HOLDS; i++)
	{
		if (shared->holds[i].pid != 0)
			continue;
		shared->holds[i].dboid = dboid;
		shared->holds[i].pid = MyProcPid;
		break;
	}
	SpinLockRelease(&shared->mutex);

	slots_send_away(dboid);
}

/* shmem_unhold: what this session kept away may come back. */
void
shmem_unhold(void)
{
	if (!shared)
		return;
	SpinLockAcquire(&shared->mutex);
	for (int i = 0; i < SHMEM_HOLDS; i++)
	{
		if (shared->holds[i].pid == MyProcPid)
			MemSet(&shared->holds[i], 0, sizeof(Hold));
	}
	SpinLockRelease(&shared->mutex);
	shmem_wake_launcher();
}

/* Must the database stay without a worker for now? */
bool
shmem_held(Oid dboid)
{
	bool		held = false;

	SpinLockAcquire(&shared->mutex);
	for (int i = 0; i < SHMEM_HOLDS; i++)
		held = held || shared->holds[i].dboid == dboid;
	SpinLockRelease(&shared->mutex);
	return held;
}
