/*
 * shmem.c
 *		The shared memory between publishers, the launcher and the workers.
 *
 * A fixed array of slots, one per database that has a worker, and beside it what
 * is for the launcher: its latch, the databases that ask for a worker, and the
 * databases whose worker must stay away for the moment.
 *
 * Everything a committing publisher calls is short, allocates nothing and cannot
 * fail: a spinlock around a few comparisons and copies, then SetLatch() outside
 * of it.  A latch is a PGPROC's, so the memory stays valid when its process ends;
 * setting it then wakes a stranger once, which every wait loop must bear.
 *
 * A slot belongs to the launcher while FREE, STARTING (until a worker attaches)
 * and ENDED, and to its worker while RUNNING.  A generation number keeps a worker
 * that starts late from taking a slot that was given to someone else meanwhile.
 * A crash of any process resets all of it with the rest of shared memory.
 */
#include "acme_outbox.h"

#include <signal.h>

#include "guc.h"
#include "miscadmin.h"
#include "shmem.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "storage/spin.h"
#include "utils/timestamp.h"

#define SHMEM_NAME "acme_outbox"
#define SHMEM_HOLDS 16

typedef struct WorkerSlot
{
	slock_t		mutex;
	uint32		generation;
	Latch	   *latch;			/* NULL unless RUNNING */
	SlotInfo	info;
	OriginSet	pending;		/* to be notified */
	OriginSet	awaited;		/* by a relay that found nothing to claim */
} WorkerSlot;

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
	slock_t		mutex;			/* protects all but the slots */
	Latch	   *launcher;
	int			n_requests;
	bool		overflowed;		/* requests did not fit */
	Request		requests[SHMEM_REQUESTS];
	Hold		holds[SHMEM_HOLDS];
	int			n_slots;
	WorkerSlot	slots[FLEXIBLE_ARRAY_MEMBER];
} SharedState;

static SharedState *shared = NULL;
static WorkerSlot *my_slot = NULL;

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

static Size
shared_size(void)
{
	return add_size(offsetof(SharedState, slots),
					mul_size(guc_max_workers, sizeof(WorkerSlot)));
}

static void
request_shared_memory(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	RequestAddinShmemSpace(shared_size());
}

