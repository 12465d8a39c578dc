/*
 * db.c
 *		One asynchronous PostgreSQL connection, one statement at a time.
 *
 *		DOWN -> RESOLVING -> CONNECTING -> SETUP -> IDLE <-> BUSY, and back to
 *		DOWN
 *
 * changed only in set_state(). SETUP runs what the user's struct db_session asks
 * for: its settings, the contract's version, and the prepared statements; the
 * version comes before anything that needs the extension, so that a missing one
 * is told apart from a failure.
 *
 * Nothing here waits: every step has a deadline of ours, since libpq's
 * connect_timeout does not count for PQconnectPoll(), and host names are looked
 * up before libpq sees them (dsn.c), anew for each connection.
 */
#include "db.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"

#define APPLICATION_NAME	"acme-outbox-bridge"

/* A connection that lasted this long was a good one: backoff starts anew. */
#define DB_PROVEN			10000

#define TEXT_MAX			512

enum setup_step
{
	SETUP_SESSION,
	SETUP_VERSION,
	SETUP_PREPARE				/* and one step for each statement */
};

static const char *const state_names[] = {
	"down", "resolving", "connecting", "setup", "idle", "busy"
};

/* The only place where the state changes; nonsense ends the process. */
static void
set_state(struct db *db, enum db_state state)
{
	enum db_state from = db->state;
	bool		allowed = false;

	switch (state)
	{
		case DB_DOWN:
			allowed = true;
			break;
		case DB_RESOLVING:
			allowed = from == DB_DOWN;
			break;
		case DB_CONNECTING:
			allowed = from == DB_RESOLVING || from == DB_CONNECTING;
			break;
		case DB_SETUP:
			allowed = from == DB_CONNECTING;
			break;
		case DB_IDLE:
			allowed = from == DB_SETUP || from == DB_BUSY;
			break;
		case DB_BUSY:
			allowed = from == DB_IDLE;
			break;
	}
	if (!allowed)
	{
		log_error("impossible state change of the database connection",
				  LOG_TEXT("from", state_names[from]),
				  LOG_TEXT("to", state_names[state]));
		abort();
	}
	db->state = state;
}

void
db_init(struct db *db, const struct db_settings *settings,
		const struct db_events *events)
{
	memset(db, 0, sizeof(*db));
	db->settings = *settings;
	db->events = *events;
	db->wants_connection = true;
	backoff_init(&db->backoff, settings->reconnect_min,
				 settings->reconnect_max);
}

bool
db_is_up(const struct db *db)
{
	return db->state == DB_IDLE || db->state == DB_BUSY;
}

static void
release_connection(struct db *db)
{
	if (db->resolver)
		resolver_abandon(db->resolver);
	db->resolver = NULL;
	PQclear(db->result);
	db->result = NULL;
	if (db->conn)
		PQfinish(db->conn);
	db->conn = NULL;
}

void
db_free(struct db *db)
{
	release_connection(db);
}

/* End the connection, plan the next one, and tell the owner, who logs it. */
void
db_drop(struct db *db, enum db_failure failure, const char *reason)
{
	char		text[TEXT_MAX];
	msec_t		now = clock_now();

	if (db->state == DB_DOWN)
		return;
	/* the reason may live in the connection; its first line is enough */
	snprintf(text, sizeof(text), "%.*s", (int) strcspn(reason, "\n"), reason);
	if (db_is_up(db) && now - db->up_since >= DB_PROVEN)
		backoff_reset(&db->backoff);
	release_connection(db);
	set_state(db, DB_DOWN);
	db->retry_at = now + backoff_next(&db->backoff, (uint32_t) random());
	db->events.down(db->events.owner, failure, text);
}

/* ---- results ---- */

bool
db_failed(const PGresult *result)
{
	ExecStatusType status = PQresultStatus(result);

	return status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK;
}

const char *
db_sqlstate(const PGresult *result)
{
	const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);

	return state ? state : "";
}

bool
db_state_is(const PGresult *result, const char *sqlstate)
{
	return strcmp(db_sqlstate(result), sqlstate) == 0;
}

/*
 * What the session prepared no longer fits the extension: it was dropped, made
 * anew, or updated. Only a new session can tell.
 */
bool
db_is_stale(const PGresult *result)
{
	static const char *const states[] = {
		"XX000",				/* cache lookup failed for type */
		"42883", "42P01", "42704", "3F000", /* it is gone */
		"0A000",				/* cached plan must not change result type */
		"26000",				/* prepared in another session */
		NULL
	};

	for (int i = 0; states[i]; i++)
		if (db_state_is(result, states[i]))
			return true;
	return false;
}

/* The primary message alone: a DETAIL could quote a row. */
const char *
db_message(const PGresult *result)
{
	const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);

	return message ? message : "no message";
}

