/*
 * broker_login.c
 *		From connection.start to connection.open-ok: who we are, what we can, and
 *		which limits both sides agree on.
 */
#include "broker_internal.h"

#include <stdio.h>
#include <stdlib.h>

#include "log.h"

static amqp_table_entry_t
text_entry(const char *key, const char *text)
{
	amqp_table_entry_t entry = {.key = bytes_of(key)};

	entry.value.kind = AMQP_FIELD_KIND_UTF8;
	entry.value.value.bytes = bytes_of(text);
	return entry;
}

static amqp_table_entry_t
true_entry(const char *key)
{
	amqp_table_entry_t entry = {.key = bytes_of(key)};

	entry.value.kind = AMQP_FIELD_KIND_BOOLEAN;
	entry.value.value.boolean = 1;
	return entry;
}

/* RabbitMQ tells about a blocked connection only to who asks for it. */
static void
send_start_ok(struct broker *b, const char *mechanism, amqp_bytes_t response)
{
	amqp_table_entry_t capabilities[] = {
		true_entry("connection.blocked"),
		true_entry("consumer_cancel_notify"),
		true_entry("basic.nack"),
		true_entry("publisher_confirms"),
		true_entry("authentication_failure_close"),
	};
	amqp_table_entry_t properties[] = {
		text_entry("product", "acme-outbox-bridge"),
		text_entry("version", b->settings.version),
		text_entry("connection_name", b->settings.connection_name),
		{.key = bytes_of("capabilities")},
	};
	amqp_connection_start_ok_t start_ok = {
		.client_properties = {4, properties},
		.mechanism = bytes_of(mechanism),
		.response = response,
		.locale = bytes_of("en_US"),
	};

	properties[3].value.kind = AMQP_FIELD_KIND_TABLE;
	properties[3].value.value.table = (amqp_table_t){5, capabilities};
	broker_send_method(b, 0, AMQP_CONNECTION_START_OK_METHOD, &start_ok);
}

static void
send_plain_login(struct broker *b)
{
	const struct broker_uri *uri = &b->settings.uri;
	char		response[URI_PART_MAX + URI_SECRET_MAX + 2];
	size_t		user = strlen(uri->user),
				password = strlen(uri->password);

	response[0] = response[user + 1] = '\0';
	memcpy(response + 1, uri->user, user);
	memcpy(response + user + 2, uri->password, password);
	send_start_ok(b, "PLAIN", (amqp_bytes_t){user + password + 2, response});
	explicit_bzero(response, sizeof(response));
}

/* Is the word in the list that spaces separate? */
static bool
has_mechanism(amqp_bytes_t list, const char *word)
{
	char		text[BROKER_TEXT_MAX + 2] = " ";
	char		wanted[32];

	bytes_to_text(text + 1, BROKER_TEXT_MAX, list);
	strcat(text, " ");
	snprintf(wanted, sizeof(wanted), " %s ", word);
	return strstr(text, wanted) != NULL;
}

/* For the report: version, and whether it tells about being blocked. */
static void
note_server(struct broker *b, const amqp_table_t *properties)
{
	for (int i = 0; i < properties->num_entries; i++)
	{
		const amqp_table_entry_t *e = &properties->entries[i];

		if (e->value.kind == AMQP_FIELD_KIND_UTF8 && e->key.len == 7 &&
			memcmp(e->key.bytes, "version", 7) == 0)
			bytes_to_text(b->server_version, sizeof(b->server_version),
					   e->value.value.bytes);
		else if (e->value.kind == AMQP_FIELD_KIND_TABLE && e->key.len == 12 &&
				 memcmp(e->key.bytes, "capabilities", 12) == 0)
			note_server(b, &e->value.value.table);
		else if (e->value.kind == AMQP_FIELD_KIND_BOOLEAN && e->key.len == 18 &&
				 memcmp(e->key.bytes, "connection.blocked", 18) == 0)
			b->server_tells_blocked = e->value.value.boolean;
	}
}

static void
handle_start(struct broker *b, const amqp_connection_start_t *start)
{
	bool		external = b->settings.uri.auth == AUTH_EXTERNAL;

	b->server_version[0] = '\0';
	b->server_tells_blocked = false;
	note_server(b, &start->server_properties);
	if (!has_mechanism(start->mechanisms, external ? "EXTERNAL" : "PLAIN"))
	{
		broker_drop(b, AMQP_ACCESS_REFUSED, "login not possible", external ?
					"the broker does not offer EXTERNAL: enable "
					"rabbitmq_auth_mechanism_ssl there" :
					"the broker does not offer PLAIN login");
		return;
	}
	if (external)
		send_start_ok(b, "EXTERNAL", amqp_empty_bytes);
	else
		send_plain_login(b);
	broker_set_state(b, BROKER_TUNING);
}

/* The lower of the two wishes; zero is no wish. */
static uint32_t
agree(uint32_t ours, uint32_t theirs)
{
	if (ours == 0 || theirs == 0)
		return ours > theirs ? ours : theirs;
	return ours < theirs ? ours : theirs;
}

static void
handle_tune(struct broker *b, const amqp_connection_tune_t *tune)
{
	uint32_t	seconds = (uint32_t) ((b->settings.heartbeat + 999) / 1000);
	amqp_connection_tune_ok_t tune_ok = {
		.channel_max = (uint16_t) agree(2047, tune->channel_max),
		.frame_max = agree(FRAME_MAX, tune->frame_max),
		.heartbeat = (uint16_t) agree(seconds, tune->heartbeat),
	};
	amqp_connection_open_t open = {
		.virtual_host = bytes_of(b->settings.uri.vhost),
	};

	if (tune_ok.frame_max < FRAME_MAX_MIN)
	{
		broker_drop(b, 0, "the broker's frame size is below 4096", "");
		return;
	}
	b->frame_max = tune_ok.frame_max;
	b->heartbeat = (msec_t) tune_ok.heartbeat * 1000;
	broker_send_method(b, 0, AMQP_CONNECTION_TUNE_OK_METHOD, &tune_ok);
	broker_send_method(b, 0, AMQP_CONNECTION_OPEN_METHOD, &open);
	broker_set_state(b, BROKER_OPENING);
}

static void
handle_open_ok(struct broker *b, msec_t now)
{
	struct tls_facts tls;

	broker_set_state(b, BROKER_READY);
	b->deadline = CLOCK_NEVER;
	b->ready_since = now;
	b->good_host = b->host;
	tls_read_facts(b->transport.ssl, &tls);
	log_info("broker ready", LOG_TEXT("host", broker_current_host(b)->name),
			 LOG_NUM("port", atoi(broker_current_host(b)->port)),
			 LOG_TEXT("vhost", b->settings.uri.vhost),
			 LOG_TEXT("tls", b->transport.ssl ? tls.protocol : "off"),
			 LOG_NUM("frame_max", b->frame_max),
			 LOG_NUM("heartbeat_ms", b->heartbeat), LOG_CONNECTION(b));
	b->events.up(b->events.owner);
}

/* False if the method has no place in the login, or not now. */
bool
broker_login_method(struct broker *b, amqp_method_number_t id, void *method,
					msec_t now)
{
	if (id == AMQP_CONNECTION_START_METHOD && b->state == BROKER_STARTING)
		handle_start(b, method);
	else if (id == AMQP_CONNECTION_TUNE_METHOD && b->state == BROKER_TUNING)
		handle_tune(b, method);
	else if (id == AMQP_CONNECTION_OPEN_OK_METHOD && b->state == BROKER_OPENING)
		handle_open_ok(b, now);
	else
		return false;
	return true;
}
