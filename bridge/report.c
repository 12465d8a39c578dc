/*
 * report.c
 *		The lines that "check" prints: a verdict, the check's name, what was
 *		found, and below it what to do.
 *
 * The first two words are for scripts and stay as they are; the rest is for
 * people. What servers say is cut to printable characters.
 */
#include "report.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>

#define LINE_MAX_LENGTH		1024

static const char *const verdict_names[VERDICTS] = {
	"OK", "SKIP", "WARN", "FAIL"
};

void
report_line(struct report *report, enum verdict verdict, const char *check,
			const char *next_step, const char *format,...)
{
	char		text[LINE_MAX_LENGTH];
	va_list		arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	for (char *c = text; *c; c++)
		if (iscntrl((unsigned char) *c))
			*c = ' ';
	printf("%-5s%-12s %s\n", verdict_names[verdict], check, text);
	if (next_step && verdict != VERDICT_OK)
		printf("%18s-> %s\n", "", next_step);
	fflush(stdout);
	report->counts[verdict]++;
}

/* The last line; false if anything failed. */
bool
report_end(const struct report *report)
{
	printf("\n%d ok, %d warnings, %d failed, %d skipped\n",
		   report->counts[VERDICT_OK], report->counts[VERDICT_WARN],
		   report->counts[VERDICT_FAIL], report->counts[VERDICT_SKIP]);
	return report->counts[VERDICT_FAIL] == 0;
}
