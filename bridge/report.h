#ifndef ACME_REPORT_H
#define ACME_REPORT_H

#include <stdbool.h>

enum verdict
{
	VERDICT_OK,
	VERDICT_SKIP,				/* could not be asked, or makes no sense now */
	VERDICT_WARN,
	VERDICT_FAIL,
	VERDICTS
};

struct report
{
	int			counts[VERDICTS];
};

/* next_step: what to do about it, or NULL. */
void		report_line(struct report *report, enum verdict verdict,
						const char *check, const char *next_step,
						const char *format,...)
			__attribute__((format(printf, 5, 6)));
bool		report_end(const struct report *report);

#endif							/* ACME_REPORT_H */
