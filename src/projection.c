/*
 * projection.c
 *		project and project_delete: a row is its newest event (P 4).
 *
 * "Newer" is by event time; within one time by event id where the table has a column
 * last_event_id (NULL sorts first), else the first to come stays.  So the same events, in
 * any order and number, leave the same rows.
 *
 * A row that exists is updated by one statement with the guard in its WHERE; PostgreSQL
 * checks it again after waiting for another writer.  The first statement has a guard that asks
 * for a later time only: that lets nearly all newer events through, and starting a statement
 * with the whole guard costs a tenth of a call.  Nothing updated means that the row is at least
 * as new, that it takes the whole guard to tell, or that there is none; one look says which.
 * A row that does not exist may have been deleted by a newer event: its key is locked, its
 * tombstone read (projection_tombstone.c), then it is inserted, ON CONFLICT with the same
 * guard.  Where the last row was new, that is tried first.
 *
 * Everything happens with the caller's rights on the target.  Errors of the target's
 * constraints lose their detail, which would print the row.
 */
#include "acme_outbox.h"

#include <ctype.h>

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "counters.h"
#include "jsontext.h"
#include "projection.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"
#include "utils/uuid.h"

PG_FUNCTION_INFO_V1(acme_outbox_project_jsonb_uuid);
PG_FUNCTION_INFO_V1(acme_outbox_project_jsonb_text);
PG_FUNCTION_INFO_V1(acme_outbox_project_text_uuid);
PG_FUNCTION_INFO_V1(acme_outbox_project_text_text);
PG_FUNCTION_INFO_V1(acme_outbox_project_delete_jsonb_uuid);
PG_FUNCTION_INFO_V1(acme_outbox_project_delete_jsonb_text);
PG_FUNCTION_INFO_V1(acme_outbox_project_delete_text_uuid);
PG_FUNCTION_INFO_V1(acme_outbox_project_delete_text_text);

/* A row that came or went between two statements is looked at again this often. */
#define ATTEMPTS 5

/* While rows are new, how often it is looked whether they still are. */
#define TRY_UPDATE_EVERY 32

Oid			projection_rebuilding = InvalidOid;
int64		projection_seeded;

typedef enum RowState
{
	ROW_ABSENT,
	ROW_REFUSES,				/* at least as new as the event */
	ROW_ACCEPTS
} RowState;

typedef enum Insertion
{
	INSERT_DONE,				/* or the row was updated */
	INSERT_NOTHING,				/* the guard refused */
	INSERT_BURIED				/* the row was deleted by an event at least as new */
} Insertion;

/*
 * Arguments
 */

static void
event_error(const char *problem, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_OX_PROJECTION_EVENT),
			 errmsg("%s", problem),
			 hint ? errhint("%s", hint) : 0));
}

static void
key_error(const char *problem)
{
	ereport(ERROR,
			(errcode(ERRCODE_OX_PROJECTION_KEY),
			 errmsg("key is %s", problem),
			 errhint("The key is a JSON object of the columns that identify the row: '{\"id\": 1}'")));
}

static void
fields_error(const char *problem)
{
	ereport(ERROR,
			(errcode(ERRCODE_OX_PROJECTION_COLUMN),
			 errmsg("fields is %s", problem)));
}

/* As uuid's input function reads it, whatever the places of hyphens and braces. */
static bool
read_uuid(const char *text, pg_uuid_t *uuid)
{
	int			n = 0;

	memset(uuid, 0, sizeof(pg_uuid_t));
	for (; *text != '\0'; text++)
	{
		if (*text == '-' || *text == '{' || *text == '}')
			continue;
		if (n == 2 * UUID_LEN || !isxdigit((unsigned char) *text))
			return false;
		uuid->data[n / 2] <<= 4;
		uuid->data[n / 2] |= *text <= '9' ? *text - '0' : (*text | 0x20) - 'a' + 10;
		n++;
	}
	return n == 2 * UUID_LEN;
}

