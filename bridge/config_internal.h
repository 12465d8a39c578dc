#ifndef ACME_CONFIG_INTERNAL_H
#define ACME_CONFIG_INTERNAL_H

/* What the files config*.c share; everybody else includes config.h. */
#include "config.h"

#define NUMBER_TEXT_MAX		32

/* Sizes are in bytes, durations in milliseconds. */
#define KiB				1024LL
#define MiB				(1024LL * KiB)
#define SECOND			1000LL
#define MINUTE			(60LL * SECOND)
#define HOUR			(60LL * MINUTE)

/* config.c */
bool		config_fail(struct config *config, const char *format, ...)
			__attribute__((format(printf, 2, 3)));

/* config_value.c */
bool		config_parse(struct config *config, const struct setting_rule *rule,
						 const char *text, const char *origin, int64_t *number);
void		config_format_number(const struct setting_rule *rule, int64_t number,
								 char text[NUMBER_TEXT_MAX]);

/* config_source.c */
bool		config_load_defaults(struct config *config);
bool		config_load_environment(struct config *config);
bool		config_load_file(struct config *config, const char *path);
bool		config_load_flags(struct config *config,
							  const struct command_line *line,
							  const char **file);

/* config_check.c */
bool		config_check(struct config *config);

#endif							/* ACME_CONFIG_INTERNAL_H */
