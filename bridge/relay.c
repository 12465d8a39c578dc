/*
 * relay.c
 *		Drains one origin: claim, publish, confirm, settle.
 *
 *		OFFLINE	no database connection
 *		STANDBY	another relay may be active: ask for the lease every second
 *		ACTIVE	ours: claim ahead while the window is being confirmed
 *		STOPPING	no new claims; confirms, settles, then release the lease
 *		CLOSING	the publisher's orderly end
 *		DONE
 *
 * One thread, one poll(). The database connection runs one statement at a time;
 * next_statement() picks it. What waits is offered to the publisher each turn.
 *
 * Three rules keep the promise (design, sections 4, 5 and 9):
 *	- a row is offered only after the claim that handed it out has committed;
 *	- nothing is sent past the lease's deadline, counted from before the
 *	  acquire or renew was sent (the publisher checks it before every send);
 *	- whoever loses the database or the lease forgets its window: the next epoch
 *	  hands the rows out again.
 */
#include "relay.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "claims.h"
#include "crash.h"
#include "db.h"
#include "log.h"
#include "rabbit.h"
#include "signals.h"
#include "sink_stdout.h"

#define ACQUIRE_INTERVAL	1000
#define REFUSED_INTERVAL	15000	/* ask again when it is a person's turn */

/* Of the stop timeout, what is kept for the last settles. */
#define STOP_RESERVE		3000

#define NAME_MAX_BYTES		256
#define NUMBER_MAX			24
#define ORIGINS_TEXT_MAX	512

enum relay_state
{
	RELAY_OFFLINE,
	RELAY_STANDBY,
	RELAY_ACTIVE,
	RELAY_STOPPING,
	RELAY_CLOSING,
	RELAY_DONE
};

static const char *const state_names[] = {
	"offline", "standby", "active", "stopping", "closing", "done"
};

struct relay
{
	struct config *config;
	const struct relay_arguments *arguments;
	enum relay_state state;
	char		name[NAME_MAX_BYTES];
	struct db	db;
	struct publisher *publisher;
	struct claim_set claims;
	struct claim *settling;		/* the claim of the settle under way */

	/* the lease */
	char		epoch[NUMBER_MAX];	/* empty: none */
	msec_t		lease_ms;
	msec_t		lease_until;
	msec_t		asked_at;		/* when the acquire or renew was sent */

	/* when what is due */
	msec_t		acquire_at;
	msec_t		renew_at;
	msec_t		claim_at;		/* poll, or at once */
	msec_t		claim_not_before;	/* after a failure */
	msec_t		duty_at;
	msec_t		summary_at;
	msec_t		summary_since;
	msec_t		started_at;
	msec_t		not_ready_since;	/* the publisher, or CLOCK_NEVER */
	struct backoff claim_backoff;
	struct backoff settle_backoff;
	msec_t		confirm_until;	/* while stopping */
	msec_t		stop_until;

	bool		established;	/* the start is over: failures are retried */
	bool		publisher_seen; /* the publisher was ready once */
	bool		notified;		/* since the claim was sent */
	bool		standby_logged;
	bool		list_origins;	/* our origin was empty at first */
	bool		origins_listed;
	enum exit_status status;
	uint64_t	counts[OUTCOMES];	/* since the last summary */
	uint64_t	totals[OUTCOMES];
};

/* ---- state ---- */

static void
set_state(struct relay *r, enum relay_state state)
{
	static const bool allowed[6][6] = {
		[RELAY_OFFLINE] = {[RELAY_STANDBY] = true, [RELAY_CLOSING] = true},
		[RELAY_STANDBY] = {[RELAY_OFFLINE] = true, [RELAY_ACTIVE] = true,
		[RELAY_STOPPING] = true, [RELAY_CLOSING] = true},
		[RELAY_ACTIVE] = {[RELAY_OFFLINE] = true, [RELAY_STANDBY] = true,
		[RELAY_STOPPING] = true},
		[RELAY_STOPPING] = {[RELAY_CLOSING] = true},
		[RELAY_CLOSING] = {[RELAY_DONE] = true},
	};

	if (!allowed[r->state][state])
	{
		log_error("impossible state change of the relay",
				  LOG_TEXT("from", state_names[r->state]),
				  LOG_TEXT("to", state_names[state]));
		abort();
	}
	log_debug("relay state", LOG_TEXT("state", state_names[state]));
	r->state = state;
}

