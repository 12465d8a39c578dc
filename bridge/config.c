/*
 * config.c
 *		Settings: one table drives flags, environment, file, --help,
 *		--dump-config, --list-settings and the documentation check.
 *
 * Each setting says which commands know it. One of another command is a mistake
 * on the command line; in the file and the environment, which the commands may
 * share, it is passed over.
 *
 * A setting "poll-interval" is --poll-interval on the command line,
 * ACME_OUTBOX_POLL_INTERVAL in the environment and poll-interval in the file
 * named by --config; the first of these that is given counts, else the default.
 *
 * A secret may not be on the command line, where every user of the machine can
 * read it. Error texts name the setting and the rule, and quote a value only if
 * the setting can hold no secret.
 */
#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <libpq-fe.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "dsn.h"
#include "http.h"

#define ENV_PREFIX		"ACME_OUTBOX_"
#define NAME_MAX_LENGTH 64
#define LINE_MAX_LENGTH 4096

#define KiB				1024LL
#define MiB				(1024LL * KiB)
#define SECOND			1000LL
#define MINUTE			(60LL * SECOND)
#define HOUR			(60LL * MINUTE)

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

#define FOR_RELAY		(COMMAND_RELAY | COMMAND_CHECK)
#define FOR_CONSUME		(COMMAND_CONSUME | COMMAND_CHECK)
#define FOR_DATABASE	(COMMAND_RELAY | COMMAND_CONSUME | COMMAND_CHECK)
#define FOR_ALL			(FOR_DATABASE | COMMAND_REPROCESS)
#define FOR_REPROCESS	(COMMAND_REPROCESS | COMMAND_CHECK)

struct setting_rule
{
	const char *name;
	int			commands;		/* that know it */
	enum setting_type type;
	const char *fallback;		/* NULL: none */
	int64_t		min;
	int64_t		max;
	const char *choices;		/* separated by | */
	bool		reloadable;
	bool		secret;			/* may hold a password */
	const char *alias;			/* another variable people know */
	const char *help;
};

