/*
 * reload.c
 *		SIGHUP: the configuration is loaded once more, as the process was called.
 *
 * What may change while running is taken over; for the rest the log says that it
 * needs a restart. A mistake leaves the old values.
 */
#include "reload.h"

#include "log.h"

void
reload_config(struct config *config, const struct command_line *line)
{
	struct config fresh;
	const char *needs_restart = NULL;
	int			changed;

	if (config_load(&fresh, line) != EXIT_OK)
	{
		log_error("configuration not reloaded, the old values stay",
				  LOG_TEXT("reason", fresh.error));
		config_free(&fresh);
		return;
	}
	changed = config_reload(config, &fresh, &needs_restart);
	config_free(&fresh);
	log_setup((enum log_level) config_number(config, SET_LOG_LEVEL),
			  (enum log_format) config_number(config, SET_LOG_FORMAT));
	log_info("configuration reloaded", LOG_NUM("changed", changed));
	if (needs_restart)
		log_warn("a changed setting counts only after a restart",
				 LOG_TEXT("setting", needs_restart));
}
