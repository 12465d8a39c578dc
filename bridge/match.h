#ifndef ACME_MATCH_H
#define ACME_MATCH_H

#include "dead_letter.h"

#define MATCH_CONDITIONS_MAX	32
#define MATCH_ERROR_MAX			256

struct condition
{
	enum letter_field field;
	char		header[SHORT_TEXT_MAX];	/* for LETTER_HEADER */
	char		value[FIELD_TEXT_MAX];
};

struct match
{
	int			count;
	struct condition conditions[MATCH_CONDITIONS_MAX];
};

bool		match_add(struct match *match, const char *text,
					  char error[MATCH_ERROR_MAX]);
bool		match_accepts(const struct match *match,
						  const struct dead_letter *letter);

#endif							/* ACME_MATCH_H */
