/*
 * session.c
 *		A PostgreSQL session that is asked one question after the other, each
 *		with a time limit.
 *
 * Connecting is db.c's, without the relay's set-up. Every query runs in a READ
 * ONLY transaction of its own that is rolled back, so nothing is changed, and
 * no setting outlives it: behind a pooler another client may get the server's
 * session next.
 */
#include "session.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

static void
on_up(void *owner)
{
	struct session *s = owner;

	s->up = true;
}

static void
on_down(void *owner, enum db_failure failure, const char *reason)
{
	struct session *s = owner;

	(void) failure;
	snprintf(s->error, sizeof(s->error), "%s", reason);
	s->db.wants_connection = false;
}

/* False: error says why. */
bool
session_open(struct session *s, const struct db_settings *settings)
{
	struct db_settings plain = *settings;
	struct db_events events = {.up = on_up, .down = on_down, .owner = s};

	memset(s, 0, sizeof(*s));
	plain.session = NULL;
	s->timeout = settings->connect_timeout;
	db_init(&s->db, &plain, &events);
	while (!s->up && s->db.wants_connection)
	{
		struct pollfd pfd = {.fd = -1};

		db_poll_fd(&s->db, &pfd);
		if (poll(&pfd, 1, clock_poll_timeout(db_deadline(&s->db))) < 0)
			pfd.revents = 0;
		db_turn(&s->db, pfd.revents, clock_now());
	}
	if (s->up)
		PQsetnonblocking(s->db.conn, 0);
	return s->up;
}

void
session_close(struct session *s)
{
	db_close(&s->db);
	s->up = false;
}

PGconn *
session_connection(const struct session *s)
{
	return s->db.conn;
}

/* The first result of what was sent; NULL: error says why. */
static PGresult *
await_result(struct session *s)
{
	msec_t		deadline = clock_now() + s->timeout;
	PGresult   *first = NULL,
			   *result;

	for (;;)
	{
		struct pollfd pfd = {.fd = PQsocket(s->db.conn), .events = POLLIN};

		if (!PQisBusy(s->db.conn))
		{
			result = PQgetResult(s->db.conn);
			if (result == NULL)
				return first;
			if (first)
				PQclear(result);
			else
				first = result;
			continue;
		}
		if (poll(&pfd, 1, clock_poll_timeout(deadline)) <= 0 && clock_now() >= deadline)
		{
			snprintf(s->error, sizeof(s->error), "no answer within %lld ms",
					 (long long) s->timeout);
			break;
		}
		if (pfd.revents && !PQconsumeInput(s->db.conn))
		{
			snprintf(s->error, sizeof(s->error), "%.*s",
					 (int) strcspn(PQerrorMessage(s->db.conn), "\n"),
					 PQerrorMessage(s->db.conn));
			break;
		}
	}
	PQclear(first);
	session_close(s);
	return NULL;
}

static PGresult *
run(struct session *s, const char *sql, int count, const char *const *values)
{
	if (!s->up)
		return NULL;			/* the error is that of before */
	if (!PQsendQueryParams(s->db.conn, sql, count, NULL, values, NULL, NULL, 0))
	{
		snprintf(s->error, sizeof(s->error), "%.*s",
				 (int) strcspn(PQerrorMessage(s->db.conn), "\n"),
				 PQerrorMessage(s->db.conn));
		session_close(s);
		return NULL;
	}
	return await_result(s);
}

static bool
run_command(struct session *s, const char *sql)
{
	PGresult   *result = run(s, sql, 0, NULL);
	bool		good = result && !db_failed(result);

	if (result && !good)
		snprintf(s->error, sizeof(s->error), "%s", db_message(result));
	PQclear(result);
	return good;
}

/* A transaction that stays open until the session is closed. */
bool
session_begin(struct session *s)
{
	return run_command(s, "BEGIN READ ONLY");
}

/*
 * One query's result, which may be a failure; NULL if there is none, error
 * says why.
 */
PGresult *
session_query(struct session *s, const char *sql, int count,
			  const char *const *values)
{
	PGresult   *result;

	if (!session_begin(s))
		return NULL;
	result = run(s, sql, count, values);
	if (result && !run_command(s, "ROLLBACK"))
	{
		PQclear(result);
		return NULL;
	}
	if (result && db_failed(result))
		snprintf(s->error, sizeof(s->error), "%s (SQLSTATE %s)",
				 db_message(result), db_sqlstate(result));
	return result;
}
