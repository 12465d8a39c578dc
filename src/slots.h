/*
 * slots.h
 *		The workers' slots in shared memory: one per database that has a worker.
 */
#ifndef ACME_OUTBOX_SLOTS_H
#define ACME_OUTBOX_SLOTS_H

#include "datatype/timestamp.h"
#include "origin_set.h"

/* The life of a slot; slot_move() in slots.c knows which moves are legal. */
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

/* their place in shared memory, for shmem.c */
extern Size slots_size(void);
extern void slots_start(void *memory, bool found);
extern int	slots_count(void);
extern void slots_send_away(Oid dboid);

/* publishers and claims; none of these can fail */
extern bool slot_wake(Oid dboid, const OriginSet *origins);
extern void slot_relay_waits(Oid dboid, const char *origin);
extern void slot_relay_busy(Oid dboid, const char *origin);

/* launcher */
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

#endif							/* ACME_OUTBOX_SLOTS_H */
