/*
 * plans.h
 *		SQL statements planned once per session.
 */
#ifndef ACME_OUTBOX_PLANS_H
#define ACME_OUTBOX_PLANS_H

#include "executor/spi.h"

#define PLAN_MAX_PARAMS 20

/* Initialise with the first three; the plan is made at first use and kept. */
typedef struct KeptPlan
{
	const char *sql;
	int			nparams;
	Oid			types[PLAN_MAX_PARAMS];
	SPIPlanPtr	kept;
} KeptPlan;

extern void plan_by_index(SPIPlanPtr plan);
extern uint64 plan_run(KeptPlan *plan, Datum *values, const char *nulls, int expected);

#endif							/* ACME_OUTBOX_PLANS_H */
