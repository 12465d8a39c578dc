/*
 * counter_sets.h
 *		The counters' shared memory: a bounded table of label sets.
 */
#ifndef ACME_OUTBOX_COUNTER_SETS_H
#define ACME_OUTBOX_COUNTER_SETS_H

#include "datatype/timestamp.h"
#include "level_notes.h"

/* Longer labels are clipped; two that differ only beyond are counted as one. */
#define COUNTER_LABELS 4
#define COUNTER_LABEL_BYTES 100

typedef enum CounterKind
{
	COUNTER_PUBLISHED,			/* origin, topic */
	COUNTER_SETTLED,			/* origin, outcome */
	COUNTER_STUCK,				/* event_type */
	COUNTER_CONSUMED,			/* consumer, event_name, schema_version, outcome */
	COUNTER_PARKED,				/* consumer, event_type, reason */
	COUNTER_REDELIVERED,		/* consumer */
	COUNTER_IDEMPOTENCY,		/* decision */
	COUNTER_PROJECTED,			/* target, outcome */
	COUNTER_KINDS
} CounterKind;

/* No padding, no garbage after the last label: compared and hashed as bytes. */
typedef struct CounterKey
{
	Oid			dboid;
	uint32		kind;
	char		labels[COUNTER_LABELS * (COUNTER_LABEL_BYTES + 1)]; /* each ends with 0 */
} CounterKey;

/* What a transaction adds to a set. */
typedef struct CounterDelta
{
	LevelNote	note;			/* outermost (sub)transaction it belongs to */
	uint32		hash;			/* of the key */
	int64		counted;
	int64		saved;			/* of what was counted, now in consumed_version */
	bool		lost;			/* more sets than a transaction can hold */
	bool		missing;		/* scratch of counter_sets_apply() */
	CounterKey	key;
} CounterDelta;

/* A copy of a set. */
typedef struct CounterSet
{
	CounterKey	key;
	int64		count;
	int64		saved;
	TimestampTz last_at;
} CounterSet;

typedef struct CounterTable
{
	TimestampTz since;
	int64		overflow;		/* increments that found no room */
	int			used;
	int			size;
} CounterTable;

extern void counter_sets_init(void);
extern bool counter_sets_attached(void);
extern uint32 counter_sets_hash(const CounterKey *key);
extern void counter_sets_apply(CounterDelta *deltas, int n, TimestampTz at);
extern int	counter_sets_read(Oid dboid, CounterSet **sets);
extern void counter_sets_about(CounterTable *about);
extern void counter_sets_forget(Oid dboid);

#endif							/* ACME_OUTBOX_COUNTER_SETS_H */
