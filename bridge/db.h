#ifndef ACME_DB_H
#define ACME_DB_H

#include <libpq-fe.h>
#include <poll.h>
#include <stdbool.h>

#include "backoff.h"
#include "dsn.h"
#include "exits.h"
#include "resolver.h"

/* The contract we speak; its neighbours are served too. */
#define CONTRACT_VERSION	1

enum db_state
{
	DB_DOWN,					/* no connection; retry_at says when to try */
	DB_RESOLVING,				/* the hosts' addresses are looked up */
	DB_CONNECTING,
	DB_SETUP,					/* session settings, version, statements */
	DB_IDLE,
	DB_BUSY						/* one statement is under way */
};

/* Prepared on every connection; its user knows it by its position. */
struct db_statement
{
	const char *name;
	const char *text;
	bool		optional;		/* no failure if it cannot be prepared */
};

/* What a session is made ready for. */
struct db_session
{
	const char *setup;			/* SET, LISTEN; nothing of the extension */
	const struct db_statement *statements;
	int			statement_count;
	msec_t		answer_timeout; /* should the server not answer at all */
	bool		hides_notices;	/* functions of others raise them, with any text */
};

/* Why there is no connection, for the exit status. */
enum db_failure
{
	DB_UNREACHABLE,
	DB_NOT_INSTALLED,			/* no extension, or another contract */
	DB_NOT_PERMITTED,
	DB_STANDBY					/* the server is one, and nothing can be written */
};

/* Parameters of which some are binary: NULL formats, all are text. */
struct db_params
{
	int			count;
	const char *const *values;
	const int  *lengths;
	const int  *formats;
};

struct db_settings
{
	const char *dsn;			/* NULL: libpq's own variables */
	msec_t		connect_timeout;
	msec_t		reconnect_min;
	msec_t		reconnect_max;
	const struct db_session *session;	/* NULL: ready as it is */
};

struct db_events
{
	void		(*up) (void *owner);
	/* The result is the handler's to clear. */
	void		(*result) (void *owner, int statement, PGresult *result);
	/* NULL: the session does not LISTEN. */
	void		(*notified) (void *owner, const char *payload);
	void		(*down) (void *owner, enum db_failure failure,
						 const char *reason);
	void	   *owner;
};

struct db
{
	enum db_state state;
	struct db_settings settings;
	struct db_events events;
	PGconn	   *conn;
	struct dsn_hosts hosts;
	struct resolver *resolver;
	int			resolving;		/* index of the host being looked up */
	int			silent_count;	/* addresses of this attempt without an answer */
	char		silent_address[64]; /* the last one of those */
	char		silent_port[8];
	PostgresPollingStatusType polling;
	PGresult   *result;			/* the first of the current statement */
	int			statement;		/* the one under way */
	msec_t		sent_at;
	int			setup_step;
	int			contract_version;
	struct backoff backoff;
	msec_t		retry_at;
	msec_t		deadline;		/* of the current step */
	msec_t		up_since;
	bool		wants_connection;
};

void		db_init(struct db *db, const struct db_settings *settings,
					const struct db_events *events);
void		db_free(struct db *db);
int			db_poll_fd(struct db *db, struct pollfd *pfd);
msec_t		db_deadline(const struct db *db);
void		db_turn(struct db *db, short revents, msec_t now);
void		db_send(struct db *db, int statement, int count,
					const char *const *values, msec_t now);
void		db_send_params(struct db *db, int statement,
						   const struct db_params *params, msec_t now);
void		db_drop(struct db *db, enum db_failure failure, const char *reason);
void		db_close(struct db *db);
bool		db_is_up(const struct db *db);

bool		db_failed(const PGresult *result);
const char *db_sqlstate(const PGresult *result);
bool		db_state_is(const PGresult *result, const char *sqlstate);
bool		db_is_stale(const PGresult *result);
const char *db_message(const PGresult *result);

enum exit_status db_exit_status(enum db_failure failure);
const char *db_next_step(enum db_failure failure, const char *grant);

#endif							/* ACME_DB_H */