/* ---- what a failure means to a command ---- */

enum exit_status
db_exit_status(enum db_failure failure)
{
	return failure == DB_NOT_INSTALLED ? EXIT_NOT_INSTALLED :
		failure == DB_NOT_PERMITTED ? EXIT_NOT_PERMITTED : EXIT_DATABASE;
}

/* grant: what to run where the role lacks a right. */
const char *
db_next_step(enum db_failure failure, const char *grant)
{
	switch (failure)
	{
		case DB_NOT_INSTALLED:
			return "run CREATE EXTENSION acme_outbox (or ALTER EXTENSION ... "
				"UPDATE) in this database";
		case DB_NOT_PERMITTED:
			return grant;
		case DB_STANDBY:
			return "this server is a standby: name all servers in --dsn or "
				"PGHOST and use target_session_attrs=read-write";
		case DB_UNREACHABLE:
			break;
	}
	return "check --dsn or the PG* variables, the password and that the server "
		"runs";
}

static void
log_notice(void *argument, const PGresult *result)
{
	const char *severity = PQresultErrorField(result,
											  PG_DIAG_SEVERITY_NONLOCALIZED);
	enum log_level level = severity && strcmp(severity, "WARNING") == 0 ?
		LOG_WARN : LOG_INFO;

	(void) argument;
	log_write(level, "message from the database",
			  LOG_TEXT("severity", severity), LOG_TEXT("text", db_message(result)),
			  LOG_TEXT("sqlstate", db_sqlstate(result)), LOG_END);
}

static void
hide_notice(void *argument, const PGresult *result)
{
	(void) argument;
	(void) result;
}

/* ---- getting connected ---- */

static void
begin_connecting(struct db *db, msec_t now)
{
	const char *keywords[] = {"dbname", "fallback_application_name",
	"client_encoding", "host", "hostaddr", "port", NULL};
	const char *values[] = {db->settings.dsn, APPLICATION_NAME, "UTF8", NULL,
	NULL, NULL, NULL};
	struct dsn_texts texts = {0};

	set_state(db, DB_CONNECTING);
	db->deadline = now + db->settings.connect_timeout;
	if (db->hosts.count > 0)
	{
		dsn_write_texts(&db->hosts, db->silent_address, db->silent_port, &texts);
		values[3] = buffer_text(&texts.host);
		values[4] = buffer_text(&texts.hostaddr);
		values[5] = buffer_text(&texts.port);
	}
	db->conn = PQconnectStartParams(keywords, values, 1);
	dsn_free_texts(&texts);
	if (db->conn == NULL)
		abort();
	db->polling = PGRES_POLLING_WRITING;
	if (PQstatus(db->conn) == CONNECTION_BAD)
		db_drop(db, DB_UNREACHABLE, PQerrorMessage(db->conn));
	else
		PQsetNoticeReceiver(db->conn, db->settings.session &&
							db->settings.session->hides_notices ?
							hide_notice : log_notice, NULL);
}

/* Look up the next name, or connect when all are known. */
static void
resolve_next(struct db *db, msec_t now)
{
	for (; db->resolving < db->hosts.count; db->resolving++)
	{
		const struct dsn_host *host = &db->hosts.hosts[db->resolving];

		if (!host->resolvable)
		{
			dsn_add_addresses(&db->hosts, db->resolving, NULL);
			continue;
		}
		db->deadline = now + db->settings.connect_timeout;
		db->resolver = resolver_start(host->name, NULL);
		if (db->resolver == NULL)
			db_drop(db, DB_UNREACHABLE, "cannot start name resolution");
		return;
	}
	if (db->hosts.count > 0 && db->hosts.address_count == 0)
		db_drop(db, DB_UNREACHABLE, db->hosts.count == 1 ?
				"the host's name cannot be resolved" :
				"none of the hosts' names can be resolved");
	else
		begin_connecting(db, now);
}

static void
begin_resolving(struct db *db, msec_t now)
{
	set_state(db, DB_RESOLVING);
	dsn_read_hosts(db->settings.dsn, &db->hosts);
	db->resolving = db->silent_count = 0;
	resolve_next(db, now);
}

/* This name is known, or given up; the others may do. */
static void
finish_resolving(struct db *db, bool in_time, msec_t now)
{
	struct addrinfo *addresses = NULL;
	int			error = EAI_AGAIN;

	if (in_time && resolver_finish(db->resolver, &addresses, &error))
		dsn_add_addresses(&db->hosts, db->resolving, addresses);
	else
		log_warn("cannot resolve a database host",
				 LOG_TEXT("host", db->hosts.hosts[db->resolving].name),
				 LOG_TEXT("reason", in_time ? gai_strerror(error) : "timeout"));
	if (addresses)
		freeaddrinfo(addresses);
	if (!in_time)
		resolver_abandon(db->resolver);
	db->resolver = NULL;
	db->resolving++;
	resolve_next(db, now);
}

