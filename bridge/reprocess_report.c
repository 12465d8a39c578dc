/*
 * reprocess_report.c
 *		What "reprocess" prints on stdout: the list of a dry run, a line a second
 *		while it works, and the summary.
 *
 * Names and reasons come from messages, so control characters are not printed as
 * they are. Bodies are never printed.
 */
#include "reprocess_internal.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define LIST_FORMAT		"%-36s  %-28s  %-24s  %-20s  %s\n"

/* "-" for nothing, so that every column has a word. */
static const char *
printable(char text[FIELD_TEXT_MAX])
{
	for (char *c = text; *c; c++)
		if (iscntrl((unsigned char) *c))
			*c = ' ';
	return text[0] ? text : "-";
}

static void
format_time(const struct dead_letter *letter, char text[FIELD_TEXT_MAX])
{
	int64_t		seconds;
	time_t		time;
	struct tm	tm;

	text[0] = '\0';
	if (!dead_letter_death_time(letter, &seconds))
		return;
	time = (time_t) seconds;
	if (gmtime_r(&time, &tm))
		strftime(text, FIELD_TEXT_MAX, "%Y-%m-%dT%H:%M:%SZ", &tm);
}

/* One line of a dry run's list; a heading before the first. */
void
report_letter(const struct reprocess *r)
{
	const struct dead_letter *letter = &r->letter;
	char		id[FIELD_TEXT_MAX] = "";
	char		name[FIELD_TEXT_MAX] = "";
	char		key[FIELD_TEXT_MAX] = "";
	char		died[FIELD_TEXT_MAX];
	char		reason[FIELD_TEXT_MAX];

	if (r->tally.done == 1)
		printf(LIST_FORMAT, "EVENT ID", "EVENT NAME", "ORIGINAL KEY", "DIED",
			   "REASON");
	dead_letter_text(letter, LETTER_EVENT_ID, NULL, id);
	dead_letter_text(letter, LETTER_EVENT_NAME, NULL, name);
	dead_letter_original_key(letter, key);
	format_time(letter, died);
	dead_letter_reason(letter, reason);
	printf(LIST_FORMAT, printable(id), printable(name), printable(key),
		   printable(died), printable(reason));
}

void
report_progress(const struct reprocess *r, msec_t now, uint64_t in_last_second)
{
	const struct tally *t = &r->tally;

	printf("%" PRIu64 " republished, %" PRIu64 "/s, %" PRIu64 " of %" PRIu64
		   " looked at, %lld s\n", t->done, in_last_second, t->looked,
		   t->at_start, (long long) (now - r->started_at) / 1000);
	fflush(stdout);
}

static void
report_counts(const struct reprocess *r, msec_t now)
{
	const struct tally *t = &r->tally;
	msec_t		took = now - r->started_at;
	bool		dry = r->options.dry_run;

	printf("%s %" PRIu64 " of %" PRIu64 " messages of \"%s\" into \"%s\"",
		   dry ? "would republish" : "republished", t->done, t->at_start,
		   r->options.dlq, r->options.queue);
	if (!dry && took > 0)
		printf(" in %.1f s (%lld/s)", (double) took / 1000,
			   (long long) t->done * 1000 / (long long) took);
	printf("\nleft in \"%s\": %" PRIu64, r->options.dlq,
		   t->behind + t->taken - (dry ? 0 : t->done));
	if (t->unmatched > 0)
		printf("; %" PRIu64 " not matched", t->unmatched);
	if (t->keyless > 0)
		printf("; %" PRIu64 " without an original key", t->keyless);
	if (t->unreadable > 0)
		printf("; %" PRIu64 " with headers that cannot be read", t->unreadable);
	putchar('\n');
}

void
report_summary(const struct reprocess *r, msec_t now)
{
	if (r->started_at > 0)
		report_counts(r, now);
	if (r->options.dry_run && r->tally.looked > 0)
		puts("changed: nothing but that these messages are marked as redelivered "
			 "(in a quorum\nqueue x-delivery-count grows by one, and they are now "
			 "behind newer ones)");
	if (r->may_exist)
		printf("exchange \"%s\" could not be removed; the next run does it\n",
			   r->exchange);
	if (r->reason[0])
		printf("stopped: %s\n      -> %s\n", r->reason, r->next_step);
	fflush(stdout);
}
