/*
 * check_database.c
 *		The database's part of "check".
 *
 * Whether the role may relay the origin and whether the database was adopted is
 * asked of relay_acquire() itself, in a READ ONLY transaction: it checks both
 * before its first write, which then fails with 25006. So no lease is taken.
 *
 * A pooler gives itself away by a backend id other than the server's. In
 * transaction mode the next transaction of a session may run elsewhere: while a
 * second session holds a transaction open, it must.
 */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "session.h"

#define SERVER_MIN			150000
#define SERVER_TESTED		150000
#define SQLSTATE_READ_ONLY	"25006"

#define TOPICS_SQL \
	"SELECT DISTINCT topic FROM (SELECT topic FROM acme_outbox.outbox_entry" \
	" WHERE origin = $1 AND status = 'PENDING' LIMIT 10000) e LIMIT 50"

#define MAY_READ_SQL \
	"SELECT has_table_privilege('acme_outbox.outbox_entry', 'SELECT')"

#define BACKLOG_SQL \
	"SELECT pending, publishing, failed, unroutable + nacked, skipped," \
	" coalesce(date_trunc('second', oldest_age)::text, '-')," \
	" relay_active, coalesce(relay, 'none'), coalesce(blocking_pid::text, '')," \
	" coalesce(date_trunc('second', blocking_age) > interval '5 min', false)" \
	" FROM acme_outbox.outbox_backlog WHERE origin = $1"

/* Every function of docs/contract.md, and the view's. */
#define PRIVILEGES_SQL \
	"SELECT f.name, bool_and(has_function_privilege(p.oid, 'EXECUTE'))" \
	" FROM unnest(ARRAY['contract_version', 'relay_acquire', 'relay_renew'," \
	" 'relay_release', 'claim', 'claim_failed', 'settle', 'run_due_duties'," \
	" 'backlog']) AS f (name)" \
	" LEFT JOIN pg_proc p ON p.proname = f.name" \
	" AND p.pronamespace = to_regnamespace('acme_outbox')" \
	" GROUP BY 1 HAVING NOT coalesce(bool_and(" \
	"has_function_privilege(p.oid, 'EXECUTE')), false)"

/* The next step of most failures here; filled in before the first of them. */
static char grant_step[768];

/* A query that must work; NULL after the line that says it did not. */
static PGresult *
ask(struct report *report, struct session *s, enum verdict verdict,
	const char *check, const char *next_step, const char *sql, int count,
	const char *const *values)
{
	PGresult   *result = session_query(s, sql, count, values);

	if (result && !db_failed(result))
		return result;
	report_line(report, verdict, check, next_step, "%s", s->error);
	PQclear(result);
	return NULL;
}

static void
check_server(struct report *report, struct session *s)
{
	PGconn	   *conn = session_connection(s);
	int			version = PQserverVersion(conn);
	const char *protocol = PQsslInUse(conn) ?
		PQsslAttribute(conn, "protocol") : NULL;
	const char *address = PQhostaddr(conn);

	if (version < SERVER_MIN)
		report_line(report, VERDICT_FAIL, "postgresql", "use PostgreSQL 15",
					"server version %d is too old", version / 10000);
	else if (version / 10000 > SERVER_TESTED / 10000)
		report_line(report, VERDICT_WARN, "postgresql", NULL,
					"server version %d, tested is 15", version / 10000);
	report_line(report, VERDICT_OK, "postgresql", NULL,
				"%s as %s, database %s at %s%s%s%s port %s, %s",
				PQparameterStatus(conn, "server_version"), PQuser(conn),
				PQdb(conn), PQhost(conn), address && *address ? " (" : "",
				address ? address : "", address && *address ? ")" : "",
				PQport(conn), protocol ? protocol : "no TLS");
}

