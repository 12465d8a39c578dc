#ifndef ACME_CLAIMS_H
#define ACME_CLAIMS_H

#include <libpq-fe.h>

#include "buffer.h"
#include "clock.h"
#include "names.h"
#include "publisher.h"

/* Claims with messages in memory; with claim-bytes this bounds the memory. */
#define CLAIMS_MAX		4

/* Dead letters of one claim; their lane has room for no more. */
#define DEAD_LETTER_ROWS	20

/* Rows of one settle statement. */
#define SETTLE_ROWS_MAX		1000

/* So many outcomes, or the age of the oldest, make a settle worth sending. */
#define SETTLE_ROWS_GOOD	200
#define SETTLE_AGE			20

/* A row that another session held is settled again after this. */
#define SETTLE_LOCKED_RETRY 1000

/* The copies of a row at most: business and audit, or one dead letter. */
#define ROW_COPIES		2

/* The statements whose results claims_add() reads, and their columns. */
#define CLAIM_COLUMNS \
	"claim_id, id, event_id, event_name, topic, routing_key, message_key, " \
	"traceparent, headers, payload, " \
	"floor(extract(epoch FROM created_at) * 1000)::bigint, " \
	"mandatory, lanes_done, audit_payload"
#define CLAIM_SQL \
	"SELECT " CLAIM_COLUMNS " FROM acme_outbox.claim($1, $2, $3, $4)"
#define CLAIM_FAILED_SQL \
	"SELECT " CLAIM_COLUMNS ", attempts, last_error " \
	"FROM acme_outbox.claim_failed($1, $2, $3)"
#define SETTLE_SQL \
	"SELECT id, expected, found FROM acme_outbox.settle($1, $2, $3::bigint[], " \
	"$4::text[]::acme_outbox.settle_outcome[], $5::smallint[], $6::text[])"

enum row_state
{
	ROW_WAITING,				/* a copy is not with the publisher */
	ROW_SENT,					/* none is, but one is unanswered */
	ROW_DECIDED,				/* all are answered, not settled */
	ROW_SETTLING,				/* in the settle that is under way */
	ROW_SETTLED
};

/* What we know about a message key while rows of it are in memory. */
struct key
{
	struct name name;
	int			unconfirmed;	/* business copies with the publisher */
	int			failed;			/* those not published, and not settled yet */
	uint64_t	held_in_pass[LANES];	/* an earlier copy was put off in it */
};

struct row
{
	struct claim *claim;
	struct key *key;			/* NULL: unordered */
	struct copy copies[ROW_COPIES];
	int64_t		id;
	msec_t		settle_at;
	int			number;			/* in the claim's result */
	int			places;			/* of the window */
	enum row_state state;
};

struct claim
{
	struct claim *next;
	struct claim_set *set;
	PGresult   *result;			/* all texts of its rows; until all are decided */
	int64_t		claim_id;
	struct row *rows;
	int			count;
	int			waiting;
	int			sent;
	int			decided;
	int			settled;
	int			first_waiting;	/* no waiting row is before it */
	size_t		bytes;
	msec_t		decided_since;	/* of the oldest outcome not settled */
};

struct claim_settings
{
	const char *origin;
	const char *audit_exchange; /* NULL: there is no audit lane */
	const char *dead_letter_exchange;	/* NULL: these are no dead letters */
	int			window;			/* messages sent and not settled */
};

struct claim_set
{
	struct claim_settings settings;
	struct claim *first;
	struct claim *last;
	bool		strict;			/* one unconfirmed business copy per key */
	int			loaded;			/* claims whose messages are in memory */
	int			rows;			/* not settled, in all claims */
	int			waiting;
	int			sent;			/* copies with the publisher */
	int			decided;
	int			places;			/* of the window, that rows hold */
	size_t		bytes;
	uint64_t	pass;
	unsigned	full;			/* lanes, as bits, in this pass */
	bool		no_place;		/* in this pass, for another row */
	int			unaudited;		/* finished without the audit copy they missed */
	uint64_t	counts[OUTCOMES];	/* decided, until the reader resets it */
	int			last_settled[OUTCOMES]; /* rows of the last settle */
	struct names keys;
};

typedef enum publish_result (*copy_offer) (void *context, struct copy *copy,
										   const struct message *m);

void		claims_init(struct claim_set *set,
						const struct claim_settings *settings);
struct claim *claims_add(struct claim_set *set, PGresult *result);
void		claims_clear(struct claim_set *set);
void		claims_offer(struct claim_set *set, copy_offer offer, void *context);
msec_t		claims_age(const struct copy *copy);
void		claims_answer(struct copy *copy, enum outcome outcome,
						  const char *error, msec_t now);
void		claims_again(struct copy *copy);
void		claims_release(struct claim_set *set, bool sent_too,
						   const char *error, msec_t now);

/* The arrays of settle(). */
struct settle_texts
{
	struct buffer ids;
	struct buffer outcomes;
	struct buffer lanes;
	struct buffer errors;
};

struct claim *claims_to_settle(struct claim_set *set, bool all, msec_t now);
msec_t		claims_settle_due(const struct claim_set *set);
int			claims_settle_texts(struct claim *claim, msec_t now,
								struct settle_texts *texts);
void		claims_free_texts(struct settle_texts *texts);
void		claims_settle_locked(struct claim *claim, int64_t id, msec_t now);
void		claims_settle_failed(struct claim *claim, msec_t retry_at);
void		claims_settle_done(struct claim *claim);

#endif							/* ACME_CLAIMS_H */
