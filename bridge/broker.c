/*
 * broker.c
 *		One AMQP connection, from name lookup to orderly close.
 *
 * The stream (transport.c), its timeouts and the heartbeats are ours;
 * librabbitmq only encodes and decodes (amqp_frame.c). The machine is
 *
 *		DOWN -> RESOLVING -> CONNECTING -> (SECURING ->) STARTING -> TUNING
 *			 -> OPENING -> READY <-> BLOCKED
 *		 READY -> CLOSING -> DOWN
 *
 * changed only in broker_set_state(). Each step before READY has the connect timeout;
 * TCP and TLS share one.
 *
 * The hosts of the URI, and each address of each, are tried one after the
 * other, beginning with the last good host or a random one. Whatever fails
 * before READY leads to the next; only when all have failed, the backoff's delay
 * is waited. A login or certificate that was refused on the way is reported
 * then: it may be the one host that is set up wrongly.
 *
 * Input is always read, whatever waits to be sent: a broker that cannot get rid
 * of its confirms would stop reading our messages.
 *
 * Messages in the output are guarded: send() is not called for them once the
 * relay's lease has expired. A process stopped for a minute and continued
 * finds this out before its first send, and drops the connection.
 */
#include "broker_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"

#define READ_CHUNK		65536
#define READS_PER_TURN	8
#define POOL_PAGE		8192
#define TLS_ALERT		0x15	/* the first byte of such a record */

static const uint8_t PROTOCOL_HEADER[8] = {'A', 'M', 'Q', 'P', 0, 0, 9, 1};

static const char *const state_names[] = {
	"down", "resolving", "connecting", "TLS handshake", "starting", "tuning", "opening",
	"ready", "blocked", "closing"
};

/* The only place where the state changes; nonsense ends the process. */
void
broker_set_state(struct broker *b, enum broker_state state)
{
	enum broker_state from = b->state;
	bool		allowed = false;

	switch (state)
	{
		case BROKER_DOWN:
			allowed = true;
			break;
		case BROKER_RESOLVING:
			allowed = from == BROKER_DOWN;
			break;
		case BROKER_CONNECTING:
			allowed = from == BROKER_RESOLVING || from == BROKER_DOWN;
			break;
		case BROKER_SECURING:
			allowed = from == BROKER_CONNECTING;
			break;
		case BROKER_STARTING:
			allowed = from == BROKER_CONNECTING || from == BROKER_SECURING;
			break;
		case BROKER_TUNING:
			allowed = from == BROKER_STARTING;
			break;
		case BROKER_OPENING:
			allowed = from == BROKER_TUNING;
			break;
		case BROKER_READY:
			allowed = from == BROKER_OPENING || from == BROKER_BLOCKED;
			break;
		case BROKER_BLOCKED:
			allowed = from == BROKER_READY;
			break;
		case BROKER_CLOSING:
			allowed = from == BROKER_READY;
			break;
	}
	if (!allowed)
	{
		log_error("impossible state change of the broker connection",
				  LOG_TEXT("from", state_names[from]),
				  LOG_TEXT("to", state_names[state]), LOG_CONNECTION(b));
		abort();
	}
	log_debug("broker connection state", LOG_TEXT("state", state_names[state]),
			  LOG_CONNECTION(b));
	b->state = state;
}

const struct broker_host *
broker_current_host(const struct broker *b)
{
	return &b->settings.uri.hosts[b->host];
}

/* All hosts once, from the last good one or a random one. */
static void
begin_round(struct broker *b)
{
	int			count = b->settings.uri.count;

	b->host = b->good_host >= 0 ? b->good_host : (int) (random() % count);
	b->hosts_left = count;
	b->refusal[0] = '\0';
}

void
broker_init(struct broker *b, const struct broker_settings *settings,
			const struct broker_events *events)
{
	memset(b, 0, sizeof(*b));
	b->settings = *settings;
	b->events = *events;
	b->frame_max = FRAME_MAX;
	b->good_host = -1;
	b->wants_connection = true;
	transport_init(&b->transport);
	init_amqp_pool(&b->pool, POOL_PAGE);
	backoff_init(&b->backoff, settings->reconnect_min, settings->reconnect_max);
	begin_round(b);
}

