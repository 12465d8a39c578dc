/*
 * relay_dead_letter.c
 *		FAILED entries on their way to the dead-letter exchange.
 *
 * The normal lane goes first: dead letters are claimed only when nothing else is
 * to be said to the database, a few at a time, and go over a channel of their
 * own. One that is not confirmed is FAILED again, and the database says when it
 * may be tried next; when none of a batch was confirmed, nothing is even looked
 * for until a backoff has passed, so that a missing exchange costs next to
 * nothing.
 */
#include "relay_internal.h"

#include <stdio.h>
#include <stdlib.h>

#include "log.h"

bool
relay_has_dead_letters(const struct relay *r)
{
	return r->failed.settings.dead_letter_exchange != NULL;
}

void
relay_make_dead_letters(struct relay *r)
{
	struct claim_settings settings = {
		.origin = config_text(r->config, SET_ORIGIN),
		.dead_letter_exchange = config_text(r->config, SET_DEAD_LETTER_EXCHANGE),
		.window = DEAD_LETTER_ROWS,
	};

	claims_init(&r->failed, &settings);
	backoff_init(&r->failed_backoff, relay_span(r, SET_RECONNECT_MIN),
				 relay_span(r, SET_RECONNECT_MAX));
}

/* When to look for the next ones; CLOCK_NEVER while some are under way. */
msec_t
relay_failed_due(const struct relay *r)
{
	if (!relay_has_dead_letters(r) || r->failed.rows > 0 ||
		!r->publisher->ops->ready(r->publisher))
		return CLOCK_NEVER;
	return r->failed_at;
}

void
relay_send_claim_failed(struct relay *r, msec_t now)
{
	char		rows[NUMBER_MAX];
	const char *values[] = {config_text(r->config, SET_ORIGIN), r->epoch, rows};

	snprintf(rows, sizeof(rows), "%d", DEAD_LETTER_ROWS);
	db_send(&r->db, STATEMENT_CLAIM_FAILED, 3, values, now);
}

static void
handle_none(struct relay *r, msec_t now)
{
	r->failed_drained = true;
	r->failed_at = now + relay_span(r, r->failed_stuck ? SET_RECONNECT_MAX :
									SET_POLL_INTERVAL);
	if (relay_is_once(r))
		r->claim_at = now;		/* the claim that finds nothing may end it */
}

/* Takes the result over. */
void
relay_handle_claim_failed(struct relay *r, PGresult *result, msec_t now)
{
	if (db_failed(result))
	{
		r->failed_at = now + backoff_next(&r->failed_backoff,
										  (uint32_t) random());
		relay_handle_failure(r, "claim_failed", result, now);
	}
	else if (PQntuples(result) == 0)
		handle_none(r, now);
	else
	{
		struct claim *claim = claims_add(&r->failed, result);

		log_debug("claimed failed entries", LOG_NUM("claim_id", claim->claim_id),
				  LOG_NUM("rows", claim->count));
		if (r->state == RELAY_STOPPING)
			claims_release(&r->failed, false, "relay stopped before sending",
						   now);
		return;
	}
	PQclear(result);
}

/* Dead letters were settled: go on at once if any got there. */
static void
note_dead_letters(struct relay *r, msec_t now)
{
	r->failed_stuck = r->failed.last_settled[OUTCOME_ARCHIVED] == 0;
	r->failed_at = now;
	if (!r->failed_stuck)
	{
		backoff_reset(&r->failed_backoff);
		return;
	}
	r->failed_drained = true;	/* for --once: these are to be tried later */
	r->failed_at += backoff_next(&r->failed_backoff, (uint32_t) random());
}

/* What was rejected may have been given up. */
void
relay_note_settled(struct relay *r, const struct claim_set *set, msec_t now)
{
	if (set == &r->failed)
		note_dead_letters(r, now);
	else if (set->last_settled[OUTCOME_REJECTED] > 0)
	{
		r->failed_drained = false;
		if (!r->failed_stuck)
			r->failed_at = now;
	}
}
