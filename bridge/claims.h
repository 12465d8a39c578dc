#ifndef ACME_CLAIMS_H
#define ACME_CLAIMS_H

#include <libpq-fe.h>

#include "buffer.h"
#include "clock.h"
#include "names.h"
#include "publisher.h"

/* Claims with messages in memory; with claim-bytes this bounds the memory. */
#define CLAIMS_MAX		4

/* Rows of one settle statement. */
#define SETTLE_ROWS_MAX		1000

/* So many outcomes, or the age of the oldest, make a settle worth sending. */
#define SETTLE_ROWS_GOOD	200
#define SETTLE_AGE			20

/* A row that another session held is settled again after this. */
#define SETTLE_LOCKED_RETRY 1000

/* The statement whose result claims_add() reads, and its columns. */
#define CLAIM_SQL \
	"SELECT claim_id, id, event_id, event_name, topic, routing_key, " \
	"message_key, traceparent, headers, payload, " \
	"extract(epoch FROM created_at)::bigint, mandatory " \
	"FROM acme_outbox.claim($1, $2, $3, $4)"

enum row_state
{
	ROW_WAITING,				/* not with the publisher */
	ROW_SENT,					/* with the publisher, unanswered */
	ROW_DECIDED,				/* answered, not settled */
	ROW_SETTLING,				/* in the settle that is under way */
	ROW_SETTLED
};

/* What we know about a message key while rows of it are in memory. */
struct key
{
	struct name name;
	int			unconfirmed;	/* rows with the publisher */
	int			failed;			/* not published, and not settled yet */
	uint64_t	held_in_pass;	/* an earlier row was put off in this pass */
};

struct row
{
	struct claim *claim;
	struct key *key;			/* NULL: unordered */
	void	   *note;			/* the publisher's own */
	char	   *error;
	int64_t		id;
	msec_t		settle_at;
	int			number;			/* in the claim's result */
	enum row_state state;
	enum outcome outcome;
};

struct claim
{
	struct claim *next;
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

struct claim_set
{
	struct claim *first;
	struct claim *last;
	const char *origin;
	bool		strict;			/* one unconfirmed row per key */
	int			loaded;			/* claims whose messages are in memory */
	int			rows;			/* not settled, in all claims */
	int			waiting;
	int			sent;
	int			decided;
	int			confirmed;		/* PUBLISHED, and not settled yet */
	size_t		bytes;
	uint64_t	pass;
	uint64_t	counts[OUTCOMES];	/* decided, until the reader resets it */
	struct names keys;
};

typedef enum publish_result (*row_offer) (void *context, struct row *row,
										  const struct message *m);

void		claims_init(struct claim_set *set, const char *origin);
struct claim *claims_add(struct claim_set *set, PGresult *result);
void		claims_clear(struct claim_set *set);
void		claims_offer(struct claim_set *set, row_offer offer, void *context);
const char *claims_routing_key(const struct row *row);
size_t		claims_payload_length(const struct row *row);
void		claims_decide(struct claim_set *set, struct row *row,
						  enum outcome outcome, const char *error, msec_t now);
void		claims_again(struct claim_set *set, struct row *row);
void		claims_release(struct claim_set *set, bool sent_too,
						   const char *error, msec_t now);

struct claim *claims_to_settle(struct claim_set *set, bool all, msec_t now);
msec_t		claims_settle_due(const struct claim_set *set);
int			claims_settle_texts(struct claim_set *set, struct claim *claim,
								msec_t now, struct buffer *ids, struct buffer *outcomes,
								struct buffer *errors);
void		claims_settle_locked(struct claim_set *set, struct claim *claim,
								 int64_t id, msec_t now);
void		claims_settle_failed(struct claim_set *set, struct claim *claim,
								 msec_t retry_at);
void		claims_settle_done(struct claim_set *set, struct claim *claim);

const char *outcome_name(enum outcome outcome);

#endif							/* ACME_CLAIMS_H */