bool
broker_is_open(const struct broker *b)
{
	return b->state == BROKER_READY || b->state == BROKER_BLOCKED;
}

/* Ever? */
bool
broker_was_ready(const struct broker *b)
{
	return b->good_host >= 0;
}

static bool
has_link(const struct broker *b)
{
	return b->transport.fd >= 0;
}

static void
release_link(struct broker *b, bool orderly)
{
	if (b->resolver)
		resolver_abandon(b->resolver);
	b->resolver = NULL;
	transport_close(&b->transport, orderly);
	b->guarded = false;
	b->heartbeat = 0;			/* until the next one is agreed */
	buffer_clear(&b->in);
	buffer_clear(&b->out);
}

static void
release_addresses(struct broker *b)
{
	if (b->addresses)
		freeaddrinfo(b->addresses);
	b->addresses = b->address = NULL;
}

void
broker_free(struct broker *b)
{
	release_link(b, false);
	release_addresses(b);
	buffer_free(&b->in);
	buffer_free(&b->out);
	empty_amqp_pool(&b->pool);
}

/* Before READY: login, virtual host or trust, which a person must mend. */
static bool
is_refusal(int code)
{
	return code == AMQP_ACCESS_REFUSED || code == AMQP_NOT_ALLOWED ||
		code == BROKER_NO_TLS;
}

static void
note_problem(struct broker *b, int code, const char *reason,
			 const char *detail)
{
	snprintf(b->problem, sizeof(b->problem), "%s%s%s", reason,
			 *detail ? ": " : "", detail);
	if (b->state < BROKER_READY && is_refusal(code))
		snprintf(b->refusal, sizeof(b->refusal), "%s%s",
				 code == BROKER_NO_TLS ? TLS_PREFIX : "", detail);
}

/* On to the next address or host; false if all of the round have failed. */
static bool
next_candidate(struct broker *b)
{
	if (b->address && b->address->ai_next)
	{
		b->address = b->address->ai_next;
		return true;
	}
	release_addresses(b);
	if (--b->hosts_left <= 0)
		return false;
	b->host = (b->host + 1) % b->settings.uri.count;
	return true;
}

static void
log_drop(const struct broker *b, const struct broker_host *host, bool was_open,
		 int code, msec_t delay)
{
	log_warn(was_open ? "broker connection lost" : "broker not reachable",
			 LOG_TEXT("reason", b->problem), LOG_NUM("code", code),
			 LOG_NUM("retry_ms", delay), LOG_TEXT("host", host->name),
			 LOG_NUM("port", atoi(host->port)),
			 LOG_NUM("hosts", b->settings.uri.count),
			 LOG_TEXT("next_step", was_open ? "" : "check host and port in "
					  "RABBITMQ_URI, and that the broker runs"),
			 LOG_CONNECTION(b));
}

/* The round is over, or a connection that was ready. */
static void
plan_retry(struct broker *b, const struct broker_host *host, bool was_open,
		   int code, msec_t now)
{
	char		refusal[BROKER_PROBLEM_MAX];
	msec_t		delay = backoff_next(&b->backoff, (uint32_t) random());

	memcpy(refusal, b->refusal, sizeof(refusal));
	release_addresses(b);
	begin_round(b);
	b->retry_at = b->wants_connection ? now + delay : CLOCK_NEVER;
	if (!b->wants_connection)
		log_info("broker connection closed", LOG_CONNECTION(b));
	else if (refusal[0] != '\0' && !was_open)
		b->events.refused(b->events.owner, refusal);
	else
		log_drop(b, host, was_open, code, delay);
}

