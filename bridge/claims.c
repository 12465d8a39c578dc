/*
 * claims.c
 *		The claims in memory: which rows wait, are sent, are decided, are
 *		settled - and the order within a key.
 *
 * A row's texts stay where libpq put them; a claim keeps its result until all
 * its rows are decided. What then is left to settle is small: an entry that an
 * operator holds locked for hours keeps nothing else waiting. Rows are offered to the publisher in the order of the
 * claims, and of ids within a claim, with three rules per message key, so that
 * first copies leave in order (design, invariant 2):
 *
 *	- a row behind one that was put off in this pass is put off too;
 *	- a row behind one that failed and is not settled yet is released, at the
 *	  latest when that is settled: the claim that hands it out again knows
 *	  whether it must wait;
 *	- with strict order, a row behind an unconfirmed one is put off.
 *
 * One transition function, move(), keeps every counter.
 */
#include "claims.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"

enum claim_column
{
	COL_CLAIM_ID, COL_ID, COL_EVENT_ID, COL_EVENT_NAME, COL_TOPIC,
	COL_ROUTING_KEY, COL_MESSAGE_KEY, COL_TRACEPARENT, COL_HEADERS,
	COL_PAYLOAD, COL_CREATED_AT, COL_MANDATORY
};

static const char *const outcome_names[OUTCOMES] = {
	[OUTCOME_PUBLISHED] = "PUBLISHED",
	[OUTCOME_REJECTED] = "REJECTED",
	[OUTCOME_UNROUTABLE] = "UNROUTABLE",
	[OUTCOME_NACKED] = "NACKED",
	[OUTCOME_RELEASED] = "RELEASED",
};

static const char *const row_state_names[] = {
	"waiting", "sent", "decided", "settling", "settled"
};

const char *
outcome_name(enum outcome outcome)
{
	return outcome_names[outcome];
}

void
claims_init(struct claim_set *set, const char *origin)
{
	memset(set, 0, sizeof(*set));
	set->origin = origin;
	names_init(&set->keys, sizeof(struct key));
}

/* ---- states ---- */

static bool
move_is_allowed(enum row_state from, enum row_state to)
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