/* The id as the target keeps it; without the column it plays no part. */
static void
take_id(ProjectionEvent *event, const char *id)
{
	Oid			type = event->target->event_id_type;

	if (id == NULL || !OidIsValid(type))
		return;
	if (type == UUIDOID && !read_uuid(id, &event->uuid))
		event_error("event_id is not a uuid",
					"The target's column " COLUMN_EVENT_ID " is a uuid.");
	if (id[0] == '\0' || strlen(id) > MAX_SHORT_STRING)
		event_error(psprintf("event_id does not have 1 to %d bytes", MAX_SHORT_STRING), NULL);
	event->id = id;
}

/* The members of an object, in jsonb's order. */
static int
read_pairs(Jsonb *object, JsonPair **pairs)
{
	JsonbIterator *it = JsonbIteratorInit(&object->root);
	JsonbIteratorToken token;
	JsonbValue	value;
	int			n = 0;

	*pairs = palloc(sizeof(JsonPair) * (JB_ROOT_COUNT(object) + 1));
	(void) JsonbIteratorNext(&it, &value, true);
	while ((token = JsonbIteratorNext(&it, &value, true)) == WJB_KEY)
	{
		(*pairs)[n].name = value.val.string.val;
		(*pairs)[n].len = value.val.string.len;
		(void) JsonbIteratorNext(&it, &(*pairs)[n].value, true);
		n++;
	}
	return n;
}

/* Checks the event, finds the target's statements, fills in their parameters. */
static void
prepare_event(ProjectionEvent *event, Oid target, Jsonb *key, Jsonb *fields,
			  TimestampTz at, const char *id)
{
	JsonPair   *keys;
	JsonPair   *members = NULL;
	int			nkeys;
	int			nfields = 0;

	if (TIMESTAMP_NOT_FINITE(at))
		event_error("event_at is not a finite time", NULL);
	if (key == NULL || !JB_ROOT_IS_OBJECT(key) || JB_ROOT_COUNT(key) == 0)
		key_error(key == NULL ? "null" : JB_ROOT_IS_OBJECT(key) ? "empty" : "not a JSON object");
	if (fields != NULL && !JB_ROOT_IS_OBJECT(fields))
		fields_error("not a JSON object");

	event->target = projection_target(target);
	event->at = at;
	take_id(event, id);
	nkeys = read_pairs(key, &keys);
	if (fields != NULL)
		nfields = read_pairs(fields, &members);
	event->shape = projection_shape(event->target, keys, nkeys, members, nfields);
	projection_values(event, keys, members);
}

/*
 * Statements
 */

/* Runs one; an error's detail, which may print the row, is left out. */
static uint64
run(ProjectionEvent *event, ProjectionPlan plan)
{
	SPIPlanPtr	prepared = projection_plan(event->shape, plan);
	MemoryContext context = CurrentMemoryContext;
	int			result = 0;

	PG_TRY();
	{
		result = SPI_execute_plan(prepared, event->values, event->nulls, false, 0);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		if (ERRCODE_TO_CATEGORY(error->sqlerrcode) != ERRCODE_INTEGRITY_CONSTRAINT_VIOLATION)
			PG_RE_THROW();
		FlushErrorState();
		error->detail = NULL;
		error->detail_log = NULL;
		ReThrowError(error);
	}
	PG_END_TRY();
	if (result < 0)
		elog(ERROR, "could not project: %s", SPI_result_code_string(result));
	return SPI_processed;
}

static RowState
row_state(ProjectionEvent *event)
{
	bool		isnull;

	if (run(event, PLAN_REFUSES) == 0)
		return ROW_ABSENT;
	return DatumGetBool(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull)) ?
		ROW_REFUSES : ROW_ACCEPTS;
}

/* Was the row deleted by an event at least as new? */
static bool
buried(const ProjectionEvent *event, ProjectionKey *key, bool *tombstone)
{
	TimestampTz at;
	char	   *id;

	*tombstone = tombstone_find(event->target->oid, key, &at, &id);
	if (!*tombstone || at < event->at)
		return false;
	if (at > event->at || event->id == NULL)
		return true;
	return id != NULL && strcmp(projection_id(event), id) <= 0;
}

