/*
 * claims.c
 *		The claims in memory: which rows wait, are sent, are decided, are
 *		settled - and the order within a key.
 *
 * A row is sent as copies: one on the business lane, one on the audit lane if
 * there is one, each unless an earlier relay did it; or as one dead letter. Each
 * copy is answered once, and the row is decided when all of them are:
 *
 *	- PUBLISHED if all are, else the business copy's outcome, else the audit
 *	  copy's; so no fault of the audit lane hides one of the business lane;
 *	- which lanes are done is settled with it, whatever the outcome: what the
 *	  broker has confirmed is not sent again.
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
 *
 * The window's places: a row takes one for each of its copies when the first is
 * sent, and keeps those confirmed until it is settled. So a row that has begun can
 * always go on, and a crash repeats no more than a window.
 *
 * Two transition functions, move_copy() and move_row(), keep every counter.
 */
#include "claims.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error_headers.h"
#include "log.h"

#define LANE_BIT(lane)	(1u << (lane))

/* The bits of settle()'s lanes; a dead letter is none of them. */
#define LANES_SETTLED	(LANE_BIT(LANE_BUSINESS) | LANE_BIT(LANE_AUDIT))

/* Behind the error: what keeps only its code reads that from the begin. */
#define AUDIT_LANE_SUFFIX	" (audit lane)"

#define BEHIND_A_FAILED_ROW	"released behind an earlier row of its key"

enum claim_column
{
	COL_CLAIM_ID, COL_ID, COL_EVENT_ID, COL_EVENT_NAME, COL_TOPIC,
	COL_ROUTING_KEY, COL_MESSAGE_KEY, COL_TRACEPARENT, COL_HEADERS,
	COL_PAYLOAD, COL_CREATED_AT, COL_MANDATORY, COL_LANES_DONE,
	COL_AUDIT_PAYLOAD,
	/* of claim_failed() alone */
	COL_ATTEMPTS, COL_LAST_ERROR, COL_CREATED_TEXT
};

static const char *const row_state_names[] = {
	"waiting", "sent", "decided", "settling", "settled"
};

static const char *const copy_state_names[] = {
	"none", "waiting", "sent", "answered"
};

void
claims_init(struct claim_set *set, const struct claim_settings *settings)
{
	memset(set, 0, sizeof(*set));
	set->settings = *settings;
	names_init(&set->keys, sizeof(struct key));
}

static bool
is_dead_letters(const struct claim_set *set)
{
	return set->settings.dead_letter_exchange != NULL;
}

/* The lanes that copies of this set may go on, as bits. */
static unsigned
lanes_of(const struct claim_set *set)
{
	if (is_dead_letters(set))
		return LANE_BIT(LANE_DEAD_LETTER);
	return LANE_BIT(LANE_BUSINESS) |
		(set->settings.audit_exchange ? LANE_BIT(LANE_AUDIT) : 0);
}

/* ---- a row's copies ---- */

static bool
is_confirmed(const struct copy *copy)
{
	return copy->state == COPY_ANSWERED && copy->outcome == OUTCOME_PUBLISHED;
}

static int
count_copies(const struct row *row, enum copy_state state)
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
static const struct copy *
failed_copy(const struct row *row)
{
	for (int i = 0; i < ROW_COPIES; i++)
		if (row->copies[i].state == COPY_ANSWERED &&
			row->copies[i].outcome != OUTCOME_PUBLISHED)
			return &row->copies[i];
	return NULL;
}

static enum outcome
outcome_of(const struct row *row)
{
	const struct copy *failed = failed_copy(row);

	if (failed)
		return failed->outcome;
	return is_dead_letters(row->claim->set) ? OUTCOME_ARCHIVED :
		OUTCOME_PUBLISHED;
}

static unsigned
lanes_done(const struct row *row)
{
	unsigned	lanes = 0;

	for (int i = 0; i < ROW_COPIES; i++)
		if (is_confirmed(&row->copies[i]))
			lanes |= LANE_BIT(row->copies[i].lane);
	return lanes & LANES_SETTLED;
}

static bool
business_failed(const struct row *row)
{
	const struct copy *failed = failed_copy(row);

	return failed && failed->lane == LANE_BUSINESS;
}

/* ---- states ---- */

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

static void
count(struct row *row, int by)
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
	return confirmed + count_copies(row, COPY_SENT) > 0 ?
		ROW_COPIES - count_copies(row, COPY_NONE) : 0;
}

