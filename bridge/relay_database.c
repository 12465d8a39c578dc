/*
 * relay_database.c
 *		The database connection: which statement is next, whose result came,
 *		and what a failure means.
 *
 * The connection runs one statement at a time. relay_next_statement() picks it
 * by the relay's state; on_result() hands the result to whoever sent it.
 */
#include "relay_internal.h"

#include <stdlib.h>
#include <string.h>

#include "log.h"

/*
 * No statement may take the connection for so long that the lease (30 s,
 * renewed every 10 s) runs out behind it.
 */
#define STATEMENT_TIMEOUT	15000
/* Our own bound, should the server not answer at all. */
#define ANSWER_TIMEOUT		20000

#define STRINGIFY(x)		#x
#define TO_STRING(x)		STRINGIFY(x)

static const struct db_statement statements[STATEMENTS] = {
	[STATEMENT_ACQUIRE] = {"acquire",
	"SELECT epoch, lease_ms FROM acme_outbox.relay_acquire($1, $2)", false},
	[STATEMENT_RENEW] = {"renew", "SELECT acme_outbox.relay_renew($1, $2)", false},
	[STATEMENT_RELEASE] = {"release", "SELECT acme_outbox.relay_release($1, $2)",
	false},
	/* a convenience, as below */
	[STATEMENT_HOLDER] = {"lease holder",
		"SELECT relay, ceil(extract(epoch FROM lease_expires_at - "
		"clock_timestamp()) * 1000)::bigint FROM acme_outbox.outbox_backlog "
	"WHERE origin = $1 AND relay_active", true},
	[STATEMENT_CLAIM] = {"claim", CLAIM_SQL, false},
	[STATEMENT_CLAIM_FAILED] = {"claim_failed", CLAIM_FAILED_SQL, false},
	[STATEMENT_SETTLE] = {"settle", SETTLE_SQL, false},
	[STATEMENT_DUTIES] = {"duties",
	"SELECT duty, result, affected FROM acme_outbox.run_due_duties()", false},
	/* a convenience: a role may lack the right, an extension the view */
	[STATEMENT_OTHER_ORIGINS] = {"other origins",
		"SELECT origin, pending FROM acme_outbox.outbox_backlog "
	"WHERE origin <> $1 AND pending > 0 ORDER BY pending DESC LIMIT 10", true},
};

/*
 * The session commits asynchronously: claim() hardens itself, and a settle
 * that is lost in a server crash only sends duplicates. Compiling a statement
 * (JIT) can take seconds, during which nothing could be claimed or settled.
 */
static const struct db_session session = {
	.setup = "SET synchronous_commit = off;"
	"SET statement_timeout = " TO_STRING(STATEMENT_TIMEOUT) ";"
	"SET jit = off;"
	"SET default_transaction_isolation = 'read committed';"
	"LISTEN acme_outbox",
	.statements = statements,
	.statement_count = STATEMENTS,
	.answer_timeout = ANSWER_TIMEOUT,
};

/*
 * The lease comes first. Then whatever keeps the publisher busy: a claim if it
 * has nothing to send, else a settle, else a claim ahead. Dead letters wait until
 * there is nothing of that.
 */
static void
next_active_statement(struct relay *r, msec_t now)
{
	bool		claim = now >= relay_claim_due(r);

	if (now >= r->renew_at)
		relay_send_lease_call(r, STATEMENT_RENEW, now);
	else if (claim && r->claims.waiting == 0)
		relay_send_claim(r, now);
	else if (relay_send_settle(r, false, now))
		return;
	else if (claim)
		relay_send_claim(r, now);
	else if (now >= relay_failed_due(r))
		relay_send_claim_failed(r, now);
	else if (r->list_origins)
		relay_send_other_origins(r, now);
	else if (now >= r->duty_at)
	{
		r->duty_at = now + relay_span(r, SET_DUTY_INTERVAL);
		db_send(&r->db, STATEMENT_DUTIES, 0, NULL, now);
	}
}

static void
next_stopping_statement(struct relay *r, msec_t now)
{
	if (r->epoch[0] == '\0')
		relay_begin_closing(r, now);
	else if (now >= r->renew_at)
		relay_send_lease_call(r, STATEMENT_RENEW, now);
	else if (relay_send_settle(r, true, now))
		return;
	else if (relay_rows(r) == 0)
		relay_send_lease_call(r, STATEMENT_RELEASE, now);
}

void
relay_next_statement(struct relay *r, msec_t now)
{
	if (r->db.state != DB_IDLE)
		return;
	if (r->state == RELAY_STANDBY && r->ask_holder)
		relay_send_holder(r, now);
	else if (r->state == RELAY_STANDBY && now >= r->acquire_at)
		relay_send_acquire(r, now);
	else if (r->state == RELAY_ACTIVE)
		next_active_statement(r, now);
	else if (r->state == RELAY_STOPPING)
		next_stopping_statement(r, now);
}

