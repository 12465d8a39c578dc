/*
 * config.c
 *		The settings in force: loaded, read, reloaded.
 *
 * What there is, is in settings.c; what a value means, where it comes from, what is
 * checked over several and how they are shown, in config_*.c. Of a setting's sources
 * the first counts that has it: flags, environment, file, default.
 */
#include "config_internal.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* Always false: the error is in config. */
bool
config_fail(struct config *config, const char *format, ...)
{
	va_list		arguments;

	va_start(arguments, format);
	vsnprintf(config->error, sizeof(config->error), format, arguments);
	va_end(arguments);
	return false;
}

/*
 * Load everything. On failure the error is in config->error and the status says
 * how to exit.
 */
enum exit_status
config_load(struct config *config, const struct command_line *line)
{
	const char *file = getenv(SETTING_ENV_PREFIX "CONFIG");

	memset(config, 0, sizeof(*config));
	config->command = line->command;
	/* twice: once to find --config, and again because flags count most */
	if (!config_load_defaults(config) || !config_load_flags(config, line, &file))
		return EXIT_USAGE;
	config_free(config);
	if (!config_load_defaults(config))
		return EXIT_USAGE;
	if (file && !config_load_file(config, file))
		return EXIT_CONFIG_FILE;
	if (!config_load_environment(config) ||
		!config_load_flags(config, line, &file) ||
		!config_check(config))
		return EXIT_USAGE;
	return EXIT_OK;
}

struct tls_settings
config_tls(const struct config *config)
{
	return (struct tls_settings){
		.enabled = config->uri.tls,
		.verify = config_number(config, SET_TLS_VERIFY) != 0,
		.ca_file = config_text(config, SET_TLS_CA_FILE),
		.cert_file = config_text(config, SET_TLS_CERT_FILE),
		.key_file = config_text(config, SET_TLS_KEY_FILE),
		.key_password_file = config_text(config, SET_TLS_KEY_PASSWORD_FILE),
	};
}

void
config_free(struct config *config)
{
	for (int i = 0; i < SETTINGS; i++)
		free(config->values[i].text);
	memset(config->values, 0, sizeof(config->values));
}

const char *
config_text(const struct config *config, enum setting setting)
{
	return config->values[setting].text;
}

int64_t
config_number(const struct config *config, enum setting setting)
{
	return config->values[setting].number;
}

static bool
is_same(const char *a, const char *b)
{
	return a == b || (a && b && strcmp(a, b) == 0);
}

/*
 * Take over from fresh what may change while running. Returns how many settings
 * changed; *needs_restart names one that would need a restart, or is NULL.
 */
int
config_reload(struct config *config, struct config *fresh,
			  const char **needs_restart)
{
	int			changed = 0;

	*needs_restart = NULL;
	for (int i = 0; i < SETTINGS; i++)
	{
		struct setting_value old = config->values[i];

		if (is_same(old.text, fresh->values[i].text))
			continue;
		if (!setting_rules[i].reloadable)
		{
			*needs_restart = setting_rules[i].name;
			continue;
		}
		config->values[i] = fresh->values[i];
		fresh->values[i] = old;
		changed++;
	}
	return changed;
}
