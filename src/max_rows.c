/*
 * max_rows.c
 *		The bound that a call is given on how many rows it takes.
 *
 * One check for all functions that have one, in C or in SQL: a negative bound would be
 * PostgreSQL's to complain of, as a LIMIT that the caller never wrote, and 0 would look
 * as if there were nothing to do.
 */
#include "acme_outbox.h"

#include "max_rows.h"

PG_FUNCTION_INFO_V1(acme_outbox_checked_max_rows);

/* Raises unless it is from 1 to most; returns it. */
int32
max_rows_check(int32 max_rows, int32 most)
{
	if (max_rows < 1 || max_rows > most)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_rows is %d", max_rows),
				 most == PG_INT32_MAX ? errdetail("It is at least 1.") :
				 errdetail("It is from 1 to %d.", most),
				 errhint("It bounds one call; call again for the rest.")));
	return max_rows;
}

/* checked_max_rows(max_rows integer) RETURNS integer, strict: NULL is no bound */
Datum
acme_outbox_checked_max_rows(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32(max_rows_check(PG_GETARG_INT32(0), PG_INT32_MAX));
}