/*
 * A failure of any statement but the optional ones. OX101: fenced. The role
 * lost its grant, the database is a copy: at start that ends the process, later
 * a person may mend it while we wait.
 */
void
relay_handle_failure(struct relay *r, const char *what, const PGresult *result,
			   msec_t now)
{
	bool		refused = db_state_is(result, "OX102") ||
		db_state_is(result, "OX103") || db_state_is(result, "42501");
	const char *next = db_state_is(result, "OX103") ?
		"run SELECT acme_outbox.adopt() if this copy shall send" :
		refused ? "run SELECT acme_outbox.grant_relay(role, origin)" : "";

	if (db_state_is(result, "OX101") && r->state != RELAY_STANDBY)
	{
		relay_lose_lease(r, "fenced: another epoch holds the origin", now);
		return;
	}
	log_write(refused && !r->established ? LOG_ERROR : LOG_WARN,
			  "statement failed", LOG_TEXT("statement", what),
			  LOG_TEXT("sqlstate", db_sqlstate(result)),
			  LOG_TEXT("reason", db_message(result)),
			  LOG_TEXT("next_step", next), LOG_END);
	if (r->established && db_is_stale(result))
		db_drop(&r->db, DB_NOT_INSTALLED,
				"the extension was replaced or dropped, looking for it anew");
	if (!refused)
		return;
	if (!r->established)
		relay_give_up(r, EXIT_NOT_PERMITTED, now);
	else if (r->state == RELAY_ACTIVE)
	{
		relay_lose_lease(r, "not permitted", now);
		r->acquire_at = now + REFUSED_INTERVAL;
	}
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
				  LOG_NUM("affected", strtoll(PQgetvalue(result, i, 2), NULL, 10)));
}

static void
on_result(void *owner, int statement, PGresult *result)
{
	struct relay *r = owner;
	msec_t		now = clock_now();

	switch ((enum relay_statement) statement)
	{
		case STATEMENT_ACQUIRE:
			relay_handle_acquire(r, result, now);
			break;
		case STATEMENT_RENEW:
			relay_handle_renew(r, result, now);
			break;
		case STATEMENT_RELEASE:
			relay_handle_release(r, result, now);
			break;
		case STATEMENT_HOLDER:
			relay_handle_holder(r, result, now);
			break;
		case STATEMENT_CLAIM:
			relay_handle_claim(r, result, now);
			return;				/* it keeps or clears the result */
		case STATEMENT_CLAIM_FAILED:
			relay_handle_claim_failed(r, result, now);
			return;
		case STATEMENT_SETTLE:
			relay_handle_settle(r, result, now);
			break;
		case STATEMENT_DUTIES:
			handle_duties(result);
			break;
		case STATEMENT_OTHER_ORIGINS:
			relay_handle_other_origins(r, result);
			break;
		case STATEMENTS:
			break;
	}
	PQclear(result);
}

static void
on_db_up(void *owner)
{
	struct relay *r = owner;

	log_info("database ready", LOG_NUM("contract", r->db.contract_version),
			 LOG_NUM("server_version", PQserverVersion(r->db.conn)));
	relay_set_state(r, RELAY_STANDBY);
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
	relay_forget_window(r, "database connection lost");
	if (r->state == RELAY_STOPPING)
	{
		relay_begin_closing(r, now);
		return;
	}
	if (r->state != RELAY_OFFLINE)
		relay_set_state(r, RELAY_OFFLINE);
	r->standby_logged = r->ask_holder = false;
	if (!r->established)
	{
		log_error("cannot start: the database is not usable",
				  LOG_TEXT("reason", reason),
				  LOG_TEXT("next_step", db_next_step(failure,
										   "run SELECT acme_outbox.grant_relay(role, origin)")));
		relay_give_up(r, db_exit_status(failure), now);
	}
	else if (relay_is_once(r))
		relay_give_up(r, EXIT_TEMPORARY, now);
}

void
relay_make_db(struct relay *r)
{
	struct db_settings settings = {
		.dsn = config_text(r->config, SET_DSN),
		.connect_timeout = relay_span(r, SET_CONNECT_TIMEOUT),
		.reconnect_min = relay_span(r, SET_RECONNECT_MIN),
		.reconnect_max = relay_span(r, SET_RECONNECT_MAX),
		.session = &session,
	};
	struct db_events events = {on_db_up, on_result, on_notified, on_db_down, r};

	db_init(&r->db, &settings, &events);
}