static void
count(struct claim_set *set, struct row *row, int by)
{
	struct claim *claim = row->claim;

	switch (row->state)
	{
		case ROW_WAITING:
			set->waiting += by;
			claim->waiting += by;
			break;
		case ROW_SENT:
			set->sent += by;
			claim->sent += by;
			if (row->key)
				row->key->unconfirmed += by;
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

static void
move(struct claim_set *set, struct row *row, enum row_state to)
{
	if (!move_is_allowed(row->state, to))
	{
		log_error("impossible state change of a row",
				  LOG_NUM("id", row->id),
				  LOG_TEXT("from", row_state_names[row->state]),
				  LOG_TEXT("to", row_state_names[to]));
		abort();
	}
	count(set, row, -1);
	row->state = to;
	count(set, row, 1);
}

/* ---- a claim's life ---- */

static void
drop_key(struct claim_set *set, struct row *row)
{
	if (row->key && --row->key->name.users == 0)
		names_remove(&set->keys, &row->key->name);
	row->key = NULL;
}

static void
read_row(struct claim_set *set, struct claim *claim, int number)
{
	struct row *row = &claim->rows[number];

	row->claim = claim;
	row->number = number;
	row->id = strtoll(PQgetvalue(claim->result, number, COL_ID), NULL, 10);
	if (!PQgetisnull(claim->result, number, COL_MESSAGE_KEY))
		row->key = names_use(&set->keys, PQgetvalue(claim->result, number,
													COL_MESSAGE_KEY));
	claim->bytes += (size_t) PQgetlength(claim->result, number, COL_PAYLOAD) +
		(size_t) PQgetlength(claim->result, number, COL_HEADERS);
	row->state = ROW_WAITING;
	set->rows++;
	count(set, row, 1);
}

/* Takes the result over. It must have at least one row. */
struct claim *
claims_add(struct claim_set *set, PGresult *result)
{
	struct claim *claim = calloc(1, sizeof(*claim));

	if (claim == NULL)
		abort();
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
	return claim;
}

/* The messages are not needed any more. */
static void
unload(struct claim_set *set, struct claim *claim)
{
	if (claim->result == NULL)
		return;
	PQclear(claim->result);
	claim->result = NULL;
	set->bytes -= claim->bytes;
	set->loaded--;
}

static void
claim_free(struct claim_set *set, struct claim *claim)
{
	for (int i = 0; i < claim->count; i++)
	{
		drop_key(set, &claim->rows[i]);
		free(claim->rows[i].error);
	}
	unload(set, claim);
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
		claim_free(set, claim);
	}
	set->last = NULL;
	set->rows = set->waiting = set->sent = set->decided = set->confirmed = 0;
}

/* ---- towards the publisher ---- */

static const char *
text_or_null(const struct row *row, enum claim_column column)
{
	const PGresult *result = row->claim->result;

	return PQgetisnull(result, row->number, column) ? NULL :
		PQgetvalue(result, row->number, column);
}

static void
fill_message(const struct claim_set *set, const struct row *row,
			 struct message *m)
{
	const PGresult *result = row->claim->result;
	int			n = row->number;

	m->id = PQgetvalue(result, n, COL_EVENT_ID);
	m->type = PQgetvalue(result, n, COL_EVENT_NAME);
	m->origin = set->origin;
	m->topic = PQgetvalue(result, n, COL_TOPIC);
	m->routing_key = PQgetvalue(result, n, COL_ROUTING_KEY);	/* NULL: '' */
	m->headers = text_or_null(row, COL_HEADERS);
	m->traceparent = text_or_null(row, COL_TRACEPARENT);
	m->payload = PQgetvalue(result, n, COL_PAYLOAD);
	m->payload_length = (size_t) PQgetlength(result, n, COL_PAYLOAD);
	m->created_at = strtoll(PQgetvalue(result, n, COL_CREATED_AT), NULL, 10);
	m->mandatory = PQgetvalue(result, n, COL_MANDATORY)[0] == 't';
}

const char *
claims_routing_key(const struct row *row)
{
	return PQgetvalue(row->claim->result, row->number, COL_ROUTING_KEY);
}

size_t
claims_payload_length(const struct row *row)
{
	return (size_t) PQgetlength(row->claim->result, row->number, COL_PAYLOAD);
}

/* Does the row's key make it wait for a later pass? */
static bool
key_holds(const struct claim_set *set, const struct row *row)
{
	return row->key && (row->key->held_in_pass == set->pass ||
						(set->strict && row->key->unconfirmed > 0));
}

static enum publish_result
offer_row(struct claim_set *set, struct row *row, row_offer offer,
		  void *context)
{
	struct message m;
	enum publish_result result = PUBLISH_LATER;

	if (row->key && row->key->failed > 0)
	{
		claims_decide(set, row, OUTCOME_RELEASED,
					  "released behind an earlier row of its key", clock_now());
		return PUBLISH_DECIDED;
	}
	if (!key_holds(set, row))
	{
		fill_message(set, row, &m);
		result = offer(context, row, &m);
	}
	if (result == PUBLISH_SENT)
		move(set, row, ROW_SENT);
	if (result == PUBLISH_LATER && row->key)
		row->key->held_in_pass = set->pass;
	return result;
}

/* One pass over the waiting rows, until the publisher is full. */
void
claims_offer(struct claim_set *set, row_offer offer, void *context)
{
	set->pass++;
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
			if (offer_row(set, row, offer, context) == PUBLISH_FULL)
				return;
			untouched = untouched && row->state != ROW_WAITING;
		}
	}
}

/*
 * A copy that any database can store: what a broker says need not be UTF-8, and
 * one bad byte would fail the settle of all its rows.
 */
static char *
clean_text(const char *text)
{
	char	   *copy = strdup(text);

	if (copy == NULL)
		abort();
	for (char *c = copy; *c; c++)
		if ((unsigned char) *c < 0x20 || (unsigned char) *c > 0x7e)
			*c = '?';
	return copy;
}

/* The publisher's answer, or ours. */
void
claims_decide(struct claim_set *set, struct row *row, enum outcome outcome,
			  const char *error, msec_t now)
{
	move(set, row, ROW_DECIDED);
	row->outcome = outcome;
	set->counts[outcome]++;
	if (error)
		row->error = clean_text(error);
	if (outcome != OUTCOME_PUBLISHED && row->key)
		row->key->failed++;
	if (outcome == OUTCOME_PUBLISHED)
		set->confirmed++;
	if (row->claim->decided == 1)
		row->claim->decided_since = now;
	if (row->claim->waiting + row->claim->sent == 0)
		unload(set, row->claim);
}

