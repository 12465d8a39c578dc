/*
 * consume_batch.c
 *		One batch: chosen, counted if its messages are suspect, run, and what its
 *		result means for each of them.
 *
 * Suspect messages take two statements, each its own transaction: the first
 * counts an attempt of each, so that one that ends its session leaves a trace
 * (deliveries.c). The others' failures are counted by the batch's own statement,
 * in its transaction.
 *
 * A batch that ends without a result was too large as well, if it was cancelled
 * for the time it took: each time the next ones are half as large, and grow again
 * with every one that succeeds.
 */
#include "consume_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crash.h"
#include "headers_json.h"
#include "log.h"
#include "telemetry.h"
#include "pg_array.h"
#include "utf8.h"

/* Bytes of one batch's bodies at most; one message always fits. */
#define BATCH_BYTES		(16u * 1024 * 1024)

/* Failures in a row that are nobody's fault, until messages run separately. */
#define TROUBLES_TOGETHER	3

/* connection_failure: what libpq gives no SQLSTATE for. */
#define SESSION_ENDED	"08006"

#define POOL_PAGE		16384
#define MESSAGE_ID_MAX	256

/* Columns of STATEMENT_RUN. */
enum
{
	COLUMN_ORDINAL, COLUMN_OUTCOME, COLUMN_SQLSTATE, COLUMN_MESSAGE,
	COLUMN_CONTEXT, COLUMN_ATTEMPTS, COLUMN_RULED, COLUMNS
};

/* ---- parameters ---- */

/* What acme_outbox.message() shows. */
static void
put_message(struct buffer *out, const struct consume *c,
			const struct delivery *d, amqp_pool_t *pool)
{
	const char *queue = config_text(c->config, SET_QUEUE);
	struct frame header = {.payload = d->header.data + d->header.head,
	.length = (uint32_t) buffer_length(&d->header)};
	amqp_basic_properties_t *p = NULL;
	uint64_t	size;
	char		number[NUMBER_MAX];

	buffer_append_text(out, "{\"routing_key\":");
	headers_put_text(out, d->routing_key.bytes, d->routing_key.length);
	buffer_append_text(out, ",\"exchange\":");
	headers_put_text(out, d->exchange.bytes, d->exchange.length);
	buffer_append_text(out, ",\"queue\":");
	headers_put_text(out, queue, strlen(queue));
	snprintf(number, sizeof(number), "%d", d->attempts + !d->counted);
	buffer_append_text(out, ",\"attempt\":");
	buffer_append_text(out, number);
	buffer_append_text(out, d->redelivered ? ",\"redelivered\":true" :
					   ",\"redelivered\":false");
	buffer_append_text(out, ",\"headers\":");
	if (frame_decode_header(&header, pool, &size, &p) &&
		p->_flags & AMQP_BASIC_HEADERS_FLAG)
		headers_put_table(out, &p->headers);
	else
		buffer_append_text(out, "{}");
	buffer_append_text(out, "}");
	recycle_amqp_pool(pool);
}

static void
put_envelopes(const struct batch *batch, struct pg_array *envelopes)
{
	pg_array_begin(envelopes, PG_ARRAY_TEXT);
	for (int i = 0; i < batch->count; i++)
	{
		const struct buffer *body = &batch->members[i]->body;

		pg_array_add(envelopes, body->data + body->head, buffer_length(body));
	}
}

static void
put_messages(const struct consume *c, struct pg_array *messages)
{
	struct buffer text = {0};
	amqp_pool_t pool;

	init_amqp_pool(&pool, POOL_PAGE);
	pg_array_begin(messages, PG_ARRAY_JSONB);
	for (int i = 0; i < c->batch.count; i++)
	{
		buffer_clear(&text);
		put_message(&text, c, c->batch.members[i], &pool);
		pg_array_add(messages, buffer_head(&text), buffer_length(&text));
	}
	buffer_free(&text);
	empty_amqp_pool(&pool);
}

