/*
 * autocommit.c
 *		Notices an event that is bound to no business change.
 *
 * The slip: an application takes one connection for BEGIN and the business write,
 * and publishes through another (pool.query instead of client.query).  The business
 * transaction rolls back; the event was committed on its own and is sent.  On the
 * publishing connection this looks like a top-level SELECT outside a transaction
 * block that calls publish itself and changes nothing else.  Called from inside
 * a function or a trigger, publish is not in the statement's plan, and
 * a data-modifying statement is no SELECT, so these are not reported.
 */
#include "acme_outbox.h"

#include "access/xact.h"
#include "autocommit.h"
#include "executor/execdesc.h"
#include "guc.h"
#include "nodes/execnodes.h"
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

/* Any node of the plan: a subselect, a CTE or FROM may hold the call as well. */
static bool
plan_calls_function(PlanState *state, void *function)
{
	Plan	   *plan = state->plan;

	if (calls_function((Node *) plan->targetlist, function) ||
		calls_function((Node *) plan->qual, function))
		return true;
	if (IsA(plan, FunctionScan) &&
		calls_function((Node *) ((FunctionScan *) plan)->functions, function))
		return true;
	if (IsA(plan, ValuesScan) &&
		calls_function((Node *) ((ValuesScan *) plan)->values_lists, function))
		return true;
	return planstate_tree_walker(state, plan_calls_function, function);
}

static bool
statement_only_publishes(Oid publish_oid)
{
	QueryDesc  *query;

	if (ActivePortal == NULL || ActivePortal->strategy != PORTAL_ONE_SELECT ||
		ActivePortal->queryDesc == NULL)
		return false;
	query = ActivePortal->queryDesc;
	return query->operation == CMD_SELECT && !query->plannedstmt->hasModifyingCTE &&
		query->planstate != NULL && plan_calls_function(query->planstate, &publish_oid);
}

/* Once per call in the statement, however many rows it has. */
void
autocommit_check(FmgrInfo *publish)
{
	if (guc_autocommit_publish == AUTOCOMMIT_OFF || publish->fn_extra != NULL)
		return;
	publish->fn_extra = publish;
	if (IsTransactionBlock() || !statement_only_publishes(publish->fn_oid))
		return;

	ereport(guc_autocommit_publish == AUTOCOMMIT_ERROR ? ERROR : WARNING,
			(errcode(ERRCODE_OX_AUTOCOMMIT),
			 errmsg("event published outside a transaction block"),
			 errdetail("Its own transaction holds no business change: it is sent whatever becomes of the change it tells of."),
			 errhint("Publish on the connection and in the transaction that makes the change; if no change belongs to it, set acme_outbox.autocommit_publish to off.")));
}
