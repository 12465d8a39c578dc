/*
 * check_consumer.c
 *		"check --queue Q --consumer NAME --handler F": would a consumer work here?
 *
 * The handler is asked for by an empty batch, in a READ ONLY transaction: the
 * extension looks it up as it would for messages. Whether the queue may be read
 * only taking a message would tell, and where it sends what is refused AMQP does
 * not tell at all; the report says so.
 */
#include <stdio.h>
#include <string.h>

#include "asking.h"
#include "check.h"
#include "session.h"

#define STEP_MAX		256

/* The session's inbox, whether there is one, and whether it may be written. */
#define INBOX_SQL \
	"SELECT s, EXISTS (SELECT FROM acme_outbox.inbox AS i WHERE i.schema = s)," \
	" coalesce((SELECT bool_and(has_table_privilege(c.oid, 'INSERT'))" \
	" FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace" \
	" WHERE n.nspname = s AND c.relname IN ('processed_event'," \
	" 'parked_message', 'consumer_attempt')), false)" \
	" FROM (SELECT coalesce(current_setting('acme_outbox.inbox_schema', true)," \
	" 'acme_outbox')) AS setting (s)"

#define PRIVILEGES_SQL \
	"SELECT coalesce(bool_and(has_function_privilege(oid, 'EXECUTE')), false)" \
	" AND has_table_privilege('acme_outbox.redaction_rule', 'SELECT')" \
	" FROM pg_proc WHERE pronamespace = to_regnamespace('acme_outbox')" \
	" AND proname IN ('inbox_try_process_batch', 'inbox_attempt', 'message')"

#define HANDLER_SQL \
	"SELECT FROM acme_outbox.inbox_try_process_batch($1, '{}'::text[], $2)"

#define EXECUTE_SQL \
	"SELECT has_function_privilege(to_regprocedure(" \
	"replace($1, '(jsonb)', '') || '(jsonb)'), 'EXECUTE')"

static bool
is_true(const PGresult *result, int column)
{
	return result && !db_failed(result) && PQntuples(result) == 1 &&
		PQgetvalue(result, 0, column)[0] == 't';
}

static void
check_inbox(struct report *report, struct session *s)
{
	PGresult   *result = session_query(s, INBOX_SQL, 0, NULL);
	char		step[STEP_MAX] = "";

	if (result && !db_failed(result))
		snprintf(step, sizeof(step), "as an administrator: SELECT "
				 "acme_outbox.grant_consumer('%s', '%s')",
				 PQuser(session_connection(s)), PQgetvalue(result, 0, 0));
	if (result == NULL || db_failed(result))
		report_line(report, VERDICT_FAIL, "inbox", "as an administrator: SELECT "
					"acme_outbox.grant_consumer(role, schema)", "%s", s->error);
	else if (!is_true(result, 1))
		report_line(report, VERDICT_FAIL, "inbox", "SELECT acme_outbox."
					"create_inbox(schema); ALTER ROLE ... SET "
					"acme_outbox.inbox_schema = schema",
					"schema \"%s\" has none", PQgetvalue(result, 0, 0));
	else
		report_line(report, is_true(result, 2) ? VERDICT_OK : VERDICT_FAIL,
					"inbox", step, is_true(result, 2) ? "in schema \"%s\"" :
					"in schema \"%s\", and this role may not use it",
					PQgetvalue(result, 0, 0));
	PQclear(result);
}

static void
check_privileges(struct report *report, struct session *s)
{
	PGresult   *result = session_query(s, PRIVILEGES_SQL, 0, NULL);

	report_line(report, is_true(result, 0) ? VERDICT_OK : VERDICT_FAIL,
				"privileges", "as an administrator: SELECT "
				"acme_outbox.grant_consumer(role, schema)", is_true(result, 0) ?
				"a consumer's functions may be executed" :
				"a consumer's functions may not be executed");
	PQclear(result);
}

static void
check_handler(struct report *report, struct session *s, const char *consumer,
			  const char *handler)
{
	const char *values[] = {consumer, handler};
	PGresult   *result = session_query(s, HANDLER_SQL, 2, values);

	if (result == NULL || db_failed(result))
	{
		report_line(report, VERDICT_FAIL, "handler",
					result && db_state_is(result, "42501") ?
					"as an administrator: SELECT acme_outbox."
					"grant_consumer(role, schema)" :
					"name it schema.function, without arguments, or create it: "
					"CREATE FUNCTION schema.function(message jsonb) RETURNS void",
					"%s", s->error);
		PQclear(result);
		return;
	}
	PQclear(result);
	result = session_query(s, EXECUTE_SQL, 1, &handler);
	report_line(report, is_true(result, 0) ? VERDICT_OK : VERDICT_FAIL,
				"handler", "GRANT EXECUTE on it to this role, and USAGE on its "
				"schema", is_true(result, 0) ? "%s may be executed" :
				"%s exists, and may not be executed", handler);
	PQclear(result);
}

void
check_consumer_database(struct report *report, const struct config *config,
						struct session *s)
{
	check_inbox(report, s);
	check_privileges(report, s);
	check_handler(report, s, config_text(config, SET_CONSUMER),
				  config_text(config, SET_HANDLER));
}

void
check_consumer_broker(struct report *report, const struct config *config,
					  struct asking *a)
{
	check_queue(report, a, "queue", config_text(config, SET_QUEUE));
	report_line(report, VERDICT_SKIP, "rights", NULL, "to read the queue: only "
				"taking a message would tell");
	if (config_text(config, SET_DEAD_LETTER_EXCHANGE))
		return;
	report_line(report, VERDICT_SKIP, "chain", "give --dead-letter-exchange, or "
				"look at x-dead-letter-exchange: rabbitmqctl list_queues name "
				"arguments", "where refused messages go: AMQP tells no arguments of "
				"a queue; without such an exchange they are lost");
}
