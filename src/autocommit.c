/*
 * autocommit.c
 *		Notices an event that is bound to no business change.
 *
 * The slip: an application takes one connection for BEGIN and the business write,
 * and publishes through another (pool.query instead of client.query).  The business
 * transaction rolls back; the event was committed on its own and is sent.  On the
 * publishing connection this looks like a top-level SELECT outside a transaction
 * block that calls publish itself and changes nothing else.  Called from inside
 * a function, a trigger or a data-modifying statement, publish is not at the top of
 * the plan, so it is not reported.
 */
#include "acme_outbox.h"

#include "access/xact.h"
#include "autocommit.h"
#include "guc.h"
#include "nodes/nodeFuncs.h"
#include "nodes/plannodes.h"
#include "tcop/pquery.h"

static bool
calls_function(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, FuncExpr) && ((FuncExpr *) node)->funcid == *(Oid *) context)
		return true;
	return expression_tree_walker(node, calls_function, context);
}

static bool
plan_calls_function(Plan *plan, Oid *function)
{
	for (; plan != NULL; plan = outerPlan(plan))
		if (calls_function((Node *) plan->targetlist, function))
			return true;
	return false;
}

static bool
statement_only_publishes(Oid publish_oid)
{
	PlannedStmt *stmt;

	if (ActivePortal == NULL || ActivePortal->strategy != PORTAL_ONE_SELECT ||
		list_length(ActivePortal->stmts) != 1)
		return false;
	stmt = linitial_node(PlannedStmt, ActivePortal->stmts);
	return stmt->commandType == CMD_SELECT && !stmt->hasModifyingCTE &&
		plan_calls_function(stmt->planTree, &publish_oid);
}

void
autocommit_check(Oid publish_oid)
{
	if (guc_autocommit_publish == AUTOCOMMIT_OFF || IsTransactionBlock() ||
		!statement_only_publishes(publish_oid))
		return;

	ereport(guc_autocommit_publish == AUTOCOMMIT_ERROR ? ERROR : WARNING,
			(errcode(ERRCODE_OX_AUTOCOMMIT),
			 errmsg("event published outside a transaction block"),
			 errdetail("It is committed on its own, whatever becomes of the business change it tells of."),
			 errhint("Publish on the connection and in the transaction that makes the change, or set acme_outbox.autocommit_publish to off.")));
}
