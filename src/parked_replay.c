/*
 * parked_replay.c
 *		What becomes of parked messages: replayed or discarded, by an operator.
 *
 * The row is locked first, so two operators' calls on it come one after the other, and
 * the second finds it resolved.  Then the guard: the event is recorded as processed if
 * it is not, else that record is locked.  It stands for a change, and the replay for a
 * duplicate, unless the parking itself made it and no other parked copy of the event
 * was applied since.
 *
 * All statements on the service's tables run as their owner; the handler registered
 * for the consumer runs as the role registered with it (src/inbox_rights.c).  Every
 * call that found the row leaves a line in parked_resolution.
 */
#include "acme_outbox.h"

#include "catalog/pg_authid.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "context.h"
#include "funcapi.h"
#include "guc.h"
#include "handler.h"
#include "inbox.h"
#include "max_rows.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "parked.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/syscache.h"

PG_FUNCTION_INFO_V1(acme_outbox_replay_parked);
PG_FUNCTION_INFO_V1(acme_outbox_replay_parked_where);
PG_FUNCTION_INFO_V1(acme_outbox_discard_parked);

static KeptPlan registration_plan = {
	"SELECT handler, role_name FROM acme_outbox.inbox_handler"
	" WHERE schema = $1 AND consumer = $2",
	2, {NAMEOID, TEXTOID}
};

/*
 * The origin that a session of the role would have here: settings of a role count before
 * those of the database, those for this database before those for all, and the
 * configuration file's last.
 */
static KeptPlan origin_plan = {
	"SELECT coalesce((SELECT pg_catalog.substr(c, 20)"
	"  FROM pg_catalog.pg_db_role_setting s, pg_catalog.unnest(s.setconfig) c"
	"  WHERE s.setrole IN ($1, 0) AND c LIKE 'acme\\_outbox.origin=%' AND s.setdatabase IN (0,"
	"   (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()))"
	"  ORDER BY s.setrole DESC, s.setdatabase DESC LIMIT 1),"
	" (SELECT setting FROM pg_catalog.pg_settings WHERE name = 'acme_outbox.origin'"
	"  AND source IN ('configuration file', 'command line')))",
	1, {OIDOID}
};

/* One row on its way. */
typedef struct Replay
{
	Inbox	   *inbox;
	Oid			owner;
	pg_uuid_t	id;
	const char *action;
	const char *why;
	const char *outcome;

	/* of the row */
	bool		found;
	bool		resolved;
	bool		guarded;
	const char *tenant_id;
	ParkedMessage row;

	/* of the registration */
	const char *handler_name;
	const char *role_name;
	const char *origin;			/* of what the handler publishes; NULL: there is none */
	bool		runs;			/* the guard lets it */
	MemoryContext context;		/* where all this lives */
} Replay;

static const char *
keep_string(Replay *replay, int column)
{
	char	   *value = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, column);

	return value == NULL ? NULL : MemoryContextStrdup(replay->context, value);
}

static Jsonb *
keep_jsonb(Replay *replay, int column)
{
	bool		isnull;
	Datum		value = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc,
									  column, &isnull);
	MemoryContext spi;
	Jsonb	   *copy;

	if (isnull)
		return NULL;
	spi = MemoryContextSwitchTo(replay->context);
	copy = DatumGetJsonbPCopy(value);
	MemoryContextSwitchTo(spi);
	return copy;
}

static bool
result_flag(int column)
{
	bool		isnull;

	return DatumGetBool(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc,
									  column, &isnull));
}

/*
 * Steps as the tables' owner
 */

static void
read_row(Replay *replay)
{
	Datum		args[] = {UUIDPGetDatum(&replay->id)};

	replay->found = inbox_run(replay->inbox, INBOX_TAKE_PARKED, args, NULL,
							  SPI_OK_SELECT) == 1;
	if (!replay->found)
		return;
	replay->row.consumer = keep_string(replay, 1);
	replay->row.event_id = keep_string(replay, 2);
	replay->tenant_id = keep_string(replay, 3);
	replay->row.envelope = keep_jsonb(replay, 4);
	replay->row.message = keep_jsonb(replay, 5);
	replay->guarded = result_flag(6);
	replay->resolved = result_flag(7);
}

/* May the change be made? */
static bool
guard(Replay *replay)
{
	Datum		args[] = {CStringGetTextDatum(replay->row.consumer),
	CStringGetTextDatum(replay->row.event_id)};

	if (inbox_run(replay->inbox, INBOX_ACCEPT, args, NULL, SPI_OK_INSERT) == 1)
		return true;
	inbox_run(replay->inbox, INBOX_LOCK_GUARD, args, NULL, SPI_OK_SELECT);
	return replay->guarded &&
		inbox_run(replay->inbox, INBOX_IS_APPLIED, args, NULL, SPI_OK_SELECT) == 0;
}

