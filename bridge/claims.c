/*
 * claims.c
 *		The claims in memory: which rows wait, are sent, are decided, are
 *		settled - and the order within a key.
 *
 * How a row's copies decide it is in row.c, what they look like in
 * claims_message.c, and what is settled in claims_settle.c.
 *
 * A row's texts stay where libpq put them; a claim keeps its result until all
 * its rows are decided. What then is left to settle is small: an entry that an
 * operator holds locked for hours keeps nothing else waiting.
 *
 * Copies are offered to the publisher in the order of the claims, and of ids
 * within a claim, the business copy first. Three rules per message key make first
 * copies leave in order (design, invariant 2):
 *
 *	- a copy behind one of its lane that was put off in this pass is put off too;
 *	- a row behind one whose business copy failed and is not settled yet is
 *	  released, at the latest when that is settled: the claim that hands it out
 *	  again knows whether it must wait;
 *	- with strict order, a business copy behind an unconfirmed one is put off.
 */
#include "claims_internal.h"

#include <stdlib.h>
#include <string.h>

#include "log.h"

/* Behind the error: what keeps only its code reads that from the begin. */
#define AUDIT_LANE_SUFFIX	" (audit lane)"

void
claims_init(struct claim_set *set, const struct claim_settings *settings)
{
	memset(set, 0, sizeof(*set));
	set->settings = *settings;
	names_init(&set->keys, sizeof(struct key));
}

bool
claims_are_dead_letters(const struct claim_set *set)
{
	return set->settings.dead_letter_exchange != NULL;
}

/* The lanes that copies of this set may go on, as bits. */
unsigned
claims_lanes(const struct claim_set *set)
{
	if (claims_are_dead_letters(set))
		return LANE_BIT(LANE_DEAD_LETTER);
	return LANE_BIT(LANE_BUSINESS) |
		(set->settings.audit_exchange ? LANE_BIT(LANE_AUDIT) : 0);
}

/* ---- a claim's life ---- */

void
claims_drop_key(struct claim_set *set, struct row *row)
{
	if (row->key && --row->key->name.users == 0)
		names_remove(&set->keys, &row->key->name);
	row->key = NULL;
}

static void
want_copy(struct row *row, enum lane lane)
{
	struct copy *copy = &row->copies[lane == LANE_AUDIT];

	*copy = (struct copy){
		.row = row, .lane = lane, .state = COPY_WAITING, .id = row->id,
	};
}

/* The copies that the row still needs. */
static void
want_copies(struct row *row, unsigned done)
{
	unsigned	lanes = claims_lanes(row->claim->set) & ~(done & LANES_SETTLED);

	for (int lane = 0; lane < LANES; lane++)
		if (lanes & LANE_BIT(lane))
			want_copy(row, (enum lane) lane);
	if (lanes == 0 && !(done & LANE_BIT(LANE_AUDIT)))
		row->claim->set->unaudited++;
}

/*
 * Dead letters have no order: their keys went on without them, or wait for
 * somebody to mend the entry.
 */
static void
read_row(struct claim_set *set, struct claim *claim, int number)
{
	struct row *row = &claim->rows[number];
	PGresult   *result = claim->result;

	row->claim = claim;
	row->number = number;
	row->id = strtoll(PQgetvalue(result, number, COL_ID), NULL, 10);
	if (!PQgetisnull(result, number, COL_MESSAGE_KEY) && !claims_are_dead_letters(set))
		row->key = names_use(&set->keys, PQgetvalue(result, number,
													COL_MESSAGE_KEY));
	claim->bytes += (size_t) PQgetlength(result, number, COL_PAYLOAD) +
		(size_t) PQgetlength(result, number, COL_HEADERS) +
		(size_t) PQgetlength(result, number, COL_AUDIT_PAYLOAD);
	want_copies(row, (unsigned) atoi(PQgetvalue(result, number, COL_LANES_DONE)));
	row->state = ROW_WAITING;
	set->rows++;
	row_count(row, 1);
}

