/*
 * autocommit.h
 *		Notices an event that is bound to no business change.
 */
#ifndef ACME_OUTBOX_AUTOCOMMIT_H
#define ACME_OUTBOX_AUTOCOMMIT_H

#include "fmgr.h"

extern void autocommit_check(FmgrInfo *publish);

#endif							/* ACME_OUTBOX_AUTOCOMMIT_H */