/* ---- the two statements ---- */

static void
send_count(struct consume *c, msec_t now)
{
	const struct buffer *body = &c->batch.members[0]->body;
	const char *values[] = {config_text(c->config, SET_CONSUMER),
	(const char *) body->data + body->head};
	const int	lengths[] = {0, (int) buffer_length(body)};
	const int	formats[] = {0, 1};

	db_send_params(&c->db, STATEMENT_COUNT, &(struct db_params){2, values,
				   lengths, formats}, now);
}

static void
send_run(struct consume *c, msec_t now)
{
	struct pg_array envelopes;
	struct pg_array messages;
	int			lengths[5] = {0};
	const int	formats[] = {0, 1, 0, 1, 0};
	const char *values[5] = {config_text(c->config, SET_CONSUMER), NULL,
		config_text(c->config, SET_HANDLER), NULL,
	c->batch.members[0]->counted ? "false" : "true"};

	put_envelopes(&c->batch, &envelopes);
	put_messages(c, &messages);
	values[1] = pg_array_end(&envelopes, &lengths[1]);
	values[3] = pg_array_end(&messages, &lengths[3]);
	db_send_params(&c->db, STATEMENT_RUN, &(struct db_params){5, values,
				   lengths, formats}, now);
	pg_array_free(&envelopes);
	pg_array_free(&messages);
}

/* ---- choosing ---- */

/* The property message_id, or an empty text. */
static void
message_id_of(const struct delivery *d, char id[MESSAGE_ID_MAX])
{
	struct frame header = {.payload = d->header.data + d->header.head,
	.length = (uint32_t) buffer_length(&d->header)};
	amqp_basic_properties_t *p;
	amqp_pool_t pool;
	uint64_t	size;

	*id = '\0';
	init_amqp_pool(&pool, POOL_PAGE);
	if (frame_decode_header(&header, &pool, &size, &p) &&
		p->_flags & AMQP_BASIC_MESSAGE_ID_FLAG &&
		utf8_is_text(p->message_id.bytes, p->message_id.len))
		snprintf(id, MESSAGE_ID_MAX, "%.*s", (int) p->message_id.len,
				 (const char *) p->message_id.bytes);
	empty_amqp_pool(&pool);
}

static void
log_given_up(const struct delivery *d, bool publishes)
{
	char		id[MESSAGE_ID_MAX];

	message_id_of(d, id);
	log_warn("message given up", LOG_TEXT("message_id", id),
			 LOG_TEXT("routing_key", d->routing_key.bytes),
			 LOG_TEXT("sqlstate", d->failure.sqlstate),
			 LOG_NUM("attempts", d->attempts),
			 LOG_TEXT("to", publishes ? "dead-letter exchange" :
					  "refused, the queue's own dead-letter exchange"));
}

/* One line a minute for each kind of failure: nobody waits for its last try. */
static void
log_failed(struct consume *c, const struct delivery *d, msec_t now)
{
	char		id[MESSAGE_ID_MAX];
	int			unlogged;

	if (!refusals_note(&c->failures, d->routing_key.bytes, d->failure.sqlstate,
					   now, &unlogged))
		return;
	message_id_of(d, id);
	log_warn("the handler failed, the message is tried again",
			 LOG_TEXT("message_id", id),
			 LOG_TEXT("routing_key", d->routing_key.bytes),
			 LOG_TEXT("sqlstate", d->failure.sqlstate),
			 LOG_NUM("attempts", d->attempts), LOG_NUM("more", unlogged));
}

/* What became of a member; the summary counts what the broker is told. */
static void
note_given_up(struct consume *c, const struct delivery *d)
{
	if (d->state != DELIVERY_DEAD && d->state != DELIVERY_REFUSED)
		return;
	log_given_up(d, c->deliveries.policy.publishes);
	if (d->state == DELIVERY_REFUSED)
		c->counts[COUNT_DEAD_LETTERED]++;
}

