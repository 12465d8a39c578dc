/*
 * headers.h
 *		Checks an event's headers before they are stored.
 */
#ifndef ACME_OUTBOX_HEADERS_H
#define ACME_OUTBOX_HEADERS_H

#include "utils/jsonb.h"

extern void headers_check(Jsonb *headers);

#endif							/* ACME_OUTBOX_HEADERS_H */
