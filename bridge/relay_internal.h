#ifndef ACME_RELAY_INTERNAL_H
#define ACME_RELAY_INTERNAL_H

/* What the files relay*.c share; everybody else includes relay.h. */
#include "claims.h"
#include "db.h"
#include "process.h"
#include "relay.h"

#define ACQUIRE_INTERVAL	1000
#define REFUSED_INTERVAL	15000	/* ask again when it is a person's turn */

#define NUMBER_MAX			24

enum relay_state
{
	RELAY_OFFLINE,
	RELAY_STANDBY,
	RELAY_ACTIVE,
	RELAY_STOPPING,
	RELAY_CLOSING,
	RELAY_DONE
};

/* Prepared on every connection; the texts are in relay_database.c. */
enum relay_statement
{
	STATEMENT_ACQUIRE,
	STATEMENT_RENEW,
	STATEMENT_RELEASE,
	STATEMENT_HOLDER,
	STATEMENT_CLAIM,
	STATEMENT_CLAIM_FAILED,
	STATEMENT_SETTLE,
	STATEMENT_DUTIES,
	STATEMENT_OTHER_ORIGINS,
	STATEMENTS
};

struct relay
{
	struct config *config;
	const struct command_line *line;
	enum relay_state state;
	char		name[PROCESS_NAME_MAX];
	struct db	db;
	struct publisher *publisher;
	struct claim_set claims;
	struct claim_set failed;	/* on their way to the dead-letter exchange */
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
	msec_t		failed_at;		/* dead letters are looked for */
	msec_t		duty_at;
	msec_t		summary_at;
	msec_t		summary_since;
	msec_t		started_at;
	msec_t		not_ready_since;	/* the publisher, or CLOCK_NEVER */
	struct backoff claim_backoff;
	struct backoff settle_backoff;
	struct backoff failed_backoff;
	msec_t		confirm_until;	/* while stopping */
	msec_t		stop_until;

	bool		established;	/* the start is over: failures are retried */
	bool		notified;		/* since the claim was sent */
	bool		failed_drained; /* none was left at the last look */
	bool		failed_stuck;	/* none of the last dead letters was confirmed */
	bool		ask_holder;		/* before standing by is logged */
	bool		standby_logged;
	bool		list_origins;	/* our origin was empty at first */
	bool		origins_listed;
	enum exit_status status;
	uint64_t	counts[OUTCOMES];	/* since the last summary */
	uint64_t	totals[OUTCOMES];
};

/* relay.c */
void		relay_set_state(struct relay *r, enum relay_state state);
const char *relay_state_name(const struct relay *r);
msec_t		relay_span(const struct relay *r, enum setting setting);
bool		relay_is_once(const struct relay *r);
int			relay_rows(const struct relay *r);
int			relay_unconfirmed(const struct relay *r);
void		relay_release_rows(struct relay *r, bool sent_too,
							   const char *reason, msec_t now);

/* relay_lease.c */
void		relay_set_lease(struct relay *r, msec_t until);
int64_t		relay_epoch(const struct relay *r);
void		relay_send_acquire(struct relay *r, msec_t now);
void		relay_send_lease_call(struct relay *r, enum relay_statement statement,
								  msec_t now);
void		relay_lose_lease(struct relay *r, const char *reason, msec_t now);
void		relay_send_holder(struct relay *r, msec_t now);
void		relay_handle_holder(struct relay *r, const PGresult *result,
								msec_t now);
void		relay_handle_acquire(struct relay *r, const PGresult *result,
								 msec_t now);
void		relay_handle_renew(struct relay *r, const PGresult *result,
							   msec_t now);
void		relay_handle_release(struct relay *r, const PGresult *result,
								 msec_t now);

/* relay_claim.c */
void		relay_send_claim(struct relay *r, msec_t now);
msec_t		relay_claim_due(const struct relay *r);
void		relay_handle_claim(struct relay *r, PGresult *result, msec_t now);
void		relay_send_other_origins(struct relay *r, msec_t now);
void		relay_handle_other_origins(struct relay *r, const PGresult *result);

/* relay_dead_letter.c */
bool		relay_has_dead_letters(const struct relay *r);
void		relay_make_dead_letters(struct relay *r);
msec_t		relay_failed_due(const struct relay *r);
void		relay_send_claim_failed(struct relay *r, msec_t now);
void		relay_handle_claim_failed(struct relay *r, PGresult *result,
									  msec_t now);
void		relay_note_settled(struct relay *r, const struct claim_set *set,
							   msec_t now);

/* relay_settle.c */
bool		relay_send_settle(struct relay *r, bool all, msec_t now);
void		relay_handle_settle(struct relay *r, const PGresult *result,
								msec_t now);

/* relay_database.c */
void		relay_make_db(struct relay *r);
void		relay_next_statement(struct relay *r, msec_t now);
void		relay_handle_failure(struct relay *r, const char *what,
								 const PGresult *result, msec_t now);

/* relay_publisher.c */
void		relay_make_publisher(struct relay *r);
void		relay_pump(struct relay *r, msec_t now);
msec_t		relay_publisher_patience(const struct relay *r);
void		relay_watch_publisher(struct relay *r, msec_t now);

/* relay_stop.c */
void		relay_begin_stopping(struct relay *r, const char *reason,
								 msec_t now);
void		relay_give_up(struct relay *r, enum exit_status status, msec_t now);
void		relay_keep_stopping(struct relay *r, msec_t now);
void		relay_begin_closing(struct relay *r, msec_t now);
void		relay_forget_window(struct relay *r, const char *reason);

/* relay_summary.c */
void		relay_log_summary(struct relay *r, const char *message,
							  const uint64_t *counts, msec_t elapsed);
void		relay_keep_summary(struct relay *r, msec_t now);

#endif							/* ACME_RELAY_INTERNAL_H */