static msec_t
span(const struct relay *r, enum setting setting)
{
	return config_number(r->config, setting);
}

static bool
is_once(const struct relay *r)
{
	return config_number(r->config, SET_ONCE) != 0;
}

static void
set_lease(struct relay *r, msec_t until)
{
	r->lease_until = until;
	r->publisher->send_until = until;
}

/* A lease shorter than three intervals must not run out between two renewals. */
static msec_t
next_renewal(const struct relay *r)
{
	return r->asked_at + clock_earlier(span(r, SET_RENEW_INTERVAL),
									   r->lease_ms / 3);
}

/* Begin the publisher's orderly end; the process exits with the status. */
static void
begin_closing(struct relay *r, msec_t now)
{
	set_state(r, RELAY_CLOSING);
	db_close(&r->db);
	r->publisher->ops->close(r->publisher, now);
}

/* No epoch, no window: whatever was in memory is the database's again. */
static void
forget_window(struct relay *r, const char *reason)
{
	if (r->claims.rows > 0)
		log_warn("window dropped", LOG_TEXT("reason", reason),
				 LOG_NUM("rows", r->claims.rows),
				 LOG_NUM("unconfirmed", r->claims.sent));
	r->epoch[0] = '\0';
	set_lease(r, 0);
	r->publisher->ops->forget(r->publisher, reason);
	claims_clear(&r->claims);
	r->settling = NULL;
}

static void
begin_stopping(struct relay *r, const char *reason, msec_t now)
{
	msec_t		bound = span(r, SET_STOP_TIMEOUT);
	msec_t		reserve = bound / 4 < STOP_RESERVE ? bound / 4 : STOP_RESERVE;

	if (r->state >= RELAY_STOPPING)
		return;
	log_info("relay stopping", LOG_TEXT("reason", reason),
			 LOG_NUM("unconfirmed", r->claims.sent),
			 LOG_NUM("unsent", r->claims.waiting));
	r->stop_until = now + bound;
	r->confirm_until = r->stop_until - reserve;
	if (r->state == RELAY_OFFLINE)
	{
		begin_closing(r, now);
		return;
	}
	set_state(r, RELAY_STOPPING);
	claims_release(&r->claims, false, "relay stopped before sending", now);
}

/* End with that status, orderly if a lease is held. */
static void
give_up(struct relay *r, enum exit_status status, msec_t now)
{
	if (r->state >= RELAY_STOPPING)
		return;
	r->status = status;
	begin_stopping(r, "cannot go on", now);
}

static void
lose_lease(struct relay *r, const char *reason, msec_t now)
{
	log_warn("lease lost", LOG_TEXT("reason", reason),
			 LOG_TEXT("epoch", r->epoch));
	forget_window(r, reason);
	if (r->state == RELAY_STOPPING)
	{
		begin_closing(r, now);
		return;
	}
	set_state(r, RELAY_STANDBY);
	r->standby_logged = false;
	r->acquire_at = now + ACQUIRE_INTERVAL;
}

/* ---- statements ---- */

static void
send_acquire(struct relay *r, msec_t now)
{
	const char *values[] = {config_text(r->config, SET_ORIGIN), r->name};

	r->asked_at = now;
	db_send(&r->db, DB_ACQUIRE, 2, values, now);
}

static void
send_lease_call(struct relay *r, enum db_statement statement, msec_t now)
{
	const char *values[] = {config_text(r->config, SET_ORIGIN), r->epoch};

	r->asked_at = now;
	db_send(&r->db, statement, 2, values, now);
}

static void
send_claim(struct relay *r, msec_t now)
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
	db_send(&r->db, DB_CLAIM, 4, values, now);
}

/* False if no outcome of the claim is ripe. */
static bool
send_settle(struct relay *r, struct claim *claim, msec_t now)
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
		db_send(&r->db, DB_SETTLE, 5, values, now);
	}
	buffer_free(&ids);
	buffer_free(&outcomes);
	buffer_free(&errors);
	return rows > 0;
}