/* The messages are not needed any more. */
static void
unload(struct claim *claim)
{
	if (claim->result == NULL)
		return;
	PQclear(claim->result);
	claim->result = NULL;
	claim->set->bytes -= claim->bytes;
	claim->set->loaded--;
}

static void
decide(struct row *row, msec_t now)
{
	struct claim *claim = row->claim;

	claim->set->counts[row_outcome(row)]++;
	if (claim->decided == 1)
		claim->decided_since = now;
	if (claim->waiting + claim->sent == 0)
		unload(claim);
}

/*
 * A row may miss only its audit copy when there is no audit lane any more: it is
 * finished without.
 */
static void
decide_finished(struct claim *claim)
{
	for (int i = 0; i < claim->count; i++)
	{
		struct row *row = &claim->rows[i];

		if (row_state_by_copies(row) != ROW_DECIDED)
			continue;
		row_move(row, ROW_DECIDED);
		decide(row, clock_now());
	}
}

/* Takes the result over. It must have at least one row. */
struct claim *
claims_add(struct claim_set *set, PGresult *result)
{
	struct claim *claim = calloc(1, sizeof(*claim));

	if (claim == NULL)
		abort();
	claim->set = set;
	claim->result = result;
	claim->count = PQntuples(result);
	claim->claim_id = strtoll(PQgetvalue(result, 0, COL_CLAIM_ID), NULL, 10);
	claim->rows = calloc((size_t) claim->count, sizeof(struct row));
	if (claim->rows == NULL)
		abort();
	for (int i = 0; i < claim->count; i++)
		read_row(set, claim, i);
	if (set->last)
		set->last->next = claim;
	else
		set->first = claim;
	set->last = claim;
	set->loaded++;
	set->bytes += claim->bytes;
	decide_finished(claim);
	return claim;
}

void
claims_free_claim(struct claim *claim)
{
	for (int i = 0; i < claim->count; i++)
	{
		claims_drop_key(claim->set, &claim->rows[i]);
		for (int n = 0; n < ROW_COPIES; n++)
			free(claim->rows[i].copies[n].error);
	}
	unload(claim);
	free(claim->rows);
	free(claim);
}

/* Forget everything: the database will hand it out again. */
void
claims_clear(struct claim_set *set)
{
	while (set->first)
	{
		struct claim *claim = set->first;

		set->first = claim->next;
		claims_free_claim(claim);
	}
	set->last = NULL;
	set->rows = set->waiting = set->sent = set->decided = set->places = 0;
}

/* ---- towards the publisher ---- */

/*
 * A text that any database can store: what a broker says need not be UTF-8, and
 * one bad byte would fail the settle of all its rows.
 */
static char *
clean_text(const char *text, const char *suffix)
{
	size_t		length = strlen(text);
	char	   *clean = malloc(length + strlen(suffix) + 1);

	if (clean == NULL)
		abort();
	memcpy(clean, text, length);
	strcpy(clean + length, suffix);
	for (char *c = clean; *c; c++)
		if ((unsigned char) *c < 0x20 || (unsigned char) *c > 0x7e)
			*c = '?';
	return clean;
}

/* The publisher's answer, or ours. */
void
claims_answer(struct copy *copy, enum outcome outcome, const char *error,
			  msec_t now)
{
	struct row *row = copy->row;

	copy->outcome = outcome;
	if (error)
		copy->error = clean_text(error, copy->lane == LANE_AUDIT ?
								 AUDIT_LANE_SUFFIX : "");
	copy_move(copy, COPY_ANSWERED);
	if (row->key && copy->lane == LANE_BUSINESS && outcome != OUTCOME_PUBLISHED)
		row->key->failed++;
	if (row->state == ROW_DECIDED)
		decide(row, now);
}

/* The publisher wants to see the copy once more. */
void
claims_again(struct copy *copy)
{
	struct row *row = copy->row;

	copy_move(copy, COPY_WAITING);
	if (row->number < row->claim->first_waiting)
		row->claim->first_waiting = row->number;
}

