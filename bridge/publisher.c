/*
 * publisher.c
 *		The names of what publisher.h defines, for the database and for logs.
 */
#include "publisher.h"

static const char *const lane_names[LANES] = {
	[LANE_BUSINESS] = "business",
	[LANE_AUDIT] = "audit",
	[LANE_DEAD_LETTER] = "dead-letter",
};

static const char *const outcome_names[OUTCOMES] = {
	[OUTCOME_PUBLISHED] = "PUBLISHED",
	[OUTCOME_REJECTED] = "REJECTED",
	[OUTCOME_UNROUTABLE] = "UNROUTABLE",
	[OUTCOME_NACKED] = "NACKED",
	[OUTCOME_RELEASED] = "RELEASED",
	[OUTCOME_ARCHIVED] = "ARCHIVED",
};

const char *
lane_name(enum lane lane)
{
	return lane_names[lane];
}

const char *
outcome_name(enum outcome outcome)
{
	return outcome_names[outcome];
}