/*
 * What PostgreSQL cannot take as text is no envelope, and never goes there; nor
 * does what has properties that no handler could be shown. NULL: it is neither.
 */
static const struct failure *
why_unusable(const struct delivery *d)
{
	static const struct failure no_text = {
		.sqlstate = "OX203",
		.message = "message is not UTF-8 text",
	};
	static const struct failure unreadable = {
		.sqlstate = "OX203",
		.message = "message has properties that are malformed or nested too deep",
	};

	if (d->unreadable)
		return &unreadable;
	return utf8_is_text(d->body.data + d->body.head,
						buffer_length(&d->body)) ? NULL : &no_text;
}

static void
give_up_unusable(struct consume *c)
{
	struct batch *batch = &c->batch;
	int			kept = 0;

	for (int i = 0; i < batch->count; i++)
	{
		struct delivery *d = batch->members[i];
		const struct failure *failure = why_unusable(d);

		if (failure == NULL)
		{
			batch->members[kept++] = d;
			continue;
		}
		delivery_give_up(&c->deliveries, d, failure);
		note_given_up(c, d);
	}
	batch->count = kept;
}

static bool
is_ready(const struct consume *c)
{
	return c->state == CONSUME_RUNNING && c->db.state == DB_IDLE && c->probed;
}

static int
batch_limit(const struct consume *c)
{
	int			setting = (int) config_number(c->config, SET_BATCH);

	return c->limit < setting ? c->limit : setting;
}

void
consume_next_batch(struct consume *c, msec_t now)
{
	struct batch *batch = &c->batch;

	if (!is_ready(c) || now < c->paused_until)
		return;
	batch->forgotten = false;
	batch->count = deliveries_pick(&c->deliveries, now, batch_limit(c),
								   BATCH_BYTES, batch->members);
	give_up_unusable(c);
	if (batch->count == 0)
		return;
	if (batch->members[0]->suspect && !batch->members[0]->counted)
		send_count(c, now);
	else
		send_run(c, now);
}

/* When the next batch is due; CLOCK_NEVER while none can be sent. */
msec_t
consume_batch_due(const struct consume *c)
{
	msec_t		due;

	if (!is_ready(c))
		return CLOCK_NEVER;
	due = deliveries_due(&c->deliveries);
	return due < c->paused_until ? c->paused_until : due;
}

/* ---- failures of a whole statement ---- */

static bool
has_class(const char *sqlstate, const char *class)
{
	return strncmp(sqlstate, class, 2) == 0;
}

/*
 * Is it nobody's fault? Deadlocks and the like, no disk, no connections, a
 * failover, and what an administrator must mend. Not so a cancel, a lack of
 * memory, or the end of our own session: a message may be the cause.
 */
static bool
is_nobodys_fault(const char *sqlstate)
{
	static const char *const states[] = {
		"40001", "40P01", "55P03", "25006",
		"OX201", "OX202", "42501", "42883", "42P01", "42704", "3F000", "0A000",
		"26000", "XX000", NULL
	};

	if (strcmp(sqlstate, "57014") == 0 || strcmp(sqlstate, "57P01") == 0 ||
		strcmp(sqlstate, "53200") == 0)
		return false;
	for (int i = 0; states[i]; i++)
		if (strcmp(sqlstate, states[i]) == 0)
			return true;
	return has_class(sqlstate, "08") || has_class(sqlstate, "53") ||
		has_class(sqlstate, "57") || has_class(sqlstate, "58");
}

/* Never a message's fault, so there is no use in finding out whose. */
static bool
is_setup(const char *sqlstate)
{
	return strcmp(sqlstate, "OX201") == 0 || strcmp(sqlstate, "OX202") == 0;
}

#define TIMED_OUT "canceling statement due to statement timeout"