static const struct setting_rule rules[SETTINGS] = {
	[SET_ORIGIN] = {"origin", FOR_RELAY, TYPE_TEXT, NULL, 1, 255, NULL, false, false, NULL,
	"the producing service whose entries are sent (required)"},
	[SET_RELAY_NAME] = {"relay-name", FOR_RELAY, TYPE_TEXT, NULL, 1, 128, NULL, false,
		false, NULL,
	"begin of this process's name in the lease; empty: the host's name"},
	[SET_CONSUMER] = {"consumer", FOR_CONSUME, TYPE_TEXT, NULL, 1, 255, NULL,
		false, false, NULL,
	"the name under which the inbox remembers what was processed (required)"},
	[SET_HANDLER] = {"handler", FOR_CONSUME, TYPE_TEXT, NULL, 1, 255, NULL,
		false, false, NULL,
	"schema.function that handles a message (required)"},
	[SET_DSN] = {"dsn", FOR_DATABASE, TYPE_TEXT, NULL, 0, 4000, NULL, false, true, NULL,
	"PostgreSQL connection string; empty: libpq's PG* variables"},
	[SET_BROKER_URI] = {"broker-uri", FOR_ALL, TYPE_TEXT, "amqp://localhost", 0, 2000,
		NULL, false, true, "RABBITMQ_URI",
	"amqp(s)://user:password@host:port,host:port/vhost; also RABBITMQ_URI"},
	[SET_BROKER_PASSWORD_FILE] = {"broker-password-file", FOR_ALL, TYPE_TEXT, NULL, 1,
		4000, NULL, false, false, NULL,
	"file whose first line is the broker's password"},
	[SET_TLS_CA_FILE] = {"tls-ca-file", FOR_ALL, TYPE_TEXT, NULL, 1, 4000, NULL, false,
		false, NULL,
	"PEM file of the authorities that may vouch for the broker"},
	[SET_TLS_CERT_FILE] = {"tls-cert-file", FOR_ALL, TYPE_TEXT, NULL, 1, 4000, NULL,
		false, false, NULL,
	"PEM file of the client certificate, with its chain"},
	[SET_TLS_KEY_FILE] = {"tls-key-file", FOR_ALL, TYPE_TEXT, NULL, 1, 4000, NULL, false,
		false, NULL,
	"PEM file of its private key; empty: in the certificate's file"},
	[SET_TLS_KEY_PASSWORD_FILE] = {"tls-key-password-file", FOR_ALL, TYPE_TEXT, NULL, 1,
		4000, NULL, false, false, NULL,
	"file whose first line is the private key's passphrase"},
	[SET_TLS_VERIFY] = {"tls-verify", FOR_ALL, TYPE_BOOL, "true", 0, 0, NULL, false,
		false, NULL,
	"verify the broker's certificate and its name"},
	[SET_SINK] = {"sink", FOR_RELAY, TYPE_CHOICE, "rabbitmq", 0, 0, "rabbitmq|stdout",
		false, false, NULL,
	"where entries go: rabbitmq, or stdout as JSON lines (no confirm)"},
	[SET_AUDIT_EXCHANGE] = {"audit-exchange", FOR_RELAY, TYPE_TEXT, NULL, 1, 255, NULL,
		false, false, NULL,
	"exchange that gets a copy of every entry; both must be confirmed"},
	[SET_DEAD_LETTER_EXCHANGE] = {"dead-letter-exchange", FOR_DATABASE, TYPE_TEXT, NULL, 1,
		255, NULL, false, false, NULL,
	"exchange for entries or messages that were given up; key dead-letter"},
	[SET_ONCE] = {"once", FOR_DATABASE, TYPE_BOOL, "false", 0, 0, NULL, false, false, NULL,
	"do what is there to do, then exit"},
	[SET_STRICT_ORDER] = {"strict-order", FOR_RELAY, TYPE_BOOL, "false", 0, 0, NULL, true,
		false, NULL,
	"at most one unconfirmed message per key"},
	[SET_CLAIM_ROWS] = {"claim-rows", FOR_RELAY, TYPE_NUMBER, "500", 1, 10000, NULL, true,
		false, NULL,
	"entries of one claim at most"},
	[SET_CLAIM_BYTES] = {"claim-bytes", FOR_RELAY, TYPE_SIZE, "8MiB", 64 * KiB, 256 * MiB,
		NULL, true, false, NULL,
	"bytes of one claim at most"},
	[SET_WINDOW] = {"window", FOR_RELAY, TYPE_NUMBER, "1000", 1, 50000, NULL, false, false,
		NULL,
	"messages sent and not settled at most"},
	[SET_POLL_INTERVAL] = {"poll-interval", FOR_RELAY, TYPE_DURATION, "1s", 10, MINUTE,
		NULL, true, false, NULL,
	"how often to look for entries when no wake-up comes"},
	[SET_PREFETCH] = {"prefetch", FOR_CONSUME, TYPE_NUMBER, "500", 1, 10000,
		NULL, false, false, NULL,
	"messages taken and not acknowledged at most"},
	[SET_BATCH] = {"batch", FOR_CONSUME, TYPE_NUMBER, "200", 1, 1000, NULL,
		true, false, NULL,
	"messages handled in one transaction at most"},
	[SET_BATCH_TIMEOUT] = {"batch-timeout", FOR_CONSUME, TYPE_DURATION, "5min",
		100, HOUR, NULL, false, false, NULL,
	"how long one transaction may take"},
	[SET_MAX_ATTEMPTS] = {"max-attempts", FOR_CONSUME, TYPE_NUMBER, "5", 1,
		1000, NULL, true, false, NULL,
	"failures after which a message is dead-lettered"},
	[SET_RETRY_BACKOFF] = {"retry-backoff", FOR_CONSUME, TYPE_DURATION, "1s",
		10, MINUTE, NULL, true, false, NULL,
	"wait after a message's first failure; doubled with each, up to 1min"},
	[SET_CONFIRM_TIMEOUT] = {"confirm-timeout", FOR_ALL, TYPE_DURATION, "30s", SECOND,
		10 * MINUTE, NULL, false, false, NULL,
	"a message unconfirmed for so long ends the broker connection"},
	[SET_STOP_TIMEOUT] = {"stop-timeout", FOR_ALL, TYPE_DURATION, "25s", SECOND,
		10 * MINUTE, NULL, true, false, NULL,
	"how long an orderly stop may take"},
	[SET_HEARTBEAT] = {"heartbeat", FOR_ALL, TYPE_DURATION, "10s", SECOND, 10 * MINUTE,
		NULL, false, false, NULL,
	"AMQP heartbeat; after two intervals without input the broker is gone"},
	[SET_CONNECT_TIMEOUT] = {"connect-timeout", FOR_ALL, TYPE_DURATION, "10s", 100,
		2 * MINUTE, NULL, false, false, NULL,
	"bound of each step of connecting, on both sides"},
	[SET_RECONNECT_MIN] = {"reconnect-min", FOR_ALL, TYPE_DURATION, "0.2s", 10, MINUTE,
		NULL, false, false, NULL,
	"first delay before connecting again, on both sides; doubled, +-50%"},
	[SET_RECONNECT_MAX] = {"reconnect-max", FOR_ALL, TYPE_DURATION, "15s", 10, HOUR,
		NULL, false, false, NULL,
	"where the doubling stops"},
	[SET_RENEW_INTERVAL] = {"renew-interval", FOR_RELAY, TYPE_DURATION, "10s", 100,
		20 * SECOND, NULL, true, false, NULL,
	"how often the lease is renewed"},
	[SET_DUTY_INTERVAL] = {"duty-interval", FOR_RELAY, TYPE_DURATION, "1min", SECOND, HOUR,
		NULL, true, false, NULL,
	"how often the active relay runs due duties"},
	[SET_SUMMARY_INTERVAL] = {"summary-interval", FOR_DATABASE, TYPE_DURATION, "1min", SECOND,
		24 * HOUR, NULL, true, false, NULL,
	"how often the counters are logged"},
	[SET_HTTP] = {"http", FOR_DATABASE, TYPE_TEXT, NULL, 1, 300, NULL, false, false, NULL,
	"HOST:PORT for /metrics, /healthz and /readyz"},
	[SET_QUEUE] = {"queue", FOR_CONSUME | FOR_REPROCESS, TYPE_TEXT, NULL, 1,
		255, NULL, false, false, NULL,
	"the queue to consume, or that dead letters go back into (required)"},
	[SET_DLQ] = {"dlq", FOR_REPROCESS, TYPE_TEXT, NULL, 1, 255, NULL, false, false,
		NULL,
	"the dead-letter queue (required)"},
	[SET_MATCH] = {"match", COMMAND_REPROCESS, TYPE_LIST, NULL, 1, 600, NULL, false,
		false, NULL,
	"field=value: only messages that match; may be given several times"},
	[SET_LIMIT] = {"limit", COMMAND_REPROCESS, TYPE_NUMBER, "0", 0, 1000000000, NULL,
		false, false, NULL,
	"messages put back at most; 0: as many as there are at the start"},
	[SET_ORIGINAL_KEY] = {"original-key", COMMAND_REPROCESS, TYPE_BOOL, "false", 0, 0,
		NULL, false, false, NULL,
	"put them back with the routing key they had at first"},
	[SET_DRY_RUN] = {"dry-run", COMMAND_REPROCESS, TYPE_BOOL, "false", 0, 0, NULL,
		false, false, NULL,
	"list what would be put back, and put nothing back"},
	[SET_LOG_FORMAT] = {"log-format", FOR_ALL, TYPE_CHOICE, "kv", 0, 0, "kv|json", true,
		false, NULL,
	"key=value or JSON lines on stderr"},
	[SET_LOG_LEVEL] = {"log-level", FOR_ALL, TYPE_CHOICE, "info", 0, 0,
		"debug|info|warn|error", true, false, NULL,
	"least level that is logged"},
};

