/*
 * triggers.c
 *		What an operator's plain UPDATE or DELETE of an entry sets off.
 *
 * A row set to PENDING by hand lies behind the cursor: it becomes due.  A row that
 * was finished or deleted by hand no longer holds its key, and if its event has a
 * redaction rule, its payload is rewritten.  The WHEN clauses in sql/30_triggers.sql keep
 * all of it out of the normal path.
 */
#include "acme_outbox.h"

#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "entries.h"
#include "executor/spi.h"
#include "keyorder.h"
#include "common/hashfn.h"
#include "plans.h"
#include "redaction.h"
#include "storage/proc.h"
#include "tcop/pquery.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(acme_outbox_entry_requeued);
PG_FUNCTION_INFO_V1(acme_outbox_entry_given_up);
PG_FUNCTION_INFO_V1(acme_outbox_entry_finished);
PG_FUNCTION_INFO_V1(acme_outbox_entry_over);

static KeptPlan requeue_plan = {
	"UPDATE ONLY acme_outbox.outbox_entry SET next_attempt_at ="
	" coalesce(nullif(next_attempt_at, 'infinity'), clock_timestamp()),"
	" hold_reason = 'RETRY', claim_id = NULL, failed_at = NULL,"
	" lanes_done = CASE WHEN $3 THEN 0 ELSE lanes_done END"
	" WHERE origin = $1 AND id = $2 AND status = 'PENDING'"
	" AND (next_attempt_at IS NULL OR failed_at IS NOT NULL)",
	3, {TEXTOID, INT8OID, BOOLOID}
};

static KeptPlan give_up_plan = {
	"UPDATE ONLY acme_outbox.outbox_entry SET next_attempt_at = NULL, hold_reason = NULL,"
	" claim_id = NULL, failed_at = CASE WHEN status = 'FAILED' THEN clock_timestamp() END"
	" WHERE origin = $1 AND id = $2 AND (status = 'FAILED' AND failed_at IS NULL"
	" OR status IN ('PUBLISHED', 'ARCHIVED') AND next_attempt_at IS NOT NULL)",
	2, {TEXTOID, INT8OID}
};

static KeptPlan redact_plan = {
	"UPDATE ONLY acme_outbox.outbox_entry SET payload = $3, redacted = true"
	" WHERE origin = $1 AND id = $2 AND status IN ('PUBLISHED', 'ARCHIVED')",
	3, {TEXTOID, INT8OID, TEXTOID}
};

static TriggerData *
row_trigger(FunctionCallInfo fcinfo)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function was not called as a trigger")));
	return (TriggerData *) fcinfo->context;
}

static Datum
column(const TriggerData *trigger, HeapTuple row, AttrNumber number)
{
	bool		isnull;

	return SPI_getbinval(row, RelationGetDescr(trigger->tg_relation), number, &isnull);
}

/* Runs a plan with the changed row's origin and id, and one more value. */
static void
complete_change(const TriggerData *trigger, KeptPlan *plan, Datum value)
{
	Datum		args[] = {column(trigger, trigger->tg_newtuple, ENTRY_ORIGIN),
	column(trigger, trigger->tg_newtuple, ENTRY_ID), value};

	plan_run(plan, args, NULL, SPI_OK_UPDATE);
}

static void
refuse_redacted(const TriggerData *trigger)
{
	Datum		event_id = column(trigger, trigger->tg_newtuple, ENTRY_EVENT_ID);

	if (!DatumGetBool(column(trigger, trigger->tg_newtuple, ENTRY_REDACTED)))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_OX_REDACTED),
			 errmsg("event %s was redacted and cannot be sent again",
					DatumGetCString(DirectFunctionCall1(uuid_out, event_id))),
			 errdetail("What its redaction rule names was removed when it was published."),
			 errhint("Have its service publish it again; leave such entries out with AND NOT redacted.")));
}

/* What was over goes out as new, to all lanes; otherwise what has arrived has arrived. */
Datum
acme_outbox_entry_requeued(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = row_trigger(fcinfo);
	char	   *was;
	bool		was_over;

	SPI_connect();
	refuse_redacted(trigger);
	was = SPI_getvalue(trigger->tg_trigtuple, RelationGetDescr(trigger->tg_relation), ENTRY_STATUS);
	was_over = strcmp(was, "PUBLISHED") == 0 || strcmp(was, "ARCHIVED") == 0;
	complete_change(trigger, &requeue_plan, BoolGetDatum(was_over));
	SPI_finish();
	PG_RETURN_POINTER(NULL);
}

Datum
acme_outbox_entry_given_up(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = row_trigger(fcinfo);

	SPI_connect();
	complete_change(trigger, &give_up_plan, (Datum) 0);
	SPI_finish();
	PG_RETURN_POINTER(NULL);
}

/* PUBLISHED or ARCHIVED by hand: what settle would have cut is cut here. */
Datum
acme_outbox_entry_over(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = row_trigger(fcinfo);
	HeapTuple	row = trigger->tg_newtuple;
	text	   *redacted = NULL;
	List	   *paths;

	SPI_connect();
	paths = redaction_paths(TextDatumGetCString(column(trigger, row, ENTRY_EVENT_NAME)));
	if (paths != NIL)
		redacted = redaction_apply(paths, DatumGetTextPP(column(trigger, row, ENTRY_PAYLOAD)));
	if (redacted != NULL)
		complete_change(trigger, &redact_plan, PointerGetDatum(redacted));
	SPI_finish();
	PG_RETURN_POINTER(NULL);
}

/*
 * Once a key and transaction: the trigger runs at commit, when all changes are made,
 * and each look passes every index entry of the key.  The set holds hashes; should two
 * keys ever share one, the relay's sweep wakes the other.
 *
 * Not where it was made to run at once (SET CONSTRAINTS), which a statement's portal
 * tells: other changes of the key may follow, or a rollback to a savepoint.
 */
static bool
is_first_of_key(const char *origin, const char *key)
{
	static HTAB *seen = NULL;
	static LocalTransactionId seen_in = InvalidLocalTransactionId;
	uint64		hash;
	bool		found;

	if (ActivePortal != NULL)
		return true;
	if (seen == NULL || seen_in != MyProc->lxid)
	{
		HASHCTL		ctl = {0};

		ctl.keysize = ctl.entrysize = sizeof(uint64);
		ctl.hcxt = TopTransactionContext;
		seen = hash_create("acme_outbox finished keys", 64, &ctl,
						   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
		seen_in = MyProc->lxid;
	}
	hash = hash_bytes_extended((const unsigned char *) origin, strlen(origin), 0);
	hash = hash_bytes_extended((const unsigned char *) key, strlen(key), hash);
	hash_search(seen, &hash, HASH_ENTER, &found);
	return !found;
}

/* tg_trigtuple is the old row of an UPDATE and of a DELETE. */
Datum
acme_outbox_entry_finished(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = row_trigger(fcinfo);
	TupleDesc	desc = RelationGetDescr(trigger->tg_relation);
	char	   *origin;
	char	   *key;
	EntryTable	table;

	SPI_connect();
	origin = SPI_getvalue(trigger->tg_trigtuple, desc, ENTRY_ORIGIN);
	key = SPI_getvalue(trigger->tg_trigtuple, desc, ENTRY_MESSAGE_KEY);
	if (key != NULL && is_first_of_key(origin, key))
	{
		entries_open(&table, origin);
		entries_take_snapshot(&table);
		keyorder_wake(&table, key, GetCurrentTimestamp());
		entries_close(&table);
	}
	SPI_finish();
	PG_RETURN_POINTER(NULL);
}