static void
start_shared_memory(void)
{
	bool		found;

	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	shared = ShmemInitStruct(SHMEM_NAME, shared_size(), &found);
	if (!found)
	{
		MemSet(shared, 0, shared_size());
		SpinLockInit(&shared->mutex);
		shared->n_slots = guc_max_workers;
		for (int i = 0; i < shared->n_slots; i++)
			SpinLockInit(&shared->slots[i].mutex);
	}
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
 * origin_set_add
 *		Adds an origin; one that is too long, or one too many, makes it "any".
 */
void
origin_set_add(OriginSet *set, const char *origin)
{
	for (int i = 0; i < set->count; i++)
	{
		if (strcmp(set->name[i], origin) == 0 ||
			strcmp(set->name[i], WAKE_ANY) == 0)
			return;
	}
	if (set->count == WAKE_ORIGINS || strlen(origin) >= WAKE_NAME_SIZE)
		origin = WAKE_ANY;
	if (strcmp(origin, WAKE_ANY) == 0)
		set->count = 0;
	strlcpy(set->name[set->count++], origin, WAKE_NAME_SIZE);
}

/* Is the origin in the set, by its name or as one of "any"? */
static bool
origin_set_has(const OriginSet *set, const char *origin)
{
	for (int i = 0; i < set->count; i++)
	{
		if (strcmp(set->name[i], origin) == 0 ||
			strcmp(set->name[i], WAKE_ANY) == 0)
			return true;
	}
	return false;
}

/* Takes the origin out, if it is there by its name. */
static void
origin_set_remove(OriginSet *set, const char *origin)
{
	for (int i = 0; i < set->count; i++)
	{
		if (strcmp(set->name[i], origin) == 0)
		{
			if (i != --set->count)
				strlcpy(set->name[i], set->name[set->count], WAKE_NAME_SIZE);
			return;
		}
	}
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

static void
wake_launcher(void)
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

	for (int slot = 0; slot < shared->n_slots; slot++)
	{
		if (shared->slots[slot].info.dboid == dboid)
			slot_ask_to_leave(slot);
	}
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
	wake_launcher();
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

/*
 * Slots
 */

int
shmem_slots(void)
{
	return shared ? shared->n_slots : 0;
}

/* The only place where a slot changes its state; caller holds the slot's lock. */
static bool
slot_move(WorkerSlot *slot, SlotState from, SlotState to)
{
	if (slot->info.state != from)
		return false;
	slot->info.state = to;
	switch (to)
	{
		case SLOT_FREE:
			slot->info.dboid = InvalidOid;
			slot->latch = NULL;
			slot->info.pid = 0;
			break;
		case SLOT_STARTING:
			slot->generation++;
			slot->info.end = END_FAILED;
			slot->info.leave = false;
			slot->info.started_at = 0;
			slot->info.last_wake_at = 0;
			slot->info.last_duty_at = 0;
			slot->info.wakes = 0;
			slot->info.notifies = 0;
			/* relays may wait since before: one look of theirs says so */
			slot->awaited.count = slot->pending.count = 0;
			origin_set_add(&slot->pending, WAKE_ANY);
			break;
		case SLOT_RUNNING:
			slot->latch = MyLatch;
			slot->info.pid = MyProcPid;
			break;
		case SLOT_ENDED:
			slot->latch = NULL;
			slot->info.pid = 0;
			break;
	}
	return true;
}

void
slot_read(int slot, SlotInfo *info)
{
	WorkerSlot *s = &shared->slots[slot];

	SpinLockAcquire(&s->mutex);
	*info = s->info;
	SpinLockRelease(&s->mutex);
}

/*
 * slot_reserve
 *		Takes a free slot for a database; -1 if there is none.
 */
int
slot_reserve(Oid dboid, uint32 *generation)
{
	for (int i = 0; i < shared->n_slots; i++)
	{
		WorkerSlot *slot = &shared->slots[i];
		bool		taken;

		SpinLockAcquire(&slot->mutex);
		taken = slot_move(slot, SLOT_FREE, SLOT_STARTING);
		if (taken)
		{
			slot->info.dboid = dboid;
			*generation = slot->generation;
		}
		SpinLockRelease(&slot->mutex);
		if (taken)
			return i;
	}
	return -1;
}

/* slot_free: gives a slot back, whatever became of its worker. */
void
slot_free(int slot)
{
	WorkerSlot *s = &shared->slots[slot];

	SpinLockAcquire(&s->mutex);
	slot_move(s, s->info.state, SLOT_FREE);
	SpinLockRelease(&s->mutex);
}

/*
 * slot_adopt
 *		For a launcher that was started anew: the database of a slot with a
 *		running worker.  A slot whose worker has not attached yet is freed; the
 *		worker will find its generation gone.
 */
Oid
slot_adopt(int slot)
{
	WorkerSlot *s = &shared->slots[slot];
	Oid			dboid = InvalidOid;

	SpinLockAcquire(&s->mutex);
	if (s->info.state == SLOT_RUNNING)
		dboid = s->info.dboid;
	else
		slot_move(s, s->info.state, SLOT_FREE);
	SpinLockRelease(&s->mutex);
	return dboid;
}

/*
 * slot_ask_to_leave
 *		Asks a slot's worker to end.  The signal ends a duty that is under way,
 *		too; a worker that has not attached yet will find the flag.
 */
void
slot_ask_to_leave(int slot)
{
	WorkerSlot *s = &shared->slots[slot];
	pid_t		pid;

	SpinLockAcquire(&s->mutex);
	pid = s->info.leave ? 0 : s->info.pid;
	s->info.leave = true;
	SpinLockRelease(&s->mutex);
	if (pid != 0)
		kill(pid, SIGTERM);
}

/*
 * Locks the database's slot; NULL if it has no worker.  The unlocked look at dboid
 * can only miss a worker that is just coming or going.
 */
static WorkerSlot *
lock_slot_of(Oid dboid)
{
	for (int i = 0; i < shared->n_slots; i++)
	{
		WorkerSlot *slot = &shared->slots[i];

		if (slot->info.dboid != dboid)
			continue;
		SpinLockAcquire(&slot->mutex);
		if (slot->info.dboid == dboid && slot->info.state != SLOT_ENDED)
			return slot;
		SpinLockRelease(&slot->mutex);
	}
	return NULL;
}

/*
 * Moves what was published, and a relay waits for, to what is to be notified.
 * Once notified the relay claims, and only then can it wait again.
 */
static bool
add_pending(WorkerSlot *slot, const OriginSet *origins)
{
	bool		added = false;

	if (slot->awaited.count == 0)
		return false;
	if (origin_set_has(origins, WAKE_ANY) || origin_set_has(&slot->awaited, WAKE_ANY))
	{
		slot->awaited.count = 0;
		origin_set_add(&slot->pending, WAKE_ANY);
		return true;
	}
	for (int i = 0; i < origins->count; i++)
	{
		if (!origin_set_has(&slot->awaited, origins->name[i]))
			continue;
		origin_set_remove(&slot->awaited, origins->name[i]);
		origin_set_add(&slot->pending, origins->name[i]);
		added = true;
	}
	return added;
}

/*
 * shmem_wake
 *		Hands origins to the database's worker, or has one started.
 */
void
shmem_wake(Oid dboid, const OriginSet *origins)
{
	WorkerSlot *slot = lock_slot_of(dboid);
	Latch	   *latch = NULL;

	if (slot == NULL)
	{
		request_worker(dboid, false);
		return;
	}
	if (add_pending(slot, origins))
		latch = slot->latch;
	SpinLockRelease(&slot->mutex);
	if (latch)
		SetLatch(latch);
}

/*
 * shmem_relay_waits
 *		A claim begins: what is committed from now on may be missing in it.
 */
void
shmem_relay_waits(Oid dboid, const char *origin)
{
	WorkerSlot *slot = lock_slot_of(dboid);

	if (slot == NULL)
		return;
	origin_set_add(&slot->awaited, origin);
	SpinLockRelease(&slot->mutex);
}

/* shmem_relay_busy: the claim found something, another one will follow anyway. */
void
shmem_relay_busy(Oid dboid, const char *origin)
{
	WorkerSlot *slot = lock_slot_of(dboid);

	if (slot == NULL)
		return;
	origin_set_remove(&slot->awaited, origin);
	SpinLockRelease(&slot->mutex);
}

static void
detach_worker(int code, Datum argument)
{
	SpinLockAcquire(&my_slot->mutex);
	if (my_slot->info.leave && my_slot->info.end == END_FAILED)
		my_slot->info.end = END_LEFT;
	slot_move(my_slot, SLOT_RUNNING, SLOT_ENDED);
	SpinLockRelease(&my_slot->mutex);
	my_slot = NULL;
	wake_launcher();
}

/*
 * slot_attach
 *		Makes this process the slot's worker; false if the slot is not its own
 *		any more.
 */
bool
slot_attach(int slot, uint32 generation)
{
	WorkerSlot *s = &shared->slots[slot];
	TimestampTz now = GetCurrentTimestamp();
	bool		mine;

	SpinLockAcquire(&s->mutex);
	mine = s->generation == generation &&
		slot_move(s, SLOT_STARTING, SLOT_RUNNING);
	if (mine)
		s->info.started_at = now;
	SpinLockRelease(&s->mutex);
	if (!mine)
		return false;
	my_slot = s;
	before_shmem_exit(detach_worker, (Datum) 0);
	return true;
}

/* slot_ending: says why this worker is about to exit. */
void
slot_ending(SlotEnd end)
{
	SpinLockAcquire(&my_slot->mutex);
	my_slot->info.end = end;
	SpinLockRelease(&my_slot->mutex);
}

/* Was this worker asked to leave? */
bool
slot_leaving(void)
{
	bool		leave;

	SpinLockAcquire(&my_slot->mutex);
	leave = my_slot->info.leave;
	SpinLockRelease(&my_slot->mutex);
	return leave;
}

/*
 * slot_take_pending
 *		Moves what is to be notified into *origins; false if there is nothing.
 *		NULL only asks.
 */
bool
slot_take_pending(OriginSet *origins)
{
	bool		any;

	SpinLockAcquire(&my_slot->mutex);
	any = my_slot->pending.count > 0;
	if (any && origins)
	{
		*origins = my_slot->pending;
		my_slot->pending.count = 0;
	}
	SpinLockRelease(&my_slot->mutex);
	return any;
}

/* slot_count_wake: a wake-up ended in this many notifications. */
void
slot_count_wake(int notifies)
{
	TimestampTz now = GetCurrentTimestamp();

	SpinLockAcquire(&my_slot->mutex);
	my_slot->info.last_wake_at = now;
	my_slot->info.wakes++;
	my_slot->info.notifies += notifies;
	SpinLockRelease(&my_slot->mutex);
}

/* slot_count_duty: the duties were looked at. */
void
slot_count_duty(void)
{
	TimestampTz now = GetCurrentTimestamp();

	SpinLockAcquire(&my_slot->mutex);
	my_slot->info.last_duty_at = now;
	SpinLockRelease(&my_slot->mutex);
}