/*
 * The address being tried does not answer. Those behind it have their turn at
 * once; after as many such as there are addresses, the attempt has failed, and
 * the next one begins behind this one, too.
 */
static void
pass_over_silent(struct db *db, msec_t now)
{
	const char *address = PQhostaddr(db->conn);
	const char *port = PQport(db->conn);

	snprintf(db->silent_address, sizeof(db->silent_address), "%s",
			 address ? address : "");
	snprintf(db->silent_port, sizeof(db->silent_port), "%s", port ? port : "");
	if (++db->silent_count >= db->hosts.address_count)
	{
		db_drop(db, DB_UNREACHABLE, "timeout while connecting");
		return;
	}
	log_info("a database host does not answer, trying the next address",
			 LOG_TEXT("address", db->silent_address),
			 LOG_NUM("port", atoi(db->silent_port)));
	release_connection(db);
	begin_connecting(db, now);
}

static void
flush(struct db *db)
{
	if (PQflush(db->conn) < 0)
		db_drop(db, DB_UNREACHABLE, PQerrorMessage(db->conn));
}

/* The statement that a set-up step prepares, or NULL. */
static const struct db_statement *
prepared_by(const struct db *db, int step)
{
	return step < SETUP_PREPARE ? NULL :
		&db->settings.session->statements[step - SETUP_PREPARE];
}

static void
send_setup(struct db *db)
{
	const struct db_statement *statement = prepared_by(db, db->setup_step);
	int			sent;

	if (statement)
		sent = PQsendPrepare(db->conn, statement->name, statement->text, 0,
							 NULL);
	else
		sent = PQsendQuery(db->conn, db->setup_step == SETUP_SESSION ?
						   db->settings.session->setup :
						   "SELECT acme_outbox.contract_version()");
	if (!sent)
		db_drop(db, DB_UNREACHABLE, PQerrorMessage(db->conn));
	else
		flush(db);
}

static void
become_ready(struct db *db, msec_t now)
{
	set_state(db, DB_IDLE);
	db->silent_address[0] = '\0';
	db->up_since = now;
	db->deadline = CLOCK_NEVER;
	db->events.up(db->events.owner);
}

static void
begin_setup(struct db *db, msec_t now)
{
	set_state(db, DB_SETUP);
	if (db->settings.session == NULL)
	{
		become_ready(db, now);
		return;
	}
	db->deadline = now + db->settings.connect_timeout;
	db->setup_step = 0;
	PQsetnonblocking(db->conn, 1);
	send_setup(db);
}

static void
poll_connecting(struct db *db, msec_t now)
{
	db->polling = PQconnectPoll(db->conn);
	if (db->polling == PGRES_POLLING_FAILED)
		db_drop(db, DB_UNREACHABLE, PQerrorMessage(db->conn));
	else if (db->polling == PGRES_POLLING_OK)
		begin_setup(db, now);
}

/* No schema or no function: the extension is not there. */
static bool
is_missing(const PGresult *result)
{
	return db_state_is(result, "3F000") || db_state_is(result, "42883") ||
		db_state_is(result, "42P01") || db_state_is(result, "42704");
}

static void
fail_setup(struct db *db, const PGresult *result)
{
	char		text[TEXT_MAX];
	enum db_failure failure = DB_UNREACHABLE;

	snprintf(text, sizeof(text), "%s (SQLSTATE %s)", db_message(result),
			 db_sqlstate(result));
	if (is_missing(result))
		failure = DB_NOT_INSTALLED;
	else if (db_state_is(result, "42501"))
		failure = DB_NOT_PERMITTED;
	else if (db_state_is(result, "25006"))
		failure = DB_STANDBY;
	db_drop(db, failure, text);
}

static void
check_version(struct db *db, const PGresult *result)
{
	char		text[TEXT_MAX];

	db->contract_version = atoi(PQgetvalue(result, 0, 0));
	if (abs(db->contract_version - CONTRACT_VERSION) <= 1)
		return;
	snprintf(text, sizeof(text), "the extension speaks contract version %d, "
			 "this bridge %d and its neighbours", db->contract_version,
			 CONTRACT_VERSION);
	db_drop(db, DB_NOT_INSTALLED, text);
}

static void
finish_setup_step(struct db *db, PGresult *result, msec_t now)
{
	const struct db_statement *statement = prepared_by(db, db->setup_step);

	if (db_failed(result) && !(statement && statement->optional))
		fail_setup(db, result);
	else if (db->setup_step == SETUP_VERSION)
		check_version(db, result);
	PQclear(result);
	if (db->state != DB_SETUP)
		return;
	if (++db->setup_step <
		SETUP_PREPARE + db->settings.session->statement_count)
		send_setup(db);
	else
		become_ready(db, now);
}