static void
check_encoding_and_role(struct report *report, struct session *s)
{
	PGresult   *result = ask(report, s, VERDICT_FAIL, "encoding", NULL,
							 "SELECT getdatabaseencoding(), pg_is_in_recovery()",
							 0, NULL);

	if (result == NULL)
		return;
	report_line(report, strcmp(PQgetvalue(result, 0, 0), "UTF8") == 0 ?
				VERDICT_OK : VERDICT_FAIL, "encoding",
				"create the database with ENCODING 'UTF8' TEMPLATE template0",
				"%s", PQgetvalue(result, 0, 0));
	if (PQgetvalue(result, 0, 1)[0] == 't')
		report_line(report, VERDICT_FAIL, "primary",
					"name all servers in --dsn or PGHOST and use "
					"target_session_attrs=read-write",
					"this server is a standby");
	else
		report_line(report, VERDICT_OK, "primary", NULL, "not a standby");
	PQclear(result);
}

static bool
check_extension(struct report *report, struct session *s)
{
	PGresult   *result = ask(report, s, VERDICT_FAIL, "extension", NULL,
							 "SELECT e.extversion FROM pg_extension e "
							 "WHERE e.extname = 'acme_outbox'", 0, NULL);
	bool		found = result && PQntuples(result) == 1;

	if (found)
		report_line(report, VERDICT_OK, "extension", NULL, "acme_outbox %s",
					PQgetvalue(result, 0, 0));
	else if (result)
		report_line(report, VERDICT_FAIL, "extension",
					"CREATE EXTENSION acme_outbox, or name another database",
					"acme_outbox is not in this database");
	PQclear(result);
	return found;
}

static void
check_contract(struct report *report, struct session *s)
{
	PGresult   *result = ask(report, s, VERDICT_FAIL, "contract", grant_step,
							 "SELECT acme_outbox.contract_version()", 0, NULL);
	int			version;

	if (result == NULL)
		return;
	version = atoi(PQgetvalue(result, 0, 0));
	report_line(report, version == CONTRACT_VERSION ? VERDICT_OK :
				abs(version - CONTRACT_VERSION) <= 1 ? VERDICT_WARN :
				VERDICT_FAIL, "contract",
				version < CONTRACT_VERSION ?
				"install the new extension, ALTER EXTENSION acme_outbox UPDATE" :
				"install the new bridge",
				"version %d; this bridge speaks %d and its neighbours", version,
				CONTRACT_VERSION);
	PQclear(result);
}

static void
check_privileges(struct report *report, struct session *s)
{
	PGresult   *result = ask(report, s, VERDICT_FAIL, "privileges", NULL,
							 PRIVILEGES_SQL, 0, NULL);
	char		names[256] = "";
	size_t		length = 0;

	if (result == NULL)
		return;
	for (int i = 0; i < PQntuples(result) && length < sizeof(names) - 1; i++)
		length += (size_t) snprintf(names + length, sizeof(names) - length,
									" %s", PQgetvalue(result, i, 0));
	if (PQntuples(result) > 0)
		report_line(report, VERDICT_FAIL, "privileges", grant_step,
					"no right to execute:%s", names);
	else
		report_line(report, VERDICT_OK, "privileges", NULL,
					"every function of the contract may be executed");
	PQclear(result);
}

/* See the head of this file. */
static void
check_origin(struct report *report, struct session *s, const char *origin)
{
	const char *values[] = {origin, "check"};
	PGresult   *result = session_query(s, "SELECT acme_outbox.relay_acquire($1, $2)",
									   2, values);

	if (result && db_state_is(result, "OX102"))
	{
		report_line(report, VERDICT_FAIL, "origin", grant_step, "%s",
					db_message(result));
		report_line(report, VERDICT_SKIP, "adopted", NULL,
					"cannot be asked without that grant");
	}
	else if (result && db_state_is(result, "OX103"))
	{
		report_line(report, VERDICT_OK, "origin", NULL,
					"the role may relay it");
		report_line(report, VERDICT_FAIL, "adopted",
					"if this copy shall send: SELECT acme_outbox.adopt()", "%s",
					db_message(result));
	}
	else if (result && (db_state_is(result, SQLSTATE_READ_ONLY) ||
						!db_failed(result)))
	{
		report_line(report, VERDICT_OK, "origin", NULL,
					"the role may relay \"%s\"", origin);
		report_line(report, VERDICT_OK, "adopted", NULL,
					"this database may send its entries");
	}
	else
		report_line(report, VERDICT_FAIL, "origin", grant_step, "%s", s->error);
	PQclear(result);
}