static Insertion
insert_row(ProjectionEvent *event, ProjectionPlan plan)
{
	ProjectionKey key;
	bool		tombstone;

	projection_key(event, &key);
	projection_lock_key(event->target->oid, &key, false);
	if (buried(event, &key, &tombstone))
		return INSERT_BURIED;
	if (run(event, plan) == 0)
		return INSERT_NOTHING;
	if (tombstone)
		tombstone_remove(event->target->oid, &key);
	return INSERT_DONE;
}

/* A rebuild's seed: what it refuses to change it marks as seen. */
static bool
seed_row(ProjectionEvent *event)
{
	projection_seeded++;
	if (run(event, PLAN_SEED_UPDATE) > 0)
		return true;
	if (row_state(event) == ROW_ABSENT)
		return insert_row(event, PLAN_SEED_INSERT) == INSERT_DONE;
	(void) run(event, PLAN_TOUCH);
	return false;
}

/* Tries the statement that nearly always is the one; false: it decided nothing. */
static bool
apply_likely(ProjectionEvent *event, bool *changed)
{
	ProjectionShape *shape = event->shape;
	Insertion	insertion;

	if (shape->inserting && ++shape->calls % TRY_UPDATE_EVERY != 0)
	{
		insertion = insert_row(event, PLAN_INSERT_LATER);
		*changed = insertion == INSERT_DONE;
		return insertion != INSERT_NOTHING;
	}
	*changed = run(event, PLAN_UPDATE_LATER) > 0;
	if (*changed)
		shape->inserting = false;
	return *changed;
}

static bool
apply(ProjectionEvent *event)
{
	bool		changed;

	if (projection_rebuilding == event->target->oid)
		return seed_row(event);
	if (apply_likely(event, &changed))
		return changed;
	for (int i = 0; i < ATTEMPTS; i++)
	{
		switch (row_state(event))
		{
			case ROW_ABSENT:
				event->shape->inserting = true;
				return insert_row(event, PLAN_INSERT) == INSERT_DONE;
			case ROW_REFUSES:
				event->shape->inserting = false;
				return false;
			case ROW_ACCEPTS:	/* by the whole guard, or it came in between */
				event->shape->inserting = false;
				if (run(event, PLAN_UPDATE) > 0)
					return true;
				break;
		}
	}
	return false;
}

/* At REPEATABLE READ a row may have come that the snapshot does not show. */
static void
check_still_absent(ProjectionEvent *event)
{
	if (!IsolationUsesXactSnapshot())
		return;
	PushActiveSnapshot(GetLatestSnapshot());
	(void) SPI_execute_snapshot(projection_plan(event->shape, PLAN_REFUSES), event->values,
								event->nulls, GetActiveSnapshot(), InvalidSnapshot, true,
								false, 0);
	PopActiveSnapshot();
	if (SPI_processed > 0)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not serialize access due to concurrent update")));
}

static bool
bury(ProjectionEvent *event)
{
	ProjectionKey key;
	bool		tombstone;

	projection_key(event, &key);
	projection_lock_key(event->target->oid, &key, true);
	for (int i = 0; i < ATTEMPTS; i++)
	{
		RowState	state;

		if (run(event, PLAN_DELETE) > 0)
		{
			tombstone_put(event, &key);
			return true;
		}
		state = row_state(event);
		if (state == ROW_REFUSES)
			return false;
		if (state == ROW_ABSENT)
		{
			check_still_absent(event);
			if (buried(event, &key, &tombstone))
				return false;
			tombstone_put(event, &key);
			return true;
		}
	}
	return false;
}

/* The target stays pinned while its statements run, whatever they call. */
static bool
run_pinned(ProjectionEvent *event, bool (*change) (ProjectionEvent *))
{
	volatile bool changed = false;

	projection_pin(event->target);
	PG_TRY();
	{
		SPI_connect();
		changed = change(event);
		SPI_finish();
		if (event->target->oid != projection_rebuilding)
			counters_add(COUNTER_PROJECTED, 1, event->target->name,
						 changed ? "applied" : "stale");
	}
	PG_FINALLY();
	{
		projection_unpin(event->target);
	}
	PG_END_TRY();
	return changed;
}