/* For owners whose connection was refused: by TLS or by the login. */
void
broker_log_refusal(const struct broker *b, const char *reason, bool starting)
{
	bool		is_tls = strncmp(reason, TLS_PREFIX, strlen(TLS_PREFIX)) == 0;

	if (starting)
		log_error(is_tls ? "cannot start: no TLS with the broker" :
				  "cannot start: the broker refused the login",
				  LOG_TEXT("reason", reason),
				  LOG_TEXT("next_step", is_tls ?
						   "check the tls-* settings, the host in RABBITMQ_URI and "
						   "the certificates" :
						   "check the user, password and virtual host in "
						   "RABBITMQ_URI"), LOG_CONNECTION(b));
	else
		log_warn(is_tls ? "no TLS with the broker, retrying" :
				 "broker refused the login, retrying",
				 LOG_TEXT("reason", reason), LOG_CONNECTION(b));
}

/*
 * End the connection, plan the next one, and tell the owner if it had been up.
 * code is the broker's reply code, BROKER_NO_TLS, or 0.
 */
void
broker_drop(struct broker *b, int code, const char *reason, const char *detail)
{
	const struct broker_host *host = broker_current_host(b);
	bool		was_open = b->state >= BROKER_READY;
	msec_t		now = clock_now();

	if (b->state == BROKER_DOWN)
		return;
	note_problem(b, code, reason, detail);
	if (was_open && now - b->ready_since >= BROKER_PROVEN)
		backoff_reset(&b->backoff);
	/* close_notify only where nothing that was written may be held back */
	release_link(b, b->state == BROKER_CLOSING);
	broker_set_state(b, BROKER_DOWN);
	if (!was_open && b->wants_connection && next_candidate(b))
	{
		log_info("broker not reachable there, trying the next address",
				 LOG_TEXT("reason", b->problem), LOG_TEXT("host", host->name),
				 LOG_NUM("port", atoi(host->port)),
				 LOG_TEXT("next_host", broker_current_host(b)->name),
				 LOG_NUM("next_port", atoi(broker_current_host(b)->port)),
				 LOG_CONNECTION(b));
		b->retry_at = now;
		return;
	}
	plan_retry(b, host, was_open, code, now);
	if (was_open)
		b->events.down(b->events.owner, code);
}

/* ---- getting connected ---- */

static void
begin_resolving(struct broker *b, msec_t now)
{
	const struct broker_host *host = broker_current_host(b);

	broker_set_state(b, BROKER_RESOLVING);
	b->deadline = now + b->settings.connect_timeout;
	b->resolver = resolver_start(host->name, host->port);
	if (b->resolver == NULL)
		broker_drop(b, 0, "cannot start name resolution", strerror(errno));
}

/* Try b->address; it has the connect timeout. */
static void
begin_connecting(struct broker *b, msec_t now)
{
	broker_set_state(b, BROKER_CONNECTING);
	b->deadline = now + b->settings.connect_timeout;
	if (!transport_connect(&b->transport, b->address))
		broker_drop(b, 0, "cannot connect", strerror(errno));
}

static void
begin_attempt(struct broker *b, msec_t now)
{
	if (b->address)
		begin_connecting(b, now);
	else
		begin_resolving(b, now);
}

static void
finish_resolving(struct broker *b, msec_t now)
{
	int			error;
	bool		found = resolver_finish(b->resolver, &b->addresses, &error);

	b->resolver = NULL;
	if (!found)
	{
		broker_drop(b, 0, "cannot resolve host", gai_strerror(error));
		return;
	}
	b->address = b->addresses;
	begin_connecting(b, now);
}

static void
begin_starting(struct broker *b, msec_t now)
{
	broker_set_state(b, BROKER_STARTING);
	b->deadline = now + b->settings.connect_timeout;
	b->last_input = b->last_output = now;
	b->frame_max = FRAME_MAX;
	buffer_append(&b->out, PROTOCOL_HEADER, sizeof(PROTOCOL_HEADER));
	broker_flush(b);
}

