/*
 * parked_list.c
 *		Parked messages of all inboxes, and their numbers.
 *
 * Each inbox is read as its tables' owner, in a subtransaction: an inbox that is
 * broken, or whose owner made something of it that fails, gives a WARNING and no rows,
 * and does not hide the others.
 */
#include "acme_outbox.h"

#include "funcapi.h"
#include "inbox.h"
#include "utils/builtins.h"

PG_FUNCTION_INFO_V1(acme_outbox_parked_rows);
PG_FUNCTION_INFO_V1(acme_outbox_parked_counts);

#define MAX_COLUMNS 12

typedef struct Listing
{
	ReturnSetInfo *rsinfo;
	const char *schema;
	InboxStatement statement;
	Inbox	   *inbox;
} Listing;

/* One row of the result, after the schema's name. */
static void
put_row(const Listing *listing, HeapTuple row, TupleDesc desc)
{
	Datum		values[MAX_COLUMNS];
	bool		nulls[MAX_COLUMNS] = {false};

	Assert(desc->natts + 1 == listing->rsinfo->setDesc->natts);
	values[0] = DirectFunctionCall1(namein, CStringGetDatum(listing->schema));
	for (int i = 1; i <= desc->natts; i++)
		values[i] = SPI_getbinval(row, desc, i, &nulls[i]);
	tuplestore_putvalues(listing->rsinfo->setResult, listing->rsinfo->setDesc,
						 values, nulls);
}

/* The owner may have changed the tables' columns. */
static void
check_columns(const Listing *listing, TupleDesc desc)
{
	for (int i = 0; i < desc->natts; i++)
		if (TupleDescAttr(desc, i)->atttypid !=
			TupleDescAttr(listing->rsinfo->setDesc, i + 1)->atttypid)
			ereport(ERROR,
					(errcode(ERRCODE_OX_INBOX),
					 errmsg("column \"%s\" of inbox \"%s\" has another type",
							NameStr(TupleDescAttr(desc, i)->attname), listing->schema)));
}

/* Runs as the tables' owner. */
static void
read_rows(void *argument)
{
	Listing    *listing = argument;

	SPI_connect();
	inbox_run(listing->inbox, listing->statement, NULL, NULL, SPI_OK_SELECT);
	check_columns(listing, SPI_tuptable->tupdesc);
	for (uint64 i = 0; i < SPI_processed; i++)
		put_row(listing, SPI_tuptable->vals[i], SPI_tuptable->tupdesc);
	SPI_finish();
}

static void
read_inbox(void *argument)
{
	Listing    *listing = argument;

	listing->inbox = inbox_find(listing->schema);
	inbox_as_owner(inbox_table_owner(listing->inbox, "parked_message"), read_rows, listing);
}

static Datum
list(FunctionCallInfo fcinfo, InboxStatement statement)
{
	Listing		listing = {.statement = statement};
	ListCell   *cell;

	InitMaterializedSRF(fcinfo, 0);
	listing.rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	foreach(cell, inbox_schemas())
	{
		ErrorData  *error;

		listing.schema = lfirst(cell);
		if (!inbox_protected(read_inbox, &listing, &error))
			ereport(WARNING,
					(errcode(error->sqlerrcode),
					 errmsg("inbox \"%s\" cannot be read: %s", listing.schema,
							error->message)));
	}
	PG_RETURN_NULL();
}

/* parked_rows() RETURNS SETOF record: what the view parked_open shows */
Datum
acme_outbox_parked_rows(PG_FUNCTION_ARGS)
{
	return list(fcinfo, INBOX_LIST_PARKED);
}

/* parked_counts() RETURNS SETOF record */
Datum
acme_outbox_parked_counts(PG_FUNCTION_ARGS)
{
	return list(fcinfo, INBOX_COUNT_PARKED);
}
