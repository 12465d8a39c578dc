#ifndef ACME_CONFIG_H
#define ACME_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "exits.h"
#include "settings.h"
#include "tls.h"
#include "uri.h"

enum sink
{
	SINK_RABBITMQ,
	SINK_STDOUT
};

enum setting_source
{
	SOURCE_DEFAULT,
	SOURCE_FILE,
	SOURCE_ENVIRONMENT,
	SOURCE_FLAG
};

struct setting_value
{
	char	   *text;			/* as given, or NULL if there is none */
	int64_t		number;			/* its meaning: msec, bytes, choice, 0/1 */
	enum setting_source source;
};

#define CONFIG_ERROR_MAX	512

/* With the suffix of the lock of a reprocessing it makes a name of 255 bytes. */
#define CONFIG_QUEUE_MAX	240

struct config
{
	enum command command;
	struct setting_value values[SETTINGS];
	struct broker_uri uri;		/* from the broker settings */
	char		error[CONFIG_ERROR_MAX];
};

enum exit_status config_load(struct config *config,
							 const struct command_line *line);
void		config_free(struct config *config);
const char *config_text(const struct config *config, enum setting setting);
int64_t		config_number(const struct config *config, enum setting setting);
struct tls_settings config_tls(const struct config *config);
int			config_reload(struct config *config, struct config *fresh,
						  const char **needs_restart);

void		config_help(enum command command, FILE *out);
void		config_list(FILE *out);
void		config_dump(const struct config *config, FILE *out);

#endif							/* ACME_CONFIG_H */
