#ifndef ACME_ROWS_H
#define ACME_ROWS_H

/* Claim results as the database would send them, for the unit tests. */
#include <libpq-fe.h>

#include "claims.h"

#define ROWS_COLUMNS	16

static inline PGresult *
rows_new(void)
{
	static char names[ROWS_COLUMNS][16];
	PGresAttDesc columns[ROWS_COLUMNS];
	PGresult   *result = PQmakeEmptyPGresult(NULL, PGRES_TUPLES_OK);

	memset(columns, 0, sizeof(columns));
	for (int i = 0; i < ROWS_COLUMNS; i++)
	{
		snprintf(names[i], sizeof(names[i]), "c%d", i);
		columns[i].name = names[i];
	}
	PQsetResultAttrs(result, ROWS_COLUMNS, columns);
	return result;
}

static inline void
rows_set(PGresult *result, int row, int column, const char *text)
{
	PQsetvalue(result, row, column, (char *) text,
			   text ? (int) strlen(text) : -1);
}

/* The order of CLAIM_FAILED_SQL. The event id is "event-<id>". */
static inline void
rows_add(PGresult *result, long id, const char *topic, const char *key,
		 const char *payload)
{
	int			row = PQntuples(result);
	char		number[32];
	char		event[32];

	snprintf(number, sizeof(number), "%ld", id);
	snprintf(event, sizeof(event), "event-%ld", id);
	rows_set(result, row, 0, "77");
	rows_set(result, row, 1, number);
	rows_set(result, row, 2, event);
	rows_set(result, row, 3, "OrderPlaced");
	rows_set(result, row, 4, topic);
	rows_set(result, row, 5, "key");
	rows_set(result, row, 6, key);
	rows_set(result, row, 7, NULL);
	rows_set(result, row, 8, NULL);
	rows_set(result, row, 9, payload);
	rows_set(result, row, 10, "1700000000000");
	rows_set(result, row, 11, "t");
	rows_set(result, row, 12, "0");
	rows_set(result, row, 13, NULL);
	rows_set(result, row, 14, "5");
	rows_set(result, row, 15, "406 too large");
}

/* Of the last row: what earlier claims did, and what the audit lane gets. */
static inline void
rows_set_lanes(PGresult *result, const char *lanes_done, const char *audit_payload)
{
	rows_set(result, PQntuples(result) - 1, 12, lanes_done);
	rows_set(result, PQntuples(result) - 1, 13, audit_payload);
}

#endif							/* ACME_ROWS_H */
