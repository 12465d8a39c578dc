#ifndef ACME_CLAIMS_INTERNAL_H
#define ACME_CLAIMS_INTERNAL_H

/* What the files claims*.c and row.c share; everybody else includes claims.h. */
#include "claims.h"

#define LANE_BIT(lane)	(1u << (lane))

/* The bits of settle()'s lanes; a dead letter is none of them. */
#define LANES_SETTLED	(LANE_BIT(LANE_BUSINESS) | LANE_BIT(LANE_AUDIT))

#define BEHIND_A_FAILED_ROW	"released behind an earlier row of its key"

enum claim_column
{
	COL_CLAIM_ID, COL_ID, COL_EVENT_ID, COL_EVENT_NAME, COL_TOPIC,
	COL_ROUTING_KEY, COL_MESSAGE_KEY, COL_TRACEPARENT, COL_HEADERS,
	COL_PAYLOAD, COL_CREATED_AT, COL_MANDATORY, COL_LANES_DONE,
	COL_AUDIT_PAYLOAD,
	/* of claim_failed() alone */
	COL_ATTEMPTS, COL_LAST_ERROR
};

/* claims.c */
bool		claims_are_dead_letters(const struct claim_set *set);
unsigned	claims_lanes(const struct claim_set *set);
void		claims_free_claim(struct claim *claim);
void		claims_drop_key(struct claim_set *set, struct row *row);
void		claims_release_row(struct row *row, bool sent_too,
							   const char *error, msec_t now);

/* claims_message.c */
enum publish_result claims_send_copy(struct copy *copy, copy_offer offer,
									 void *context);

/* row.c */
int			row_count_copies(const struct row *row, enum copy_state state);
const struct copy *row_failed_copy(const struct row *row);
enum outcome row_outcome(const struct row *row);
unsigned	row_lanes_done(const struct row *row);
bool		row_business_failed(const struct row *row);
void		row_count(struct row *row, int by);
void		row_move(struct row *row, enum row_state to);
enum row_state row_state_by_copies(const struct row *row);
void		copy_move(struct copy *copy, enum copy_state to);

#endif							/* ACME_CLAIMS_INTERNAL_H */
