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
#include "telemetry.h"

/* The claim to be settled next, the oldest first; dead letters come last. */
static struct claim *
ripe_claim(struct relay *r, bool all, msec_t now)
{
	struct claim *claim = claims_to_settle(&r->claims, all, now);

	return claim ? claim : claims_to_settle(&r->failed, all, now);
}

static void
send_texts(struct relay *r, struct claim *claim, struct settle_texts *texts,
		   msec_t now)
{
	char		claim_id[NUMBER_MAX];
	const char *values[] = {r->epoch, claim_id, buffer_text(&texts->ids),
		buffer_text(&texts->outcomes), buffer_text(&texts->lanes),
	buffer_text(&texts->errors)};

	snprintf(claim_id, sizeof(claim_id), "%lld", (long long) claim->claim_id);
	crash_here(CRASH_CONFIRMED_BEFORE_SETTLE);
	r->settling = claim;
	db_send(&r->db, STATEMENT_SETTLE, 6, values, now);
}

/* Settle what is ripe, or all that is decided; false if there is nothing. */
bool
relay_send_settle(struct relay *r, bool all, msec_t now)
{
	struct claim *claim = ripe_claim(r, all, now);
	struct settle_texts texts = {0};
	bool		sent;

	if (claim == NULL)
		return false;
	sent = claims_settle_texts(claim, now, &texts) > 0;
	if (sent)
		send_texts(r, claim, &texts, now);
	claims_free_texts(&texts);
	return sent;
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
			claims_settle_locked(r->settling, id, now);
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
	struct claim_set *set;

	if (db_failed(result))
	{
		msec_t		delay = backoff_next(&r->settle_backoff,
										 (uint32_t) random());

		claims_settle_failed(r->settling, now + delay);
		r->settling = NULL;
		relay_handle_failure(r, "settle", result, now);
		return;
	}
	backoff_reset(&r->settle_backoff);
	telemetry_observe(SPAN_SETTLE, clock_now() - r->db.sent_at);
	note_unsettled(r, result, now);
	set = r->settling->set;
	claims_settle_done(r->settling);
	r->settling = NULL;
	relay_note_settled(r, set, now);
	if (relay_is_once(r) && relay_rows(r) == 0)
		r->claim_at = now;		/* the last claim that came back empty came early */
	crash_here(CRASH_SETTLED);
}