static void
take_places(struct row *row)
{
	int			places = places_of(row);

	row->claim->set->places += places - row->places;
	row->places = places;
}

static void
move_row(struct row *row, enum row_state to)
{
	if (!row_move_is_allowed(row->state, to))
	{
		log_error("impossible state change of a row",
				  LOG_NUM("id", row->id),
				  LOG_TEXT("from", row_state_names[row->state]),
				  LOG_TEXT("to", row_state_names[to]));
		abort();
	}
	count(row, -1);
	row->state = to;
	count(row, 1);
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
static enum row_state
state_by_copies(const struct row *row)
{
	return count_copies(row, COPY_WAITING) > 0 ? ROW_WAITING :
		count_copies(row, COPY_SENT) > 0 ? ROW_SENT : ROW_DECIDED;
}

/* The row follows its copies. */
static void
move_copy(struct copy *copy, enum copy_state to)
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
	if (state_by_copies(row) != row->state)
		move_row(row, state_by_copies(row));
	else
		take_places(row);
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
	unsigned	lanes = lanes_of(row->claim->set) & ~(done & LANES_SETTLED);

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
	if (!PQgetisnull(result, number, COL_MESSAGE_KEY) && !is_dead_letters(set))
		row->key = names_use(&set->keys, PQgetvalue(result, number,
													COL_MESSAGE_KEY));
	claim->bytes += (size_t) PQgetlength(result, number, COL_PAYLOAD) +
		(size_t) PQgetlength(result, number, COL_HEADERS) +
		(size_t) PQgetlength(result, number, COL_AUDIT_PAYLOAD);
	want_copies(row, (unsigned) atoi(PQgetvalue(result, number, COL_LANES_DONE)));
	row->state = ROW_WAITING;
	set->rows++;
	count(row, 1);
}

static void unload(struct claim *claim);

static void
decide(struct row *row, msec_t now)
{
	struct claim *claim = row->claim;

	claim->set->counts[outcome_of(row)]++;
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

		if (state_by_copies(row) != ROW_DECIDED)
			continue;
		move_row(row, ROW_DECIDED);
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
claim_free(struct claim *claim)
{
	for (int i = 0; i < claim->count; i++)
	{
		drop_key(claim->set, &claim->rows[i]);
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
		claim_free(claim);
	}
	set->last = NULL;
	set->rows = set->waiting = set->sent = set->decided = set->places = 0;
}

/* ---- towards the publisher ---- */

static int64_t
created_ms(const struct row *row)
{
	return strtoll(PQgetvalue(row->claim->result, row->number, COL_CREATED_AT), NULL, 10);
}

/* Since the row was published, by the database's clock and by ours. */
msec_t
claims_age(const struct copy *copy)
{
	return clock_wall() - created_ms(copy->row);
}

static const char *
text_or_null(const struct row *row, enum claim_column column)
{
	const PGresult *result = row->claim->result;

	return PQgetisnull(result, row->number, column) ? NULL :
		PQgetvalue(result, row->number, column);
}

static void
fill_message(const struct copy *copy, struct message *m)
{
	const struct row *row = copy->row;
	const PGresult *result = row->claim->result;
	int			n = row->number;
	int			payload = copy->lane == LANE_AUDIT &&
		!PQgetisnull(result, n, COL_AUDIT_PAYLOAD) ? COL_AUDIT_PAYLOAD : COL_PAYLOAD;

	memset(m, 0, sizeof(*m));
	m->id = PQgetvalue(result, n, COL_EVENT_ID);
	m->type = PQgetvalue(result, n, COL_EVENT_NAME);
	m->origin = row->claim->set->settings.origin;
	m->exchange = PQgetvalue(result, n, COL_TOPIC);
	m->routing_key = PQgetvalue(result, n, COL_ROUTING_KEY);	/* NULL: '' */
	m->headers = text_or_null(row, COL_HEADERS);
	m->traceparent = text_or_null(row, COL_TRACEPARENT);
	m->payload = PQgetvalue(result, n, payload);
	m->payload_length = (size_t) PQgetlength(result, n, payload);
	m->created_at = created_ms(row) / 1000;
	m->mandatory = PQgetvalue(result, n, COL_MANDATORY)[0] == 't';
	if (copy->lane == LANE_AUDIT)
	{
		m->exchange = row->claim->set->settings.audit_exchange;
		m->mandatory = true;
	}
}

#define DEAD_LETTER_HEADERS	6

/* The message that was given up, at the dead-letter exchange, and why. */
static void
readdress(const struct row *row, struct message *m,
		  struct message_header headers[DEAD_LETTER_HEADERS])
{
	const struct claim_settings *settings = &row->claim->set->settings;
	const PGresult *result = row->claim->result;
	int			n = row->number;
	const struct message_header added[DEAD_LETTER_HEADERS] = {
		{HEADER_ORIGINAL_EXCHANGE, m->exchange, 0},
		{HEADER_ORIGINAL_KEY, m->routing_key, 0},
		{HEADER_ERROR_SERVICE, settings->origin, 0},
		{HEADER_ERROR_MESSAGE, PQgetvalue(result, n, COL_LAST_ERROR), 0},
		{HEADER_ERROR_ATTEMPTS, NULL,
		strtoll(PQgetvalue(result, n, COL_ATTEMPTS), NULL, 10)},
		{HEADER_ERROR_TIME, PQgetvalue(result, n, COL_CREATED_TEXT), 0},
	};

	memcpy(headers, added, sizeof(added));
	m->extra = headers;
	m->extra_count = DEAD_LETTER_HEADERS;
	m->exchange = settings->dead_letter_exchange;
	m->routing_key = DEAD_LETTER_KEY;
	m->mandatory = true;
	m->sidetracked = true;
}

/* Answer what waits, and what is with the publisher too if it is told. */
static void
release_row(struct row *row, bool sent_too, const char *error, msec_t now)
{
	for (int i = 0; i < ROW_COPIES; i++)
	{
		enum copy_state state = row->copies[i].state;

		if (state == COPY_WAITING || (sent_too && state == COPY_SENT))
			claims_answer(&row->copies[i], OUTCOME_RELEASED, error, now);
	}
}

static enum publish_result
send_copy(struct copy *copy, copy_offer offer, void *context)
{
	struct message_header headers[DEAD_LETTER_HEADERS];
	struct message m;

	fill_message(copy, &m);
	if (copy->lane == LANE_DEAD_LETTER)
		readdress(copy->row, &m, headers);
	return offer(context, copy, &m);
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
		release_row(copy->row, false, BEHIND_A_FAILED_ROW, clock_now());
		return;
	}
	if (!key_holds(set, copy))
		result = send_copy(copy, offer, context);
	if (result == PUBLISH_SENT)
		move_copy(copy, COPY_SENT);
	else if (result == PUBLISH_LATER && key)
		key->held_in_pass[copy->lane] = set->pass;
	else if (result == PUBLISH_FULL)
		set->full |= LANE_BIT(copy->lane);
}

