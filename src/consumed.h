/*
 * consumed.h
 *		Which version of which event each consumer was sent, and when last.
 */
#ifndef ACME_OUTBOX_CONSUMED_H
#define ACME_OUTBOX_CONSUMED_H

#include "counter_sets.h"
#include "duties.h"
#include "utils/jsonb.h"

extern void consumed_count(const char *consumer, Jsonb *envelope, const char *outcome);
extern DutyReport consumed_duty(void);

/* counters.c */
extern bool counters_note_saved(const CounterKey *key, int64 n);
extern int64 counters_saved_here(const CounterKey *key);

#endif							/* ACME_OUTBOX_CONSUMED_H */
