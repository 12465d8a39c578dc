/*
 * settings.c
 *		The table of all settings. It drives flags, environment, file, --help,
 *		--dump-config, --list-settings and the documentation check.
 *
 * Each setting says which commands know it. One of another command is a mistake
 * on the command line; in the file and the environment, which the commands may
 * share, it is passed over.
 */
#include "config_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define FOR_RELAY		(COMMAND_RELAY | COMMAND_CHECK)
#define FOR_CONSUME		(COMMAND_CONSUME | COMMAND_CHECK)
#define FOR_DATABASE	(COMMAND_RELAY | COMMAND_CONSUME | COMMAND_CHECK)
#define FOR_ALL			(FOR_DATABASE | COMMAND_REPROCESS)
#define FOR_REPROCESS	(COMMAND_REPROCESS | COMMAND_CHECK)

const struct setting_rule setting_rules[SETTINGS] = {
	[SET_ORIGIN] = {"origin", FOR_RELAY, TYPE_TEXT,
		.min = 1, .max = 255,
		.help = "the producing service whose entries are sent (required)"},
	[SET_RELAY_NAME] = {"relay-name", FOR_RELAY, TYPE_TEXT,
		.min = 1, .max = 128,
		.help = "begin of this process's name in the lease; empty: the host's name"},
	[SET_CONSUMER] = {"consumer", FOR_CONSUME, TYPE_TEXT,
		.min = 1, .max = 255,
		.help = "the name under which the inbox remembers what was processed (required)"},
	[SET_HANDLER] = {"handler", FOR_CONSUME, TYPE_TEXT,
		.min = 1, .max = 255,
		.help = "schema.function that handles a message (required)"},
	[SET_DSN] = {"dsn", FOR_DATABASE, TYPE_TEXT,
		.max = 4000,
		.help = "PostgreSQL connection string; empty: libpq's PG* variables"},
	[SET_BROKER_URI] = {"broker-uri", FOR_ALL, TYPE_TEXT,
		.fallback = "amqp://localhost", .max = 2000, .alias = "RABBITMQ_URI",
		.help = "amqp(s)://user:password@host:port,host:port/vhost; also RABBITMQ_URI"},
	[SET_BROKER_PASSWORD_FILE] = {"broker-password-file", FOR_ALL, TYPE_TEXT,
		.min = 1, .max = 4000,
		.help = "file whose first line is the broker's password"},
	[SET_TLS_CA_FILE] = {"tls-ca-file", FOR_ALL, TYPE_TEXT,
		.min = 1, .max = 4000,
		.help = "PEM file of the authorities that may vouch for the broker"},
	[SET_TLS_CERT_FILE] = {"tls-cert-file", FOR_ALL, TYPE_TEXT,
		.min = 1, .max = 4000,
		.help = "PEM file of the client certificate, with its chain"},
	[SET_TLS_KEY_FILE] = {"tls-key-file", FOR_ALL, TYPE_TEXT,
		.min = 1, .max = 4000,
		.help = "PEM file of its private key; empty: in the certificate's file"},
	[SET_TLS_KEY_PASSWORD_FILE] = {"tls-key-password-file", FOR_ALL, TYPE_TEXT,
		.min = 1, .max = 4000,
		.help = "file whose first line is the private key's passphrase"},
	[SET_TLS_VERIFY] = {"tls-verify", FOR_ALL, TYPE_BOOL,
		.fallback = "true",
		.help = "verify the broker's certificate and its name"},
	[SET_SINK] = {"sink", FOR_RELAY, TYPE_CHOICE,
		.fallback = "rabbitmq", .choices = "rabbitmq|stdout",
		.help = "where entries go: rabbitmq, or stdout as JSON lines (no confirm)"},
	[SET_AUDIT_EXCHANGE] = {"audit-exchange", FOR_RELAY, TYPE_TEXT,
		.min = 1, .max = 255,
		.help = "exchange that gets a copy of every entry; both must be confirmed"},
	[SET_DEAD_LETTER_EXCHANGE] = {"dead-letter-exchange", FOR_DATABASE, TYPE_TEXT,
		.min = 1, .max = 255,
		.help = "exchange for entries or messages that were given up; key dead-letter"},
	[SET_ONCE] = {"once", FOR_DATABASE, TYPE_BOOL,
		.fallback = "false",
		.help = "do what is there to do, then exit"},
	[SET_STRICT_ORDER] = {"strict-order", FOR_RELAY, TYPE_BOOL,
		.fallback = "false", .reloadable = true,
		.help = "at most one unconfirmed message per key"},
	[SET_CLAIM_ROWS] = {"claim-rows", FOR_RELAY, TYPE_NUMBER,
		.fallback = "500", .min = 1, .max = 10000, .reloadable = true,
		.help = "entries of one claim at most"},
	[SET_CLAIM_BYTES] = {"claim-bytes", FOR_RELAY, TYPE_SIZE,
		.fallback = "8MiB", .min = 64 * KiB, .max = 256 * MiB, .reloadable = true,
		.help = "bytes of one claim at most"},
	[SET_WINDOW] = {"window", FOR_RELAY, TYPE_NUMBER,
		.fallback = "1000", .min = 1, .max = 50000,
		.help = "messages sent and not settled at most"},
	[SET_POLL_INTERVAL] = {"poll-interval", FOR_RELAY, TYPE_DURATION,
		.fallback = "1s", .min = 10, .max = MINUTE, .reloadable = true,
		.help = "how often to look for entries when no wake-up comes"},
	[SET_PREFETCH] = {"prefetch", FOR_CONSUME, TYPE_NUMBER,
		.fallback = "500", .min = 1, .max = 10000,
		.help = "messages taken and not acknowledged at most"},
	[SET_BATCH] = {"batch", FOR_CONSUME, TYPE_NUMBER,
		.fallback = "200", .min = 1, .max = 1000, .reloadable = true,
		.help = "messages handled in one transaction at most"},
	[SET_BATCH_TIMEOUT] = {"batch-timeout", FOR_CONSUME, TYPE_DURATION,
		.fallback = "5min", .min = 100, .max = HOUR,
		.help = "how long one transaction may take"},
	[SET_MAX_ATTEMPTS] = {"max-attempts", FOR_CONSUME, TYPE_NUMBER,
		.fallback = "5", .min = 1, .max = 1000, .reloadable = true,
		.help = "failures after which a message is dead-lettered"},
	[SET_RETRY_BACKOFF] = {"retry-backoff", FOR_CONSUME, TYPE_DURATION,
		.fallback = "1s", .min = 10, .max = MINUTE, .reloadable = true,
		.help = "wait after a message's first failure; doubled with each, up to 1min"},
	[SET_CONFIRM_TIMEOUT] = {"confirm-timeout", FOR_ALL, TYPE_DURATION,
		.fallback = "30s", .min = SECOND, .max = 10 * MINUTE,
		.help = "a message unconfirmed for so long ends the broker connection"},
	[SET_STOP_TIMEOUT] = {"stop-timeout", FOR_ALL, TYPE_DURATION,
		.fallback = "25s", .min = SECOND, .max = 10 * MINUTE, .reloadable = true,
		.help = "how long an orderly stop may take"},
	[SET_HEARTBEAT] = {"heartbeat", FOR_ALL, TYPE_DURATION,
		.fallback = "10s", .min = SECOND, .max = 10 * MINUTE,
		.help = "AMQP heartbeat; after two intervals without input the broker is gone"},
	[SET_CONNECT_TIMEOUT] = {"connect-timeout", FOR_ALL, TYPE_DURATION,
		.fallback = "10s", .min = 100, .max = 2 * MINUTE,
		.help = "bound of each step of connecting, on both sides"},
	[SET_RECONNECT_MIN] = {"reconnect-min", FOR_ALL, TYPE_DURATION,
		.fallback = "0.2s", .min = 10, .max = MINUTE,
		.help = "first delay before connecting again, on both sides; doubled, +-50%"},
	[SET_RECONNECT_MAX] = {"reconnect-max", FOR_ALL, TYPE_DURATION,
		.fallback = "15s", .min = 10, .max = HOUR,
		.help = "where the doubling stops"},
	[SET_RENEW_INTERVAL] = {"renew-interval", FOR_RELAY, TYPE_DURATION,
		.fallback = "10s", .min = 100, .max = 20 * SECOND, .reloadable = true,
		.help = "how often the lease is renewed"},
	[SET_DUTY_INTERVAL] = {"duty-interval", FOR_RELAY, TYPE_DURATION,
		.fallback = "1min", .min = SECOND, .max = HOUR, .reloadable = true,
		.help = "how often the active relay runs due duties"},
	[SET_SUMMARY_INTERVAL] = {"summary-interval", FOR_DATABASE, TYPE_DURATION,
		.fallback = "1min", .min = SECOND, .max = 24 * HOUR, .reloadable = true,
		.help = "how often the counters are logged"},
	[SET_HTTP] = {"http", FOR_DATABASE, TYPE_TEXT,
		.min = 1, .max = 300,
		.help = "HOST:PORT for /metrics, /healthz and /readyz"},
	[SET_QUEUE] = {"queue", FOR_CONSUME | FOR_REPROCESS, TYPE_TEXT,
		.min = 1, .max = 255,
		.help = "the queue to consume, or that dead letters go back into (required)"},
	[SET_DLQ] = {"dlq", FOR_REPROCESS, TYPE_TEXT,
		.min = 1, .max = 255,
		.help = "the dead-letter queue (required)"},
	[SET_MATCH] = {"match", COMMAND_REPROCESS, TYPE_LIST,
		.min = 1, .max = 600,
		.help = "field=value: only messages that match; may be given several times"},
	[SET_LIMIT] = {"limit", COMMAND_REPROCESS, TYPE_NUMBER,
		.fallback = "0", .max = 1000000000,
		.help = "messages put back at most; 0: as many as there are at the start"},
	[SET_ORIGINAL_KEY] = {"original-key", COMMAND_REPROCESS, TYPE_BOOL,
		.fallback = "false",
		.help = "put them back with the routing key they had at first"},
	[SET_DRY_RUN] = {"dry-run", COMMAND_REPROCESS, TYPE_BOOL,
		.fallback = "false",
		.help = "list what would be put back, and put nothing back"},
	[SET_LOG_FORMAT] = {"log-format", FOR_ALL, TYPE_CHOICE,
		.fallback = "kv", .choices = "kv|json", .reloadable = true,
		.help = "key=value or JSON lines on stderr"},
	[SET_LOG_LEVEL] = {"log-level", FOR_ALL, TYPE_CHOICE,
		.fallback = "info", .choices = "debug|info|warn|error", .reloadable = true,
		.help = "least level that is logged"},
};

int
setting_find(const char *name, size_t length)
{
	for (int i = 0; i < SETTINGS; i++)
		if (strlen(setting_rules[i].name) == length &&
			strncmp(setting_rules[i].name, name, length) == 0)
			return i;
	return -1;
}

bool
setting_is_for(enum setting setting, enum command command)
{
	return (setting_rules[setting].commands & command) != 0;
}

/* "poll-interval" is ACME_OUTBOX_POLL_INTERVAL in the environment. */
void
setting_variable(enum setting setting, char name[SETTING_NAME_MAX])
{
	size_t		i = (size_t) snprintf(name, SETTING_NAME_MAX,
									  SETTING_ENV_PREFIX "%s",
									  setting_rules[setting].name);

	while (i-- > strlen(SETTING_ENV_PREFIX))
		name[i] = name[i] == '-' ? '_' : (char) toupper(name[i]);
}