/* ---- statements ---- */

void
db_send_params(struct db *db, int statement, const struct db_params *params,
			   msec_t now)
{
	const struct db_session *session = db->settings.session;

	set_state(db, DB_BUSY);
	db->statement = statement;
	db->sent_at = now;
	db->deadline = now + session->answer_timeout;
	if (!PQsendQueryPrepared(db->conn, session->statements[statement].name,
							 params->count, params->values, params->lengths,
							 params->formats, 0))
		db_drop(db, DB_UNREACHABLE, PQerrorMessage(db->conn));
	else
		flush(db);
}

void
db_send(struct db *db, int statement, int count, const char *const *values,
		msec_t now)
{
	struct db_params params = {.count = count, .values = values};

	db_send_params(db, statement, &params, now);
}

static void
finish_statement(struct db *db, msec_t now)
{
	PGresult   *result = db->result;

	db->result = NULL;
	if (db->state == DB_SETUP)
	{
		finish_setup_step(db, result, now);
		return;
	}
	set_state(db, DB_IDLE);
	log_debug("statement done",
			  LOG_TEXT("statement",
					   db->settings.session->statements[db->statement].name),
			  LOG_NUM("rows", PQntuples(result)),
			  LOG_NUM("ms", clock_now() - db->sent_at));
	db->deadline = CLOCK_NEVER;
	db->events.result(db->events.owner, db->statement, result);
}

/* The session settings bring several results; the first bad one counts. */
static void
keep_result(struct db *db, PGresult *result)
{
	if (db->result && db_failed(db->result))
	{
		PQclear(result);
		return;
	}
	PQclear(db->result);
	db->result = result;
}

static void
deliver_notifications(struct db *db)
{
	PGnotify   *notify;

	while (db->conn && (notify = PQnotifies(db->conn)) != NULL)
	{
		if (db->events.notified)
			db->events.notified(db->events.owner, notify->extra);
		PQfreemem(notify);
	}
}

static void
read_results(struct db *db, msec_t now)
{
	while (db->conn && db->state != DB_IDLE && !PQisBusy(db->conn))
	{
		PGresult   *result = PQgetResult(db->conn);

		if (result)
			keep_result(db, result);
		else
		{
			/* notifications of this transaction come before its result */
			deliver_notifications(db);
			if (db->result == NULL)
			{
				db_drop(db, DB_UNREACHABLE, "no result");
				return;
			}
			finish_statement(db, now);
		}
	}
}

static void
read_input(struct db *db, msec_t now)
{
	if (!PQconsumeInput(db->conn))
	{
		db_drop(db, DB_UNREACHABLE, PQerrorMessage(db->conn));
		return;
	}
	flush(db);
	read_results(db, now);
	deliver_notifications(db);
	if (db->conn && PQstatus(db->conn) == CONNECTION_BAD)
		db_drop(db, DB_UNREACHABLE, PQerrorMessage(db->conn));
}

/* ---- the loop's view ---- */

int
db_poll_fd(struct db *db, struct pollfd *pfd)
{
	if (db->state == DB_RESOLVING)
	{
		pfd->fd = resolver_fd(db->resolver);
		pfd->events = POLLIN;
		return 1;
	}
	if (db->conn == NULL || PQsocket(db->conn) < 0)
		return 0;
	pfd->fd = PQsocket(db->conn);
	pfd->events = POLLIN;
	if (db->state == DB_CONNECTING)
		pfd->events = db->polling == PGRES_POLLING_READING ? POLLIN : POLLOUT;
	else if (PQflush(db->conn) > 0)
		pfd->events |= POLLOUT;
	return 1;
}

msec_t
db_deadline(const struct db *db)
{
	return db->state == DB_DOWN ? db->retry_at : db->deadline;
}

void
db_turn(struct db *db, short revents, msec_t now)
{
	if (db->state == DB_DOWN && db->wants_connection && now >= db->retry_at)
		begin_resolving(db, now);
	else if (db->state == DB_RESOLVING && (revents || now >= db->deadline))
		finish_resolving(db, revents != 0, now);
	else if (db->state == DB_CONNECTING && revents)
		poll_connecting(db, now);
	else if (db->conn && revents)
		read_input(db, now);
	if (db->state <= DB_RESOLVING || now < db->deadline)
		return;
	if (db->state == DB_CONNECTING)
		pass_over_silent(db, now);
	else
		db_drop(db, DB_UNREACHABLE, "the server did not answer in time");
}

/* For good: no connection is made again. */
void
db_close(struct db *db)
{
	db->wants_connection = false;
	release_connection(db);
	if (db->state != DB_DOWN)
		set_state(db, DB_DOWN);
	db->retry_at = CLOCK_NEVER;
}
