/*
 * claim_loop: takes all entries out of an outbox and marks them published
 *
 *	claim_loop CONTENDER ORIGIN BATCH ROWS SECONDS
 *
 * CONTENDER is
 *	acme_outbox		claim() and settle()
 *	guidelines		the claim of the guidelines' section 5.2, then the update of
 *					5.3 row by row
 *	guidelines-bulk	the same claim, then one update for the whole batch
 *
 * All are driven alike: prepared statements, one at a time, over two
 * connections.  The claims' commits durably; the one that marks commits
 * asynchronously, since a mark lost in a crash only sends a duplicate.  Every
 * row is fetched with all its columns.  Nothing is sent anywhere.
 *
 * Ends when ROWS are done, or after SECONDS, and prints
 *	rows done, seconds, seconds of them in claims, and the processor seconds of
 *	the two sessions on the server (which must be on this machine)
 * An outbox that runs dry before ROWS is an error.
 */
#include "common.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CLAIM_BYTES "8388608"
#define CLAIM_TTL "300000 ms"	/* the guidelines' default */
#define RENEW_SECONDS 10
#define NUMBER_SIZE 32

struct loop
{
	const char *origin;
	const char *batch;
	PGconn	   *claims;
	PGconn	   *marks;
	char		epoch[NUMBER_SIZE];
	double		renewed_at;
};

struct contender
{
	const char *name;
	const char *claim_sql;
	const char *mark_sql;
	void		(*begin) (struct loop *);
	PGresult   *(*claim) (struct loop *);
	void		(*mark) (struct loop *, const PGresult *);
};

/* A text that grows: array literals. */
struct text
{
	char	   *data;
	size_t		length;
	size_t		size;
};

static void
append(struct text *text, const char *piece)
{
	size_t		length = strlen(piece);

	if (text->length + length >= text->size)
	{
		text->size = 2 * (text->length + length + 1);
		text->data = realloc(text->data, text->size);
		if (text->data == NULL)
			fail("out of memory");
	}
	memcpy(text->data + text->length, piece, length + 1);
	text->length += length;
}

/* {element,element,...}: a column of the result, or a constant. */
static struct text
array_of(const PGresult *rows, int column, const char *constant)
{
	struct text text = {0};

	append(&text, "{");
	for (int i = 0; i < PQntuples(rows); i++)
	{
		append(&text, i ? "," : "");
		append(&text, constant ? constant : PQgetvalue(rows, i, column));
	}
	append(&text, "}");
	return text;
}

static PGresult *
execute(PGconn *conn, const char *name, ExecStatusType expected, int n,
		const char *const *values)
{
	return run(conn, expected,
			   PQexecPrepared(conn, name, n, values, NULL, NULL, 0));
}

/* ---- acme_outbox ---- */

static void
lease_begin(struct loop *l)
{
	const char *values[] = {l->origin, "claim_loop"};
	PGresult   *result = run(l->claims, PGRES_TUPLES_OK,
							 PQexecParams(l->claims,
										  "SELECT epoch FROM acme_outbox.relay_acquire($1, $2)",
										  2, NULL, values, NULL, NULL, 0));

	if (PQntuples(result) != 1)
		fail("another relay is active");
	snprintf(l->epoch, sizeof(l->epoch), "%s", PQgetvalue(result, 0, 0));
	l->renewed_at = now_seconds();
	PQclear(result);
}

static void
lease_keep(struct loop *l)
{
	const char *values[] = {l->origin, l->epoch};

	if (now_seconds() - l->renewed_at < RENEW_SECONDS)
		return;
	PQclear(run(l->claims, PGRES_TUPLES_OK,
				PQexecParams(l->claims, "SELECT acme_outbox.relay_renew($1, $2)",
							 2, NULL, values, NULL, NULL, 0)));
	l->renewed_at = now_seconds();
}

static PGresult *
outbox_claim(struct loop *l)
{
	const char *values[] = {l->origin, l->epoch, l->batch, CLAIM_BYTES};

	lease_keep(l);
	return execute(l->claims, "claim", PGRES_TUPLES_OK, 4, values);
}

static void
outbox_mark(struct loop *l, const PGresult *rows)
{
	struct text ids = array_of(rows, 1, NULL);
	struct text outcomes = array_of(rows, 0, "PUBLISHED");
	struct text nulls = array_of(rows, 0, "NULL");
	const char *values[] = {l->epoch, PQgetvalue(rows, 0, 0), ids.data,
	outcomes.data, nulls.data, nulls.data};
	PGresult   *left = execute(l->marks, "mark", PGRES_TUPLES_OK, 6, values);

	if (PQntuples(left) > 0)
		fail("%d rows were not settled", PQntuples(left));
	PQclear(left);
	free(ids.data);
	free(outcomes.data);
	free(nulls.data);
}

/* ---- the guidelines ---- */

static void
no_lease(struct loop *l)
{
	(void) l;
}

static PGresult *
guidelines_claim(struct loop *l)
{
	const char *values[] = {l->origin, CLAIM_TTL, l->batch, "shop@1@localhost"};

	return execute(l->claims, "claim", PGRES_TUPLES_OK, 4, values);
}