static void
continue_securing(struct broker *b, msec_t now)
{
	enum transport_status status = transport_handshake(&b->transport);

	if (status == TRANSPORT_OK)
		begin_starting(b, now);
	else if (status != TRANSPORT_AGAIN)
		broker_drop(b, status == TRANSPORT_REFUSED ? BROKER_NO_TLS : 0,
					"TLS handshake failed", b->transport.error);
}

static void
finish_connecting(struct broker *b, msec_t now)
{
	int			error = transport_connect_error(&b->transport);

	if (error != 0)
		broker_drop(b, 0, "cannot connect", strerror(error));
	else if (!b->settings.tls.enabled)
		begin_starting(b, now);
	else
	{
		broker_set_state(b, BROKER_SECURING);
		if (transport_secure(&b->transport, &b->settings.tls,
							 broker_current_host(b)->name))
			continue_securing(b, now);
		else
			broker_drop(b, BROKER_NO_TLS, "TLS cannot be set up",
						b->transport.error);
	}
}

void
broker_send_method(struct broker *b, uint16_t channel, amqp_method_number_t id,
				   void *method)
{
	if (!frame_put_method(&b->out, channel, id, method))
		abort();				/* ours are constant but for checked names */
}

/* ---- channels ---- */

void
broker_open_channel(struct broker *b, uint16_t channel)
{
	amqp_channel_open_t open = {.out_of_band = amqp_empty_bytes};

	broker_send_method(b, channel, AMQP_CHANNEL_OPEN_METHOD, &open);
}

/* A channel that answers with confirms. */
void
broker_open_confirms(struct broker *b, uint16_t channel)
{
	amqp_confirm_select_t select = {0};

	broker_open_channel(b, channel);
	broker_send_method(b, channel, AMQP_CONFIRM_SELECT_METHOD, &select);
}

/* To a channel.close; then the number may be opened again. */
void
broker_answer_close(struct broker *b, uint16_t channel)
{
	amqp_channel_close_ok_t close_ok = {0};

	broker_send_method(b, channel, AMQP_CHANNEL_CLOSE_OK_METHOD, &close_ok);
}

/* ---- connection-level methods ---- */

static void
handle_blocked(struct broker *b, const amqp_connection_blocked_t *blocked,
			   msec_t now)
{
	char		reason[BROKER_TEXT_MAX];

	if (b->state != BROKER_READY)
		return;
	bytes_to_text(reason, sizeof(reason), blocked->reason);
	broker_set_state(b, BROKER_BLOCKED);
	b->blocked_since = now;
	log_warn("broker blocked publishing", LOG_TEXT("reason", reason),
			 LOG_CONNECTION(b));
}

static void
handle_unblocked(struct broker *b, msec_t now)
{
	if (b->state != BROKER_BLOCKED)
		return;
	broker_set_state(b, BROKER_READY);
	log_info("broker unblocked publishing",
			 LOG_NUM("blocked_ms", now - b->blocked_since), LOG_CONNECTION(b));
	b->events.unblocked(b->events.owner, now - b->blocked_since);
}

/* The broker ends the connection. */
static void
handle_close(struct broker *b, const amqp_connection_close_t *close)
{
	amqp_connection_close_ok_t close_ok = {0};
	int			code = close->reply_code;
	char		text[BROKER_TEXT_MAX];

	bytes_to_text(text, sizeof(text), close->reply_text);
	broker_send_method(b, 0, AMQP_CONNECTION_CLOSE_OK_METHOD, &close_ok);
	b->guarded = false;
	broker_flush(b);
	broker_drop(b, code, "closed by the broker", text);
}