static bool
is_for(const struct setting_rule *rule, enum command command)
{
	return (rule->commands & command) != 0;
}

static bool
fail(struct config *config, const char *format, ...)
{
	va_list		arguments;

	va_start(arguments, format);
	vsnprintf(config->error, sizeof(config->error), format, arguments);
	va_end(arguments);
	return false;
}

static void
env_name(const struct setting_rule *rule, char name[NAME_MAX_LENGTH])
{
	size_t		i = (size_t) snprintf(name, NAME_MAX_LENGTH, ENV_PREFIX "%s",
									  rule->name);

	while (i-- > strlen(ENV_PREFIX))
		name[i] = name[i] == '-' ? '_' : (char) toupper(name[i]);
}

static int
find_rule(const char *name, size_t length)
{
	for (int i = 0; i < SETTINGS; i++)
		if (strlen(rules[i].name) == length &&
			strncmp(rules[i].name, name, length) == 0)
			return i;
	return -1;
}

/* ---- values ---- */

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
static void
format_number(const struct setting_rule *rule, int64_t number, char text[32])
{
	const struct unit *units = rule->type == TYPE_SIZE ? size_units :
		rule->type == TYPE_DURATION ? duration_units : no_units;
	const struct unit *best = &units[0];

	for (; units->name; units++)
		if (*units->name && number % units->factor == 0 &&
			units->factor >= best->factor && number > 0)
			best = units;
	snprintf(text, 32, "%lld%s", (long long) (number / best->factor),
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
	char		min[32],
				max[32];

	if (!parse_quantity(text, units, number))
		return fail(config, "setting \"%s\" (%s): \"%s\" is not %s",
					rule->name, origin, text, kind);
	if (*number >= rule->min && *number <= rule->max)
		return true;
	format_number(rule, rule->min, min);
	format_number(rule, rule->max, max);
	return fail(config, "setting \"%s\" (%s): \"%s\" is out of range, "
				"%s to %s are allowed", rule->name, origin, text, min, max);
}

static bool
parse_value(struct config *config, const struct setting_rule *rule,
			const char *text, const char *origin, int64_t *number)
{
	size_t		length = strlen(text);

	switch (rule->type)
	{
		case TYPE_TEXT:
		case TYPE_LIST:
			if (length >= (size_t) rule->min && length <= (size_t) rule->max)
				return true;
			return fail(config, "setting \"%s\" (%s): %lld to %lld bytes are "
						"allowed, not %zu", rule->name, origin,
						(long long) rule->min, (long long) rule->max, length);
		case TYPE_BOOL:
			if (parse_bool(text, number))
				return true;
			return fail(config, "setting \"%s\" (%s): \"%s\" is not true or "
						"false", rule->name, origin, text);
		case TYPE_CHOICE:
			if (parse_choice(text, rule->choices, number))
				return true;
			return fail(config, "setting \"%s\" (%s): \"%s\" is not one of %s",
						rule->name, origin, text, rule->choices);
		default:
			return parse_ranged(config, rule, text, origin, number);
	}
}

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

	if (!parse_value(config, &rules[setting], text, origin, &number))
		return false;
	fresh = rules[setting].type == TYPE_LIST ?
		lengthened(value, text, source) : strdup(text);
	free(value->text);
	value->text = fresh;
	value->number = number;
	value->source = source;
	return value->text != NULL;
}

