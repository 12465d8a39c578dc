/*
 * config_check.c
 *		What no single value tells: settings that a command cannot do without, that
 *		exclude each other, or whose files must be there. The broker's settings
 *		become its URI.
 *
 * A secret may not be on the command line, where every user of the machine can
 * read it.
 */
#include "config_internal.h"

#include <errno.h>
#include <libpq-fe.h>
#include <string.h>

#include "dsn.h"
#include "http.h"

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
		return config_fail(config, "setting \"dsn\": it is not a valid connection "
					"string");
	for (PQconninfoOption *o = options; o->keyword; o++)
		if (o->val && strstr(o->keyword, "password") &&
			strcmp(o->keyword, "passfile") != 0)
			has_secret = true;
	PQconninfoFree(options);
	if (has_secret && value->source == SOURCE_FLAG)
		return config_fail(config, "--dsn holds a password, which any user of this "
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
		return config_fail(config, "setting \"broker-password-file\": cannot read "
					"\"%s\": %s", path, strerror(errno));
	got = fgets(line, sizeof(line), file) != NULL;
	fclose(file);
	if (!got)
		return config_fail(config, "setting \"broker-password-file\": \"%s\" is empty",
					path);
	line[strcspn(line, "\r\n")] = '\0';
	strcpy(config->uri.password, line);
	config->uri.has_password = true;
	return true;
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
			return config_fail(config, "setting \"%s\": the broker's URI does not "
						"begin with amqps://", setting_rules[i].name);
	if (tls.cert_file == NULL && (tls.key_file || tls.key_password_file))
		return config_fail(config, "setting \"tls-key-file\": it needs "
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
		return config_fail(config, "setting \"broker-uri\": auth_mechanism=external "
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
		return config_fail(config, "--broker-uri holds a password, which any user of "
					"this machine can read in the process list; give it in "
					"RABBITMQ_URI, in ACME_OUTBOX_BROKER_URI, in the "
					"configuration file or by --broker-password-file");
	if (problem)
		return config_fail(config, "setting \"broker-uri\": %s", problem);
	if (file && !read_password(config, file))
		return false;
	return check_tls(config) && check_login(config);
}

/* A command cannot do without these. */
static bool
check_required(struct config *config, enum setting setting)
{
	char		name[SETTING_NAME_MAX];

	if (config_text(config, setting))
		return true;
	setting_variable(setting, name);
	return config_fail(config, "setting \"%s\" is required: give --%s or %s",
				setting_rules[setting].name, setting_rules[setting].name, name);
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
			return config_fail(config, "setting \"%s\" needs the sink rabbitmq",
						setting_rules[lanes[i]].name);
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
		return config_fail(config, "setting \"queue\": a queue to reprocess may have %d "
					"bytes in its name, not %zu", CONFIG_QUEUE_MAX,
					strlen(queue));
	if (strcmp(config_text(config, SET_DLQ), queue) == 0)
		return config_fail(config, "settings \"dlq\" and \"queue\" name the same "
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
	return config_fail(config, "setting \"http\": \"%s\" is not HOST:PORT", text);
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

bool
config_check(struct config *config)
{
	if (!check_all_required(config))
		return false;
	if (config_number(config, SET_RECONNECT_MIN) >
		config_number(config, SET_RECONNECT_MAX))
		return config_fail(config, "setting \"reconnect-min\" must not exceed "
					"\"reconnect-max\"");
	return check_sink(config) && check_http(config) && check_dsn(config) &&
		check_broker(config);
}