/*
 * What the server itself says of why it ended a statement, else a text of ours:
 * a handler or trigger may raise the same SQLSTATE, with a payload in its text.
 */
static const char *
safe_message(const char *message)
{
	static const char *const known[] = {
		TIMED_OUT,
		"canceling statement due to user request",
		"terminating connection due to administrator command",
		"out of memory",
	};

	for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
		if (strcmp(message, known[i]) == 0)
			return known[i];
	return "the transaction failed at its end, or was ended";
}

/* For the dead letter. */
static struct failure
failure_of(const PGresult *result)
{
	const char *sqlstate = result ? db_sqlstate(result) : "";
	struct failure failure = {0};

	snprintf(failure.sqlstate, sizeof(failure.sqlstate), "%s",
			 *sqlstate ? sqlstate : SESSION_ENDED);
	if (*sqlstate == '\0')
		failure.message = "the database session ended while it was handled";
	else
		failure.message = (char *) safe_message(db_message(result));
	return failure;
}

static void
release_members(struct consume *c)
{
	c->batch.count = 0;
}

/* The batch under way ended without a result; result NULL: with its session. */
static void
lose_batch(struct consume *c, const PGresult *result, msec_t now)
{
	struct batch *batch = &c->batch;
	struct failure failure = failure_of(result);

	if (batch->count == 0)
		return;
	log_warn("a batch ended without a result, its messages are run apart",
			 LOG_NUM("messages", batch->count),
			 LOG_TEXT("sqlstate", failure.sqlstate),
			 LOG_TEXT("reason", failure.message),
			 LOG_TEXT("next_step", strcmp(failure.message, TIMED_OUT) == 0 ?
					  "make the handler faster, or raise batch-timeout" : ""));
	c->limit = batch->count > 1 ? batch->count / 2 : 1;
	deliveries_lost(&c->deliveries, batch->members, batch->count, &failure,
					now);
	for (int i = 0; i < batch->count; i++)
		note_given_up(c, batch->members[i]);
	release_members(c);
}

/* The connection ended; before a batch was sent that is nobody's fault. */
void
consume_drop_batch(struct consume *c, msec_t now)
{
	if (c->batch.count > 0 && c->db.statement == STATEMENT_RUN)
		lose_batch(c, NULL, now);
	for (int i = 0; i < c->batch.count; i++)
		delivery_later(&c->deliveries, c->batch.members[i]);
	release_members(c);
}

static void
pause_batches(struct consume *c, const PGresult *result, msec_t now)
{
	struct batch *batch = &c->batch;
	bool		separate = c->troubles + 1 >= TROUBLES_TOGETHER &&
		!is_setup(db_sqlstate(result));
	bool		was_alone = batch->count == 1 &&
		(batch->members[0]->alone || batch->members[0]->suspect);

	if (c->troubles++ == 0)
		c->troubled_since = now;
	deliveries_troubled(&c->deliveries, batch->members, batch->count, separate,
						now);
	/* a message alone waits by itself, and the others go on */
	if (!was_alone || is_setup(db_sqlstate(result)))
		c->paused_until = now + backoff_next(&c->pause_backoff,
											 (uint32_t) random());
	release_members(c);
}

static void
handle_failed_statement(struct consume *c, const PGresult *result, msec_t now)
{
	if (is_nobodys_fault(db_sqlstate(result)))
	{
		pause_batches(c, result, now);
		consume_note_failure(c, result, "batch");
	}
	else
	{
		lose_batch(c, result, now);
		consume_note_stale(c, result);
	}
}

/* ---- results ---- */

/*
 * The count failed. A message that is no envelope is run uncounted: no handler
 * will see it, and the batch will say what is wrong.
 */
static void
handle_failed_count(struct consume *c, const PGresult *result, msec_t now)
{
	const char *sqlstate = db_sqlstate(result);

	if (has_class(sqlstate, "22") || has_class(sqlstate, "54") ||
		strcmp(sqlstate, "OX204") == 0)
	{
		send_run(c, now);
		return;
	}
	pause_batches(c, result, now);
	consume_note_failure(c, result, "count of an attempt");
}

