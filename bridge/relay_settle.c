/*
 * relay_settle.c
 *		Outcomes on their way into the database.
 *
 * A settle that failed is repeated with backoff; a row that another session
 * holds locked is settled again later, and holds up no other row.
 */
#include "relay_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crash.h"
#include "log.h"

/* False if no outcome of the claim is ripe. */
bool
relay_send_settle(struct relay *r, struct claim *claim, msec_t now)
{
	struct buffer ids = {0},
				outcomes = {0},
				errors = {0};
	char		claim_id[NUMBER_MAX];
	const char *values[] = {r->epoch, claim_id, NULL, NULL, NULL};
	int			rows = claims_settle_texts(&r->claims, claim, now, &ids,
										   &outcomes, &errors);

	if (rows > 0)
	{
		crash_here(CRASH_CONFIRMED_BEFORE_SETTLE);
		snprintf(claim_id, sizeof(claim_id), "%lld",
				 (long long) claim->claim_id);
		values[2] = buffer_text(&ids);
		values[3] = buffer_text(&outcomes);
		values[4] = buffer_text(&errors);
		r->settling = claim;
		db_send(&r->db, STATEMENT_SETTLE, 5, values, now);
	}
	buffer_free(&ids);
	buffer_free(&outcomes);
	buffer_free(&errors);
	return rows > 0;
}

/* Rows that somebody else had moved, or holds. */
static void
note_unsettled(struct relay *r, const PGresult *result, msec_t now)
{
	int			locked = 0,
				moved = 0;

	for (int i = 0; i < PQntuples(result); i++)
	{
		int64_t		id = strtoll(PQgetvalue(result, i, 0), NULL, 10);

		if (strcmp(PQgetvalue(result, i, 2), "LOCKED") == 0)
		{
			claims_settle_locked(&r->claims, r->settling, id, now);
			locked++;
		}
		else
			moved++;
	}
	if (locked + moved > 0)
		log_warn("rows were not settled", LOG_NUM("locked", locked),
				 LOG_NUM("moved_by_others", moved),
				 LOG_TEXT("first_found", PQgetvalue(result, 0, 2)));
}

void
relay_handle_settle(struct relay *r, const PGresult *result, msec_t now)
{
	if (db_failed(result))
	{
		msec_t		delay = backoff_next(&r->settle_backoff,
										 (uint32_t) random());

		claims_settle_failed(&r->claims, r->settling, now + delay);
		r->settling = NULL;
		relay_handle_failure(r, "settle", result, now);
		return;
	}
	backoff_reset(&r->settle_backoff);
	note_unsettled(r, result, now);
	claims_settle_done(&r->claims, r->settling);
	r->settling = NULL;
	if (relay_is_once(r) && r->claims.rows == 0)
		r->claim_at = now;		/* the last claim that came back empty came early */
	crash_here(CRASH_SETTLED);
}
