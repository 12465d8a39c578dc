/*
 * status.c
 *		What the workers are doing, for the view worker_status.
 */
#include "acme_outbox.h"

#include "funcapi.h"
#include "shmem.h"
#include "slots.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(acme_outbox_worker_preloaded);
PG_FUNCTION_INFO_V1(acme_outbox_worker_slots);

static const char *
state_name(SlotState state)
{
	switch (state)
	{
		case SLOT_FREE:
			return "free";
		case SLOT_STARTING:
			return "starting";
		case SLOT_RUNNING:
			return "running";
		case SLOT_ENDED:
			return "ended";
	}
	pg_unreachable();
}

/*
 * worker_preloaded() RETURNS boolean
 */
Datum
acme_outbox_worker_preloaded(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(shmem_attached());
}

static void
put_timestamp(Datum *value, bool *isnull, TimestampTz timestamp)
{
	*value = TimestampTzGetDatum(timestamp);
	*isnull = timestamp == 0;
}

static void
put_slot(ReturnSetInfo *rsinfo, const SlotInfo *slot)
{
	Datum		values[8];
	bool		nulls[8] = {false};

	values[0] = ObjectIdGetDatum(slot->dboid);
	values[1] = Int32GetDatum(slot->pid);
	nulls[1] = slot->pid == 0;
	values[2] = CStringGetTextDatum(state_name(slot->state));
	put_timestamp(&values[3], &nulls[3], slot->started_at);
	put_timestamp(&values[4], &nulls[4], slot->last_wake_at);
	put_timestamp(&values[5], &nulls[5], slot->last_duty_at);
	values[6] = Int64GetDatum((int64) slot->wakes);
	values[7] = Int64GetDatum((int64) slot->notifies);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/*
 * worker_slots() RETURNS TABLE (database_oid oid, pid integer, state text,
 *		started_at, last_wake_at, last_duty_at timestamptz, wakes, notifies bigint)
 */
Datum
acme_outbox_worker_slots(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < slots_count(); i++)
	{
		SlotInfo	slot;

		slot_read(i, &slot);
		if (slot.state != SLOT_FREE)
			put_slot(rsinfo, &slot);
	}
	PG_RETURN_NULL();
}
