/*
 * match.c
 *		Which dead letters are meant: the conditions of --match.
 *
 * "field=value" compares the whole value. Conditions on one field are
 * alternatives, those on different fields must all hold; each header is a field
 * of its own. So "event-name=A event-name=B origin=shop" is what it looks like.
 *
 * Pure: no socket, no clock.
 */
#include "match.h"

#include <stdio.h>
#include <string.h>

#define HEADER_PREFIX	"header:"
#define VALUE_MAX		(FIELD_TEXT_MAX - 2)

static const struct
{
	const char *name;
	enum letter_field field;
}			field_names[] = {
	{"event-name", LETTER_EVENT_NAME},
	{"event-id", LETTER_EVENT_ID},
	{"origin", LETTER_ORIGIN},
	{"routing-key", LETTER_ROUTING_KEY},
	{"queue", LETTER_QUEUE},
	{"consumer", LETTER_CONSUMER},
	{"service", LETTER_CONSUMER},
	{"sqlstate", LETTER_SQLSTATE},
};

#define FIELD_NAMES		(sizeof(field_names) / sizeof(field_names[0]))

static bool
read_field(struct condition *condition, const char *name, size_t length,
		   char error[MATCH_ERROR_MAX])
{
	size_t		prefix = strlen(HEADER_PREFIX);

	for (size_t i = 0; i < FIELD_NAMES; i++)
		if (strlen(field_names[i].name) == length &&
			memcmp(field_names[i].name, name, length) == 0)
		{
			condition->field = field_names[i].field;
			return true;
		}
	if (length > prefix && length - prefix < SHORT_TEXT_MAX &&
		memcmp(name, HEADER_PREFIX, prefix) == 0)
	{
		condition->field = LETTER_HEADER;
		memcpy(condition->header, name + prefix, length - prefix);
		return true;
	}
	snprintf(error, MATCH_ERROR_MAX, "there is no field \"%.*s\"; there are "
			 "event-name, event-id, origin, routing-key, queue, consumer, "
			 "service, sqlstate and header:NAME",
			 length > 60 ? 60 : (int) length, name);
	return false;
}

/* Add "field=value"; if it is wrong, error says why. */
bool
match_add(struct match *match, const char *text, char error[MATCH_ERROR_MAX])
{
	struct condition *condition = &match->conditions[match->count];
	const char *equals = strchr(text, '=');

	if (equals == NULL)
		snprintf(error, MATCH_ERROR_MAX, "it must be field=value");
	/* one byte less than a text has: a text that was cut equals none */
	else if (strlen(equals + 1) > VALUE_MAX)
		snprintf(error, MATCH_ERROR_MAX, "the value is longer than %d bytes",
				 VALUE_MAX);
	else if (match->count == MATCH_CONDITIONS_MAX)
		snprintf(error, MATCH_ERROR_MAX, "there are more than %d conditions",
				 MATCH_CONDITIONS_MAX);
	else
	{
		*condition = (struct condition){0};
		if (!read_field(condition, text, (size_t) (equals - text), error))
			return false;
		strcpy(condition->value, equals + 1);
		match->count++;
		return true;
	}
	return false;
}

static bool
is_same_field(const struct condition *a, const struct condition *b)
{
	return a->field == b->field && strcmp(a->header, b->header) == 0;
}

static bool
holds(const struct condition *condition, const struct dead_letter *letter)
{
	char		text[FIELD_TEXT_MAX];

	return dead_letter_text(letter, condition->field, condition->header,
							text) &&
		strcmp(text, condition->value) == 0;
}

/* Does one of the conditions on this one's field hold? */
static bool
field_holds(const struct match *match, const struct condition *of,
			const struct dead_letter *letter)
{
	for (int i = 0; i < match->count; i++)
		if (is_same_field(&match->conditions[i], of) &&
			holds(&match->conditions[i], letter))
			return true;
	return false;
}

bool
match_accepts(const struct match *match, const struct dead_letter *letter)
{
	for (int i = 0; i < match->count; i++)
		if (!field_holds(match, &match->conditions[i], letter))
			return false;
	return true;
}
