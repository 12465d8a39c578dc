/*
 * counters.c
 *		Counts what a transaction did, once it has committed.
 *
 * Counting notes a number in the backend's own memory; the commit callback adds what was
 * noted to the shared sets (counter_sets.c), after the transaction is visible.  So work
 * that was rolled back is not counted, and a transaction that did nothing costs nothing.
 * A rolled-back savepoint takes its numbers along, a released one adds them to its
 * parent's (level_notes.c).
 *
 * A transaction holds at most MAX_DELTAS numbers; what does not fit is counted as lost,
 * and shows as overflow.  What PREPARE TRANSACTION sets aside is not counted.
 *
 * The database keeps a part of what was counted: which version of which event arrived
 * when (consumed.c).  What it has stored is noted here like a count, and takes effect at
 * the same moment as the stored rows.
 */
#include "acme_outbox.h"

#include "consumed.h"
#include "counters.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

/* the last one is for what does not fit */
#define MAX_DELTAS 256
#define FIRST_DELTAS 8

static CounterDelta *deltas = NULL;
static int	n_deltas = 0;
static int	room = 0;

/* Packs labels one after the other, each clipped and ended with 0; fills up with 0. */
static void
make_key(CounterKey *key, CounterKind kind, const char *const *labels)
{
	char	   *p = key->labels;

	memset(key, 0, sizeof(CounterKey));
	key->dboid = MyDatabaseId;
	key->kind = kind;
	for (int i = 0; i < COUNTER_LABELS; i++)
	{
		const char *label = labels[i] ? labels[i] : "";
		int			len = strlen(label);

		if (len > COUNTER_LABEL_BYTES)
			len = pg_mbcliplen(label, len, COUNTER_LABEL_BYTES);
		memcpy(p, label, len);
		p += len + 1;
	}
}

/* A session counts the same again and again: the last key's hash is kept. */
static uint32
hash_of(const CounterKey *key)
{
	static CounterKey last;
	static uint32 hash;
	static bool known = false;

	if (known && memcmp(key, &last, sizeof(CounterKey)) == 0)
		return hash;
	last = *key;
	hash = counter_sets_hash(key);
	known = true;
	return hash;
}

static CounterDelta *
find_delta(const CounterKey *key, uint32 hash, int level)
{
	for (int i = n_deltas - 1; i >= 0; i--)
	{
		CounterDelta *delta = &deltas[i];

		if (delta->hash == hash && delta->note.level == level && !delta->lost &&
			memcmp(&delta->key, key, sizeof(CounterKey)) == 0)
			return delta;
	}
	return NULL;
}

static void
make_room(void)
{
	int			wanted = Max(room * 2, FIRST_DELTAS);

	if (n_deltas < room)
		return;
	deltas = deltas == NULL ?
		MemoryContextAlloc(TopMemoryContext, sizeof(CounterDelta) * wanted) :
		repalloc(deltas, sizeof(CounterDelta) * wanted);
	room = wanted;
}

static CounterDelta *
new_delta(const CounterKey *key, uint32 hash, bool lost)
{
	CounterDelta *delta;

	make_room();
	delta = &deltas[n_deltas];
	memset(delta, 0, offsetof(CounterDelta, key));
	delta->hash = hash;
	delta->note.level = GetCurrentTransactionNestLevel();
	delta->lost = lost;
	delta->key = *key;
	n_deltas++;
	return delta;
}

/* The current (sub)transaction's number for a key, or the one for what does not fit. */
static CounterDelta *
delta_of(const CounterKey *key)
{
	uint32		hash = hash_of(key);
	CounterDelta *delta = find_delta(key, hash, GetCurrentTransactionNestLevel());

	if (delta != NULL)
		return delta;
	if (n_deltas < MAX_DELTAS - 1)
		return new_delta(key, hash, false);
	for (int i = 0; i < n_deltas; i++)
		if (deltas[i].lost)
			return &deltas[i];
	return new_delta(key, hash, true);
}

/*
 * counters_note
 *		Counts n, if the current (sub)transaction commits; see counters_add().
 */
void
counters_note(CounterKind kind, int64 n, const char *const *labels)
{
	CounterKey	key;

	if (n == 0 || !counter_sets_attached())
		return;
	make_key(&key, kind, labels);
	delta_of(&key)->counted += n;
}

/*
 * counters_note_saved
 *		Remembers that this transaction stored n of what was counted in a set; false:
 *		there is no room for that, so it must not store them.
 */
bool
counters_note_saved(const CounterKey *key, int64 n)
{
	CounterDelta *delta = delta_of(key);

	if (delta->lost)
		return false;
	delta->saved += n;
	return true;
}

/* What this transaction itself has stored of a set, and not committed. */
int64
counters_saved_here(const CounterKey *key)
{
	int64		saved = 0;

	for (int i = 0; i < n_deltas; i++)
		if (!deltas[i].lost && memcmp(&deltas[i].key, key, sizeof(CounterKey)) == 0)
			saved += deltas[i].saved;
	return saved;
}

static void
counters_xact_callback(XactEvent event, void *arg)
{
	if (n_deltas == 0 || !level_notes_over(event))
		return;
	if (event == XACT_EVENT_COMMIT)
		counter_sets_apply(deltas, n_deltas, GetCurrentTransactionStopTimestamp());
	n_deltas = 0;
}

/* Adds a released subtransaction's number to its parent's. */
static void
merge_into_parent(void *note)
{
	CounterDelta *delta = note;
	CounterDelta *parent = delta->lost ? NULL :
	find_delta(&delta->key, delta->hash, delta->note.level - 1);

	if (parent == NULL)
	{
		delta->note.level--;
		return;
	}
	parent->counted += delta->counted;
	parent->saved += delta->saved;
	delta->note.level = NO_LEVEL;
}

static void
counters_subxact_callback(SubXactEvent event, SubTransactionId mySubid,
						  SubTransactionId parentSubid, void *arg)
{
	n_deltas = level_notes_after(event, deltas, n_deltas, sizeof(CounterDelta),
								 merge_into_parent);
}

/*
 * counters_init
 *		Registers the callbacks; called once, when the library is loaded.
 */
void
counters_init(void)
{
	RegisterXactCallback(counters_xact_callback, NULL);
	RegisterSubXactCallback(counters_subxact_callback, NULL);
}
