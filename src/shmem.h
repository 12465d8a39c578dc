/*
 * shmem.h
 *		What publishers, the launcher and the workers tell each other.
 */
#ifndef ACME_OUTBOX_SHMEM_H
#define ACME_OUTBOX_SHMEM_H

#include "origin_set.h"

/* longest list shmem_take_requests() can return */
#define SHMEM_REQUESTS 64

extern void shmem_init(void);
extern bool shmem_attached(void);

/* publishers, and statements that need a database alone */
extern void shmem_wake(Oid dboid, const OriginSet *origins);
extern void shmem_request_worker(Oid dboid);
extern void shmem_hold(Oid dboid);
extern void shmem_unhold(void);

/* launcher */
extern void shmem_launcher_attach(void);
extern void shmem_wake_launcher(void);
extern int	shmem_take_requests(Oid *dboids, int max, bool *overflowed);
extern void shmem_forget_request(Oid dboid);
extern bool shmem_held(Oid dboid);

#endif							/* ACME_OUTBOX_SHMEM_H */