bool
project_row(Oid target, Jsonb *key, Jsonb *fields, TimestampTz at, const char *id)
{
	ProjectionEvent event = {0};

	prepare_event(&event, target, key, fields, at, id);
	return run_pinned(&event, apply);
}

/*
 * The functions
 */

static Oid
arg_target(FunctionCallInfo fcinfo)
{
	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_OX_PROJECTION_TARGET),
				 errmsg("target is null")));
	return PG_GETARG_OID(0);
}

static TimestampTz
arg_event_at(FunctionCallInfo fcinfo, int i)
{
	if (PG_ARGISNULL(i))
		event_error("event_at is null", "It is the event's own time, from its header.");
	return PG_GETARG_TIMESTAMPTZ(i);
}

/* event_id is text or uuid; the functions have an overload for each. */
static const char *
arg_event_id(FunctionCallInfo fcinfo, int i, bool is_uuid)
{
	if (PG_ARGISNULL(i))
		return NULL;
	if (is_uuid)
		return DatumGetCString(DirectFunctionCall1(uuid_out, PG_GETARG_DATUM(i)));
	return text_to_cstring(PG_GETARG_TEXT_PP(i));
}

static Jsonb *
arg_key(FunctionCallInfo fcinfo, int i, bool is_jsonb)
{
	bool		invalid;
	Jsonb	   *key = jsontext_arg(fcinfo, i, is_jsonb, &invalid);

	if (invalid)
		key_error("not JSON");
	return key;
}

static Jsonb *
arg_fields(FunctionCallInfo fcinfo, int i, bool is_jsonb)
{
	bool		invalid;
	Jsonb	   *fields = jsontext_arg(fcinfo, i, is_jsonb, &invalid);

	if (invalid)
		fields_error("not JSON");
	return fields;
}

/* project(target regclass, key, fields, event_at timestamptz, event_id) RETURNS boolean */
static Datum
project_call(FunctionCallInfo fcinfo, bool is_jsonb, bool is_uuid)
{
	PG_RETURN_BOOL(project_row(arg_target(fcinfo),
							   arg_key(fcinfo, 1, is_jsonb),
							   arg_fields(fcinfo, 2, is_jsonb),
							   arg_event_at(fcinfo, 3), arg_event_id(fcinfo, 4, is_uuid)));
}

Datum
acme_outbox_project_jsonb_uuid(PG_FUNCTION_ARGS)
{
	return project_call(fcinfo, true, true);
}

Datum
acme_outbox_project_jsonb_text(PG_FUNCTION_ARGS)
{
	return project_call(fcinfo, true, false);
}

Datum
acme_outbox_project_text_uuid(PG_FUNCTION_ARGS)
{
	return project_call(fcinfo, false, true);
}

Datum
acme_outbox_project_text_text(PG_FUNCTION_ARGS)
{
	return project_call(fcinfo, false, false);
}

/* project_delete(target regclass, key, event_at timestamptz, event_id) RETURNS boolean */
static Datum
delete_call(FunctionCallInfo fcinfo, bool is_jsonb, bool is_uuid)
{
	ProjectionEvent event = {0};
	Oid			target = arg_target(fcinfo);
	TimestampTz at = arg_event_at(fcinfo, 2);

	prepare_event(&event, target, arg_key(fcinfo, 1, is_jsonb), NULL, at,
				  arg_event_id(fcinfo, 3, is_uuid));
	PG_RETURN_BOOL(run_pinned(&event, bury));
}

Datum
acme_outbox_project_delete_jsonb_uuid(PG_FUNCTION_ARGS)
{
	return delete_call(fcinfo, true, true);
}

Datum
acme_outbox_project_delete_jsonb_text(PG_FUNCTION_ARGS)
{
	return delete_call(fcinfo, true, false);
}

Datum
acme_outbox_project_delete_text_uuid(PG_FUNCTION_ARGS)
{
	return delete_call(fcinfo, false, true);
}

Datum
acme_outbox_project_delete_text_text(PG_FUNCTION_ARGS)
{
	return delete_call(fcinfo, false, false);
}