static void
handle_connection_method(struct broker *b, const struct frame *frame,
						 msec_t now)
{
	amqp_method_number_t id = frame_method_id(frame);
	void	   *method = frame_decode_method(frame, &b->pool);

	if (method == NULL)
		broker_drop(b, 0, "unexpected or malformed method", "");
	else if (broker_login_method(b, id, method, now))
		return;
	else if (id == AMQP_CONNECTION_CLOSE_METHOD)
		handle_close(b, method);
	else if (id == AMQP_CONNECTION_CLOSE_OK_METHOD && b->state == BROKER_CLOSING)
		broker_drop(b, 0, "closed", "");
	else if (id == AMQP_CONNECTION_BLOCKED_METHOD)
		handle_blocked(b, method, now);
	else if (id == AMQP_CONNECTION_UNBLOCKED_METHOD)
		handle_unblocked(b, now);
	else
		broker_drop(b, 0, "method out of place", amqp_method_name(id));
}

static void
handle_frame(struct broker *b, const struct frame *frame, msec_t now)
{
	if (frame->type == AMQP_FRAME_HEARTBEAT)
		return;
	if (frame->channel == 0 && frame->type == AMQP_FRAME_METHOD)
		handle_connection_method(b, frame, now);
	else if (frame->channel == 0 || b->state < BROKER_READY)
		broker_drop(b, 0, "frame out of place", "");
	else if (b->state != BROKER_CLOSING)
		b->events.frame(b->events.owner, frame, now);
	recycle_amqp_pool(&b->pool);
}

/* ---- input and output ---- */

/* A TLS server's answer to our plain greeting; no AMQP frame begins so. */
static bool
is_tls_alert(struct broker *b)
{
	return b->state == BROKER_STARTING && b->transport.ssl == NULL &&
		buffer_head(&b->in)[0] == TLS_ALERT;
}

static void
scan_input(struct broker *b, msec_t now)
{
	struct frame frame;
	const char *problem = NULL;

	while (has_link(b) && buffer_length(&b->in) > 0)
	{
		if (is_tls_alert(b))
		{
			broker_drop(b, BROKER_NO_TLS, "bad input from the broker",
						"this port speaks TLS: use amqps://");
			return;
		}
		switch (frame_scan(buffer_head(&b->in), buffer_length(&b->in),
						   b->frame_max, &frame, &problem))
		{
			case FRAME_PARTIAL:
				return;
			case FRAME_BAD:
				broker_drop(b, 0, "bad input from the broker", problem);
				return;
			case FRAME_OK:
				handle_frame(b, &frame, now);
				/* a handler that dropped the link emptied the buffer */
				if (has_link(b))
					buffer_consume(&b->in, frame.size);
				break;
		}
	}
}

/*
 * A peer that wants a client certificate says so in an alert, or just ends the
 * connection behind the handshake; the latter may also have other reasons.
 */
static void
fail_reading(struct broker *b, enum transport_status status)
{
	bool		early = b->state == BROKER_STARTING && b->transport.ssl;
	char		detail[TLS_TEXT_MAX + 64];

	snprintf(detail, sizeof(detail), "%s%s", b->transport.error,
			 early && status != TRANSPORT_REFUSED ?
			 " right after the TLS handshake" : "");
	broker_drop(b, status == TRANSPORT_REFUSED ? BROKER_NO_TLS : 0,
				"connection ended by the peer", detail);
}

static void
read_input(struct broker *b, msec_t now)
{
	for (int i = 0; i < READS_PER_TURN && has_link(b); i++)
	{
		size_t		got = 0;
		enum transport_status status =
			transport_read(&b->transport, buffer_reserve(&b->in, READ_CHUNK),
						   READ_CHUNK, &got);

		if (status == TRANSPORT_AGAIN)
			return;
		if (status != TRANSPORT_OK)
		{
			fail_reading(b, status);
			return;
		}
		buffer_commit(&b->in, got);
		b->last_input = now;
		scan_input(b, now);
	}
}

/*
 * Send what waits, as much as the socket takes. The clock is read before every
 * send: this is where a lease that expired while we were stopped is noticed.
 */