/* Preloaded is what every role can see; the worker's state is for few. */
static void
check_worker(struct report *report, struct session *s)
{
	PGresult   *result = ask(report, s, VERDICT_WARN, "worker", NULL,
							 "SELECT current_setting('acme_outbox.max_workers', "
							 "true) IS NOT NULL, "
							 "current_setting('acme_outbox.worker', true)", 0,
							 NULL);
	bool		preloaded;

	if (result == NULL)
		return;
	preloaded = PQgetvalue(result, 0, 0)[0] == 't';
	if (!preloaded || strcmp(PQgetvalue(result, 0, 1), "off") == 0)
	{
		report_line(report, VERDICT_WARN, "worker", preloaded ?
					"acme_outbox.worker = on" : "add acme_outbox to "
					"shared_preload_libraries and restart the server",
					"%s: the bridge only polls, and runs the duties itself",
					preloaded ? "switched off" : "the library is not preloaded");
		PQclear(result);
		return;
	}
	PQclear(result);
	result = session_query(s, "SELECT state FROM acme_outbox.worker_status "
						   "WHERE database = current_database()", 0, NULL);
	if (result && db_state_is(result, "42501"))
		report_line(report, VERDICT_OK, "worker", NULL, "preloaded; whether "
					"it runs here is not for this role to see");
	else if (result && PQntuples(result) == 1 &&
			 strcmp(PQgetvalue(result, 0, 0), "running") == 0)
		report_line(report, VERDICT_OK, "worker", NULL, "running");
	else
		report_line(report, VERDICT_WARN, "worker",
					"see acme_outbox.worker_status, max_worker_processes and "
					"acme_outbox.max_workers", "preloaded, but not running: %s",
					result && PQntuples(result) == 1 ?
					PQgetvalue(result, 0, 0) : s->error);
	PQclear(result);
}

static int
backend_pid(struct session *s)
{
	PGresult   *result = session_query(s, "SELECT pg_backend_pid()", 0, NULL);
	int			pid = result && !db_failed(result) ?
		atoi(PQgetvalue(result, 0, 0)) : 0;

	PQclear(result);
	return pid;
}

/* Does another open transaction move ours to another backend, or stop it? */
static void
check_pooling_mode(struct report *report, const struct db_settings *settings)
{
	struct session first,
				second;
	int			before = 0,
				after = 0;
	bool		held = false;

	if (session_open(&first, settings))
	{
		before = backend_pid(&first);
		held = session_open(&second, settings) && session_begin(&second);
		if (held)
			after = backend_pid(&first);
		session_close(&second);
	}
	session_close(&first);
	if (before == 0 || !held)
		report_line(report, VERDICT_WARN, "pooler", "connect to the server "
					"itself", "there is one, and a second session cannot be "
					"opened through it");
	else if (before != after)
		report_line(report, VERDICT_FAIL, "pooler", "connect to the server "
					"itself, or use session pooling", "one in transaction mode: "
					"LISTEN and prepared statements do not work through it");
	else
		report_line(report, VERDICT_OK, "pooler", NULL,
					"one in session mode, which works");
}

static void
check_pooler(struct report *report, struct session *s,
			 const struct db_settings *settings)
{
	int			pid = backend_pid(s);

	if (pid == 0)
		report_line(report, VERDICT_WARN, "pooler", NULL, "%s", s->error);
	else if (pid == PQbackendPID(session_connection(s)))
		report_line(report, VERDICT_OK, "pooler", NULL,
					"none, this is the server itself");
	else
		check_pooling_mode(report, settings);
}

