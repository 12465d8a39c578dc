/*
 * wake.c
 *		Wakes the worker when a transaction that published has committed.
 *
 * A NOTIFY in the publishing transaction would serialise all commits of the
 * cluster, so publish only notes the origin here, and the commit callback hands it
 * to the worker, which notifies.  XACT_EVENT_COMMIT comes after the transaction has
 * left the proc array: whoever is woken by it sees the row.
 *
 * The callbacks are registered once, by _PG_init.  What they work on is static:
 * at commit nothing can be allocated or fail.  A rolled-back savepoint takes along
 * what it noted (level_notes.c).
 * Only a relay that waits is woken.  A claim says so before it takes its snapshot
 * and takes it back if it found something: the commit of whatever the snapshot
 * does not show sees the sign, as both sides go through the proc array's lock in
 * between.  So a busy relay costs its publishers no latch and no NOTIFY.
 *
 * After PREPARE TRANSACTION nobody is woken; the relay's poll finds those entries.
 */
#include "acme_outbox.h"

#include "level_notes.h"
#include "miscadmin.h"
#include "shmem.h"
#include "slots.h"
#include "wake.h"

typedef struct NotedOrigin
{
	LevelNote	note;			/* outermost (sub)transaction that published it */
	char		name[WAKE_NAME_SIZE];
} NotedOrigin;

/* one more than fits a notification round: the last one becomes "any" */
static NotedOrigin noted[WAKE_ORIGINS + 1];
static int	n_noted = 0;
static bool check_noted = false;

/* Is the origin noted already?  Then its outermost level counts. */
static bool
note_again(const char *origin, int level)
{
	for (int i = n_noted - 1; i >= 0; i--)
	{
		if (strcmp(noted[i].name, origin) == 0)
		{
			noted[i].note.level = Min(noted[i].note.level, level);
			return true;
		}
	}
	return false;
}

/*
 * wake_note_published
 *		Remembers that the current (sub)transaction published for an origin.
 */
void
wake_note_published(const char *origin)
{
	int			level;

	if (!shmem_attached())
		return;
	level = GetCurrentTransactionNestLevel();
	if (note_again(origin, level))
		return;
	if (n_noted >= WAKE_ORIGINS || strlen(origin) >= WAKE_NAME_SIZE)
	{
		origin = WAKE_ANY;
		if (note_again(origin, level))
			return;
	}
	noted[n_noted].note.level = level;
	strlcpy(noted[n_noted].name, origin, WAKE_NAME_SIZE);
	n_noted++;
}

/*
 * wake_note_check
 *		Has the database's worker started, or made to look around, at commit.
 */
void
wake_note_check(void)
{
	check_noted = shmem_attached();
}

/* Hands over what was noted.  Runs inside commit: must not fail. */
static void
wake_committed(void)
{
	OriginSet	origins = {0};

	for (int i = 0; i < n_noted; i++)
		origin_set_add(&origins, noted[i].name);
	if (check_noted)
		shmem_request_worker(MyDatabaseId);
	shmem_wake(MyDatabaseId, &origins);
}

static void
wake_xact_callback(XactEvent event, void *arg)
{
	if ((n_noted == 0 && !check_noted) || !level_notes_over(event))
		return;
	if (event == XACT_EVENT_COMMIT)
		wake_committed();
	n_noted = 0;
	check_noted = false;
}

static void
give_to_parent(void *note)
{
	((NotedOrigin *) note)->note.level--;
}

static void
wake_subxact_callback(SubXactEvent event, SubTransactionId mySubid,
					  SubTransactionId parentSubid, void *arg)
{
	n_noted = level_notes_after(event, noted, n_noted, sizeof(NotedOrigin), give_to_parent);
}

/*
 * wake_claim_begins
 *		Before a claim takes its snapshot: from now on commits wake its relay.
 */
void
wake_claim_begins(const char *origin)
{
	if (shmem_attached())
		slot_relay_waits(MyDatabaseId, origin);
}

/*
 * wake_claim_found
 *		The claim hands out entries, so that its relay will claim again without
 *		being told: until then commits need not wake it.
 */
void
wake_claim_found(const char *origin)
{
	if (shmem_attached())
		slot_relay_busy(MyDatabaseId, origin);
}

/*
 * wake_init
 *		Registers the callbacks; called once, when the library is loaded.
 */
void
wake_init(void)
{
	RegisterXactCallback(wake_xact_callback, NULL);
	RegisterSubXactCallback(wake_subxact_callback, NULL);
}
