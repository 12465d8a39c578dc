/*
 * config_value.c
 *		What a value's text means: numbers, durations, sizes, choices, and their
 *		ranges.
 *
 * Error texts name the setting and the rule. Free texts, which may be secrets, are
 * not quoted. Pure.
 */
#include "config_internal.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct unit
{
	const char *name;
	int64_t		factor;
};

static const struct unit duration_units[] = {
	{"ms", 1}, {"s", SECOND}, {"min", MINUTE}, {"h", HOUR}, {"", SECOND}, {NULL, 0}
};

static const struct unit size_units[] = {
	{"B", 1}, {"KiB", KiB}, {"MiB", MiB}, {"GiB", KiB * MiB}, {"", 1}, {NULL, 0}
};

static const struct unit no_units[] = {{"", 1}, {NULL, 0}};

/* "1.5 MiB"; a fraction is allowed only with a unit that has parts. */
static bool
parse_quantity(const char *text, const struct unit *units, int64_t *number)
{
	char	   *end;
	double		value;

	if (!isdigit((unsigned char) *text))
		return false;
	value = strtod(text, &end);
	/* hexadecimal and exponents are numbers to strtod() only */
	if (strspn(text, "0123456789.") != (size_t) (end - text))
		return false;
	while (*end == ' ')
		end++;
	for (; units->name; units++)
		if (strcmp(units->name, end) == 0)
		{
			value *= (double) units->factor;
			if (value > 9e15)
				return false;
			*number = (int64_t) (value + 0.5);
			return fabs(value - (double) *number) < 1e-6;
		}
	return false;
}

static bool
parse_bool(const char *text, int64_t *number)
{
	static const char *const words[] = {"false", "true", "off", "on", "no",
	"yes", "0", "1"};

	for (int i = 0; i < 8; i++)
		if (strcmp(text, words[i]) == 0)
		{
			*number = i % 2;
			return true;
		}
	return false;
}

static bool
parse_choice(const char *text, const char *choices, int64_t *number)
{
	size_t		length = strlen(text);

	for (int64_t i = 0; length > 0; i++)
	{
		size_t		choice = strcspn(choices, "|");

		if (choice == length && strncmp(choices, text, length) == 0)
		{
			*number = i;
			return true;
		}
		if (choices[choice] == '\0')
			return false;
		choices += choice + 1;
	}
	return false;
}

/* The bound in the setting's own unit, for messages and --help. */
void
config_format_number(const struct setting_rule *rule, int64_t number, char text[NUMBER_TEXT_MAX])
{
	const struct unit *units = rule->type == TYPE_SIZE ? size_units :
		rule->type == TYPE_DURATION ? duration_units : no_units;
	const struct unit *best = &units[0];

	for (; units->name; units++)
		if (*units->name && number % units->factor == 0 &&
			units->factor >= best->factor && number > 0)
			best = units;
	snprintf(text, NUMBER_TEXT_MAX, "%lld%s", (long long) (number / best->factor),
			 best->name);
}

static bool
parse_ranged(struct config *config, const struct setting_rule *rule,
			 const char *text, const char *origin, int64_t *number)
{
	const struct unit *units = rule->type == TYPE_SIZE ? size_units :
		rule->type == TYPE_DURATION ? duration_units : no_units;
	const char *kind = rule->type == TYPE_SIZE ? "a size like 8MiB" :
		rule->type == TYPE_DURATION ? "a duration like 500ms, 10s or 1min" :
		"a whole number";
	bool		negative = *text == '-';
	char		min[NUMBER_TEXT_MAX],
				max[NUMBER_TEXT_MAX];

	if (!parse_quantity(text + negative, units, number))
		return config_fail(config, "setting \"%s\" (%s): \"%s\" is not %s",
					rule->name, origin, text, kind);
	if (negative)
		*number = -*number;
	if (*number >= rule->min && *number <= rule->max)
		return true;
	config_format_number(rule, rule->min, min);
	config_format_number(rule, rule->max, max);
	return config_fail(config, "setting \"%s\" (%s): \"%s\" is out of range, "
				"%s to %s are allowed", rule->name, origin, text, min, max);
}

/* A value's text, as given by that source; its meaning is the number. */
bool
config_parse(struct config *config, const struct setting_rule *rule,
			const char *text, const char *origin, int64_t *number)
{
	size_t		length = strlen(text);

	switch (rule->type)
	{
		case TYPE_TEXT:
		case TYPE_LIST:
			if (length >= (size_t) rule->min && length <= (size_t) rule->max)
				return true;
			return config_fail(config, "setting \"%s\" (%s): %lld to %lld bytes are "
						"allowed, not %zu", rule->name, origin,
						(long long) rule->min, (long long) rule->max, length);
		case TYPE_BOOL:
			if (parse_bool(text, number))
				return true;
			return config_fail(config, "setting \"%s\" (%s): \"%s\" is not true or "
						"false", rule->name, origin, text);
		case TYPE_CHOICE:
			if (parse_choice(text, rule->choices, number))
				return true;
			return config_fail(config, "setting \"%s\" (%s): \"%s\" is not one of %s",
						rule->name, origin, text, rule->choices);
		default:
			return parse_ranged(config, rule, text, origin, number);
	}
}