static void
report_backlog(struct report *report, const PGresult *result)
{
	const char *pending = PQgetvalue(result, 0, 0);
	bool		active = PQgetvalue(result, 0, 6)[0] == 't';
	bool		troubled = strcmp(PQgetvalue(result, 0, 2), "0") != 0 ||
		strcmp(PQgetvalue(result, 0, 3), "0") != 0 ||
		(PQgetvalue(result, 0, 4)[0] && strcmp(PQgetvalue(result, 0, 4), "0") != 0);

	report_line(report, active || strcmp(pending, "0") == 0 ? VERDICT_OK :
				VERDICT_WARN, "lease", "start a relay for this origin",
				active ? "held by %s" : "nobody is active; last relay: %s",
				PQgetvalue(result, 0, 7));
	report_line(report, troubled ? VERDICT_WARN : VERDICT_OK, "backlog",
				"SELECT * FROM acme_outbox.outbox_stuck",
				"%s waiting (oldest %s), %s in flight, %s failed, %s held by "
				"the broker's state", pending, PQgetvalue(result, 0, 5),
				PQgetvalue(result, 0, 1), PQgetvalue(result, 0, 2),
				PQgetvalue(result, 0, 3));
	if (PQgetvalue(result, 0, 9)[0] == 't')
		report_line(report, VERDICT_WARN, "backlog",
					"end that transaction: nobody can see its events before",
					"a writing transaction is open for more than 5 minutes, "
					"process %s", PQgetvalue(result, 0, 8));
}

static void
check_backlog(struct report *report, struct session *s, const char *origin)
{
	const char *values[] = {origin};
	PGresult   *result = ask(report, s, VERDICT_WARN, "backlog", grant_step,
							 BACKLOG_SQL, 1, values);

	if (result == NULL)
		return;
	if (PQntuples(result) == 1)
		report_backlog(report, result);
	else
		report_line(report, VERDICT_WARN, "backlog",
					"check the spelling of --origin, and acme_outbox.origin of "
					"the publishing roles",
					"nothing was ever published or relayed for \"%s\"", origin);
	PQclear(result);
}

/* The exchanges of what waits, for the broker's part. */
static void
find_topics(struct report *report, struct session *s, const char *origin,
			struct check_topics *topics)
{
	const char *values[] = {origin};
	const char *next_step = topics->count > 0 ?
		"those of --topic are looked for" : "name them: --topic NAME, repeatable";
	PGresult   *result = ask(report, s, VERDICT_SKIP, "topics", next_step,
							 MAY_READ_SQL, 0, NULL);
	bool		may_read = result && PQgetvalue(result, 0, 0)[0] == 't';

	if (result && !may_read)
		report_line(report, VERDICT_SKIP, "topics", next_step, "this role may not "
					"read the outbox, to see where what waits is to go");
	PQclear(result);
	if (!may_read)
		return;
	result = ask(report, s, VERDICT_SKIP, "topics", next_step, TOPICS_SQL, 1, values);
	for (int i = 0; result && i < PQntuples(result); i++)
		check_add_topic(topics, PQgetvalue(result, i, 0),
						strlen(PQgetvalue(result, i, 0)));
	PQclear(result);
}

void
check_database(struct report *report, const struct config *config,
			   struct check_topics *topics)
{
	struct db_settings settings = {
		.dsn = config_text(config, SET_DSN),
		.connect_timeout = config_number(config, SET_CONNECT_TIMEOUT),
		.reconnect_min = config_number(config, SET_RECONNECT_MIN),
		.reconnect_max = config_number(config, SET_RECONNECT_MAX),
	};
	const char *origin = config_text(config, SET_ORIGIN);
	struct session s;

	if (!session_open(&s, &settings))
	{
		report_line(report, VERDICT_FAIL, "postgresql", "check --dsn or the PG* "
					"variables, the password and that the server runs", "%s",
					s.error);
		session_close(&s);
		return;
	}
	snprintf(grant_step, sizeof(grant_step), "as an administrator: "
			 "SELECT acme_outbox.grant_%s('%s', '%s')", origin ? "relay" :
			 "consumer", PQuser(session_connection(&s)), origin ? origin : "SCHEMA");
	check_server(report, &s);
	check_encoding_and_role(report, &s);
	check_pooler(report, &s, &settings);
	if (!check_extension(report, &s))
	{
		session_close(&s);
		return;
	}
	check_contract(report, &s);
	if (config_text(config, SET_CONSUMER))
		check_consumer_database(report, config, &s);
	else
	{
		check_privileges(report, &s);
		check_origin(report, &s, origin);
		check_worker(report, &s);
		check_backlog(report, &s, origin);
		find_topics(report, &s, origin, topics);
	}
	session_close(&s);
}
