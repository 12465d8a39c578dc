/*
 * shmem.h
 *		What publishers, the launcher and the workers tell each other.
 */
#ifndef ACME_OUTBOX_SHMEM_H
#define ACME_OUTBOX_SHMEM_H

#include "datatype/timestamp.h"
#include "storage/latch.h"

/* Origins one notification round can name; more of them are "any", '*'. */
#define WAKE_ORIGINS 16
#define WAKE_NAME_SIZE 64
#define WAKE_ANY "*"

/* A set of origins; WAKE_ANY swallows all others. */
typedef struct OriginSet
{
	int			count;
	char		name[WAKE_ORIGINS][WAKE_NAME_SIZE];
} OriginSet;

/* The life of a slot; slot_move() in shmem.c knows which moves are legal. */
typedef enum SlotState
{
	SLOT_FREE,					/* serves no database */
	SLOT_STARTING,				/* reserved by the launcher, no process yet */
	SLOT_RUNNING,				/* a worker is attached */
	SLOT_ENDED					/* the worker left; the launcher frees it */
} SlotState;

/* Why a worker left. */
typedef enum SlotEnd
{
	END_FAILED,					/* unexpectedly: start it again, later */
	END_ABSENT,					/* the database has no extension */
	END_LEFT					/* it was asked to leave */
} SlotEnd;

/* A copy of a slot, for the launcher and worker_status(). */
typedef struct SlotInfo
{
	Oid			dboid;
	SlotState	state;
	SlotEnd		end;
	bool		leave;
	pid_t		pid;
	TimestampTz started_at;
	TimestampTz last_wake_at;
	TimestampTz last_duty_at;
	uint64		wakes;
	uint64		notifies;
} SlotInfo;

extern void shmem_init(void);
extern bool shmem_attached(void);
extern void origin_set_add(OriginSet *set, const char *origin);

/* publishers and claims; none of these can fail */
extern void shmem_wake(Oid dboid, const OriginSet *origins);
extern void shmem_relay_waits(Oid dboid, const char *origin);
extern void shmem_relay_busy(Oid dboid, const char *origin);
extern void shmem_request_worker(Oid dboid);
extern void shmem_hold(Oid dboid);
extern void shmem_unhold(void);

/* launcher */
extern void shmem_launcher_attach(void);
extern int	shmem_take_requests(Oid *dboids, int max, bool *overflowed);
extern void shmem_forget_request(Oid dboid);
extern bool shmem_held(Oid dboid);
extern int	shmem_slots(void);
extern void slot_read(int slot, SlotInfo *info);
extern int	slot_reserve(Oid dboid, uint32 *generation);
extern void slot_free(int slot);
extern Oid	slot_adopt(int slot);
extern void slot_ask_to_leave(int slot);

/* worker */
extern bool slot_attach(int slot, uint32 generation);
extern void slot_ending(SlotEnd end);
extern bool slot_leaving(void);
extern bool slot_take_pending(OriginSet *origins);
extern void slot_count_wake(int notifies);
extern void slot_count_duty(void);

/* longest list shmem_take_requests() can return */
#define SHMEM_REQUESTS 64

#endif							/* ACME_OUTBOX_SHMEM_H */
