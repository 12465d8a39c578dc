/*
 * claims_settle.c
 *		The claims' outcomes on their way into the database.
 *
 * Outcomes are settled in batches: when enough are there, or the oldest is old
 * enough. Rows that another session holds locked, and those of a statement that
 * failed, are DECIDED again and settled later.
 */
#include "claims_internal.h"

#include <stdio.h>
#include <string.h>

static bool
is_worth_settling(const struct claim *claim, bool all, msec_t now)
{
	if (claim->decided == 0 || claim->decided_since > now)
		return false;
	return all || claim->decided >= SETTLE_ROWS_GOOD ||
		claim->decided + claim->settled == claim->count ||
		now - claim->decided_since >= SETTLE_AGE;
}

/* The oldest claim with enough outcomes. */
struct claim *
claims_to_settle(struct claim_set *set, bool all, msec_t now)
{
	for (struct claim *claim = set->first; claim; claim = claim->next)
		if (is_worth_settling(claim, all, now))
			return claim;
	return NULL;
}

msec_t
claims_settle_due(const struct claim_set *set)
{
	msec_t		due = CLOCK_NEVER;

	for (struct claim *claim = set->first; claim; claim = claim->next)
		if (claim->decided > 0)
			due = clock_earlier(due, claim->decided_since + SETTLE_AGE);
	return due;
}

/* An array element: quotes and backslashes are escaped. */
static void
append_element(struct buffer *array, const char *text)
{
	if (text == NULL)
	{
		buffer_append_text(array, "NULL");
		return;
	}
	buffer_append(array, "\"", 1);
	for (; *text; text++)
	{
		if (*text == '"' || *text == '\\')
			buffer_append(array, "\\", 1);
		buffer_append(array, text, 1);
	}
	buffer_append(array, "\"", 1);
}

/*
 * A dead letter that did not get there leaves the entry the error that it was
 * given up for: that is what the next one has to tell.
 */
static void
append_row(struct settle_texts *texts, const struct row *row, bool first)
{
	const struct copy *failed = row_failed_copy(row);
	bool		has_error = failed && failed->lane != LANE_DEAD_LETTER;
	const char *comma = first ? "" : ",";
	char		number[32];
	char		lanes;

	snprintf(number, sizeof(number), "%s%lld", comma, (long long) row->id);
	buffer_append_text(&texts->ids, number);
	buffer_append_text(&texts->outcomes, comma);
	buffer_append_text(&texts->outcomes, outcome_name(row_outcome(row)));
	lanes = (char) ('0' + row_lanes_done(row));
	buffer_append_text(&texts->lanes, comma);
	buffer_append(&texts->lanes, &lanes, 1);
	buffer_append_text(&texts->errors, comma);
	append_element(&texts->errors, has_error ? failed->error : NULL);
}

static void
append_to_all(struct settle_texts *texts, const char *text)
{
	buffer_append_text(&texts->ids, text);
	buffer_append_text(&texts->outcomes, text);
	buffer_append_text(&texts->lanes, text);
	buffer_append_text(&texts->errors, text);
}

/*
 * Write the arrays of settle() for the claim's outcomes, at most
 * SETTLE_ROWS_MAX of them; returns how many. Those rows are then SETTLING.
 */
int
claims_settle_texts(struct claim *claim, msec_t now, struct settle_texts *texts)
{
	int			rows = 0;
	msec_t		retry_at = CLOCK_NEVER;

	append_to_all(texts, "{");
	for (int i = 0; i < claim->count && rows < SETTLE_ROWS_MAX; i++)
	{
		struct row *row = &claim->rows[i];

		if (row->state != ROW_DECIDED)
			continue;
		if (row->settle_at > now)
		{
			retry_at = clock_earlier(retry_at, row->settle_at);
			continue;
		}
		append_row(texts, row, rows == 0);
		row_move(row, ROW_SETTLING);
		rows++;
	}
	/* only rows to be settled later are left: do not come back before */
	if (retry_at != CLOCK_NEVER && rows < SETTLE_ROWS_MAX)
		claim->decided_since = retry_at - SETTLE_AGE;
	append_to_all(texts, "}");
	return rows;
}

void
claims_free_texts(struct settle_texts *texts)
{
	buffer_free(&texts->ids);
	buffer_free(&texts->outcomes);
	buffer_free(&texts->lanes);
	buffer_free(&texts->errors);
}

static void
try_again(struct row *row, msec_t at)
{
	struct claim *claim = row->claim;

	row_move(row, ROW_DECIDED);
	row->settle_at = at;
	if (claim->decided == 1 || claim->decided_since > at - SETTLE_AGE)
		claim->decided_since = at - SETTLE_AGE;
}

/* Another session holds the row: its outcome stays to be settled. */
void
claims_settle_locked(struct claim *claim, int64_t id, msec_t now)
{
	for (int i = 0; i < claim->count; i++)
		if (claim->rows[i].id == id && claim->rows[i].state == ROW_SETTLING)
		{
			try_again(&claim->rows[i], now + SETTLE_LOCKED_RETRY);
			return;
		}
}

/* The statement failed: all its rows are to be settled later. */
void
claims_settle_failed(struct claim *claim, msec_t retry_at)
{
	for (int i = 0; i < claim->count; i++)
		if (claim->rows[i].state == ROW_SETTLING)
			try_again(&claim->rows[i], retry_at);
}

static void
unlink_claim(struct claim *claim)
{
	struct claim_set *set = claim->set;
	struct claim *previous = NULL;

	for (struct claim *c = set->first; c != claim; c = c->next)
		previous = c;
	if (previous)
		previous->next = claim->next;
	else
		set->first = claim->next;
	if (set->last == claim)
		set->last = previous;
}

/*
 * The database now knows that rows failed, and will hold back what follows them in
 * their keys. What was claimed before it knew is released: to offer it, now that
 * nothing says any more that an earlier row failed, would let it overtake that row.
 */
static void
release_followers(struct claim_set *set)
{
	for (struct claim *claim = set->first; claim; claim = claim->next)
		for (int i = claim->first_waiting; claim->waiting > 0 && i < claim->count; i++)
		{
			struct row *row = &claim->rows[i];

			if (row->state == ROW_WAITING && row->key && row->key->failed > 0 &&
				row->copies[0].state == COPY_WAITING)
				claims_release_row(row, false, BEHIND_A_FAILED_ROW, clock_now());
		}
}

/* The statement committed: its rows are done, and the claim if all are. */
void
claims_settle_done(struct claim *claim)
{
	struct claim_set *set = claim->set;

	release_followers(set);
	memset(set->last_settled, 0, sizeof(set->last_settled));
	for (int i = 0; i < claim->count; i++)
	{
		struct row *row = &claim->rows[i];

		if (row->state != ROW_SETTLING)
			continue;
		row_move(row, ROW_SETTLED);
		set->last_settled[row_outcome(row)]++;
		if (row->key && row_business_failed(row))
			row->key->failed--;
		claims_drop_key(set, row);
	}
	if (claim->settled < claim->count)
		return;
	unlink_claim(claim);
	claims_free_claim(claim);
}
