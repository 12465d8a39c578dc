#ifndef ACME_SETTINGS_H
#define ACME_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "command.h"

#define SETTING_NAME_MAX	64
#define SETTING_ENV_PREFIX	"ACME_OUTBOX_"

/* In the order of the table in settings.c. */
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

enum setting_type
{
	TYPE_TEXT,
	TYPE_LIST,					/* texts; given again, one more: a line each */
	TYPE_BOOL,
	TYPE_CHOICE,				/* the number is the position in choices */
	TYPE_NUMBER,
	TYPE_SIZE,
	TYPE_DURATION
};

struct setting_rule
{
	const char *name;
	int			commands;		/* that know it */
	enum setting_type type;
	const char *fallback;		/* NULL: none */
	int64_t		min;			/* of the number, or of a text's bytes */
	int64_t		max;
	const char *choices;		/* separated by | */
	bool		reloadable;
	const char *alias;			/* another variable people know */
	const char *help;
};

extern const struct setting_rule setting_rules[SETTINGS];

int			setting_find(const char *name, size_t length);
bool		setting_is_for(enum setting setting, enum command command);
void		setting_variable(enum setting setting, char name[SETTING_NAME_MAX]);

#endif							/* ACME_SETTINGS_H */