static void
guidelines_mark_each(struct loop *l, const PGresult *rows)
{
	for (int i = 0; i < PQntuples(rows); i++)
	{
		const char *values[] = {PQgetvalue(rows, i, 0)};

		PQclear(execute(l->marks, "mark", PGRES_COMMAND_OK, 1, values));
	}
}

static void
guidelines_mark_all(struct loop *l, const PGresult *rows)
{
	struct text ids = array_of(rows, 0, NULL);
	const char *values[] = {ids.data};

	PQclear(execute(l->marks, "mark", PGRES_COMMAND_OK, 1, values));
	free(ids.data);
}

/* Section 5.2, with its parameters numbered. */
#define GUIDELINES_CLAIM \
	"WITH eligible AS (" \
	"    SELECT id FROM outbox_message" \
	"    WHERE origin = $1" \
	"      AND (" \
	"        (status = 'PENDING' AND (next_attempt_at IS NULL OR next_attempt_at <= NOW()))" \
	"        OR (status = 'IN_FLIGHT' AND claimed_at IS NOT NULL AND claimed_at <= NOW() - $2::interval)" \
	"      )" \
	"    ORDER BY occurred_at ASC" \
	"    LIMIT $3::int" \
	"    FOR UPDATE SKIP LOCKED" \
	")" \
	"UPDATE outbox_message m" \
	"   SET status = 'IN_FLIGHT', claimed_at = NOW(), claimed_by = $4" \
	"  FROM eligible e" \
	" WHERE m.id = e.id" \
	" RETURNING m.*"

/* Section 5.3: status=PUBLISHED, publishedAt=now, clear claim. */
#define GUIDELINES_MARK \
	"UPDATE outbox_message SET status = 'PUBLISHED', published_at = NOW()," \
	" claimed_at = NULL, claimed_by = NULL WHERE id = "

static const struct contender contenders[] = {
	{"acme_outbox",
		"SELECT * FROM acme_outbox.claim($1, $2, $3, $4)",
		"SELECT * FROM acme_outbox.settle($1, $2, $3, $4, $5, $6)",
	lease_begin, outbox_claim, outbox_mark},
	{"guidelines", GUIDELINES_CLAIM, GUIDELINES_MARK "$1",
	no_lease, guidelines_claim, guidelines_mark_each},
	{"guidelines-bulk", GUIDELINES_CLAIM, GUIDELINES_MARK "ANY ($1)",
	no_lease, guidelines_claim, guidelines_mark_all},
};

static const struct contender *
find_contender(const char *name)
{
	for (size_t i = 0; i < sizeof(contenders) / sizeof(*contenders); i++)
		if (strcmp(contenders[i].name, name) == 0)
			return &contenders[i];
	fail("no contender \"%s\"", name);
}

/* User and system time of the session's process so far, in seconds. */
static double
server_seconds(PGconn *conn)
{
	char		path[64];
	char		line[1024];
	unsigned long user,
				system;
	char	   *after_name;
	FILE	   *in;

	snprintf(path, sizeof(path), "/proc/%d/stat", PQbackendPID(conn));
	in = fopen(path, "r");
	if (in == NULL || fgets(line, sizeof(line), in) == NULL)
		fail("could not read %s: %m", path);
	fclose(in);
	after_name = strrchr(line, ')');
	if (after_name == NULL ||
		sscanf(after_name, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
			   &user, &system) != 2)
		fail("%s has another format", path);
	return (double) (user + system) / (double) sysconf(_SC_CLK_TCK);
}

static PGconn *
open_session(const char *commit, const char *statement, const char *sql)
{
	PGconn	   *conn = open_database();
	char		set[64];

	snprintf(set, sizeof(set), "SET synchronous_commit = %s", commit);
	PQclear(run(conn, PGRES_COMMAND_OK, PQexec(conn, set)));
	PQclear(run(conn, PGRES_COMMAND_OK,
				PQprepare(conn, statement, sql, 0, NULL)));
	return conn;
}

int
main(int argc, char **argv)
{
	const struct contender *c;
	struct loop l = {0};
	long		rows_wanted;
	long		limit;
	long		rows = 0;
	double		begin;
	double		claiming = 0;
	double		server;

	if (argc != 6)
		fail("usage: claim_loop CONTENDER ORIGIN BATCH ROWS SECONDS");
	c = find_contender(argv[1]);
	l.origin = argv[2];
	l.batch = argv[3];
	rows_wanted = number(argv[4], "ROWS");
	limit = number(argv[5], "SECONDS");
	l.claims = open_session("on", "claim", c->claim_sql);
	l.marks = open_session("off", "mark", c->mark_sql);
	c->begin(&l);

	server = server_seconds(l.claims) + server_seconds(l.marks);
	begin = now_seconds();
	while (rows < rows_wanted && now_seconds() - begin < (double) limit)
	{
		double		claim_begin = now_seconds();
		PGresult   *claimed = c->claim(&l);

		claiming += now_seconds() - claim_begin;
		if (PQntuples(claimed) == 0)
			fail("nothing left after %ld of %ld rows", rows, rows_wanted);
		c->mark(&l, claimed);
		rows += PQntuples(claimed);
		PQclear(claimed);
	}
	printf("%ld %.6f %.6f %.2f\n", rows, now_seconds() - begin, claiming,
		   server_seconds(l.claims) + server_seconds(l.marks) - server);
	PQfinish(l.claims);
	PQfinish(l.marks);
	return 0;
}
