/*
 * wake.h
 *		Wakes the worker when a transaction that published has committed.
 */
#ifndef ACME_OUTBOX_WAKE_H
#define ACME_OUTBOX_WAKE_H

extern void wake_init(void);
extern void wake_note_published(const char *origin);
extern void wake_note_check(void);
extern void wake_claim_begins(const char *origin);
extern void wake_claim_found(const char *origin);

#endif							/* ACME_OUTBOX_WAKE_H */
