/*
 * consume_database.c
 *		The database connection: its session, whose result came, and what its end
 *		means.
 *
 * A new session is probed with an empty batch before it is given messages: no
 * inbox, no handler or no permission end the process at the start, as do an
 * unreachable server and a missing extension. Later all of these are waited for.
 */
#include "consume_internal.h"

#include <stdio.h>
#include <string.h>

#include "log.h"

/* Beyond the statement's own timeout: the server does not answer at all. */
#define ANSWER_GRACE	10000

/* The event id as the inbox reads it. */
#define EVENT_ID(envelope) envelope "::jsonb #>> '{header,eventId}'"
#define ENVELOPE "($2::text[])[r.ordinal]"

/* $5: count the attempts of those that fail */
#define RUN_SQL \
	"SELECT r.ordinal, r.outcome, r.sqlstate, r.message, r.context, " \
	"CASE WHEN r.outcome = 'failed' AND $5::boolean THEN " \
	"(acme_outbox.inbox_attempt($1, " EVENT_ID(ENVELOPE) ")).attempts END, " \
	"CASE WHEN r.outcome = 'failed' THEN EXISTS (" \
	"SELECT FROM acme_outbox.redaction_rule AS rule WHERE rule.event_name = " \
	ENVELOPE "::jsonb #>> '{body,eventName}') END " \
	"FROM acme_outbox.inbox_try_process_batch($1, $2::text[], $3, $4::jsonb[]) " \
	"AS r"

static const struct db_statement statements[STATEMENTS] = {
	[STATEMENT_PROBE] = {"probe", RUN_SQL, false},
	[STATEMENT_COUNT] = {"count attempts",
		"SELECT attempts FROM acme_outbox.inbox_attempt($1, "
	EVENT_ID("$2::text") ")", false},
	[STATEMENT_RUN] = {"run batch", RUN_SQL, false},
};

/*
 * A change must be as durable as its acknowledgement. Statement parameters, which
 * are payloads, must not come into an error's context. A handler's notices, which
 * could quote one, are not even sent.
 */
static const char setup_format[] =
"SET synchronous_commit = on;"
"SET statement_timeout = %lld;"
"SET jit = off;"
"SET client_min_messages = error;"
"SET log_parameter_max_length_on_error = 0;"
"SET default_transaction_isolation = 'read committed'";

void
consume_probe(struct consume *c, msec_t now)
{
	const char *values[] = {config_text(c->config, SET_CONSUMER), "{}",
	config_text(c->config, SET_HANDLER), "{}", "false"};

	db_send(&c->db, STATEMENT_PROBE, 5, values, now);
}

static const char *
next_step_for(const PGresult *result)
{
	if (db_state_is(result, "OX201"))
		return "run SELECT acme_outbox.create_inbox(schema), and "
			"ALTER ROLE ... SET acme_outbox.inbox_schema = schema";
	if (db_state_is(result, "OX202"))
		return "name the handler schema.function, without arguments, or create "
			"it: CREATE FUNCTION schema.function(message jsonb) RETURNS void";
	if (db_state_is(result, "42501"))
		return "run SELECT acme_outbox.grant_consumer(role, schema), and GRANT "
			"EXECUTE on the handler";
	return "";
}

/* The error text of a handler could quote a payload: it is not logged. */
void
consume_note_failure(struct consume *c, const PGresult *result,
					 const char *what)
{
	const char *next = next_step_for(result);

	log_warn("statement failed", LOG_TEXT("statement", what),
			 LOG_TEXT("sqlstate", db_sqlstate(result)),
			 LOG_TEXT("reason", *next ? db_message(result) : ""),
			 LOG_TEXT("next_step", next));
	consume_note_stale(c, result);
}

void
consume_note_stale(struct consume *c, const PGresult *result)
{
	if (db_is_stale(result))
		db_drop(&c->db, DB_NOT_INSTALLED,
				"the extension was replaced or dropped, looking for it anew");
}

