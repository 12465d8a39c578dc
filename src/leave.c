/*
 * leave.c
 *		Sends the worker out of the way of statements that need a database alone.
 *
 * DROP DATABASE, ALTER DATABASE ... RENAME or SET TABLESPACE and CREATE DATABASE
 * from a template fail while anybody is connected to the database; the server
 * waits five seconds for others to go.  So before such a statement the database's
 * worker is asked to leave, and the launcher starts none until the transaction ends.  Only
 * sessions that may use the database that way can send its worker away.
 *
 * DROP EXTENSION only makes the worker look around at commit: it then finds the
 * extension gone, and leaves.
 */
#include "acme_outbox.h"

#include "access/xact.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "compat.h"
#include "leave.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "shmem.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "wake.h"

static ProcessUtility_hook_type prev_ProcessUtility = NULL;

static const char *
option_value(List *options, const char *name)
{
	ListCell   *cell;

	foreach(cell, options)
	{
		DefElem    *option = lfirst_node(DefElem, cell);

		if (strcmp(option->defname, name) == 0 && option->arg)
			return defGetString(option);
	}
	return NULL;
}

/* Name of the database that the statement needs for itself, or NULL. */
static const char *
database_needed(Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_DropdbStmt:
			return castNode(DropdbStmt, statement)->dbname;
		case T_CreatedbStmt:
			return option_value(castNode(CreatedbStmt, statement)->options,
								"template");
		case T_AlterDatabaseStmt:
			if (!option_value(castNode(AlterDatabaseStmt, statement)->options,
							  "tablespace"))
				return NULL;
			return castNode(AlterDatabaseStmt, statement)->dbname;
		case T_RenameStmt:
			if (castNode(RenameStmt, statement)->renameType != OBJECT_DATABASE)
				return NULL;
			return castNode(RenameStmt, statement)->subname;
		default:
			return NULL;
	}
}

static bool
drops_extension(Node *statement)
{
	DropStmt   *drop = (DropStmt *) statement;
	ListCell   *cell;

	if (!IsA(statement, DropStmt) || drop->removeType != OBJECT_EXTENSION)
		return false;
	foreach(cell, drop->objects)
	{
		if (strcmp(strVal(lfirst(cell)), "acme_outbox") == 0)
			return true;
	}
	return false;
}

static bool holding = false;

/* The statement is over when its transaction is: only then may a worker return. */
static void
unhold_at_end(XactEvent event, void *arg)
{
	if (holding && event != XACT_EVENT_PRE_COMMIT &&
		event != XACT_EVENT_PRE_PREPARE)
	{
		holding = false;
		shmem_unhold();
	}
}

/* Keeps the worker of the named database away, if there is need for it. */
static void
hold_database(const char *name)
{
	Oid			dboid;

	if (!name || !IsTransactionState())
		return;
	dboid = get_database_oid(name, true);
	if (!OidIsValid(dboid) || !compat_database_owner(dboid, GetUserId()))
		return;
	holding = true;
	shmem_hold(dboid);
}

static void
leave_ProcessUtility(PlannedStmt *pstmt, const char *queryString,
					 bool readOnlyTree, ProcessUtilityContext context,
					 ParamListInfo params, QueryEnvironment *queryEnv,
					 DestReceiver *dest, QueryCompletion *qc)
{
	if (drops_extension(pstmt->utilityStmt))
		wake_note_check();
	hold_database(database_needed(pstmt->utilityStmt));
	if (prev_ProcessUtility)
		prev_ProcessUtility(pstmt, queryString, readOnlyTree, context, params,
							queryEnv, dest, qc);
	else
		standard_ProcessUtility(pstmt, queryString, readOnlyTree, context,
								params, queryEnv, dest, qc);
}

/*
 * leave_init
 *		Installs the hook; called while the postmaster preloads us.
 */
void
leave_init(void)
{
	prev_ProcessUtility = ProcessUtility_hook;
	ProcessUtility_hook = leave_ProcessUtility;
	RegisterXactCallback(unhold_at_end, NULL);
}
