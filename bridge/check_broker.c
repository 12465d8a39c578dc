/*
 * check_broker.c
 *		The broker's part of "check".
 *
 * One connection, opened and closed as the relay does it. Exchanges are asked
 * about by passive declares and by publishes that are rolled back (asking.c). What
 * is bound only a message that counts would tell, so the report does not say.
 */
#include <stdio.h>
#include <string.h>

#include "asking.h"
#include "check.h"
#include "header_names.h"

#define DAYS_TO_RENEW	14

static void
report_failure(struct report *report, const struct asking *a)
{
	bool		is_tls = strncmp(a->text, TLS_PREFIX, strlen(TLS_PREFIX)) == 0;

	if (!a->refused)
		report_line(report, VERDICT_FAIL, "broker",
					"check host and port in RABBITMQ_URI, and that the broker "
					"runs", "not reachable: %s", a->broker.problem);
	else if (is_tls)
		report_line(report, VERDICT_FAIL, "tls", "check the tls-* settings, the "
					"host in RABBITMQ_URI and the certificates", "%s",
					a->text + strlen(TLS_PREFIX));
	else
		report_line(report, VERDICT_FAIL, "login", "check the user, password "
					"and virtual host in RABBITMQ_URI", "%s", a->text);
}

static void
report_expiry(struct report *report, const char *whose, int days)
{
	if (days < DAYS_TO_RENEW)
		report_line(report, days < 0 ? VERDICT_FAIL : VERDICT_WARN, "tls",
					"renew it", "%s certificate %s", whose, days < 0 ?
					"has expired" : days == 0 ? "expires within a day" :
					"expires in less than 14 days");
}

static void
report_tls(struct report *report, const struct asking *a,
		   const struct tls_settings *settings)
{
	struct tls_facts facts;
	int			days;

	if (!settings->enabled)
	{
		report_line(report, VERDICT_OK, "tls", NULL, "off (amqp://)");
		return;
	}
	tls_read_facts(a->broker.transport.ssl, &facts);
	report_line(report, VERDICT_OK, "tls", NULL, "%s, %s, peer %s, %d days left",
				facts.protocol, facts.cipher, facts.peer, facts.days_left);
	report_expiry(report, "the broker's", facts.days_left);
	if (settings->cert_file && tls_file_days_left(settings->cert_file, &days))
		report_expiry(report, "the client's", days);
}

static void
report_connection(struct report *report, const struct asking *a)
{
	const struct broker *b = &a->broker;
	const struct broker_uri *uri = &b->settings.uri;

	report_line(report, VERDICT_OK, "broker", NULL, "RabbitMQ %s at %s port %s",
				b->server_version, uri->hosts[b->host].name,
				uri->hosts[b->host].port);
	report_tls(report, a, &b->settings.tls);
	report_line(report, VERDICT_OK, "login", NULL, "%s%s", uri->auth ==
				AUTH_EXTERNAL ? "by the client certificate" : "as ",
				uri->auth == AUTH_EXTERNAL ? "" : uri->user);
	report_line(report, VERDICT_OK, "vhost", NULL, "\"%s\"", uri->vhost);
	report_line(report, b->server_tells_blocked ? VERDICT_OK : VERDICT_WARN,
				"blocking", NULL, b->server_tells_blocked ?
				"the broker tells when it blocks publishing" :
				"the broker does not tell when it blocks publishing: it will "
				"look like a confirm that does not come");
}

/* What the report says of an exchange, and of what could not be asked. */
struct exchange_check
{
	const char *check;
	const char *routing_key;	/* to see whether it may be written to */
	const char *not_asked;
};

static const struct exchange_check topic_check = {
	"topic", "", "bindings cannot be asked about"
};
static const struct exchange_check audit_check = {
	"audit", "", "bindings cannot be asked about"
};
static const struct exchange_check dead_letter_check = {
	"deadletter", DEAD_LETTER_KEY, "whether a queue is bound for the key \""
	DEAD_LETTER_KEY "\" cannot be asked about"
};

static void
report_right(struct report *report, struct asking *a, const char *name,
			 const struct exchange_check *what)
{
	if (!asking_right(a, name, what->routing_key))
		report_line(report, VERDICT_FAIL, what->check, NULL,
					"\"%s\": the broker did not answer", name);
	else if (a->code == 0)
		report_line(report, VERDICT_OK, what->check, NULL,
					"\"%s\" exists and may be written to; %s", name,
					what->not_asked);
	/* a right on routing keys: ours are not known here */
	else if (a->code == AMQP_ACCESS_REFUSED && strstr(a->text, "to topic"))
		report_line(report, VERDICT_WARN, what->check, NULL,
					"\"%s\" exists; the user may not use every routing key "
					"with it", name);
	else
		report_line(report, VERDICT_FAIL, what->check, "let the bridge's user "
					"write to it: rabbitmqctl set_permissions", "\"%s\": %s",
					name, a->text);
}

static void
report_exchange(struct report *report, struct asking *a, const char *name,
				const struct exchange_check *what)
{
	if (name[0] == '\0')
		report_line(report, VERDICT_OK, what->check, NULL,
					"\"\" is the default exchange, which always exists");
	else if (!asking_exchange(a, name))
		report_line(report, VERDICT_FAIL, what->check, NULL,
					"\"%s\": the broker did not answer", name);
	else if (a->code == AMQP_NOT_FOUND)
		report_line(report, VERDICT_FAIL, what->check,
					"declare the exchange in this virtual host",
					"\"%s\" does not exist", name);
	else if (a->code != 0)
		report_line(report, VERDICT_WARN, what->check, NULL, "\"%s\": %s", name,
					a->text);
	else
		report_right(report, a, name, what);
}

/* The exchanges that the settings name. */
static void
report_lanes(struct report *report, struct asking *a,
			 const struct config *config)
{
	const char *audit = config_text(config, SET_AUDIT_EXCHANGE);
	const char *dead_letter = config_text(config, SET_DEAD_LETTER_EXCHANGE);

	if (audit && !a->lost)
		report_exchange(report, a, audit, &audit_check);
	if (dead_letter && !a->lost)
		report_exchange(report, a, dead_letter, &dead_letter_check);
}

static void
report_topics(struct report *report, struct asking *a,
			  const struct check_topics *topics)
{
	for (int i = 0; i < topics->count && !a->lost; i++)
		report_exchange(report, a, topics->names[i], &topic_check);
	if (topics->too_many)
		report_line(report, VERDICT_WARN, "topic", NULL, "too many or too long: "
					"some were not asked about");
	if (a->lost)
		report_line(report, VERDICT_FAIL, "broker", NULL, "%s",
					a->broker.problem);
}

void
check_broker(struct report *report, const struct config *config,
			 const struct check_topics *topics, const char *version)
{
	struct asking asking;

	if (config_number(config, SET_SINK) == SINK_STDOUT)
	{
		report_line(report, VERDICT_SKIP, "broker", NULL, "sink is stdout");
		return;
	}
	if (asking_begin(&asking, config, version))
	{
		report_connection(report, &asking);
		report_lanes(report, &asking, config);
		report_topics(report, &asking, topics);
		if (config_text(config, SET_DLQ))
			check_reprocess(report, config, &asking);
		if (config_text(config, SET_CONSUMER))
			check_consumer_broker(report, config, &asking);
	}
	else
		report_failure(report, &asking);
	asking_end(&asking);
}