/* The publisher wants to see the row once more. */
void
claims_again(struct claim_set *set, struct row *row)
{
	move(set, row, ROW_WAITING);
	if (row->number < row->claim->first_waiting)
		row->claim->first_waiting = row->number;
}

/* Decide all rows that wait, and those with the publisher too if it is told. */
void
claims_release(struct claim_set *set, bool sent_too, const char *error,
			   msec_t now)
{
	for (struct claim *claim = set->first; claim; claim = claim->next)
		for (int i = 0; i < claim->count; i++)
		{
			enum row_state state = claim->rows[i].state;

			if (state == ROW_WAITING || (sent_too && state == ROW_SENT))
				claims_decide(set, &claim->rows[i], OUTCOME_RELEASED, error,
							  now);
		}
}

/* ---- towards the database ---- */

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
 * Write the arrays of settle() for the claim's outcomes, at most
 * SETTLE_ROWS_MAX of them; returns how many. Those rows are then SETTLING.
 */
int
claims_settle_texts(struct claim_set *set, struct claim *claim, msec_t now,
					struct buffer *ids, struct buffer *outcomes,
					struct buffer *errors)
{
	int			rows = 0;
	msec_t		retry_at = CLOCK_NEVER;
	char		id[32];

	buffer_append_text(ids, "{");
	buffer_append_text(outcomes, "{");
	buffer_append_text(errors, "{");
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
		snprintf(id, sizeof(id), "%s%lld", rows ? "," : "",
				 (long long) row->id);
		buffer_append_text(ids, id);
		buffer_append_text(outcomes, rows ? "," : "");
		buffer_append_text(outcomes, outcome_names[row->outcome]);
		buffer_append_text(errors, rows ? "," : "");
		append_element(errors, row->error);
		move(set, row, ROW_SETTLING);
		rows++;
	}
	/* only rows to be settled later are left: do not come back before */
	if (retry_at != CLOCK_NEVER && rows < SETTLE_ROWS_MAX)
		claim->decided_since = retry_at - SETTLE_AGE;
	buffer_append_text(ids, "}");
	buffer_append_text(outcomes, "}");
	buffer_append_text(errors, "}");
	return rows;
}

static void
try_again(struct claim_set *set, struct row *row, msec_t at)
{
	struct claim *claim = row->claim;

	move(set, row, ROW_DECIDED);
	row->settle_at = at;
	if (claim->decided == 1 || claim->decided_since > at - SETTLE_AGE)
		claim->decided_since = at - SETTLE_AGE;
}

/* Another session holds the row: its outcome stays to be settled. */
void
claims_settle_locked(struct claim_set *set, struct claim *claim, int64_t id,
					 msec_t now)
{
	for (int i = 0; i < claim->count; i++)
		if (claim->rows[i].id == id && claim->rows[i].state == ROW_SETTLING)
		{
			try_again(set, &claim->rows[i], now + SETTLE_LOCKED_RETRY);
			return;
		}
}

/* The statement failed: all its rows are to be settled later. */
void
claims_settle_failed(struct claim_set *set, struct claim *claim,
					 msec_t retry_at)
{
	for (int i = 0; i < claim->count; i++)
		if (claim->rows[i].state == ROW_SETTLING)
			try_again(set, &claim->rows[i], retry_at);
}

static void
unlink_claim(struct claim_set *set, struct claim *claim)
{
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

			if (row->state == ROW_WAITING && row->key && row->key->failed > 0)
				claims_decide(set, row, OUTCOME_RELEASED,
							  "released behind an earlier row of its key",
							  clock_now());
		}
}

/* The statement committed: its rows are done, and the claim if all are. */
void
claims_settle_done(struct claim_set *set, struct claim *claim)
{
	release_followers(set);
	for (int i = 0; i < claim->count; i++)
	{
		struct row *row = &claim->rows[i];

		if (row->state != ROW_SETTLING)
			continue;
		move(set, row, ROW_SETTLED);
		if (row->outcome == OUTCOME_PUBLISHED)
			set->confirmed--;
		else if (row->key)
			row->key->failed--;
		drop_key(set, row);
	}
	if (claim->settled < claim->count)
		return;
	unlink_claim(set, claim);
	claim_free(set, claim);
}