/* ---- where values come from ---- */

static bool
load_defaults(struct config *config)
{
	for (int i = 0; i < SETTINGS; i++)
		if (rules[i].fallback &&
			!set_value(config, i, rules[i].fallback, SOURCE_DEFAULT, "default"))
			return false;
	return true;
}

static bool
load_environment(struct config *config)
{
	char		name[NAME_MAX_LENGTH];
	const char *value;

	for (int i = 0; i < SETTINGS; i++)
	{
		if (!is_for(&rules[i], config->command))
			continue;
		if (rules[i].alias && (value = getenv(rules[i].alias)) != NULL &&
			!set_value(config, i, value, SOURCE_ENVIRONMENT, rules[i].alias))
			return false;
		env_name(&rules[i], name);
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
		return fail(config, "%s: a line must be \"name = value\"", origin);
	*equals = '\0';
	line = trim(line);
	setting = find_rule(line, strlen(line));
	if (setting < 0)
		return fail(config, "%s: there is no setting \"%s\"", origin, line);
	if (seen[setting] && rules[setting].type != TYPE_LIST)
		return fail(config, "%s: setting \"%s\" is given twice", origin, line);
	seen[setting] = true;
	return !is_for(&rules[setting], config->command) ||
		set_value(config, setting, trim(equals + 1), SOURCE_FILE, origin);
}

static bool
load_file(struct config *config, const char *path)
{
	FILE	   *file = fopen(path, "r");
	char		line[LINE_MAX_LENGTH];
	char		origin[CONFIG_ERROR_MAX / 2];
	bool		seen[SETTINGS] = {false};
	bool		good = true;

	if (file == NULL)
		return fail(config, "cannot read the configuration file \"%s\": %s",
					path, strerror(errno));
	for (int number = 1; good && fgets(line, sizeof(line), file); number++)
	{
		snprintf(origin, sizeof(origin), "%s line %d", path, number);
		if (strlen(line) == sizeof(line) - 1)
			good = fail(config, "%s: the line is too long", origin);
		else
			good = load_line(config, line, origin, seen);
	}
	/* fopen() opens a directory too; reading it fails */
	if (good && ferror(file))
		good = fail(config, "cannot read the configuration file \"%s\": %s",
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
	int			setting = find_rule(word, length);
	char		origin[NAME_MAX_LENGTH + 2];

	if (setting < 0)
		return fail(config, "there is no option --%.*s (see --help)",
					(int) length, word);
	if (!is_for(&rules[setting], config->command))
		return fail(config, "option --%s is not for \"%s\" (see %s --help)",
					rules[setting].name, command_name(config->command),
					command_name(config->command));
	snprintf(origin, sizeof(origin), "--%s", rules[setting].name);
	if (value == NULL && rules[setting].type == TYPE_BOOL)
		value = "true";
	else if (value == NULL && *i + 1 < line->argc)
		value = line->argv[++*i];
	if (value == NULL)
		return fail(config, "option %s needs a value", origin);
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

static bool
load_flags(struct config *config, const struct command_line *line,
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
			return fail(config, "unexpected argument \"%s\" (see --help)",
						word);
		else if (!load_flag(config, line, &i))
			return false;
	}
	return true;
}

/* ---- checks over several settings ---- */

/* libpq's own message could quote a password, so it is not used. */
static bool
check_dsn(struct config *config)
{
	const struct setting_value *value = &config->values[SET_DSN];
	PQconninfoOption *options;
	bool		has_secret = false;

	if (value->text == NULL || !dsn_is_string(value->text))
		return true;
	options = PQconninfoParse(value->text, NULL);
	if (options == NULL)
		return fail(config, "setting \"dsn\": it is not a valid connection "
					"string");
	for (PQconninfoOption *o = options; o->keyword; o++)
		if (o->val && strstr(o->keyword, "password") &&
			strcmp(o->keyword, "passfile") != 0)
			has_secret = true;
	PQconninfoFree(options);
	if (has_secret && value->source == SOURCE_FLAG)
		return fail(config, "--dsn holds a password, which any user of this "
					"machine can read in the process list; give it in "
					"ACME_OUTBOX_DSN, PGPASSWORD, PGPASSFILE or the "
					"configuration file");
	return true;
}

static bool
read_password(struct config *config, const char *path)
{
	FILE	   *file = fopen(path, "r");
	char		line[URI_SECRET_MAX];
	bool		got;

	if (file == NULL)
		return fail(config, "setting \"broker-password-file\": cannot read "
					"\"%s\": %s", path, strerror(errno));
	got = fgets(line, sizeof(line), file) != NULL;
	fclose(file);
	if (!got)
		return fail(config, "setting \"broker-password-file\": \"%s\" is empty",
					path);
	line[strcspn(line, "\r\n")] = '\0';
	strcpy(config->uri.password, line);
	config->uri.has_password = true;
	return true;
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

/*
 * The files are tried now, so that a mistake shows at once. A TLS setting
 * without TLS is one too: somebody believes to be protected.
 */
static bool
check_tls(struct config *config)
{
	struct tls_settings tls = config_tls(config);
	SSL_CTX    *context;

	for (int i = SET_TLS_CA_FILE; i <= SET_TLS_KEY_PASSWORD_FILE; i++)
		if (!tls.enabled && config_text(config, (enum setting) i))
			return fail(config, "setting \"%s\": the broker's URI does not "
						"begin with amqps://", rules[i].name);
	if (tls.cert_file == NULL && (tls.key_file || tls.key_password_file))
		return fail(config, "setting \"tls-key-file\": it needs "
					"\"tls-cert-file\"");
	if (!tls.enabled)
		return true;
	context = tls_context_new(&tls, config->error, sizeof(config->error));
	SSL_CTX_free(context);
	return context != NULL;
}

/* Whoever shows a certificate and names no user logs in by the certificate. */
static bool
check_login(struct config *config)
{
	struct broker_uri *uri = &config->uri;
	bool		has_certificate = config_text(config, SET_TLS_CERT_FILE);

	if (uri->auth == AUTH_AUTO)
		uri->auth = has_certificate && !uri->has_user ? AUTH_EXTERNAL :
			AUTH_PLAIN;
	if (uri->auth == AUTH_EXTERNAL && !has_certificate)
		return fail(config, "setting \"broker-uri\": auth_mechanism=external "
					"needs amqps:// and \"tls-cert-file\"");
	/* RabbitMQ's well-known login, which it accepts from loopback only */
	if (uri->auth == AUTH_PLAIN && !uri->has_password &&
		strcmp(uri->user, URI_DEFAULT_USER) == 0)
		strcpy(uri->password, URI_DEFAULT_USER);
	return true;
}

static bool
check_broker(struct config *config)
{
	const struct setting_value *value = &config->values[SET_BROKER_URI];
	const char *problem = uri_parse(value->text ? value->text : "",
									&config->uri);
	const char *file = config_text(config, SET_BROKER_PASSWORD_FILE);

	/* a flag that holds a secret is the worse mistake, so it is named first */
	if (config->uri.has_password && value->source == SOURCE_FLAG)
		return fail(config, "--broker-uri holds a password, which any user of "
					"this machine can read in the process list; give it in "
					"RABBITMQ_URI, in ACME_OUTBOX_BROKER_URI, in the "
					"configuration file or by --broker-password-file");
	if (problem)
		return fail(config, "setting \"broker-uri\": %s", problem);
	if (file && !read_password(config, file))
		return false;
	return check_tls(config) && check_login(config);
}

/* A command cannot do without these. */
static bool
check_required(struct config *config, enum setting setting)
{
	char		name[NAME_MAX_LENGTH];

	if (config_text(config, setting))
		return true;
	env_name(&rules[setting], name);
	return fail(config, "setting \"%s\" is required: give --%s or %s",
				rules[setting].name, rules[setting].name, name);
}

/* Standard output has one lane. */
static bool
check_sink(struct config *config)
{
	static const enum setting lanes[] = {SET_AUDIT_EXCHANGE,
	SET_DEAD_LETTER_EXCHANGE};

	if (config_number(config, SET_SINK) != SINK_STDOUT)
		return true;
	for (int i = 0; i < 2; i++)
		if (config_text(config, lanes[i]))
			return fail(config, "setting \"%s\" needs the sink rabbitmq",
						rules[lanes[i]].name);
	return true;
}

/* Those of a reprocessing. */
static bool
check_queues(struct config *config)
{
	const char *queue = config_text(config, SET_QUEUE);

	if (!check_required(config, SET_DLQ) || !check_required(config, SET_QUEUE))
		return false;
	if (strlen(queue) > CONFIG_QUEUE_MAX)
		return fail(config, "setting \"queue\": a queue to reprocess may have %d "
					"bytes in its name, not %zu", CONFIG_QUEUE_MAX,
					strlen(queue));
	if (strcmp(config_text(config, SET_DLQ), queue) == 0)
		return fail(config, "settings \"dlq\" and \"queue\" name the same "
					"queue");
	return true;
}

static bool
check_http(struct config *config)
{
	const char *text = config_text(config, SET_HTTP);
	struct http_address address;

	if (text == NULL || http_parse(text, &address))
		return true;
	return fail(config, "setting \"http\": \"%s\" is not HOST:PORT", text);
}

/* A check is about a relay, unless it is told a dead-letter queue or a consumer. */
static bool
check_all_required(struct config *config)
{
	bool		is_check = config->command == COMMAND_CHECK;

	if (config->command == COMMAND_REPROCESS ||
		(is_check && config_text(config, SET_DLQ)))
		return check_queues(config);
	if (config->command == COMMAND_CONSUME ||
		(is_check && config_text(config, SET_CONSUMER)))
		return check_required(config, SET_QUEUE) &&
			check_required(config, SET_CONSUMER) &&
			check_required(config, SET_HANDLER);
	return check_required(config, SET_ORIGIN);
}

static bool
check_all(struct config *config)
{
	if (!check_all_required(config))
		return false;
	if (config_number(config, SET_RECONNECT_MIN) >
		config_number(config, SET_RECONNECT_MAX))
		return fail(config, "setting \"reconnect-min\" must not exceed "
					"\"reconnect-max\"");
	return check_sink(config) && check_http(config) && check_dsn(config) &&
		check_broker(config);
}

/*
 * Load everything. On failure the error is in config->error and the status says
 * how to exit.
 */
enum exit_status
config_load(struct config *config, const struct command_line *line)
{
	const char *file = getenv(ENV_PREFIX "CONFIG");

	memset(config, 0, sizeof(*config));
	config->command = line->command;
	/* twice: once to find --config, and again because flags count most */
	if (!load_defaults(config) || !load_flags(config, line, &file))
		return EXIT_USAGE;
	config_free(config);
	if (!load_defaults(config))
		return EXIT_USAGE;
	if (file && !load_file(config, file))
		return EXIT_CONFIG_FILE;
	if (!load_environment(config) ||
		!load_flags(config, line, &file) ||
		!check_all(config))
		return EXIT_USAGE;
	return EXIT_OK;
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
		if (!rules[i].reloadable)
		{
			*needs_restart = rules[i].name;
			continue;
		}
		config->values[i] = fresh->values[i];
		fresh->values[i] = old;
		changed++;
	}
	return changed;
}

/* ---- output ---- */

static void
print_range(const struct setting_rule *rule, FILE *out)
{
	char		min[32],
				max[32];

	if (rule->choices)
		fprintf(out, " (%s)", rule->choices);
	if (rule->type < TYPE_NUMBER)
		return;
	format_number(rule, rule->min, min);
	format_number(rule, rule->max, max);
	fprintf(out, " (%s to %s)", min, max);
}

/* The settings that a command knows. For check none is required by itself. */
void
config_help(enum command command, FILE *out)
{
	for (int i = 0; i < SETTINGS; i++)
	{
		const struct setting_rule *rule = &rules[i];

		const char *required;
		int			length;

		if (!is_for(rule, command))
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
	char		name[NAME_MAX_LENGTH];
	char		commands[COMMANDS_TEXT_MAX];

	for (int i = 0; i < SETTINGS; i++)
	{
		env_name(&rules[i], name);
		command_names(rules[i].commands, commands);
		fprintf(out, "%s\t%s\t%s\t%s\t%s\n", rules[i].name, name,
				rules[i].fallback ? rules[i].fallback : "", commands,
				rules[i].help);
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

		if (value->text == NULL || !is_for(&rules[i], config->command))
			continue;
		fprintf(out, "# %s\n%s = ", sources[value->source], rules[i].name);
		if (i == SET_DSN)
			print_dsn(value->text, out);
		else if (i == SET_BROKER_URI)
			print_uri(&config->uri, out);
		else
			print_lines(rules[i].name, value->text, out);
		fputc('\n', out);
	}
}
