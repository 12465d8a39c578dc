/*
 * inbox_purge.h
 *		Retention of the inboxes.
 */
#ifndef ACME_OUTBOX_INBOX_PURGE_H
#define ACME_OUTBOX_INBOX_PURGE_H

#include "duties.h"

extern void inbox_purge(DutyReport *processed, DutyReport *attempts);

#endif							/* ACME_OUTBOX_INBOX_PURGE_H */
