/*
 * leave.h
 *		Sends the worker out of the way of statements that need a database alone.
 */
#ifndef ACME_OUTBOX_LEAVE_H
#define ACME_OUTBOX_LEAVE_H

extern void leave_init(void);

#endif							/* ACME_OUTBOX_LEAVE_H */
