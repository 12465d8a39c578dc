/*
 * inbox_rights.c
 *		Whose rights count where a duty or an operator touches a service's tables.
 *
 * A service owns its inbox and can put triggers, rules, policies, defaults and
 * indexes on expressions there.  Whatever of these runs must never run as the worker
 * or as the operator, so their statements run as the table's owner, under
 * SECURITY_RESTRICTED_OPERATION: nothing can be left behind that would run later, as
 * somebody else (deferred triggers, prepared statements, temporary objects); and with
 * no schema but pg_catalog in the path.
 *
 * A replayed handler runs as the role registered for its consumer, likewise; without
 * the restriction where the session itself is that role, as nothing is gained then.
 */
#include "acme_outbox.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "context.h"
#include "inbox.h"
#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/resowner.h"
#include "utils/syscache.h"

/*
 * inbox_table_owner
 *		Owner of one of the inbox's tables; raises if it is no plain table.
 */
Oid
inbox_table_owner(const Inbox *inbox, const char *table)
{
	Oid			relation = inbox_table(NameStr(inbox->schema), table);
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relation));
	Form_pg_class form;
	Oid			owner;

	if (!HeapTupleIsValid(tuple) ||
		((Form_pg_class) GETSTRUCT(tuple))->relkind != RELKIND_RELATION)
		ereport(ERROR,
				(errcode(ERRCODE_OX_INBOX),
				 errmsg("\"%s\" of inbox \"%s\" is not a table", table, NameStr(inbox->schema))));
	form = (Form_pg_class) GETSTRUCT(tuple);
	owner = form->relowner;
	ReleaseSysCache(tuple);
	return owner;
}

static void
run_as(Oid user, int flags, bool all_tenants, InboxWork work, void *argument)
{
	bool		outer_all_tenants = context_all_tenants;
	Oid			outer_user;
	int			outer_flags;
	int			guc_level;

	GetUserIdAndSecContext(&outer_user, &outer_flags);
	guc_level = NewGUCNestLevel();
	SetUserIdAndSecContext(user, outer_flags | SECURITY_LOCAL_USERID_CHANGE | flags);
	context_all_tenants = all_tenants;
	PG_TRY();
	{
		context_set("search_path", "pg_catalog, pg_temp");
		work(argument);
	}
	PG_FINALLY();
	{
		context_all_tenants = outer_all_tenants;
		SetUserIdAndSecContext(outer_user, outer_flags);
	}
	PG_END_TRY();
	AtEOXact_GUC(false, guc_level);
}

/* Work on a service's table; the policies of tenants' tables let all rows through. */
void
inbox_as_owner(Oid owner, InboxWork work, void *argument)
{
	run_as(owner, SECURITY_RESTRICTED_OPERATION, true, work, argument);
}

/* Run a consumer's own code. */
void
inbox_as_role(Oid role, InboxWork work, void *argument)
{
	bool		own_session = GetOuterUserId() == role;

	run_as(role, own_session ? 0 : SECURITY_RESTRICTED_OPERATION, false, work, argument);
}

/*
 * Is an error not the message's fault, so that nobody may count it as such?
 *
 * Cancel, shutdown, lost connections; serialization failures and deadlocks, which
 * are to be tried again; no memory, no disk, no file.
 */
static bool
must_raise(const ErrorData *error)
{
	int			code = error->sqlerrcode;
	int			category = ERRCODE_TO_CATEGORY(code);

	if (error->elevel > ERROR)
		return true;
	return code == ERRCODE_T_R_SERIALIZATION_FAILURE ||
		code == ERRCODE_T_R_DEADLOCK_DETECTED ||
		code == ERRCODE_QUERY_CANCELED || code == ERRCODE_ADMIN_SHUTDOWN ||
		code == ERRCODE_CRASH_SHUTDOWN || code == ERRCODE_CANNOT_CONNECT_NOW ||
		code == ERRCODE_DATABASE_DROPPED || code == ERRCODE_IDLE_SESSION_TIMEOUT ||
		category == ERRCODE_INSUFFICIENT_RESOURCES || category == ERRCODE_SYSTEM_ERROR;
}

/*
 * inbox_protected
 *		Does work in a subtransaction; false: it failed, and nothing of it is left.
 *
 * Errors that are not the work's own fault are raised.
 */
bool
inbox_protected(InboxWork work, void *argument, ErrorData **error)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	volatile bool done = false;

	*error = NULL;
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		work(argument);
		ReleaseCurrentSubTransaction();
		done = true;
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		*error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
		if (must_raise(*error))
			ReThrowError(*error);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return done;
}
