/*
 * check_broker.c
 *		The broker's part of "check".
 *
 * One connection, opened and closed as the relay does it. Exchanges are asked
 * about by passive declares on a channel that the broker may close; that needs
 * no permission and changes nothing. Whether the user may write to one is seen
 * by a publish in an AMQP transaction that is rolled back: the broker checks the
 * right when the message comes, and routes it only at the commit that never
 * comes. What is bound only a message that counts would tell, so the report does
 * not say.
 */
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "broker.h"
#include "check.h"
#include "error_headers.h"

#define CHANNEL			1
#define DAYS_TO_RENEW	14
#define TEXT_MAX		256

struct asking
{
	struct broker broker;
	bool		up;
	bool		refused;
	bool		lost;
	bool		channel_open;
	bool		answered;
	int			code;			/* of the answer; 0: the exchange exists */
	char		text[TEXT_MAX];
};

static void
on_up(void *owner)
{
	((struct asking *) owner)->up = true;
}

static void
on_down(void *owner, int code)
{
	(void) code;
	((struct asking *) owner)->lost = true;
}

static void
on_refused(void *owner, const char *reason)
{
	struct asking *a = owner;

	a->refused = true;
	snprintf(a->text, sizeof(a->text), "%s", reason);
}

static void
on_unblocked(void *owner, msec_t blocked_for)
{
	(void) owner;
	(void) blocked_for;
}

static void
handle_channel_close(struct asking *a, const amqp_channel_close_t *close)
{
	amqp_channel_close_ok_t close_ok = {0};

	a->channel_open = false;
	a->answered = true;
	a->code = close->reply_code;
	snprintf(a->text, sizeof(a->text), "%.*s", (int) close->reply_text.len,
			 (const char *) close->reply_text.bytes);
	broker_send_method(&a->broker, CHANNEL, AMQP_CHANNEL_CLOSE_OK_METHOD,
					   &close_ok);
}

static void
on_frame(void *owner, const struct frame *frame, msec_t now)
{
	struct asking *a = owner;
	void	   *method;

	(void) now;
	if (frame->type != AMQP_FRAME_METHOD)
		return;
	method = frame_decode_method(frame, &a->broker.pool);
	if (method && frame_method_id(frame) == AMQP_CHANNEL_CLOSE_METHOD)
		handle_channel_close(a, method);
	else if (frame_method_id(frame) == AMQP_EXCHANGE_DECLARE_OK_METHOD ||
			 frame_method_id(frame) == AMQP_TX_ROLLBACK_OK_METHOD)
	{
		a->answered = true;
		a->code = 0;
	}
}

static void
turn(struct asking *a, msec_t limit)
{
	struct pollfd pfd = {.fd = -1};
	msec_t		deadline = clock_earlier(broker_deadline(&a->broker), limit);
	msec_t		wait = deadline - clock_now();

	broker_poll_fd(&a->broker, &pfd);
	if (poll(&pfd, 1, wait < 0 ? 0 : wait > 1000 ? 1000 : (int) wait) < 0)
		pfd.revents = 0;
	broker_turn(&a->broker, pfd.revents, clock_now());
}

/* All hosts have failed once when the broker plans to wait. */
static bool
connect_broker(struct asking *a)
{
	while (!a->up && !a->refused)
	{
		turn(a, CLOCK_NEVER);
		if (a->broker.state == BROKER_DOWN &&
			a->broker.retry_at > clock_now())
			break;
	}
	return a->up;
}

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

static void
open_channel(struct asking *a)
{
	amqp_channel_open_t open = {.out_of_band = amqp_empty_bytes};

	if (!a->channel_open)
		broker_send_method(&a->broker, CHANNEL, AMQP_CHANNEL_OPEN_METHOD, &open);
	a->channel_open = true;
	a->answered = false;
}

static bool
wait_for_answer(struct asking *a)
{
	msec_t		limit = clock_now() + a->broker.settings.connect_timeout;

	broker_flush(&a->broker);
	while (!a->answered && !a->lost && clock_now() < limit)
		turn(a, limit);
	return a->answered;
}

static bool
ask_for_exchange(struct asking *a, const char *name)
{
	amqp_exchange_declare_t declare = {
		.exchange = {strlen(name), (void *) name},
		.type = {6, "direct"},
		.passive = 1,
	};

	open_channel(a);
	broker_send_method(&a->broker, CHANNEL, AMQP_EXCHANGE_DECLARE_METHOD,
					   &declare);
	return wait_for_answer(a);
}

/* See the head of this file. */
static bool
ask_for_right(struct asking *a, const char *name, const char *routing_key)
{
	amqp_tx_select_t select = {0};
	amqp_tx_rollback_t rollback = {0};
	amqp_basic_properties_t properties = {0};
	amqp_basic_publish_t publish = {
		.exchange = {strlen(name), (void *) name},
		.routing_key = {strlen(routing_key), (void *) routing_key},
	};

	open_channel(a);
	broker_send_method(&a->broker, CHANNEL, AMQP_TX_SELECT_METHOD, &select);
	broker_send_method(&a->broker, CHANNEL, AMQP_BASIC_PUBLISH_METHOD, &publish);
	if (!frame_put_content(&a->broker.out, CHANNEL, a->broker.frame_max,
						   &properties, "", 0))
		return false;
	broker_send_method(&a->broker, CHANNEL, AMQP_TX_ROLLBACK_METHOD, &rollback);
	return wait_for_answer(a);
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
	if (!ask_for_right(a, name, what->routing_key))
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
	else if (!ask_for_exchange(a, name))
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

static void
end_connection(struct asking *a)
{
	msec_t		limit = clock_now() + BROKER_CLOSE_TIMEOUT;

	broker_close(&a->broker, clock_now());
	while (a->broker.state != BROKER_DOWN && clock_now() < limit)
		turn(a, limit);
	broker_free(&a->broker);
}

void
check_broker(struct report *report, const struct config *config,
			 const struct check_topics *topics, const char *version)
{
	struct asking asking = {0};
	struct broker_settings settings = {
		.uri = config->uri,
		.tls = config_tls(config),
		.connection_name = "acme-outbox-bridge check",
		.version = version,
		.connect_timeout = config_number(config, SET_CONNECT_TIMEOUT),
		.heartbeat = config_number(config, SET_HEARTBEAT),
		.reconnect_min = config_number(config, SET_RECONNECT_MIN),
		.reconnect_max = config_number(config, SET_RECONNECT_MAX),
	};
	struct broker_events events = {on_up, on_down, on_frame, on_unblocked,
	on_refused, &asking};

	if (config_number(config, SET_SINK) == SINK_STDOUT)
	{
		report_line(report, VERDICT_SKIP, "broker", NULL, "sink is stdout");
		return;
	}
	broker_init(&asking.broker, &settings, &events);
	if (connect_broker(&asking))
	{
		report_connection(report, &asking);
		report_lanes(report, &asking, config);
		report_topics(report, &asking, topics);
	}
	else
		report_failure(report, &asking);
	end_connection(&asking);
}
