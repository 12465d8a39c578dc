#ifndef ACME_CONFIG_H
#define ACME_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "exits.h"
#include "tls.h"
#include "uri.h"

/* In the order of the table in config.c. */
enum setting
{
	SET_ORIGIN,
	SET_RELAY_NAME,
	SET_CONSUMER,
	SET_HANDLER,
	SET_DSN,
	SET_BROKER_URI,
	SET_BROKER_PASSWORD_FILE,
	SET_TLS_CA_FILE,
	SET_TLS_CERT_FILE,
	SET_TLS_KEY_FILE,
	SET_TLS_KEY_PASSWORD_FILE,
	SET_TLS_VERIFY,
	SET_SINK,
	SET_AUDIT_EXCHANGE,
	SET_DEAD_LETTER_EXCHANGE,
	SET_ONCE,
	SET_STRICT_ORDER,
	SET_CLAIM_ROWS,
	SET_CLAIM_BYTES,
	SET_WINDOW,
	SET_POLL_INTERVAL,
	SET_PREFETCH,
	SET_BATCH,
	SET_BATCH_TIMEOUT,
	SET_MAX_ATTEMPTS,
	SET_RETRY_BACKOFF,
	SET_CONFIRM_TIMEOUT,
	SET_STOP_TIMEOUT,
	SET_HEARTBEAT,
	SET_CONNECT_TIMEOUT,
	SET_RECONNECT_MIN,
	SET_RECONNECT_MAX,
	SET_RENEW_INTERVAL,
	SET_DUTY_INTERVAL,
	SET_SUMMARY_INTERVAL,
	SET_HTTP,
	SET_QUEUE,
	SET_DLQ,
	SET_MATCH,
	SET_LIMIT,
	SET_ORIGINAL_KEY,
	SET_DRY_RUN,
	SET_LOG_FORMAT,
	SET_LOG_LEVEL,
	SETTINGS
};

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
