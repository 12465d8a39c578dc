/*
 * settle_api.c
 *		The SQL function settle: its arguments, its fence and its report.
 *
 * What settling means is in settle.c, what each outcome makes of an entry in
 * outcome.c.
 */
#include "acme_outbox.h"

#include "executor/spi.h"
#include "funcapi.h"
#include "lease.h"
#include "mb/pg_wchar.h"
#include "settle.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/tuplestore.h"

PG_FUNCTION_INFO_V1(acme_outbox_settle);

#define MAX_ERROR_BYTES 1000
#define NO_CLAIM 0				/* claim ids are odd */

static void
bad_arguments(const char *problem)
{
	ereport(ERROR,
			(errcode(ERRCODE_OX_SETTLE_ARGUMENT),
			 errmsg("invalid arguments of settle"),
			 errdetail("%s", problem)));
}

static Datum *
array_elements(FunctionCallInfo fcinfo, int arg, bool **nulls, int *n)
{
	ArrayType  *array = PG_GETARG_ARRAYTYPE_P(arg);
	Datum	   *values;
	int16		len;
	bool		byval;
	char		align;

	get_typlenbyvalalign(ARR_ELEMTYPE(array), &len, &byval, &align);
	deconstruct_array(array, ARR_ELEMTYPE(array), len, byval, align, &values, nulls, n);
	return values;
}

static int16
default_lanes(Outcome outcome)
{
	return outcome == OUTCOME_PUBLISHED ? LANE_BUSINESS : 0;
}

static const char *
clip_error(Datum value)
{
	char	   *error = TextDatumGetCString(value);

	error[pg_mbcliplen(error, strlen(error), MAX_ERROR_BYTES)] = '\0';
	return error;
}

static SettleRow *
read_arguments(FunctionCallInfo fcinfo, int *n)
{
	bool	   *id_nulls, *outcome_nulls, *lane_nulls, *error_nulls;
	int			n_outcomes, n_lanes, n_errors, i;
	Datum	   *ids = array_elements(fcinfo, 2, &id_nulls, n);
	Datum	   *outcomes = array_elements(fcinfo, 3, &outcome_nulls, &n_outcomes);
	Datum	   *lanes = array_elements(fcinfo, 4, &lane_nulls, &n_lanes);
	Datum	   *errors = array_elements(fcinfo, 5, &error_nulls, &n_errors);
	SettleRow  *rows = palloc0(sizeof(SettleRow) * Max(*n, 1));

	if (n_outcomes != *n || n_lanes != *n || n_errors != *n)
		bad_arguments("The arrays differ in length.");
	for (i = 0; i < *n; i++)
	{
		if (id_nulls[i] || outcome_nulls[i])
			bad_arguments("An id or outcome is null.");
		rows[i].id = DatumGetInt64(ids[i]);
		rows[i].outcome = outcome_parse(outcomes[i]);
		rows[i].lanes = lane_nulls[i] ? default_lanes(rows[i].outcome) :
			DatumGetInt16(lanes[i]);
		if ((rows[i].lanes & ~LANES_ALL) != 0)
			bad_arguments("Lanes are bits: 1 business, 2 audit.");
		rows[i].error = error_nulls[i] ? NULL : clip_error(errors[i]);
	}
	settle_sort(rows, *n);
	for (i = 1; i < *n; i++)
		if (rows[i].id == rows[i - 1].id)
			bad_arguments("An id is given twice.");
	return rows;
}

static void
report_difference(Tuplestorestate *result, TupleDesc desc, const SettleRow *row)
{
	/* a row that was moved may have failed since, by hand */
	bool		was_failed = row->past.was_failed && row->found != FOUND_MOVED;
	const char *expected = outcome_status(row->outcome, was_failed);
	const char *found = row->found == FOUND_LOCKED ? "LOCKED" : row->status;
	Datum		values[3];
	bool		nulls[3] = {false, false, false};

	if (row->changed || strcmp(found, expected) == 0)
		return;
	values[0] = Int64GetDatum(row->id);
	values[1] = CStringGetTextDatum(expected);
	values[2] = CStringGetTextDatum(found);
	tuplestore_putvalues(result, desc, values, nulls);
}

/* Not STRICT: an empty result would say that everything was settled. */
static void
check_no_nulls(FunctionCallInfo fcinfo)
{
	for (int i = 0; i < PG_NARGS(); i++)
		if (PG_ARGISNULL(i))
			bad_arguments("An argument is null.");
}

Datum
acme_outbox_settle(PG_FUNCTION_ARGS)
{
	int64		epoch = PG_GETARG_INT64(0);
	int64		claim_id = PG_GETARG_INT64(1);
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	ArrayType  *claim_ids;
	SettleRow  *rows;
	Lease		lease;
	int			n;

	check_no_nulls(fcinfo);
	rows = read_arguments(fcinfo, &n);
	InitMaterializedSRF(fcinfo, 0);
	SPI_connect();
	lease_of_epoch(epoch, &lease);
	lease_check_grant(lease.origin);
	claim_ids = settle_lock_claim(claim_id, epoch);
	if (claim_ids == NULL)
		claim_id = NO_CLAIM;	/* no row is ours: only differences to report */
	settle_rows(lease.origin, claim_id, claim_ids, rows, n);
	for (int i = 0; i < n; i++)
		report_difference(rsinfo->setResult, rsinfo->setDesc, &rows[i]);
	SPI_finish();
	PG_RETURN_NULL();
}
