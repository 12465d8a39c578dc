/*
 * relay_lease.c
 *		The right to relay the origin: asked for, renewed, lost, handed over.
 *
 * The deadline counts from before the acquire or renew was sent, by our own
 * monotonic clock; the publisher sends nothing past it. Who is refused asks
 * again after REFUSED_INTERVAL: a person may mend the grant meanwhile.
 */
#include "relay_internal.h"

#include <stdio.h>
#include <stdlib.h>

#include "log.h"

void
relay_set_lease(struct relay *r, msec_t until)
{
	r->lease_until = until;
	r->publisher->send_until = until;
}

/* For logs. */
int64_t
relay_epoch(const struct relay *r)
{
	return strtoll(r->epoch, NULL, 10);
}

/* A lease shorter than three intervals must not run out between two renewals. */
static msec_t
next_renewal(const struct relay *r)
{
	return r->asked_at + clock_earlier(relay_span(r, SET_RENEW_INTERVAL),
									   r->lease_ms / 3);
}

void
relay_send_acquire(struct relay *r, msec_t now)
{
	const char *values[] = {config_text(r->config, SET_ORIGIN), r->name};

	r->asked_at = now;
	db_send(&r->db, STATEMENT_ACQUIRE, 2, values, now);
}

void
relay_send_lease_call(struct relay *r, enum relay_statement statement, msec_t now)
{
	const char *values[] = {config_text(r->config, SET_ORIGIN), r->epoch};

	r->asked_at = now;
	db_send(&r->db, statement, 2, values, now);
}

void
relay_lose_lease(struct relay *r, const char *reason, msec_t now)
{
	log_warn("lease lost", LOG_TEXT("reason", reason),
			 LOG_NUM("epoch", relay_epoch(r)));
	relay_forget_window(r, reason);
	if (r->state == RELAY_STOPPING)
	{
		relay_begin_closing(r, now);
		return;
	}
	relay_set_state(r, RELAY_STANDBY);
	r->standby_logged = false;
	r->acquire_at = now + ACQUIRE_INTERVAL;
}

static void
become_active(struct relay *r, const PGresult *result, msec_t now)
{
	snprintf(r->epoch, sizeof(r->epoch), "%s", PQgetvalue(result, 0, 0));
	r->lease_ms = strtoll(PQgetvalue(result, 0, 1), NULL, 10);
	relay_set_lease(r, r->asked_at + r->lease_ms);
	r->renew_at = next_renewal(r);
	if (r->state == RELAY_STOPPING)
		return;					/* only to be released */
	relay_set_state(r, RELAY_ACTIVE);
	r->ask_holder = false;
	r->claim_at = r->claim_not_before = r->failed_at = now;
	r->duty_at = now + relay_span(r, SET_DUTY_INTERVAL);
	log_info("lease acquired", LOG_NUM("epoch", relay_epoch(r)),
			 LOG_NUM("lease_ms", r->lease_ms));
}

/* Asked once, before it is logged: a person wants to know which one is at work. */
static void
stand_by(struct relay *r, msec_t now)
{
	r->acquire_at = now + ACQUIRE_INTERVAL;
	r->ask_holder = !r->standby_logged;
}

void
relay_send_holder(struct relay *r, msec_t now)
{
	const char *values[] = {config_text(r->config, SET_ORIGIN)};

	r->ask_holder = false;
	db_send(&r->db, STATEMENT_HOLDER, 1, values, now);
}

void
relay_handle_holder(struct relay *r, const PGresult *result, msec_t now)
{
	bool		known = !db_failed(result) && PQntuples(result) == 1;
	const char *holder = known ? PQgetvalue(result, 0, 0) :
		"unknown: see acme_outbox.outbox_backlog";
	int64_t		left = known ? strtoll(PQgetvalue(result, 0, 1), NULL, 10) : 0;

	if (r->state != RELAY_STANDBY)
		return;
	r->standby_logged = true;
	if (relay_is_once(r))
	{
		log_error("another relay is active, nothing to do for --once",
				  LOG_TEXT("active", holder), LOG_NUM("lease_left_ms", left),
				  LOG_TEXT("next_step", "let it do the work, or stop it"));
		relay_give_up(r, EXIT_TEMPORARY, now);
	}
	else
		log_info("another relay is active, standing by",
				 LOG_TEXT("active", holder), LOG_NUM("lease_left_ms", left));
}

void
relay_handle_acquire(struct relay *r, const PGresult *result, msec_t now)
{
	if (db_failed(result))
	{
		r->acquire_at = now + (r->established ? REFUSED_INTERVAL :
							   ACQUIRE_INTERVAL);
		relay_handle_failure(r, "relay_acquire", result, now);
		return;
	}
	r->established = true;
	if (PQntuples(result) > 0)
		become_active(r, result, now);
	else if (r->state == RELAY_STANDBY)
		stand_by(r, now);
}

void
relay_handle_renew(struct relay *r, const PGresult *result, msec_t now)
{
	r->renew_at = now + ACQUIRE_INTERVAL;	/* should it have failed */
	if (db_failed(result))
		relay_handle_failure(r, "relay_renew", result, now);
	else if (PQntuples(result) == 1 && PQgetvalue(result, 0, 0)[0] == 't')
	{
		relay_set_lease(r, r->asked_at + r->lease_ms);
		r->renew_at = next_renewal(r);
	}
	else
		relay_lose_lease(r, "the lease was not renewed", now);
}

void
relay_handle_release(struct relay *r, const PGresult *result, msec_t now)
{
	if (db_failed(result))
		log_warn("lease could not be released, it will expire",
				 LOG_TEXT("reason", db_message(result)));
	else
		log_info("lease released", LOG_NUM("epoch", relay_epoch(r)));
	r->epoch[0] = '\0';
	relay_begin_closing(r, now);
}