/* Answer what waits, and what is with the publisher too if it is told. */
void
claims_release_row(struct row *row, bool sent_too, const char *error, msec_t now)
{
	for (int i = 0; i < ROW_COPIES; i++)
	{
		enum copy_state state = row->copies[i].state;

		if (state == COPY_WAITING || (sent_too && state == COPY_SENT))
			claims_answer(&row->copies[i], OUTCOME_RELEASED, error, now);
	}
}

void
claims_release(struct claim_set *set, bool sent_too, const char *error,
			   msec_t now)
{
	for (struct claim *claim = set->first; claim; claim = claim->next)
		for (int i = 0; i < claim->count; i++)
			claims_release_row(&claim->rows[i], sent_too, error, now);
}

/* Does the row's key make the copy wait for a later pass? */
static bool
key_holds(const struct claim_set *set, const struct copy *copy)
{
	const struct key *key = copy->row->key;

	return key && (key->held_in_pass[copy->lane] == set->pass ||
				   (set->strict && copy->lane == LANE_BUSINESS &&
					key->unconfirmed > 0));
}

static void
offer_copy(struct claim_set *set, struct copy *copy, copy_offer offer,
		   void *context)
{
	struct key *key = copy->row->key;
	enum publish_result result = PUBLISH_LATER;

	if (set->full & LANE_BIT(copy->lane))
		return;
	if (key && key->failed > 0 && copy->lane == LANE_BUSINESS)
	{
		claims_release_row(copy->row, false, BEHIND_A_FAILED_ROW, clock_now());
		return;
	}
	if (!key_holds(set, copy))
		result = claims_send_copy(copy, offer, context);
	if (result == PUBLISH_SENT)
		copy_move(copy, COPY_SENT);
	else if (result == PUBLISH_LATER && key)
		key->held_in_pass[copy->lane] = set->pass;
	else if (result == PUBLISH_FULL)
		set->full |= LANE_BIT(copy->lane);
}

/* A row that has begun may go on; another begins only with places for all of it. */
static bool
has_places(struct claim_set *set, const struct row *row)
{
	int			wanted = row_count_copies(row, COPY_WAITING);

	if (row->places > 0)
		return true;
	if (set->places > 0 && set->places + wanted > set->settings.window)
		set->no_place = true;
	return !set->no_place;
}

/* The audit copy does not go before the business copy. */
static void
offer_row(struct claim_set *set, struct row *row, copy_offer offer,
		  void *context)
{
	if (!has_places(set, row))
		return;
	for (int i = 0; i < ROW_COPIES; i++)
	{
		if (row->copies[i].state == COPY_WAITING)
			offer_copy(set, &row->copies[i], offer, context);
		if (row->copies[i].state == COPY_WAITING)
			return;
	}
}

/* Nothing more can be sent in this pass. */
static bool
is_over(const struct claim_set *set)
{
	unsigned	lanes = claims_lanes(set);
	bool		one_lane = (lanes & (lanes - 1)) == 0;

	return (set->full & lanes) == lanes || (one_lane && set->no_place);
}

/* One pass over the waiting rows, until the publisher is full. */
void
claims_offer(struct claim_set *set, copy_offer offer, void *context)
{
	set->pass++;
	set->full = 0;
	set->no_place = false;
	for (struct claim *claim = set->first; claim; claim = claim->next)
	{
		bool		untouched = true;	/* no waiting row was passed over */

		if (claim->waiting == 0)
			continue;
		for (int i = claim->first_waiting; i < claim->count; i++)
		{
			struct row *row = &claim->rows[i];

			if (row->state != ROW_WAITING)
				continue;
			if (untouched)
				claim->first_waiting = i;
			offer_row(set, row, offer, context);
			if (is_over(set))
				return;
			untouched = untouched && row->state != ROW_WAITING;
		}
	}
}