static void
take(void *argument)
{
	Replay	   *replay = argument;

	SPI_connect();
	read_row(replay);
	if (replay->found && !replay->resolved && strcmp(replay->action, "replay") == 0)
		replay->runs = guard(replay);
	SPI_finish();
}

static void
record(void *argument)
{
	Replay	   *replay = argument;
	NameData	actor;
	NameData	role;
	Datum		args[] = {
		UUIDPGetDatum(&replay->id), CStringGetTextDatum(replay->action),
		CStringGetTextDatum(replay->outcome),
		replay->why ? CStringGetTextDatum(replay->why) : (Datum) 0,
		NameGetDatum(&actor), NameGetDatum(&role)
	};
	char		nulls[] = "      ";

	namestrcpy(&actor, GetUserNameFromId(GetSessionUserId(), false));
	namestrcpy(&role, replay->role_name ? replay->role_name : "");
	nulls[3] = replay->why ? ' ' : 'n';
	nulls[5] = replay->runs ? ' ' : 'n';
	SPI_connect();
	inbox_run(replay->inbox, INBOX_RESOLVE, args, NULL, SPI_OK_UPDATE);
	inbox_run(replay->inbox, INBOX_RECORD, args, nulls, SPI_OK_INSERT);
	SPI_finish();
}

/*
 * The handler
 */

static void
no_registration(const Replay *replay, const char *problem)
{
	ereport(ERROR,
			(errcode(ERRCODE_OX_REGISTRATION),
			 errmsg("consumer \"%s\" of inbox \"%s\" %s", replay->row.consumer,
					NameStr(replay->inbox->schema), problem),
			 errdetail("A replay runs the handler registered for the consumer, with the rights of the role registered with it."),
			 errhint("SELECT acme_outbox.register_handler('consumer', 'schema.function', 'role', 'schema of the inbox')")));
}

static void
find_registration(Replay *replay)
{
	Datum		args[] = {NameGetDatum(&replay->inbox->schema),
	CStringGetTextDatum(replay->row.consumer)};

	SPI_connect();
	if (plan_run(&registration_plan, args, NULL, SPI_OK_SELECT) == 0)
		no_registration(replay, "has no handler");
	replay->handler_name = keep_string(replay, 1);
	replay->role_name = keep_string(replay, 2);
	SPI_finish();
}

/* What a handler publishes comes from its service, not from the operator. */
static void
find_origin(Replay *replay, Oid role)
{
	Datum		args[] = {ObjectIdGetDatum(role)};

	SPI_connect();
	plan_run(&origin_plan, args, NULL, SPI_OK_SELECT);
	replay->origin = keep_string(replay, 1);
	SPI_finish();
	if (replay->origin != NULL && replay->origin[0] == '\0')
		replay->origin = NULL;
	if (replay->origin == NULL && !guc_require_origin)
		replay->origin = replay->role_name;
}

/* Runs as the consumer's role. */
static void
run_handler(void *argument)
{
	Replay	   *replay = argument;
	Handling	handling = {
		.consumer = replay->row.consumer,
		.event_id = replay->row.event_id,
		.envelope = replay->row.envelope,
		.message = replay->row.message
	};

	if (replay->tenant_id != NULL)
		context_set("acme_outbox.tenant_id", replay->tenant_id);
	(void) set_config_option("acme_outbox.inbox_schema", NameStr(replay->inbox->schema),
							 PGC_SUSET, PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
	(void) set_config_option("acme_outbox.origin", replay->origin ? replay->origin : "",
							 PGC_SUSET, PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
	/* what is deferred would run later, as somebody else; such a queue is refused */
	if (InSecurityRestrictedOperation())
		AfterTriggerSetState(makeNode(ConstraintsSetStmt));
	replay->outcome = handler_run(handler_find(replay->handler_name), &handling) ?
		"parked" : "applied";
}

static void
run(Replay *replay)
{
	Oid			role;

	find_registration(replay);
	role = get_role_oid(replay->role_name, true);
	if (!OidIsValid(role))
		no_registration(replay, "is registered with a role that does not exist");
	if (superuser_arg(role))
		no_registration(replay, "is registered with a superuser");
	find_origin(replay, role);
	inbox_as_role(role, run_handler, replay);
}

/* Raises where there is no such row or the handler fails. */
static void
replay_one(void *argument)
{
	Replay	   *replay = argument;

	inbox_as_owner(replay->owner, take, replay);
	if (!replay->found)
		ereport(ERROR,
				(errcode(ERRCODE_OX_PARKED_ROW),
				 errmsg("inbox \"%s\" has no such parked message",
						NameStr(replay->inbox->schema)),
				 errhint("See acme_outbox.parked_open.")));
	replay->outcome = replay->resolved && strcmp(replay->action, "discard") == 0 ?
		"resolved" : "duplicate";
	if (replay->runs)
		run(replay);
	else if (!replay->resolved && strcmp(replay->action, "discard") == 0)
		replay->outcome = "discarded";
	inbox_as_owner(replay->owner, record, replay);
}

static void
init_replay(Replay *replay, Name schema, const char *action, const char *why)
{
	memset(replay, 0, sizeof(Replay));
	replay->inbox = inbox_find(NameStr(*schema));
	replay->owner = inbox_table_owner(replay->inbox, "parked_message");
	replay->action = action;
	replay->why = why;
	replay->context = CurrentMemoryContext;
}

static void
check_arguments(FunctionCallInfo fcinfo, int n)
{
	for (int i = 0; i < n; i++)
		if (PG_ARGISNULL(i))
			ereport(ERROR,
					(errcode(ERRCODE_OX_INBOX_ARGUMENT),
					 errmsg("inbox or id is null")));
}

/* replay_parked(inbox name, id uuid) RETURNS text */
Datum
acme_outbox_replay_parked(PG_FUNCTION_ARGS)
{
	Replay		replay;

	check_arguments(fcinfo, 2);
	init_replay(&replay, PG_GETARG_NAME(0), "replay", NULL);
	replay.id = *PG_GETARG_UUID_P(1);
	replay_one(&replay);
	PG_RETURN_TEXT_P(cstring_to_text(replay.outcome));
}

/* discard_parked(inbox name, id uuid, why text) RETURNS text */
Datum
acme_outbox_discard_parked(PG_FUNCTION_ARGS)
{
	Replay		replay;

	check_arguments(fcinfo, 2);
	if (PG_ARGISNULL(2) || VARSIZE_ANY_EXHDR(PG_GETARG_TEXT_PP(2)) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OX_PARKED_ROW),
				 errmsg("why the message is discarded is missing")));
	init_replay(&replay, PG_GETARG_NAME(0), "discard", inbox_arg(fcinfo, 2));
	replay.id = *PG_GETARG_UUID_P(1);
	replay_one(&replay);
	PG_RETURN_TEXT_P(cstring_to_text(replay.outcome));
}

