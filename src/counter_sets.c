/*
 * counter_sets.c
 *		The counters' shared memory: a bounded table of label sets.
 *
 * A set is a database, a kind of counter and its labels.  The table has room for
 * acme_outbox.counter_sets of them, over all databases; whoever sends ever new event
 * names cannot make it grow.  What finds no room is counted in one number, overflow.
 *
 * counter_sets_apply() runs inside commit: it allocates nothing and cannot fail.  One
 * lock, shared, as sets are numbers that processors add to by themselves; only the first
 * increment of a new set takes it a second time, exclusive.  Sets are never removed but
 * with their database.  A restart of the server, a crash too, begins at nothing.
 */
#include "acme_outbox.h"

#include "counter_sets.h"
#include "guc.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/hsearch.h"
#include "utils/timestamp.h"

#define TRANCHE "acme_outbox_counters"

typedef struct SharedSet
{
	CounterKey	key;
	pg_atomic_uint64 count;
	pg_atomic_uint64 saved;
	pg_atomic_uint64 last_at;
} SharedSet;

typedef struct SharedCounters
{
	LWLock	   *lock;			/* protects the table, not the sets' numbers */
	TimestampTz since;
	int			size;
	pg_atomic_uint64 overflow;
} SharedCounters;

static SharedCounters *shared = NULL;
static HTAB *table = NULL;

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

static void
request_shared_memory(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	RequestAddinShmemSpace(add_size(MAXALIGN(sizeof(SharedCounters)),
									hash_estimate_size(guc_counter_sets, sizeof(SharedSet))));
	RequestNamedLWLockTranche(TRANCHE, 1);
}

static void
start_shared_memory(void)
{
	HASHCTL		control = {.keysize = sizeof(CounterKey), .entrysize = sizeof(SharedSet)};
	bool		found;

	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	shared = ShmemInitStruct("acme_outbox counters", sizeof(SharedCounters), &found);
	if (!found)
	{
		shared->lock = &(GetNamedLWLockTranche(TRANCHE))->lock;
		shared->since = GetCurrentTimestamp();
		shared->size = guc_counter_sets;
		pg_atomic_init_u64(&shared->overflow, 0);
	}
	table = ShmemInitHash("acme_outbox counter sets", guc_counter_sets, guc_counter_sets,
						  &control, HASH_ELEM | HASH_BLOBS | HASH_FIXED_SIZE);
	LWLockRelease(AddinShmemInitLock);
}

/*
 * counter_sets_init
 *		Asks for the shared memory; called while the postmaster preloads us.
 */
void
counter_sets_init(void)
{
	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = request_shared_memory;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = start_shared_memory;
}

/* Are there counters at all, that is: were we preloaded? */
bool
counter_sets_attached(void)
{
	return shared != NULL;
}

static void
add(SharedSet *set, const CounterDelta *delta, TimestampTz at)
{
	pg_atomic_fetch_add_u64(&set->saved, delta->saved);
	if (delta->counted == 0)
		return;
	pg_atomic_fetch_add_u64(&set->count, delta->counted);
	pg_atomic_write_u64(&set->last_at, (uint64) at);
}

/* counter_sets_hash: of a key, as counter_sets_apply() wants it. */
uint32
counter_sets_hash(const CounterKey *key)
{
	return get_hash_value(table, key);
}

static SharedSet *
find_set(const CounterDelta *delta)
{
	return hash_search_with_hash_value(table, &delta->key, delta->hash, HASH_FIND, NULL);
}

/* The set, made if there is room; NULL: there is none.  Caller holds the lock alone. */
static SharedSet *
make_set(const CounterDelta *delta)
{
	bool		found;
	SharedSet  *set = find_set(delta);

	if (set != NULL || hash_get_num_entries(table) >= shared->size)
		return set;
	set = hash_search_with_hash_value(table, &delta->key, delta->hash, HASH_ENTER_NULL,
									  &found);
	if (set == NULL)
		return NULL;
	pg_atomic_init_u64(&set->count, 0);
	pg_atomic_init_u64(&set->saved, 0);
	pg_atomic_init_u64(&set->last_at, 0);
	return set;
}

static void
make_missing(CounterDelta *deltas, int n, TimestampTz at)
{
	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < n; i++)
	{
		SharedSet  *set;

		if (!deltas[i].missing)
			continue;
		set = make_set(&deltas[i]);
		if (set != NULL)
			add(set, &deltas[i], at);
		else
			pg_atomic_fetch_add_u64(&shared->overflow, deltas[i].counted);
	}
	LWLockRelease(shared->lock);
}

/*
 * counter_sets_apply
 *		Adds what a transaction counted.  Runs inside commit: must not fail.
 */
void
counter_sets_apply(CounterDelta *deltas, int n, TimestampTz at)
{
	bool		any_missing = false;

	LWLockAcquire(shared->lock, LW_SHARED);
	for (int i = 0; i < n; i++)
	{
		SharedSet  *set = NULL;

		if (deltas[i].lost)
			pg_atomic_fetch_add_u64(&shared->overflow, deltas[i].counted);
		else
			set = find_set(&deltas[i]);
		if (set != NULL)
			add(set, &deltas[i], at);
		deltas[i].missing = set == NULL && !deltas[i].lost;
		any_missing |= deltas[i].missing;
	}
	LWLockRelease(shared->lock);
	if (any_missing)
		make_missing(deltas, n, at);
}

/*
 * counter_sets_read
 *		Copies a database's sets, in no order; returns how many.
 */
int
counter_sets_read(Oid dboid, CounterSet **sets)
{
	HASH_SEQ_STATUS sequence;
	SharedSet  *set;
	int			n = 0;

	*sets = NULL;
	if (!shared)
		return 0;
	*sets = palloc(sizeof(CounterSet) * shared->size);
	LWLockAcquire(shared->lock, LW_SHARED);
	hash_seq_init(&sequence, table);
	while ((set = hash_seq_search(&sequence)) != NULL)
	{
		CounterSet *copy = &(*sets)[n];

		if (set->key.dboid != dboid)
			continue;
		copy->key = set->key;
		copy->count = (int64) pg_atomic_read_u64(&set->count);
		copy->saved = (int64) pg_atomic_read_u64(&set->saved);
		copy->last_at = (TimestampTz) pg_atomic_read_u64(&set->last_at);
		n++;
	}
	LWLockRelease(shared->lock);
	return n;
}

/* counter_sets_about: the table as a whole; only where it is attached. */
void
counter_sets_about(CounterTable *about)
{
	about->since = shared->since;
	about->size = shared->size;
	about->overflow = (int64) pg_atomic_read_u64(&shared->overflow);
	LWLockAcquire(shared->lock, LW_SHARED);
	about->used = (int) hash_get_num_entries(table);
	LWLockRelease(shared->lock);
}

/*
 * counter_sets_forget
 *		Makes room: the launcher found that a database is gone.
 */
void
counter_sets_forget(Oid dboid)
{
	HASH_SEQ_STATUS sequence;
	SharedSet  *set;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	hash_seq_init(&sequence, table);
	while ((set = hash_seq_search(&sequence)) != NULL)
	{
		/* the element just returned may be removed during the scan */
		if (set->key.dboid == dboid)
			hash_search(table, &set->key, HASH_REMOVE, NULL);
	}
	LWLockRelease(shared->lock);
}
