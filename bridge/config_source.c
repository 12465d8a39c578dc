/*
 * config_source.c
 *		Where values come from: defaults, file, environment, flags.
 *
 * A setting "poll-interval" is --poll-interval on the command line,
 * ACME_OUTBOX_POLL_INTERVAL in the environment and poll-interval in the file
 * named by --config.
 */
#include "config_internal.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LINE_MAX_LENGTH		4096

/* What a list has after one more text of the same source. */
static char *
lengthened(const struct setting_value *list, const char *text,
		   enum setting_source source)
{
	char	   *longer;

	if (list->text == NULL || list->source != source)
		return strdup(text);
	return asprintf(&longer, "%s\n%s", list->text, text) < 0 ? NULL : longer;
}

static bool
set_value(struct config *config, int setting, const char *text,
		  enum setting_source source, const char *origin)
{
	struct setting_value *value = &config->values[setting];
	int64_t		number = 0;
	char	   *fresh;

	if (!config_parse(config, &setting_rules[setting], text, origin, &number))
		return false;
	fresh = setting_rules[setting].type == TYPE_LIST ?
		lengthened(value, text, source) : strdup(text);
	free(value->text);
	value->text = fresh;
	value->number = number;
	value->source = source;
	return value->text != NULL;
}

bool
config_load_defaults(struct config *config)
{
	for (int i = 0; i < SETTINGS; i++)
		if (setting_rules[i].fallback &&
			!set_value(config, i, setting_rules[i].fallback, SOURCE_DEFAULT, "default"))
			return false;
	return true;
}

bool
config_load_environment(struct config *config)
{
	char		name[SETTING_NAME_MAX];
	const char *value;

	for (int i = 0; i < SETTINGS; i++)
	{
		if (!setting_is_for((enum setting) i, config->command))
			continue;
		if (setting_rules[i].alias && (value = getenv(setting_rules[i].alias)) != NULL &&
			!set_value(config, i, value, SOURCE_ENVIRONMENT, setting_rules[i].alias))
			return false;
		setting_variable((enum setting) i, name);
		value = getenv(name);
		if (value && !set_value(config, i, value, SOURCE_ENVIRONMENT, name))
			return false;
	}
	return true;
}

/* Cut white space at both ends, then one pair of quotes. */
static char *
trim(char *text)
{
	size_t		length;

	while (isspace((unsigned char) *text))
		text++;
	length = strlen(text);
	while (length > 0 && isspace((unsigned char) text[length - 1]))
		length--;
	if (length >= 2 && (*text == '"' || *text == '\'') &&
		text[length - 1] == *text)
	{
		text++;
		length -= 2;
	}
	text[length] = '\0';
	return text;
}

static bool
load_line(struct config *config, char *line, const char *origin, bool *seen)
{
	char	   *equals;
	int			setting;

	line = trim(line);
	if (*line == '\0' || *line == '#')
		return true;
	equals = strchr(line, '=');
	if (equals == NULL)
		return config_fail(config, "%s: a line must be \"name = value\"", origin);
	*equals = '\0';
	line = trim(line);
	setting = setting_find(line, strlen(line));
	if (setting < 0)
		return config_fail(config, "%s: there is no setting \"%s\"", origin, line);
	if (seen[setting] && setting_rules[setting].type != TYPE_LIST)
		return config_fail(config, "%s: setting \"%s\" is given twice", origin, line);
	seen[setting] = true;
	return !setting_is_for((enum setting) setting, config->command) ||
		set_value(config, setting, trim(equals + 1), SOURCE_FILE, origin);
}

bool
config_load_file(struct config *config, const char *path)
{
	FILE	   *file = fopen(path, "r");
	char		line[LINE_MAX_LENGTH];
	char		origin[CONFIG_ERROR_MAX / 2];
	bool		seen[SETTINGS] = {false};
	bool		good = true;

	if (file == NULL)
		return config_fail(config, "cannot read the configuration file \"%s\": %s",
					path, strerror(errno));
	for (int number = 1; good && fgets(line, sizeof(line), file); number++)
	{
		snprintf(origin, sizeof(origin), "%s line %d", path, number);
		if (strlen(line) == sizeof(line) - 1)
			good = config_fail(config, "%s: the line is too long", origin);
		else
			good = load_line(config, line, origin, seen);
	}
	/* fopen() opens a directory too; reading it fails */
	if (good && ferror(file))
		good = config_fail(config, "cannot read the configuration file \"%s\": %s",
					path, strerror(errno));
	fclose(file);
	return good;
}

/* One flag; *i moves on to its value if that is a word of its own. */
static bool
load_flag(struct config *config, const struct command_line *line, int *i)
{
	const char *word = line->argv[*i] + 2;
	size_t		length = strcspn(word, "=");
	const char *value = word[length] == '=' ? word + length + 1 : NULL;
	int			setting = setting_find(word, length);
	char		origin[SETTING_NAME_MAX + 2];

	if (setting < 0)
		return config_fail(config, "there is no option --%.*s (see --help)",
					(int) length, word);
	if (!setting_is_for((enum setting) setting, config->command))
		return config_fail(config, "option --%s is not for \"%s\" (see %s --help)",
					setting_rules[setting].name, command_name(config->command),
					command_name(config->command));
	snprintf(origin, sizeof(origin), "--%s", setting_rules[setting].name);
	if (value == NULL && setting_rules[setting].type == TYPE_BOOL)
		value = "true";
	else if (value == NULL && *i + 1 < line->argc)
		value = line->argv[++*i];
	if (value == NULL)
		return config_fail(config, "option %s needs a value", origin);
	return set_value(config, setting, value, SOURCE_FLAG, origin);
}

/* The value of --config, which is not a setting: it may not be in a file. */
static const char *
config_flag(const struct command_line *line, int *i)
{
	const char *word = line->argv[*i];

	if (strncmp(word, "--config=", 9) == 0)
		return word + 9;
	if (strcmp(word, "--config") == 0 && *i + 1 < line->argc)
		return line->argv[++*i];
	return NULL;
}

bool
config_load_flags(struct config *config, const struct command_line *line,
		   const char **file)
{
	for (int i = 0; i < line->argc; i++)
	{
		const char *word = line->argv[i];
		const char *path = config_flag(line, &i);

		if (path)
			*file = path;
		else if (strcmp(word, "--dump-config") == 0)
			continue;
		else if (strncmp(word, "--", 2) != 0)
			return config_fail(config, "unexpected argument \"%s\" (see --help)",
						word);
		else if (!load_flag(config, line, &i))
			return false;
	}
	return true;
}
