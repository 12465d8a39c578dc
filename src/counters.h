/*
 * counters.h
 *		Cumulative counters of what committed; see docs/metrics.md.
 */
#ifndef ACME_OUTBOX_COUNTERS_H
#define ACME_OUTBOX_COUNTERS_H

#include "counter_sets.h"

/* counters_add(kind, n, label, ...): at commit, if this (sub)transaction gets there */
#define counters_add(kind, n, ...) \
	counters_note(kind, n, (const char *const[COUNTER_LABELS]) {__VA_ARGS__})

extern void counters_init(void);
extern void counters_note(CounterKind kind, int64 n, const char *const *labels);

#endif							/* ACME_OUTBOX_COUNTERS_H */
