/*
 * telemetry.c
 *		What the process tells about itself: figures that the loop writes and the
 *		HTTP thread reads.
 *
 * All are atomic numbers of a fixed count, so that neither waits for the other and no
 * label grows with what is sent. A reader may see a histogram between two of its numbers;
 * the next reading has both.
 *
 * Alive means that the loop turns: before it sleeps it says until when, and while it
 * works the time of its last turn counts. A broker that is away is no reason to restart
 * the process, so it has no part in that.
 */
#include "telemetry.h"

#include <stdatomic.h>
#include <stdio.h>

/* A turn that takes longer, or begins later than it should by so much, is stuck. */
#ifdef ACME_OUTBOX_CRASH_POINTS
#define STUCK_AFTER		2000
#else
#define STUCK_AFTER		15000
#endif

#define PREFIX			"acme_outbox_bridge_"
#define LINE_MAX_LENGTH	512

static const int64_t bounds[] = {
	1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000, 60000, 300000
};

#define BUCKETS (sizeof(bounds) / sizeof(bounds[0]))

struct histogram
{
	atomic_uint_fast64_t buckets[BUCKETS + 1];	/* each on its own; the last: longer */
	atomic_uint_fast64_t sum;	/* milliseconds */
};

static const struct
{
	const char *name;
	const char *help;
}			span_names[SPANS] = {
	[SPAN_CONFIRM] = {"publish_to_confirm_seconds",
	"From publish() in SQL to the broker's confirm."},
	[SPAN_CLAIM] = {"claim_seconds", "Duration of claim statements."},
	[SPAN_SETTLE] = {"settle_seconds", "Duration of settle statements."},
	[SPAN_HANDLE] = {"handle_seconds", "Duration of handling a batch of messages."},
};

static struct telemetry_source source;

static atomic_int state;
static atomic_bool serving;
static atomic_bool database;
static atomic_bool broker;
static atomic_int_fast64_t in_flight;
static atomic_int_fast64_t waiting;
static atomic_int_fast64_t due;			/* the next turn */
static atomic_int_fast64_t uncopied;
static atomic_bool letters_taken;
static atomic_bool stalled;
static atomic_uint_fast64_t outcomes[TELEMETRY_OUTCOMES];
static atomic_uint_fast64_t copies[TELEMETRY_LANES][TELEMETRY_OUTCOMES];
static struct histogram histograms[SPANS];

/* ---- the loop ---- */

void
telemetry_start(const struct telemetry_source *teller)
{
	source = *teller;
	telemetry_awake(clock_now());
}

void
telemetry_turn(const struct telemetry_now *now)
{
	atomic_store(&state, now->state);
	atomic_store(&serving, now->serving);
	atomic_store(&database, now->database);
	atomic_store(&broker, now->broker);
	atomic_store(&in_flight, now->in_flight);
	atomic_store(&waiting, now->waiting);
	atomic_store(&uncopied, now->uncopied);
	atomic_store(&letters_taken, now->letters_taken);
	atomic_store(&stalled, now->stalled);
}

void
telemetry_sleep(msec_t until)
{
	atomic_store(&due, until);
}

void
telemetry_awake(msec_t now)
{
	atomic_store(&due, now);
}

void
telemetry_count_is(int outcome, uint64_t total)
{
	atomic_store_explicit(&outcomes[outcome], total, memory_order_relaxed);
}

/* One answer for a copy. */
void
telemetry_copy(int lane, int outcome)
{
	atomic_fetch_add_explicit(&copies[lane][outcome], 1, memory_order_relaxed);
}

void
telemetry_observe(enum span span, msec_t elapsed)
{
	struct histogram *h = &histograms[span];
	size_t		i = 0;

	if (elapsed < 0)
		elapsed = 0;			/* the database's clock is ahead of ours */
	while (i < BUCKETS && elapsed > bounds[i])
		i++;
	atomic_fetch_add_explicit(&h->buckets[i], 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&h->sum, (uint64_t) elapsed, memory_order_relaxed);
}

/* ---- any thread ---- */

bool
telemetry_alive(msec_t now)
{
	return now <= (msec_t) atomic_load(&due) + STUCK_AFTER;
}

/* Why it is not ready, or NULL. */
const char *
telemetry_not_ready(void)
{
	if (!atomic_load(&database))
		return "the database is not connected";
	if (!atomic_load(&serving))
		return source.states[atomic_load(&state)];
	if (!atomic_load(&broker))
		return "the broker is not reachable or blocked";
	if (atomic_load(&stalled))
		return "dead letters are not taken, and their messages fill the prefetch";
	return NULL;
}

static void
add_head(struct buffer *out, const char *name, const char *type, const char *help)
{
	char		line[LINE_MAX_LENGTH];

	snprintf(line, sizeof(line), "# HELP " PREFIX "%s %s\n# TYPE " PREFIX "%s %s\n",
			 name, help, name, type);
	buffer_append_text(out, line);
}

