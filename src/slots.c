/*
 * slots.c
 *		The workers' slots in shared memory: one per database that has a worker.
 *
 * A slot belongs to the launcher while FREE, STARTING (until a worker attaches) and ENDED,
 * and to its worker while RUNNING.  A generation number keeps a worker that starts late
 * from taking a slot that was given to someone else meanwhile.
 *
 * A committing publisher finds its database's slot here, and a claim says in it whether
 * its relay waits.  What they call is short, allocates nothing and cannot fail: a spinlock
 * around a few comparisons and copies, then SetLatch() outside of it.  A latch is a
 * PGPROC's, so the memory stays valid when its process ends; setting it then wakes a
 * stranger once, which every wait loop must bear.
 */
#include "acme_outbox.h"

#include <signal.h>

#include "guc.h"
#include "miscadmin.h"
#include "shmem.h"
#include "slots.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/spin.h"
#include "utils/timestamp.h"

typedef struct WorkerSlot
{
	slock_t		mutex;
	uint32		generation;
	Latch	   *latch;			/* NULL unless RUNNING */
	SlotInfo	info;
	OriginSet	pending;		/* to be notified */
	OriginSet	awaited;		/* by a relay that found nothing to claim */
} WorkerSlot;

typedef struct Slots
{
	int			count;
	WorkerSlot	slot[FLEXIBLE_ARRAY_MEMBER];
} Slots;

static Slots *slots = NULL;
static WorkerSlot *my_slot = NULL;

/* slots_size: of the shared memory for acme_outbox.max_workers. */
Size
slots_size(void)
{
	return add_size(offsetof(Slots, slot),
					mul_size(guc_max_workers, sizeof(WorkerSlot)));
}

/* slots_start: where they are; zeroed memory, initialised by whoever found none. */
void
slots_start(void *memory, bool found)
{
	slots = memory;
	if (found)
		return;
	slots->count = guc_max_workers;
	for (int i = 0; i < slots->count; i++)
		SpinLockInit(&slots->slot[i].mutex);
}

int
slots_count(void)
{
	return slots ? slots->count : 0;
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
	WorkerSlot *s = &slots->slot[slot];

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
	for (int i = 0; i < slots_count(); i++)
	{
		WorkerSlot *slot = &slots->slot[i];
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
	WorkerSlot *s = &slots->slot[slot];

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
	WorkerSlot *s = &slots->slot[slot];
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
	WorkerSlot *s = &slots->slot[slot];
	pid_t		pid;

	SpinLockAcquire(&s->mutex);
	pid = s->info.leave ? 0 : s->info.pid;
	s->info.leave = true;
	SpinLockRelease(&s->mutex);
	if (pid != 0)
		kill(pid, SIGTERM);
}

/* slots_send_away: asks the database's worker to end. */
void
slots_send_away(Oid dboid)
{
	for (int slot = 0; slot < slots_count(); slot++)
		if (slots->slot[slot].info.dboid == dboid)
			slot_ask_to_leave(slot);
}

/*
 * Locks the database's slot; NULL if it has no worker.  The unlocked look at dboid
 * can only miss a worker that is just coming or going.
 */
static WorkerSlot *
lock_slot_of(Oid dboid)
{
	for (int i = 0; i < slots_count(); i++)
	{
		WorkerSlot *slot = &slots->slot[i];

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
 * slot_wake
 *		Hands origins to the database's worker; false if it has none.
 */
bool
slot_wake(Oid dboid, const OriginSet *origins)
{
	WorkerSlot *slot = lock_slot_of(dboid);
	Latch	   *latch = NULL;

	if (slot == NULL)
		return false;
	if (add_pending(slot, origins))
		latch = slot->latch;
	SpinLockRelease(&slot->mutex);
	if (latch)
		SetLatch(latch);
	return true;
}

/*
 * slot_relay_waits
 *		A claim begins: what is committed from now on may be missing in it.
 */
void
slot_relay_waits(Oid dboid, const char *origin)
{
	WorkerSlot *slot = lock_slot_of(dboid);

	if (slot == NULL)
		return;
	origin_set_add(&slot->awaited, origin);
	SpinLockRelease(&slot->mutex);
}

/* slot_relay_busy: the claim found something, another one will follow anyway. */
void
slot_relay_busy(Oid dboid, const char *origin)
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
	shmem_wake_launcher();
}

/*
 * slot_attach
 *		Makes this process the slot's worker; false if the slot is not its own
 *		any more.
 */
bool
slot_attach(int slot, uint32 generation)
{
	WorkerSlot *s = &slots->slot[slot];
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
