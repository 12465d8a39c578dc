/*
 * handler.h
 *		Functions that handle messages.
 */
#ifndef ACME_OUTBOX_HANDLER_H
#define ACME_OUTBOX_HANDLER_H

#include "message.h"

typedef struct Handler Handler;

extern Handler *handler_find(const char *name);
extern bool handler_run(Handler *handler, Handling *handling);

#endif							/* ACME_OUTBOX_HANDLER_H */