/*
 * Many of them
 */

typedef struct Selection
{
	Inbox	   *inbox;
	Datum		filters[4];
	char		nulls[4];
	pg_uuid_t  *ids;
	int			n;
	MemoryContext context;
} Selection;

/* Runs as the tables' owner. */
static void
select_ids(void *argument)
{
	Selection  *selection = argument;

	SPI_connect();
	selection->n = inbox_run(selection->inbox, INBOX_FIND_PARKED, selection->filters,
							 selection->nulls, SPI_OK_SELECT);
	selection->ids = MemoryContextAlloc(selection->context,
										sizeof(pg_uuid_t) * Max(selection->n, 1));
	for (int i = 0; i < selection->n; i++)
	{
		bool		isnull;
		Datum		id = SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc,
									   1, &isnull);

		selection->ids[i] = *DatumGetUUIDP(id);
	}
	SPI_finish();
}

static void
put_result(ReturnSetInfo *rsinfo, Replay *replay, bool done, const ErrorData *error)
{
	Datum		values[4] = {UUIDPGetDatum(&replay->id)};
	bool		nulls[4] = {false, false, done, done};

	values[1] = CStringGetTextDatum(done ? replay->outcome : "failed");
	if (!done)
	{
		values[2] = CStringGetTextDatum(unpack_sql_state(error->sqlerrcode));
		values[3] = CStringGetTextDatum(error->message);
	}
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/*
 * replay_parked_where(inbox name, consumer text, event_type text, reason text,
 *					   max_rows integer)
 *		RETURNS TABLE (id uuid, outcome text, sqlstate text, error text)
 */
Datum
acme_outbox_replay_parked_where(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Selection	selection = {.context = CurrentMemoryContext};
	Replay		replay;

	check_arguments(fcinfo, 1);
	if (!PG_ARGISNULL(4))
		(void) max_rows_check(PG_GETARG_INT32(4), PG_INT32_MAX);
	InitMaterializedSRF(fcinfo, 0);
	init_replay(&replay, PG_GETARG_NAME(0), "replay", NULL);
	selection.inbox = replay.inbox;
	for (int i = 0; i < 4; i++)
	{
		selection.nulls[i] = PG_ARGISNULL(i + 1) ? 'n' : ' ';
		selection.filters[i] = PG_ARGISNULL(i + 1) ? 0 : PG_GETARG_DATUM(i + 1);
	}
	inbox_as_owner(replay.owner, select_ids, &selection);
	for (int i = 0; i < selection.n; i++)
	{
		ErrorData  *error;
		bool		done;

		CHECK_FOR_INTERRUPTS();
		init_replay(&replay, PG_GETARG_NAME(0), "replay", NULL);
		replay.id = selection.ids[i];
		done = inbox_protected(replay_one, &replay, &error);
		put_result(rsinfo, &replay, done, error);
	}
	PG_RETURN_NULL();
}
