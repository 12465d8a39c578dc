/*
 * drop.h
 *		Keeps undelivered entries from being dropped with the extension.
 */
#ifndef ACME_OUTBOX_DROP_H
#define ACME_OUTBOX_DROP_H

extern void drop_init(void);

#endif							/* ACME_OUTBOX_DROP_H */