static void
send_other_origins(struct relay *r, msec_t now)
{
	const char *values[] = {config_text(r->config, SET_ORIGIN)};

	r->list_origins = false;
	r->origins_listed = true;
	db_send(&r->db, DB_OTHER_ORIGINS, 1, values, now);
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
static msec_t
claim_due(const struct relay *r)
{
	if (!has_room(r))
		return CLOCK_NEVER;
	return r->claim_at > r->claim_not_before ? r->claim_at :
		r->claim_not_before;
}

/*
 * The lease comes first. Then whatever keeps the publisher busy: a claim if it
 * has nothing to send, else a settle, else a claim ahead.
 */
static void
next_active_statement(struct relay *r, msec_t now)
{
	bool		claim = now >= claim_due(r);
	struct claim *ripe = claims_to_settle(&r->claims, false, now);

	if (now >= r->renew_at)
		send_lease_call(r, DB_RENEW, now);
	else if (claim && r->claims.waiting == 0)
		send_claim(r, now);
	else if (ripe && send_settle(r, ripe, now))
		return;
	else if (claim)
		send_claim(r, now);
	else if (r->list_origins)
		send_other_origins(r, now);
	else if (now >= r->duty_at)
	{
		r->duty_at = now + span(r, SET_DUTY_INTERVAL);
		db_send(&r->db, DB_DUTIES, 0, NULL, now);
	}
}

static void
next_stopping_statement(struct relay *r, msec_t now)
{
	struct claim *ripe = claims_to_settle(&r->claims, true, now);

	if (r->epoch[0] == '\0')
		begin_closing(r, now);
	else if (now >= r->renew_at)
		send_lease_call(r, DB_RENEW, now);
	else if (ripe && send_settle(r, ripe, now))
		return;
	else if (r->claims.rows == 0)
		send_lease_call(r, DB_RELEASE, now);
}

static void
next_statement(struct relay *r, msec_t now)
{
	if (r->db.state != DB_IDLE)
		return;
	if (r->state == RELAY_STANDBY && now >= r->acquire_at)
		send_acquire(r, now);
	else if (r->state == RELAY_ACTIVE)
		next_active_statement(r, now);
	else if (r->state == RELAY_STOPPING)
		next_stopping_statement(r, now);
}

/* ---- results ---- */

/*
 * What the session prepared no longer fits the extension: it was dropped, made
 * anew, or updated. Only a new session can tell.
 */
static bool
is_stale(const PGresult *result)
{
	static const char *const states[] = {
		"XX000",				/* cache lookup failed for type */
		"42883", "42P01", "42704", "3F000", /* it is gone */
		"0A000",				/* cached plan must not change result type */
		NULL
	};

	for (int i = 0; states[i]; i++)
		if (db_state_is(result, states[i]))
			return true;
	return false;
}

/*
 * A failure of any statement but the optional ones. OX101: fenced. The role
 * lost its grant, the database is a copy: at start that ends the process, later
 * a person may mend it while we wait.
 */
static void
handle_failure(struct relay *r, const char *what, const PGresult *result,
			   msec_t now)
{
	bool		refused = db_state_is(result, "OX102") ||
		db_state_is(result, "OX103") || db_state_is(result, "42501");
	const char *next = db_state_is(result, "OX103") ?
		"run SELECT acme_outbox.adopt() if this copy shall send" :
		refused ? "run SELECT acme_outbox.grant_relay(role, origin)" : "";

	if (db_state_is(result, "OX101") && r->state != RELAY_STANDBY)
	{
		lose_lease(r, "fenced: another epoch holds the origin", now);
		return;
	}
	log_write(refused && !r->established ? LOG_ERROR : LOG_WARN,
			  "statement failed", LOG_TEXT("statement", what),
			  LOG_TEXT("sqlstate", db_sqlstate(result)),
			  LOG_TEXT("reason", db_message(result)),
			  LOG_TEXT("next_step", next), LOG_END);
	if (r->established && is_stale(result))
		db_drop(&r->db, DB_NOT_INSTALLED,
				"the extension was replaced or dropped, looking for it anew");
	if (!refused)
		return;
	if (!r->established)
		give_up(r, EXIT_NOT_PERMITTED, now);
	else if (r->state == RELAY_ACTIVE)
	{
		lose_lease(r, "not permitted", now);
		r->acquire_at = now + REFUSED_INTERVAL;
	}
}

static void
become_active(struct relay *r, const PGresult *result, msec_t now)
{
	snprintf(r->epoch, sizeof(r->epoch), "%s", PQgetvalue(result, 0, 0));
	r->lease_ms = strtoll(PQgetvalue(result, 0, 1), NULL, 10);
	set_lease(r, r->asked_at + r->lease_ms);
	r->renew_at = next_renewal(r);
	if (r->state == RELAY_STOPPING)
		return;					/* only to be released */
	set_state(r, RELAY_ACTIVE);
	r->claim_at = r->claim_not_before = now;
	r->duty_at = now + span(r, SET_DUTY_INTERVAL);
	log_info("lease acquired", LOG_TEXT("epoch", r->epoch),
			 LOG_NUM("lease_ms", r->lease_ms));
}

static void
stand_by(struct relay *r, msec_t now)
{
	r->acquire_at = now + ACQUIRE_INTERVAL;
	if (!r->standby_logged)
		log_info("another relay is active, standing by");
	r->standby_logged = true;
	if (is_once(r))
		give_up(r, EXIT_TEMPORARY, now);
}

static void
handle_acquire(struct relay *r, const PGresult *result, msec_t now)
{
	if (db_failed(result))
	{
		r->acquire_at = now + (r->established ? REFUSED_INTERVAL :
							   ACQUIRE_INTERVAL);
		handle_failure(r, "relay_acquire", result, now);
		return;
	}
	r->established = true;
	if (PQntuples(result) > 0)
		become_active(r, result, now);
	else if (r->state == RELAY_STANDBY)
		stand_by(r, now);
}

static void
handle_renew(struct relay *r, const PGresult *result, msec_t now)
{
	r->renew_at = now + ACQUIRE_INTERVAL;	/* should it have failed */
	if (db_failed(result))
		handle_failure(r, "relay_renew", result, now);
	else if (PQntuples(result) == 1 && PQgetvalue(result, 0, 0)[0] == 't')
	{
		set_lease(r, r->asked_at + r->lease_ms);
		r->renew_at = next_renewal(r);
	}
	else
		lose_lease(r, "the lease was not renewed", now);
}

static void
handle_release(struct relay *r, const PGresult *result, msec_t now)
{
	if (db_failed(result))
		log_warn("lease could not be released, it will expire",
				 LOG_TEXT("reason", db_message(result)));
	else
		log_info("lease released", LOG_TEXT("epoch", r->epoch));
	r->epoch[0] = '\0';
	begin_closing(r, now);
}

/* Nothing there: wait for a wake-up or the poll, or be done. */
static void
handle_empty_claim(struct relay *r, msec_t now)
{
	r->claim_at = r->notified ? now : now + span(r, SET_POLL_INTERVAL);
	if (!r->origins_listed)
		r->list_origins = true;
	/* with --once the others are listed first: our origin may be misspelt */
	if (is_once(r) && !r->list_origins && !r->notified && r->claims.rows == 0)
		begin_stopping(r, "drained", now);
}

/* Takes the result over. */
static void
handle_claim(struct relay *r, PGresult *result, msec_t now)
{
	struct claim *claim;

	if (db_failed(result))
	{
		r->claim_not_before = now + backoff_next(&r->claim_backoff,
												 (uint32_t) random());
		handle_failure(r, "claim", result, now);
		PQclear(result);
		return;
	}
	backoff_reset(&r->claim_backoff);
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
	if (r->state == RELAY_STOPPING)
		claims_release(&r->claims, false, "relay stopped before sending", now);
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

static void
handle_settle(struct relay *r, const PGresult *result, msec_t now)
{
	if (db_failed(result))
	{
		msec_t		delay = backoff_next(&r->settle_backoff,
										 (uint32_t) random());

		claims_settle_failed(&r->claims, r->settling, now + delay);
		r->settling = NULL;
		handle_failure(r, "settle", result, now);
		return;
	}
	backoff_reset(&r->settle_backoff);
	note_unsettled(r, result, now);
	claims_settle_done(&r->claims, r->settling);
	r->settling = NULL;
	if (is_once(r) && r->claims.rows == 0)
		r->claim_at = now;		/* the last claim that came back empty came early */
	crash_here(CRASH_SETTLED);
}

static void
handle_duties(const PGresult *result)
{
	if (db_failed(result))
	{
		log_warn("duties failed", LOG_TEXT("sqlstate", db_sqlstate(result)),
				 LOG_TEXT("reason", db_message(result)));
		return;
	}
	for (int i = 0; i < PQntuples(result); i++)
		log_debug("duty", LOG_TEXT("duty", PQgetvalue(result, i, 0)),
				  LOG_TEXT("result", PQgetvalue(result, i, 1)),
				  LOG_TEXT("affected", PQgetvalue(result, i, 2)));
}

/* Whoever started a relay with the wrong origin wants to know. */
static void
handle_other_origins(struct relay *r, const PGresult *result)
{
	char		text[ORIGINS_TEXT_MAX] = "";
	size_t		length = 0;

	if (is_once(r) && r->state == RELAY_ACTIVE)
		r->claim_at = 0;		/* now the claim that finds nothing may end it */
	if (db_failed(result) || PQntuples(result) == 0)
		return;
	for (int i = 0; i < PQntuples(result) && length < sizeof(text) - 1; i++)
		length += (size_t) snprintf(text + length, sizeof(text) - length,
									"%s%s (%s)", i ? ", " : "",
									PQgetvalue(result, i, 0),
									PQgetvalue(result, i, 1));
	log_info("own origin is empty, others are not",
			 LOG_TEXT("origin", config_text(r->config, SET_ORIGIN)),
			 LOG_TEXT("pending", text));
}

static void
on_result(void *owner, enum db_statement statement, PGresult *result)
{
	struct relay *r = owner;
	msec_t		now = clock_now();

	switch (statement)
	{
		case DB_ACQUIRE:
			handle_acquire(r, result, now);
			break;
		case DB_RENEW:
			handle_renew(r, result, now);
			break;
		case DB_RELEASE:
			handle_release(r, result, now);
			break;
		case DB_CLAIM:
			handle_claim(r, result, now);
			return;				/* it keeps or clears the result */
		case DB_SETTLE:
			handle_settle(r, result, now);
			break;
		case DB_DUTIES:
			handle_duties(result);
			break;
		case DB_OTHER_ORIGINS:
			handle_other_origins(r, result);
			break;
		case DB_STATEMENTS:
			break;
	}
	PQclear(result);
}

/* ---- the database connection's events ---- */

static void
on_db_up(void *owner)
{
	struct relay *r = owner;

	log_info("database ready", LOG_NUM("contract", r->db.contract_version),
			 LOG_NUM("server_version", PQserverVersion(r->db.conn)));
	set_state(r, RELAY_STANDBY);
	r->acquire_at = 0;
}

static void
on_notified(void *owner, const char *payload)
{
	struct relay *r = owner;

	if (strcmp(payload, "*") != 0 &&
		strcmp(payload, config_text(r->config, SET_ORIGIN)) != 0)
		return;
	r->notified = true;
	r->claim_at = 0;
	if (r->established && r->state == RELAY_STANDBY)
		r->acquire_at = 0;
}

static enum exit_status
status_of(enum db_failure failure)
{
	return failure == DB_NOT_INSTALLED ? EXIT_NOT_INSTALLED :
		failure == DB_NOT_PERMITTED ? EXIT_NOT_PERMITTED : EXIT_DATABASE;
}

static const char *
next_step_of(enum db_failure failure)
{
	return failure == DB_NOT_INSTALLED ?
		"run CREATE EXTENSION acme_outbox (or ALTER EXTENSION ... UPDATE) in "
		"this database" :
		failure == DB_NOT_PERMITTED ?
		"run SELECT acme_outbox.grant_relay(role, origin)" :
		failure == DB_STANDBY ?
		"this server is a standby: name all servers in --dsn or PGHOST and use "
		"target_session_attrs=read-write" :
		"check --dsn or the PG* variables, the password and that the server "
		"runs";
}

static void
on_db_down(void *owner, enum db_failure failure, const char *reason)
{
	struct relay *r = owner;
	msec_t		now = clock_now();

	if (r->state >= RELAY_CLOSING)
		return;
	if (r->established)
		log_warn(r->state == RELAY_OFFLINE ? "database not reachable" :
				 "database connection lost", LOG_TEXT("reason", reason),
				 LOG_NUM("retry_ms", r->db.retry_at - now));
	forget_window(r, "database connection lost");
	if (r->state == RELAY_STOPPING)
	{
		begin_closing(r, now);
		return;
	}
	if (r->state != RELAY_OFFLINE)
		set_state(r, RELAY_OFFLINE);
	r->standby_logged = false;
	if (!r->established)
	{
		log_error("cannot start: the database is not usable",
				  LOG_TEXT("reason", reason),
				  LOG_TEXT("next_step", next_step_of(failure)));
		give_up(r, status_of(failure), now);
	}
	else if (is_once(r))
		give_up(r, EXIT_TEMPORARY, now);
}

/* ---- the publisher's events ---- */

static void
on_decided(void *owner, struct row *row, enum outcome outcome,
		   const char *error)
{
	struct relay *r = owner;

	claims_decide(&r->claims, row, outcome, error, clock_now());
}

static void
on_again(void *owner, struct row *row)
{
	struct relay *r = owner;

	claims_again(&r->claims, row);
	if (r->state == RELAY_STOPPING)
		claims_decide(&r->claims, row, OUTCOME_RELEASED,
					  "relay stopped before sending again", clock_now());
}

/* What was not sent is given back: the broker may be away for long. */
static void
on_lost(void *owner)
{
	struct relay *r = owner;

	if (r->epoch[0] == '\0')
		return;					/* the window is being forgotten */
	claims_release(&r->claims, false, "broker connection lost before sending",
				   clock_now());
}

/* After the start a person may mend it while we wait. */
static void
on_refused(void *owner, const char *reason)
{
	struct relay *r = owner;
	bool		is_stdout = config_number(r->config, SET_SINK) == SINK_STDOUT;
	bool		is_tls = strncmp(reason, TLS_PREFIX, strlen(TLS_PREFIX)) == 0;

	if (r->publisher_seen && !is_stdout)
	{
		log_warn(is_tls ? "no TLS with the broker, retrying" :
				 "broker refused the login, retrying",
				 LOG_TEXT("reason", reason));
		return;
	}
	log_error(is_stdout ? "cannot write to stdout" :
			  is_tls ? "cannot start: no TLS with the broker" :
			  "cannot start: the broker refused the login",
			  LOG_TEXT("reason", reason),
			  LOG_TEXT("next_step", is_stdout ? "" : is_tls ?
					   "check the tls-* settings, the host in RABBITMQ_URI and "
					   "the certificates" :
					   "check the user, password and virtual host in "
					   "RABBITMQ_URI"));
	give_up(r, EXIT_PUBLISHER, clock_now());
}

/* ---- turns ---- */

static enum publish_result
offer_row(void *context, struct row *row, const struct message *m)
{
	struct relay *r = context;

	/* a crash may repeat what is sent and not settled: no more than a window */
	if (r->claims.sent + r->claims.confirmed >=
		config_number(r->config, SET_WINDOW))
		return PUBLISH_FULL;
	/* for the mid-window crash point: no more than half of the claim */
	if (crash_armed(CRASH_MID_WINDOW) &&
		r->claims.sent >= (r->claims.first->count + 1) / 2)
		return PUBLISH_FULL;
	return r->publisher->ops->publish(r->publisher, row, m, clock_now());
}

/* Offer what waits, and send it. */
static void
pump(struct relay *r, msec_t now)
{
	r->claims.strict = config_number(r->config, SET_STRICT_ORDER) != 0;
	if (r->state == RELAY_ACTIVE && now < r->lease_until &&
		r->claims.waiting > 0 && r->publisher->ops->ready(r->publisher))
		claims_offer(&r->claims, offer_row, r);
	r->publisher->ops->flush(r->publisher);
	if (crash_armed(CRASH_MID_WINDOW) && r->claims.first &&
		r->claims.sent >= (r->claims.first->count + 1) / 2 &&
		r->publisher->ops->idle(r->publisher))
		crash_here(CRASH_MID_WINDOW);
}

static void
log_summary(struct relay *r, const char *message, const uint64_t *counts,
			msec_t elapsed)
{
	log_info(message,
			 LOG_NUM("published", counts[OUTCOME_PUBLISHED]),
			 LOG_NUM("returned", counts[OUTCOME_UNROUTABLE]),
			 LOG_NUM("nacked", counts[OUTCOME_NACKED]),
			 LOG_NUM("released", counts[OUTCOME_RELEASED]),
			 LOG_NUM("rejected", counts[OUTCOME_REJECTED]),
			 LOG_NUM("in_flight", r->claims.sent),
			 LOG_NUM("waiting", r->claims.waiting),
			 LOG_NUM("rate", elapsed > 0 ? (int64_t)
					 counts[OUTCOME_PUBLISHED] * 1000 / elapsed : 0),
			 LOG_TEXT("state", state_names[r->state]));
}

static void
keep_summary(struct relay *r, msec_t now)
{
	for (int i = 0; i < OUTCOMES; i++)
	{
		r->counts[i] += r->claims.counts[i];
		r->totals[i] += r->claims.counts[i];
		r->claims.counts[i] = 0;
	}
	if (now < r->summary_at)
		return;
	log_summary(r, "summary", r->counts, now - r->summary_since);
	memset(r->counts, 0, sizeof(r->counts));
	r->summary_since = now;
	r->summary_at = now + span(r, SET_SUMMARY_INTERVAL);
}

/* How long --once waits for the publisher: each host has its turn. */
static msec_t
publisher_patience(const struct relay *r)
{
	return span(r, SET_CONNECT_TIMEOUT) * r->config->uri.count;
}

/* Is the publisher ready? With --once it must be so within bounds. */
static void
watch_publisher(struct relay *r, msec_t now)
{
	if (r->publisher->ops->ready(r->publisher))
	{
		r->publisher_seen = true;
		r->not_ready_since = CLOCK_NEVER;
		return;
	}
	if (r->not_ready_since == CLOCK_NEVER)
		r->not_ready_since = now;
	if (is_once(r) && r->state == RELAY_ACTIVE &&
		now - r->not_ready_since >= publisher_patience(r))
	{
		log_error("the broker is not reachable or blocked, giving up");
		give_up(r, EXIT_TEMPORARY, now);
	}
}

/* While stopping: the bounds. */
static void
keep_stopping(struct relay *r, msec_t now)
{
	if (r->state == RELAY_CLOSING && r->publisher->ops->closed(r->publisher))
		set_state(r, RELAY_DONE);
	if (r->state != RELAY_STOPPING)
		return;
	if (now >= r->confirm_until && r->claims.sent > 0)
	{
		log_warn("stopping without all confirms, releasing the rest",
				 LOG_NUM("unconfirmed", r->claims.sent));
		r->publisher->ops->forget(r->publisher, "relay stopped");
		claims_release(&r->claims, true, "relay stopped before the confirm",
					   now);
	}
	if (now >= r->stop_until)
	{
		log_warn("stop timeout: not everything could be settled",
				 LOG_NUM("rows", r->claims.rows));
		r->status = EXIT_TEMPORARY;
		forget_window(r, "stop timeout");
		begin_closing(r, now);
	}
}

static void
reload(struct relay *r)
{
	struct config fresh;
	const char *needs_restart = NULL;
	int			changed;

	if (config_load(&fresh, r->arguments->argc, r->arguments->argv) != EXIT_OK)
	{
		log_error("configuration not reloaded, the old values stay",
				  LOG_TEXT("reason", fresh.error));
		config_free(&fresh);
		return;
	}
	changed = config_reload(r->config, &fresh, &needs_restart);
	config_free(&fresh);
	log_setup((enum log_level) config_number(r->config, SET_LOG_LEVEL),
			  (enum log_format) config_number(r->config, SET_LOG_FORMAT));
	log_info("configuration reloaded", LOG_NUM("changed", changed));
	if (needs_restart)
		log_warn("a changed setting counts only after a restart",
				 LOG_TEXT("setting", needs_restart));
}

static void
handle_signals(struct relay *r, msec_t now)
{
	signals_read();
	if (signals_take_reload())
		reload(r);
	if (signals_stop_requested())
		begin_stopping(r, "signal", now);
}

/* The next moment at which something is due though nothing comes in. */
static msec_t
next_deadline(struct relay *r)
{
	msec_t		deadline = r->summary_at;

	deadline = clock_earlier(deadline, db_deadline(&r->db));
	deadline = clock_earlier(deadline,
							 r->publisher->ops->deadline(r->publisher));
	if (r->state == RELAY_STOPPING)
	{
		deadline = clock_earlier(deadline, r->stop_until);
		if (r->claims.sent > 0)
			deadline = clock_earlier(deadline, r->confirm_until);
	}
	if (is_once(r) && r->not_ready_since != CLOCK_NEVER)
		deadline = clock_earlier(deadline, r->not_ready_since +
								 publisher_patience(r));
	if (r->db.state != DB_IDLE)
		return deadline;
	if (r->state == RELAY_STANDBY)
		return clock_earlier(deadline, r->acquire_at);
	deadline = clock_earlier(deadline, r->renew_at);
	deadline = clock_earlier(deadline, claims_settle_due(&r->claims));
	if (r->state != RELAY_ACTIVE)
		return deadline;
	deadline = clock_earlier(deadline, claim_due(r));
	return clock_earlier(deadline, r->duty_at);
}

static int
wait_time(struct relay *r)
{
	msec_t		deadline = next_deadline(r);
	msec_t		now = clock_now();

	if (deadline <= now)
		return 0;
	return deadline - now > 60000 ? 60000 : (int) (deadline - now);
}

static void
turn(struct relay *r)
{
	struct pollfd fds[3] = {
		{.fd = signals_fd(), .events = POLLIN},
		{.fd = -1},				/* poll() passes over those not in use */
		{.fd = -1},
	};
	msec_t		now;

	db_poll_fd(&r->db, &fds[1]);
	r->publisher->ops->poll_fd(r->publisher, &fds[2]);
	if (poll(fds, 3, wait_time(r)) < 0)
	{
		if (errno != EINTR)
			abort();
		fds[1].revents = fds[2].revents = 0;
	}
	now = clock_now();
	handle_signals(r, now);
	db_turn(&r->db, fds[1].revents, now);
	r->publisher->ops->turn(r->publisher, fds[2].revents, now);
	watch_publisher(r, now);
	pump(r, now);
	next_statement(r, now);
	keep_stopping(r, now);
	keep_summary(r, now);
}

/* ---- start ---- */

static void
make_name(struct relay *r)
{
	const char *prefix = config_text(r->config, SET_RELAY_NAME);
	char		host[128] = "localhost";
	unsigned long long noise = 0;

	if (getrandom(&noise, sizeof(noise), 0) != sizeof(noise))
		abort();
	srandom((unsigned) noise);
	gethostname(host, sizeof(host) - 1);
	snprintf(r->name, sizeof(r->name), "%s:%ld:%016llx",
			 prefix ? prefix : host, (long) getpid(), noise);
}

static void
make_publisher(struct relay *r)
{
	struct publisher_events events = {on_decided, on_again, on_lost, on_refused,
	r};
	struct broker_settings settings = {
		.uri = r->config->uri,
		.tls = config_tls(r->config),
		.connection_name = r->name,
		.version = r->arguments->version,
		.connect_timeout = span(r, SET_CONNECT_TIMEOUT),
		.heartbeat = span(r, SET_HEARTBEAT),
		.reconnect_min = span(r, SET_RECONNECT_MIN),
		.reconnect_max = span(r, SET_RECONNECT_MAX),
	};

	if (settings.tls.enabled && !settings.tls.verify)
		log_warn("the broker's certificate is not verified: anybody on the way "
				 "can read and change what is sent",
				 LOG_TEXT("setting", "tls-verify = false"));
	if (config_number(r->config, SET_SINK) == SINK_STDOUT)
		r->publisher = sink_stdout_new(&events);
	else
		r->publisher = rabbit_new(&settings, &events, (uint32_t)
								  config_number(r->config, SET_WINDOW),
								  span(r, SET_CONFIRM_TIMEOUT));
}

static void
make_db(struct relay *r)
{
	struct db_settings settings = {
		.dsn = config_text(r->config, SET_DSN),
		.connect_timeout = span(r, SET_CONNECT_TIMEOUT),
		.reconnect_min = span(r, SET_RECONNECT_MIN),
		.reconnect_max = span(r, SET_RECONNECT_MAX),
	};
	struct db_events events = {on_db_up, on_result, on_notified, on_db_down, r};

	db_init(&r->db, &settings, &events);
}

enum exit_status
relay_run(struct config *config, const struct relay_arguments *arguments)
{
	struct relay relay = {
		.config = config,
		.arguments = arguments,
		.state = RELAY_OFFLINE,
		.not_ready_since = CLOCK_NEVER,
		.started_at = clock_now(),
	};
	struct relay *r = &relay;

	r->summary_since = r->started_at;
	r->summary_at = r->summary_since + span(r, SET_SUMMARY_INTERVAL);
	make_name(r);
	signals_setup();
	log_info("relay starting", LOG_TEXT("version", arguments->version),
			 LOG_TEXT("origin", config_text(config, SET_ORIGIN)),
			 LOG_TEXT("relay", r->name), LOG_NUM("contract", CONTRACT_VERSION));
	claims_init(&r->claims, config_text(config, SET_ORIGIN));
	backoff_init(&r->claim_backoff, span(r, SET_RECONNECT_MIN),
				 span(r, SET_RECONNECT_MAX));
	r->settle_backoff = r->claim_backoff;
	make_publisher(r);
	make_db(r);
	while (r->state != RELAY_DONE)
		turn(r);
	keep_summary(r, 0);
	log_summary(r, "relay stopped", r->totals, clock_now() - r->started_at);
	claims_clear(&r->claims);
	r->publisher->ops->free(r->publisher);
	db_free(&r->db);
	return r->status;
}
