/*
 * config_print.c
 *		The settings for people and for tests: --help, --list-settings and
 *		--dump-config, which shows no password.
 */
#include "config_internal.h"

#include <libpq-fe.h>
#include <string.h>

#include "dsn.h"

static void
print_range(const struct setting_rule *rule, FILE *out)
{
	char		min[NUMBER_TEXT_MAX],
				max[NUMBER_TEXT_MAX];

	if (rule->choices)
		fprintf(out, " (%s)", rule->choices);
	if (rule->type < TYPE_NUMBER)
		return;
	config_format_number(rule, rule->min, min);
	config_format_number(rule, rule->max, max);
	fprintf(out, " (%s to %s)", min, max);
}

/* The settings that a command knows. For check none is required by itself. */
void
config_help(enum command command, FILE *out)
{
	for (int i = 0; i < SETTINGS; i++)
	{
		const struct setting_rule *rule = &setting_rules[i];

		const char *required;
		int			length;

		if (!setting_is_for((enum setting) i, command))
			continue;
		length = (int) strlen(rule->help);
		required = strstr(rule->help, " (required)");
		if (required && command == COMMAND_CHECK)
			length = (int) (required - rule->help);
		fprintf(out, "  --%-22s %.*s\n", rule->name, length, rule->help);
		fprintf(out, "    %-22s default: %s", "",
				rule->fallback ? rule->fallback : "none");
		print_range(rule, out);
		fprintf(out, "%s\n", rule->reloadable ? ", reloaded by SIGHUP" : "");
	}
}

/* For the documentation check: name, variable, default, commands, help. */
void
config_list(FILE *out)
{
	char		name[SETTING_NAME_MAX];
	char		commands[COMMANDS_TEXT_MAX];

	for (int i = 0; i < SETTINGS; i++)
	{
		setting_variable((enum setting) i, name);
		command_names(setting_rules[i].commands, commands);
		fprintf(out, "%s\t%s\t%s\t%s\t%s\n", setting_rules[i].name, name,
				setting_rules[i].fallback ? setting_rules[i].fallback : "", commands,
				setting_rules[i].help);
	}
}

/* The connection string as keywords, with passwords masked. */
static void
print_dsn(const char *dsn, FILE *out)
{
	PQconninfoOption *options = NULL;
	const char *space = "";

	if (dsn_is_string(dsn))
		options = PQconninfoParse(dsn, NULL);
	if (options == NULL)
		fputs(dsn, out);
	for (PQconninfoOption *o = options; o && o->keyword; o++)
	{
		if (o->val == NULL)
			continue;
		fprintf(out, "%s%s=%s", space, o->keyword,
				strstr(o->keyword, "password") ? "********" : o->val);
		space = " ";
	}
	PQconninfoFree(options);
}

static void
print_uri(const struct broker_uri *uri, FILE *out)
{
	fprintf(out, "%s://", uri->tls ? "amqps" : "amqp");
	if (uri->auth != AUTH_EXTERNAL)
		fprintf(out, "%s%s@", uri->user, uri->has_password ? ":********" : "");
	for (int i = 0; i < uri->count; i++)
	{
		bool		is_v6 = strchr(uri->hosts[i].name, ':') != NULL;

		fprintf(out, "%s%s%s%s:%s", i ? "," : "", is_v6 ? "[" : "",
				uri->hosts[i].name, is_v6 ? "]" : "", uri->hosts[i].port);
	}
	fprintf(out, "/%s%s", strcmp(uri->vhost, "/") == 0 ? "%2F" : uri->vhost,
			uri->auth == AUTH_EXTERNAL ? "?auth_mechanism=external" : "");
}

/* Each further line of a list is a line of the file. */
static void
print_lines(const char *name, const char *text, FILE *out)
{
	for (; *text; text++)
		if (*text == '\n')
			fprintf(out, "\n%s = ", name);
		else
			fputc(*text, out);
}

void
config_dump(const struct config *config, FILE *out)
{
	static const char *const sources[] = {"default", "file", "environment",
	"flag"};

	for (int i = 0; i < SETTINGS; i++)
	{
		const struct setting_value *value = &config->values[i];

		if (value->text == NULL || !setting_is_for((enum setting) i, config->command))
			continue;
		fprintf(out, "# %s\n%s = ", sources[value->source], setting_rules[i].name);
		if (i == SET_DSN)
			print_dsn(value->text, out);
		else if (i == SET_BROKER_URI)
			print_uri(&config->uri, out);
		else
			print_lines(setting_rules[i].name, value->text, out);
		fputc('\n', out);
	}
}