static void
add_sample(struct buffer *out, const char *name, const char *labels, double value)
{
	char		line[LINE_MAX_LENGTH];

	snprintf(line, sizeof(line), PREFIX "%s%s %.15g\n", name, labels, value);
	buffer_append_text(out, line);
}

static void
add_gauge(struct buffer *out, const char *name, const char *help, int64_t value)
{
	add_head(out, name, "gauge", help);
	add_sample(out, name, "", (double) value);
}

static void
add_escaped(struct buffer *out, const char *value)
{
	for (; *value; value++)
	{
		if (*value == '\n')
			buffer_append_text(out, "\\n");
		else
		{
			if (*value == '"' || *value == '\\')
				buffer_append_text(out, "\\");
			buffer_append(out, value, 1);
		}
	}
}

static void
add_info(struct buffer *out)
{
	add_head(out, "info", "gauge", "Version, command, and origin or consumer.");
	buffer_append_text(out, PREFIX "info{version=\"");
	add_escaped(out, source.version);
	buffer_append_text(out, "\",command=\"");
	add_escaped(out, source.command);
	buffer_append_text(out, "\",name=\"");
	add_escaped(out, source.name);
	buffer_append_text(out, "\"} 1\n");
}

static void
add_state(struct buffer *out)
{
	int			current = atomic_load(&state);
	char		labels[64];

	add_head(out, "state", "gauge", "1 for the state it is in, 0 for the others.");
	for (int i = 0; i < source.state_count; i++)
	{
		snprintf(labels, sizeof(labels), "{state=\"%s\"}", source.states[i]);
		add_sample(out, "state", labels, i == current);
	}
}

static void
add_outcomes(struct buffer *out)
{
	char		labels[64];

	add_head(out, "messages_total", "counter", "Messages, by what became of them.");
	for (int i = 0; i < TELEMETRY_OUTCOMES; i++)
	{
		if (source.outcomes[i] == NULL)
			continue;
		snprintf(labels, sizeof(labels), "{outcome=\"%s\"}", source.outcomes[i]);
		add_sample(out, "messages_total", labels, (double) atomic_load(&outcomes[i]));
	}
}

static void
add_copies(struct buffer *out)
{
	char		labels[96];

	add_head(out, "copies_total", "counter",
			 "Answers for what was sent on each lane, by what became of it.");
	for (int lane = 0; lane < TELEMETRY_LANES && source.lanes[lane]; lane++)
		for (int i = 0; i < source.copy_outcomes; i++)
		{
			snprintf(labels, sizeof(labels), "{lane=\"%s\",outcome=\"%s\"}",
					 source.lanes[lane], source.outcomes[i]);
			add_sample(out, "copies_total", labels,
					   (double) atomic_load(&copies[lane][i]));
		}
}

static void
add_dead_letters(struct buffer *out)
{
	add_gauge(out, "uncopied_messages",
			  "Given up, and their dead letter is not confirmed.",
			  atomic_load(&uncopied));
	add_gauge(out, "dead_letters_taken",
			  "0 while the broker does not take dead letters.",
			  atomic_load(&letters_taken));
}

static void
add_histogram(struct buffer *out, enum span span)
{
	struct histogram *h = &histograms[span];
	const char *name = span_names[span].name;
	char		sample[96];
	char		labels[32];
	uint64_t	count = 0;

	add_head(out, name, "histogram", span_names[span].help);
	snprintf(sample, sizeof(sample), "%s_bucket", name);
	for (size_t i = 0; i <= BUCKETS; i++)
	{
		count += atomic_load(&h->buckets[i]);
		if (i < BUCKETS)
			snprintf(labels, sizeof(labels), "{le=\"%g\"}", (double) bounds[i] / 1000);
		else
			snprintf(labels, sizeof(labels), "{le=\"+Inf\"}");
		add_sample(out, sample, labels, (double) count);
	}
	snprintf(sample, sizeof(sample), "%s_sum", name);
	add_sample(out, sample, "", (double) atomic_load(&h->sum) / 1000);
	snprintf(sample, sizeof(sample), "%s_count", name);
	add_sample(out, sample, "", (double) count);
}

/* Everything in Prometheus's text format. */
void
telemetry_render(struct buffer *out)
{
	add_info(out);
	add_state(out);
	add_gauge(out, "database_connected", "1 while PostgreSQL is connected.",
			  atomic_load(&database));
	add_gauge(out, "broker_ready", "1 while the broker takes messages.",
			  atomic_load(&broker));
	add_gauge(out, "in_flight_messages", "Sent or delivered, and not confirmed.",
			  atomic_load(&in_flight));
	add_gauge(out, "waiting_messages", "Taken over, and not sent or handled yet.",
			  atomic_load(&waiting));
	add_outcomes(out);
	if (source.lanes[0])
		add_copies(out);
	if (source.gives_up)
		add_dead_letters(out);
	for (int i = 0; i < SPANS; i++)
		if (source.spans & 1U << i)
			add_histogram(out, (enum span) i);
}
