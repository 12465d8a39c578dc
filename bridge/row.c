/*
 * row.c
 *		A claimed row and its copies: where they are, and what became of them.
 *
 * A row goes out as copies: one on the business lane, one on the audit lane if
 * there is one, each unless an earlier relay did it; or as one dead letter. Each
 * copy is answered once, and the row is decided when all of them are:
 *
 *	- PUBLISHED if all are, else the business copy's outcome, else the audit
 *	  copy's; so no fault of the audit lane hides one of the business lane;
 *	- which lanes are done is settled with it, whatever the outcome: what the
 *	  broker has confirmed is not sent again.
 *
 * The window's places: a row takes one for each of its copies when the first is
 * sent, and keeps those confirmed until it is settled. So a row that has begun can
 * always go on, and a crash repeats no more than a window.
 *
 * Two transition functions, copy_move() and row_move(), keep every counter.
 */
#include "claims_internal.h"

#include <stdlib.h>

#include "log.h"

static const char *const row_state_names[] = {
	"waiting", "sent", "decided", "settling", "settled"
};

static const char *const copy_state_names[] = {
	"none", "waiting", "sent", "answered"
};

static bool
is_confirmed(const struct copy *copy)
{
	return copy->state == COPY_ANSWERED && copy->outcome == OUTCOME_PUBLISHED;
}

int
row_count_copies(const struct row *row, enum copy_state state)
{
	int			count = 0;

	for (int i = 0; i < ROW_COPIES; i++)
		count += row->copies[i].state == state;
	return count;
}

static int
count_confirmed(const struct row *row)
{
	int			count = 0;

	for (int i = 0; i < ROW_COPIES; i++)
		count += is_confirmed(&row->copies[i]);
	return count;
}

/* The copy whose outcome is the row's; NULL: all are confirmed. */
const struct copy *
row_failed_copy(const struct row *row)
{
	for (int i = 0; i < ROW_COPIES; i++)
		if (row->copies[i].state == COPY_ANSWERED &&
			row->copies[i].outcome != OUTCOME_PUBLISHED)
			return &row->copies[i];
	return NULL;
}

enum outcome
row_outcome(const struct row *row)
{
	const struct copy *failed = row_failed_copy(row);

	if (failed)
		return failed->outcome;
	return claims_are_dead_letters(row->claim->set) ? OUTCOME_ARCHIVED :
		OUTCOME_PUBLISHED;
}

unsigned
row_lanes_done(const struct row *row)
{
	unsigned	lanes = 0;

	for (int i = 0; i < ROW_COPIES; i++)
		if (is_confirmed(&row->copies[i]))
			lanes |= LANE_BIT(row->copies[i].lane);
	return lanes & LANES_SETTLED;
}

bool
row_business_failed(const struct row *row)
{
	const struct copy *failed = row_failed_copy(row);

	return failed && failed->lane == LANE_BUSINESS;
}

static bool
row_move_is_allowed(enum row_state from, enum row_state to)
{
	switch (to)
	{
		case ROW_WAITING:
			return from == ROW_SENT;
		case ROW_SENT:
			return from == ROW_WAITING;
		case ROW_DECIDED:
			return from == ROW_WAITING || from == ROW_SENT ||
				from == ROW_SETTLING;
		case ROW_SETTLING:
			return from == ROW_DECIDED;
		case ROW_SETTLED:
			return from == ROW_SETTLING;
	}
	return false;
}

void
row_count(struct row *row, int by)
{
	struct claim *claim = row->claim;
	struct claim_set *set = claim->set;

	switch (row->state)
	{
		case ROW_WAITING:
			set->waiting += by;
			claim->waiting += by;
			break;
		case ROW_SENT:
			claim->sent += by;
			break;
		case ROW_DECIDED:
			set->decided += by;
			claim->decided += by;
			break;
		case ROW_SETTLING:
			break;
		case ROW_SETTLED:
			set->rows -= by;
			claim->settled += by;
			break;
	}
}

static int
places_of(const struct row *row)
{
	int			confirmed = count_confirmed(row);

	if (row->state == ROW_SETTLED)
		return 0;
	if (row->state == ROW_DECIDED || row->state == ROW_SETTLING)
		return confirmed;
	return confirmed + row_count_copies(row, COPY_SENT) > 0 ?
		ROW_COPIES - row_count_copies(row, COPY_NONE) : 0;
}

static void
take_places(struct row *row)
{
	int			places = places_of(row);

	row->claim->set->places += places - row->places;
	row->places = places;
}

void
row_move(struct row *row, enum row_state to)
{
	if (!row_move_is_allowed(row->state, to))
	{
		log_error("impossible state change of a row",
				  LOG_NUM("id", row->id),
				  LOG_TEXT("from", row_state_names[row->state]),
				  LOG_TEXT("to", row_state_names[to]));
		abort();
	}
	row_count(row, -1);
	row->state = to;
	row_count(row, 1);
	take_places(row);
}

static bool
copy_move_is_allowed(enum copy_state from, enum copy_state to)
{
	if (to == COPY_WAITING)
		return from == COPY_SENT;
	if (to == COPY_SENT)
		return from == COPY_WAITING;
	return to == COPY_ANSWERED && (from == COPY_WAITING || from == COPY_SENT);
}

/* Where a row is that has not been decided yet. */
enum row_state
row_state_by_copies(const struct row *row)
{
	return row_count_copies(row, COPY_WAITING) > 0 ? ROW_WAITING :
		row_count_copies(row, COPY_SENT) > 0 ? ROW_SENT : ROW_DECIDED;
}

/* The row follows its copies. */
void
copy_move(struct copy *copy, enum copy_state to)
{
	struct row *row = copy->row;
	int			sent = (to == COPY_SENT) - (copy->state == COPY_SENT);

	if (!copy_move_is_allowed(copy->state, to))
	{
		log_error("impossible state change of a copy",
				  LOG_NUM("id", row->id),
				  LOG_TEXT("lane", lane_name(copy->lane)),
				  LOG_TEXT("from", copy_state_names[copy->state]),
				  LOG_TEXT("to", copy_state_names[to]));
		abort();
	}
	copy->state = to;
	row->claim->set->sent += sent;
	if (row->key && copy->lane == LANE_BUSINESS)
		row->key->unconfirmed += sent;
	if (row_state_by_copies(row) != row->state)
		row_move(row, row_state_by_copies(row));
	else
		take_places(row);
}
