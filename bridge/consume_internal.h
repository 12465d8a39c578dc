#ifndef ACME_CONSUME_INTERNAL_H
#define ACME_CONSUME_INTERNAL_H

/* What the files consume*.c share; everybody else includes consume.h. */
#include "broker.h"
#include "consume.h"
#include "db.h"
#include "dead_letter_lane.h"
#include "deliveries.h"
#include "refusals.h"
#include "subscription.h"

#define CONSUME_NAME_MAX	512
#define NUMBER_MAX			24
#define BATCH_MAX			1000	/* the upper bound of the setting "batch" */

enum consume_state
{
	CONSUME_STARTING,			/* the database was not usable yet */
	CONSUME_RUNNING,
	CONSUME_STOPPING,			/* no more messages; finish what runs */
	CONSUME_CLOSING,			/* the broker connections' orderly end */
	CONSUME_DONE
};

/* Prepared on every connection; the texts are in consume_database.c. */
enum consume_statement
{
	STATEMENT_PROBE,
	STATEMENT_COUNT,
	STATEMENT_RUN,
	STATEMENTS
};

/* What became of messages, for the summary. */
enum consume_counter
{
	COUNT_APPLIED,
	COUNT_DUPLICATE,
	COUNT_PARKED,
	COUNT_FAILED,
	COUNT_DEAD_LETTERED,
	COUNTERS
};

/* The messages of the statement under way. */
struct batch
{
	struct delivery *members[BATCH_MAX];
	int			count;
	bool		forgotten;		/* their channel is gone */
};

struct consume
{
	struct config *config;
	const struct command_line *line;
	enum consume_state state;
	char		name[CONSUME_NAME_MAX];
	char		setup[CONSUME_NAME_MAX];	/* the database session's */
	struct db_session session;
	struct db	db;
	struct broker broker;
	struct subscription subscription;
	struct dead_letter_lane lane;
	struct deliveries deliveries;
	struct batch batch;
	struct refusals failures;	/* of the handler, by routing key and SQLSTATE */
	bool		probed;			/* this connection's session can handle messages */
	int			limit;			/* messages of the next batch */

	/* when what is due */
	struct backoff pause_backoff;
	msec_t		paused_until;	/* after a failure that is nobody's fault */
	int			troubles;		/* such failures in a row */
	msec_t		troubled_since;	/* if there are any */
	msec_t		summary_at;
	msec_t		summary_since;
	msec_t		started_at;
	msec_t		stop_until;
	msec_t		not_ready_since;	/* the broker, or CLOCK_NEVER */

	/* --once: the queue was found empty, twice in a row */
	int			empty_answers;
	msec_t		database_lost_at;	/* or CLOCK_NEVER */
	msec_t		ask_depth_at;

	enum exit_status status;
	uint64_t	counts[COUNTERS];	/* since the last summary */
	uint64_t	totals[COUNTERS];
};

/* consume.c */
void		consume_set_state(struct consume *c, enum consume_state state);
const char *consume_state_name(const struct consume *c);
msec_t		consume_span(const struct consume *c, enum setting setting);
bool		consume_is_once(const struct consume *c);
int			consume_uncopied(const struct consume *c);

/* consume_batch.c */
void		consume_next_batch(struct consume *c, msec_t now);
msec_t		consume_batch_due(const struct consume *c);
void		consume_handle_count(struct consume *c, const PGresult *result,
								 msec_t now);
void		consume_handle_run(struct consume *c, const PGresult *result,
							   msec_t now);
void		consume_drop_batch(struct consume *c, msec_t now);

/* consume_database.c */
void		consume_make_db(struct consume *c);
void		consume_note_failure(struct consume *c, const PGresult *result,
								 const char *what);
void		consume_note_stale(struct consume *c, const PGresult *result);
void		consume_probe(struct consume *c, msec_t now);

/* consume_broker.c */
void		consume_make_broker(struct consume *c);
void		consume_broker_turn(struct consume *c, short revents, msec_t now);
void		consume_lane_turn(struct consume *c, short revents, msec_t now);
msec_t		consume_broker_deadline(struct consume *c);
void		consume_settle(struct consume *c);

/* consume_stop.c */
void		consume_begin_stopping(struct consume *c, const char *reason,
								   msec_t now);
void		consume_give_up(struct consume *c, enum exit_status status,
							msec_t now);
void		consume_keep_stopping(struct consume *c, msec_t now);
void		consume_keep_once(struct consume *c, msec_t now);
msec_t		consume_stop_deadline(const struct consume *c);

/* consume_summary.c */
void		consume_log_summary(struct consume *c, const char *message,
								const uint64_t *counts, msec_t elapsed);
void		consume_keep_summary(struct consume *c, msec_t now);

#endif							/* ACME_CONSUME_INTERNAL_H */