/* The attempt is committed: run the message, if that is not one too many. */
void
consume_handle_count(struct consume *c, const PGresult *result, msec_t now)
{
	struct delivery *d = c->batch.members[0];

	if (c->batch.forgotten)
		return;
	if (db_failed(result))
	{
		handle_failed_count(c, result, now);
		return;
	}
	crash_here(CRASH_ATTEMPT_COUNTED);
	if (delivery_may_run(&c->deliveries, d, atoi(PQgetvalue(result, 0, 0))))
		send_run(c, now);
	else
	{
		note_given_up(c, d);
		release_members(c);
	}
}

static const char *
text_or_null(const PGresult *result, int row, int column)
{
	return PQgetisnull(result, row, column) ? NULL :
		PQgetvalue(result, row, column);
}

/* A ruled event's error text may quote what the rule hides. */
static struct failure
read_failure(const struct consume *c, const PGresult *result, int row)
{
	bool		ruled = PQgetvalue(result, row, COLUMN_RULED)[0] == 't';
	struct failure failure = {
		.message = ruled ? NULL :
		(char *) text_or_null(result, row, COLUMN_MESSAGE),
		.context = ruled ? (char *) config_text(c->config, SET_HANDLER) :
		(char *) text_or_null(result, row, COLUMN_CONTEXT),
	};

	snprintf(failure.sqlstate, sizeof(failure.sqlstate), "%s",
			 PQgetvalue(result, row, COLUMN_SQLSTATE));
	return failure;
}

static void
count_done(struct consume *c, struct delivery *d, enum consume_counter counter)
{
	c->counts[counter]++;
	delivery_done(&c->deliveries, d);
}

static void
handle_outcome(struct consume *c, struct delivery *d, const PGresult *result,
			   int row, msec_t now)
{
	const char *outcome = PQgetvalue(result, row, COLUMN_OUTCOME);
	struct failure failure = read_failure(c, result, row);

	if (strcmp(outcome, "applied") == 0)
		count_done(c, d, COUNT_APPLIED);
	else if (strcmp(outcome, "duplicate") == 0)
		count_done(c, d, COUNT_DUPLICATE);
	else if (strcmp(outcome, "parked") == 0)
		count_done(c, d, COUNT_PARKED);
	else if (strcmp(outcome, "later") == 0)
		delivery_later(&c->deliveries, d);
	else if (strcmp(outcome, "invalid") == 0)
		delivery_give_up(&c->deliveries, d, &failure);
	else
	{
		c->counts[COUNT_FAILED]++;
		delivery_failed(&c->deliveries, d,
						atoi(PQgetvalue(result, row, COLUMN_ATTEMPTS)),
						&failure, now);
		if (d->state == DELIVERY_WAITING)
			log_failed(c, d, now);
	}
	note_given_up(c, d);
}

/* A session that did its work is a good one, however short it lives. */
static void
note_success(struct consume *c)
{
	c->troubles = 0;
	backoff_reset(&c->db.backoff);
	backoff_reset(&c->pause_backoff);
	if (c->limit < BATCH_MAX)
		c->limit *= 2;
}

void
consume_handle_run(struct consume *c, const PGresult *result, msec_t now)
{
	struct batch *batch = &c->batch;

	if (batch->forgotten)
		return;
	if (db_failed(result))
	{
		handle_failed_statement(c, result, now);
		return;
	}
	crash_here(CRASH_BATCH_COMMITTED);
	telemetry_observe(SPAN_HANDLE, clock_now() - c->db.sent_at);
	note_success(c);
	for (int row = 0; row < PQntuples(result) && row < batch->count; row++)
		handle_outcome(c, batch->members[row], result, row, now);
	release_members(c);
}