static enum exit_status
status_for(const PGresult *result)
{
	return db_state_is(result, "42501") ? EXIT_NOT_PERMITTED :
		db_state_is(result, "OX204") ? EXIT_USAGE : EXIT_NOT_INSTALLED;
}

static void
handle_probe(struct consume *c, const PGresult *result, msec_t now)
{
	if (!db_failed(result))
	{
		c->probed = true;
		c->database_lost_at = CLOCK_NEVER;
		if (c->state == CONSUME_STARTING)
			consume_set_state(c, CONSUME_RUNNING);
		return;
	}
	if (c->state != CONSUME_STARTING)
	{
		log_warn("the database cannot handle messages",
				 LOG_TEXT("sqlstate", db_sqlstate(result)),
				 LOG_TEXT("reason", db_message(result)),
				 LOG_TEXT("next_step", next_step_for(result)));
		db_drop(&c->db, DB_NOT_PERMITTED, "the session cannot handle messages");
		return;
	}
	log_error("cannot start: the database cannot handle messages",
			  LOG_TEXT("sqlstate", db_sqlstate(result)),
			  LOG_TEXT("reason", db_message(result)),
			  LOG_TEXT("next_step", next_step_for(result)));
	consume_give_up(c, status_for(result), now);
}

static void
on_result(void *owner, int statement, PGresult *result)
{
	struct consume *c = owner;
	msec_t		now = clock_now();

	switch ((enum consume_statement) statement)
	{
		case STATEMENT_PROBE:
			handle_probe(c, result, now);
			break;
		case STATEMENT_COUNT:
			consume_handle_count(c, result, now);
			break;
		case STATEMENT_RUN:
			consume_handle_run(c, result, now);
			break;
		case STATEMENTS:
			break;
	}
	PQclear(result);
}

static void
on_db_up(void *owner)
{
	struct consume *c = owner;

	log_info("database ready", LOG_NUM("contract", c->db.contract_version),
			 LOG_NUM("server_version", PQserverVersion(c->db.conn)));
	consume_probe(c, clock_now());
}

static void
on_db_down(void *owner, enum db_failure failure, const char *reason)
{
	struct consume *c = owner;
	msec_t		now = clock_now();
	bool		was_ready = c->probed;

	c->probed = false;
	if (was_ready)
		c->database_lost_at = now;
	consume_drop_batch(c, now);
	if (c->state == CONSUME_STARTING)
	{
		log_error("cannot start: the database is not usable",
				  LOG_TEXT("reason", reason),
				  LOG_TEXT("next_step", db_next_step(failure,
										   "run SELECT acme_outbox.grant_consumer(role, schema)")));
		consume_give_up(c, db_exit_status(failure), now);
	}
	else if (c->state == CONSUME_RUNNING)
		log_warn(was_ready ? "database connection lost" :
				 "database not reachable", LOG_TEXT("reason", reason),
				 LOG_NUM("retry_ms", c->db.retry_at - now));
}

void
consume_make_db(struct consume *c)
{
	msec_t		timeout = consume_span(c, SET_BATCH_TIMEOUT);
	struct db_settings settings = {
		.dsn = config_text(c->config, SET_DSN),
		.connect_timeout = consume_span(c, SET_CONNECT_TIMEOUT),
		.reconnect_min = consume_span(c, SET_RECONNECT_MIN),
		.reconnect_max = consume_span(c, SET_RECONNECT_MAX),
		.session = &c->session,
	};
	struct db_events events = {on_db_up, on_result, NULL, on_db_down, c};

	snprintf(c->setup, sizeof(c->setup), setup_format, (long long) timeout);
	c->session = (struct db_session){
		.setup = c->setup,
		.statements = statements,
		.statement_count = STATEMENTS,
		.answer_timeout = timeout + ANSWER_GRACE,
		.hides_notices = true,
	};
	db_init(&c->db, &settings, &events);
}