/* A row that has begun may go on; another begins only with places for all of it. */
static bool
has_places(struct claim_set *set, const struct row *row)
{
	int			wanted = count_copies(row, COPY_WAITING);

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
	unsigned	lanes = lanes_of(set);
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
	move_copy(copy, COPY_ANSWERED);
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

	move_copy(copy, COPY_WAITING);
	if (row->number < row->claim->first_waiting)
		row->claim->first_waiting = row->number;
}

void
claims_release(struct claim_set *set, bool sent_too, const char *error,
			   msec_t now)
{
	for (struct claim *claim = set->first; claim; claim = claim->next)
		for (int i = 0; i < claim->count; i++)
			release_row(&claim->rows[i], sent_too, error, now);
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
 * A dead letter that did not get there leaves the entry the error that it was
 * given up for: that is what the next one has to tell.
 */
static void
append_row(struct settle_texts *texts, const struct row *row, bool first)
{
	const struct copy *failed = failed_copy(row);
	bool		has_error = failed && failed->lane != LANE_DEAD_LETTER;
	const char *comma = first ? "" : ",";
	char		number[32];

	snprintf(number, sizeof(number), "%s%lld", comma, (long long) row->id);
	buffer_append_text(&texts->ids, number);
	buffer_append_text(&texts->outcomes, comma);
	buffer_append_text(&texts->outcomes, outcome_name(outcome_of(row)));
	snprintf(number, sizeof(number), "%s%u", comma, lanes_done(row));
	buffer_append_text(&texts->lanes, number);
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
		move_row(row, ROW_SETTLING);
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

	move_row(row, ROW_DECIDED);
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
				release_row(row, false, BEHIND_A_FAILED_ROW, clock_now());
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
		move_row(row, ROW_SETTLED);
		set->last_settled[outcome_of(row)]++;
		if (row->key && business_failed(row))
			row->key->failed--;
		drop_key(set, row);
	}
	if (claim->settled < claim->count)
		return;
	unlink_claim(claim);
	claim_free(claim);
}