void
broker_flush(struct broker *b)
{
	while (has_link(b) && b->state >= BROKER_STARTING &&
		   buffer_length(&b->out) > 0)
	{
		msec_t		now = clock_now();
		size_t		sent = 0;
		enum transport_status status;

		if (b->guarded && now >= b->send_until)
		{
			broker_drop(b, 0, "lease expired with messages unsent", "");
			return;
		}
		status = transport_write(&b->transport, buffer_head(&b->out),
								 buffer_length(&b->out), &sent);
		if (status == TRANSPORT_AGAIN)
			return;
		if (status != TRANSPORT_OK)
		{
			broker_drop(b, status == TRANSPORT_REFUSED ? BROKER_NO_TLS : 0,
						"cannot send", b->transport.error);
			return;
		}
		b->last_output = now;
		buffer_consume(&b->out, sent);
		if (buffer_length(&b->out) == 0)
			b->guarded = false;
	}
}

/* ---- the loop's view ---- */

int
broker_poll_fd(struct broker *b, struct pollfd *pfd)
{
	if (b->state == BROKER_RESOLVING)
	{
		pfd->fd = resolver_fd(b->resolver);
		pfd->events = POLLIN;
		return 1;
	}
	if (!has_link(b))
		return 0;
	pfd->fd = b->transport.fd;
	if (b->state == BROKER_CONNECTING)
		pfd->events = POLLOUT;
	else
		pfd->events = transport_events(&b->transport,
									   buffer_length(&b->out) > 0);
	return 1;
}

/* When broker_turn() must run though nothing came. */
msec_t
broker_deadline(struct broker *b)
{
	msec_t		deadline = b->deadline;

	if (b->state == BROKER_DOWN)
		return b->retry_at;
	if (transport_has_input(&b->transport))
		return 0;				/* poll() does not see it */
	if (b->heartbeat > 0)
	{
		deadline = clock_earlier(deadline, b->last_output + b->heartbeat / 2);
		deadline = clock_earlier(deadline, b->last_input + b->heartbeat * 2);
	}
	return deadline;
}

static void
keep_time(struct broker *b, msec_t now)
{
	if (b->state == BROKER_DOWN)
	{
		if (b->wants_connection && now >= b->retry_at)
			begin_attempt(b, now);
		return;
	}
	if (b->deadline != CLOCK_NEVER && now >= b->deadline)
	{
		broker_drop(b, 0, "timeout", state_names[b->state]);
		return;
	}
	if (b->heartbeat == 0)
		return;
	if (now - b->last_input >= b->heartbeat * 2)
		broker_drop(b, 0, "no heartbeat from the broker", "");
	else if (now - b->last_output >= b->heartbeat / 2 &&
			 buffer_length(&b->out) == 0)
		frame_put_heartbeat(&b->out);
}

/* Input first: after a pause, what the broker sent meanwhile counts. */
void
broker_turn(struct broker *b, short revents, msec_t now)
{
	if (revents && b->state == BROKER_RESOLVING)
		finish_resolving(b, now);
	else if (revents && b->state == BROKER_CONNECTING)
		finish_connecting(b, now);
	else if (revents && b->state == BROKER_SECURING)
		continue_securing(b, now);
	else if (has_link(b) && b->state >= BROKER_STARTING &&
			 (revents || transport_has_input(&b->transport)))
		read_input(b, now);
	keep_time(b, now);
	broker_flush(b);
}

/*
 * Begin an orderly end; afterwards no connection is made again. A broker that
 * blocks us would not read that we want to close.
 */
void
broker_close(struct broker *b, msec_t now)
{
	amqp_connection_close_t close = {
		.reply_code = AMQP_REPLY_SUCCESS,
		.reply_text = bytes_of("bridge stopped"),
	};

	b->wants_connection = false;
	b->retry_at = CLOCK_NEVER;
	if (b->state == BROKER_READY)
	{
		broker_send_method(b, 0, AMQP_CONNECTION_CLOSE_METHOD, &close);
		broker_set_state(b, BROKER_CLOSING);
		b->deadline = now + BROKER_CLOSE_TIMEOUT;
		broker_flush(b);
	}
	else if (b->state != BROKER_CLOSING)
		broker_drop(b, 0, "bridge stopped", "");
}
