/*
 * relay_claim.c
 *		When to claim, and what a claim brought.
 *
 * A claim is sent ahead while the window is being confirmed, as long as memory
 * and the publisher have room. An empty one waits for a wake-up or the poll.
 */
#include "relay_internal.h"

#include <stdio.h>
#include <stdlib.h>

#include "crash.h"
#include "log.h"
#include "telemetry.h"

#define ORIGINS_TEXT_MAX	512

void
relay_send_claim(struct relay *r, msec_t now)
{
	char		rows[NUMBER_MAX];
	char		bytes[NUMBER_MAX];
	const char *values[] = {config_text(r->config, SET_ORIGIN), r->epoch, rows,
	bytes};

	snprintf(rows, sizeof(rows), "%lld",
			 (long long) config_number(r->config, SET_CLAIM_ROWS));
	snprintf(bytes, sizeof(bytes), "%lld",
			 (long long) config_number(r->config, SET_CLAIM_BYTES));
	r->notified = false;
	db_send(&r->db, STATEMENT_CLAIM, 4, values, now);
}

/* May another claim be held in memory, and would the publisher take it? */
static bool
has_room(const struct relay *r)
{
	return r->publisher->ops->ready(r->publisher) &&
		r->claims.loaded < CLAIMS_MAX &&
		r->claims.waiting < config_number(r->config, SET_CLAIM_ROWS) &&
		r->claims.bytes < 2 * (size_t) config_number(r->config, SET_CLAIM_BYTES);
}

/* When the next claim is to be sent; CLOCK_NEVER without room. */
msec_t
relay_claim_due(const struct relay *r)
{
	if (!has_room(r))
		return CLOCK_NEVER;
	return r->claim_at > r->claim_not_before ? r->claim_at :
		r->claim_not_before;
}

/* Nothing there: wait for a wake-up or the poll, or be done. */
static void
handle_empty_claim(struct relay *r, msec_t now)
{
	r->claim_at = r->notified ? now : now + relay_span(r, SET_POLL_INTERVAL);
	if (!r->origins_listed)
		r->list_origins = true;
	/* with --once the others are listed first: our origin may be misspelt */
	if (relay_is_once(r) && !r->list_origins && !r->notified &&
		relay_rows(r) == 0 && (r->failed_drained || !relay_has_dead_letters(r)))
		relay_begin_stopping(r, "drained", now);
}

/* The audit lane was in use, and is not any more. */
static void
report_unaudited(struct relay *r)
{
	if (r->claims.unaudited > 0)
		log_warn("entries were finished without the audit copy they waited for",
				 LOG_NUM("rows", r->claims.unaudited),
				 LOG_TEXT("next_step", "if they shall have one, start with "
						  "audit-exchange again before more follow"));
	r->claims.unaudited = 0;
}

/* Takes the result over. */
void
relay_handle_claim(struct relay *r, PGresult *result, msec_t now)
{
	struct claim *claim;

	if (db_failed(result))
	{
		r->claim_not_before = now + backoff_next(&r->claim_backoff,
												 (uint32_t) random());
		relay_handle_failure(r, "claim", result, now);
		PQclear(result);
		return;
	}
	backoff_reset(&r->claim_backoff);
	telemetry_observe(SPAN_CLAIM, clock_now() - r->db.sent_at);
	if (PQntuples(result) == 0)
	{
		PQclear(result);
		if (r->state == RELAY_ACTIVE)
			handle_empty_claim(r, now);
		return;
	}
	crash_here(CRASH_CLAIM_COMMITTED);
	r->claim_at = now;
	r->origins_listed = true;
	claim = claims_add(&r->claims, result);
	log_debug("claimed", LOG_NUM("claim_id", claim->claim_id),
			  LOG_NUM("rows", claim->count), LOG_NUM("bytes", claim->bytes));
	report_unaudited(r);
	if (r->state == RELAY_STOPPING)
		claims_release(&r->claims, false, "relay stopped before sending", now);
}

void
relay_send_other_origins(struct relay *r, msec_t now)
{
	const char *values[] = {config_text(r->config, SET_ORIGIN)};

	r->list_origins = false;
	r->origins_listed = true;
	db_send(&r->db, STATEMENT_OTHER_ORIGINS, 1, values, now);
}

/* Whoever started a relay with the wrong origin wants to know. */
void
relay_handle_other_origins(struct relay *r, const PGresult *result)
{
	char		text[ORIGINS_TEXT_MAX] = "";
	size_t		length = 0;

	if (relay_is_once(r) && r->state == RELAY_ACTIVE)
		r->claim_at = 0;		/* now the claim that finds nothing may end it */
	if (db_failed(result) || PQntuples(result) == 0)
		return;
	for (int i = 0; i < PQntuples(result) && length < sizeof(text) - 1; i++)
		length += (size_t) snprintf(text + length, sizeof(text) - length,
									"%s%s (%s)", i ? ", " : "",
									PQgetvalue(result, i, 0),
									PQgetvalue(result, i, 1));
	log_warn("own origin is empty, others are not",
			 LOG_TEXT("origin", config_text(r->config, SET_ORIGIN)),
			 LOG_TEXT("pending", text),
			 LOG_TEXT("next_step", "check the spelling of --origin, and "
					  "acme_outbox.origin of the publishing roles"));
}
