/*
 * broker.c
 *		One AMQP connection, from name lookup to orderly close.
 *
 * The socket, its timeouts and the heartbeats are ours; librabbitmq only
 * encodes and decodes (amqp_frame.c). The machine is
 *
 *		DOWN -> RESOLVING -> CONNECTING -> STARTING -> TUNING -> OPENING
 *			 -> READY <-> BLOCKED -> CLOSING -> DOWN
 *
 * changed only in set_state(). Each step before READY has the connect timeout.
 * Input is always read, whatever waits to be sent: a broker that cannot get rid
 * of its confirms would stop reading our messages.
 *
 * Messages in the output are guarded: send() is not called for them once the
 * relay's lease has expired. A process stopped for a minute and continued
 * finds this out before its first send, and drops the connection.
 */
#include "broker.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "log.h"

#define READ_CHUNK		65536
#define READS_PER_TURN	8
#define POOL_PAGE		8192
#define TEXT_MAX		256

static const uint8_t PROTOCOL_HEADER[8] = {'A', 'M', 'Q', 'P', 0, 0, 9, 1};

static const char *const state_names[] = {
	"down", "resolving", "connecting", "starting", "tuning", "opening",
	"ready", "blocked", "closing"
};

static amqp_bytes_t
bytes_of(const char *text)
{
	return (amqp_bytes_t){strlen(text), (void *) text};
}

/* The broker's text as a C string, cut to what a log line bears. */
static void
copy_text(char *to, amqp_bytes_t from)
{
	size_t		length = from.len < TEXT_MAX - 1 ? from.len : TEXT_MAX - 1;

	if (length > 0)
		memcpy(to, from.bytes, length);
	to[length] = '\0';
}

/* The only place where the state changes; nonsense ends the process. */
static void
set_state(struct broker *b, enum broker_state state)
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
			allowed = from == BROKER_RESOLVING || from == BROKER_CONNECTING;
			break;
		case BROKER_STARTING:
			allowed = from == BROKER_CONNECTING;
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
			allowed = from == BROKER_READY || from == BROKER_BLOCKED;
			break;
	}
	if (!allowed)
	{
		log_error("impossible state change of the broker connection",
				  LOG_TEXT("from", state_names[from]),
				  LOG_TEXT("to", state_names[state]));
		abort();
	}
	log_debug("broker connection state", LOG_TEXT("state", state_names[state]));
	b->state = state;
}

void
broker_init(struct broker *b, const struct broker_settings *settings,
			const struct broker_events *events)
{
	memset(b, 0, sizeof(*b));
	b->settings = *settings;
	b->events = *events;
	b->fd = -1;
	b->frame_max = FRAME_MAX;
	b->wants_connection = true;
	init_amqp_pool(&b->pool, POOL_PAGE);
	backoff_init(&b->backoff, settings->reconnect_min, settings->reconnect_max);
}

bool
broker_is_open(const struct broker *b)
{
	return b->state == BROKER_READY || b->state == BROKER_BLOCKED;
}

static void
release_socket(struct broker *b)
{
	if (b->resolver)
		resolver_abandon(b->resolver);
	if (b->addresses)
		freeaddrinfo(b->addresses);
	if (b->fd >= 0)
		close(b->fd);
	b->resolver = NULL;
	b->addresses = b->address = NULL;
	b->fd = -1;
	b->guarded = false;
	b->heartbeat = 0;			/* until the next one is agreed */
	buffer_clear(&b->in);
	buffer_clear(&b->out);
}

void
broker_free(struct broker *b)
{
	release_socket(b);
	buffer_free(&b->in);
	buffer_free(&b->out);
	empty_amqp_pool(&b->pool);
}

/* Before READY: login or virtual host refused, which a person must mend. */
static bool
is_refusal(int code)
{
	return code == AMQP_ACCESS_REFUSED || code == AMQP_NOT_ALLOWED;
}

static void
log_drop(const struct broker *b, bool was_open, int code, const char *reason,
		 const char *detail, msec_t delay)
{
	if (!b->wants_connection)
		log_info("broker connection closed");
	else
		log_warn(was_open ? "broker connection lost" : "broker not reachable",
				 LOG_TEXT("reason", reason), LOG_TEXT("detail", detail),
				 LOG_NUM("code", code), LOG_NUM("retry_ms", delay),
				 LOG_TEXT("host", b->settings.uri.host),
				 LOG_TEXT("port", b->settings.uri.port));
}

/*
 * End the connection, plan the next one, and tell the owner if it had been up.
 * code is the broker's reply code, or 0.
 */
void
broker_drop(struct broker *b, int code, const char *reason, const char *detail)
{
	bool		was_open = b->state >= BROKER_READY;
	bool		refused = !was_open && is_refusal(code);
	msec_t		now = clock_now();
	msec_t		delay;

	if (b->state == BROKER_DOWN)
		return;
	if (was_open && now - b->ready_since >= BROKER_PROVEN)
		backoff_reset(&b->backoff);
	release_socket(b);
	set_state(b, BROKER_DOWN);
	delay = backoff_next(&b->backoff, (uint32_t) random());
	b->retry_at = b->wants_connection ? now + delay : CLOCK_NEVER;
	if (refused)
		b->events.refused(b->events.owner, detail);
	else
		log_drop(b, was_open, code, reason, detail, delay);
	if (was_open)
		b->events.down(b->events.owner, code);
}

/* ---- getting connected ---- */

static void
begin_resolving(struct broker *b, msec_t now)
{
	set_state(b, BROKER_RESOLVING);
	b->deadline = now + b->settings.connect_timeout;
	b->resolver = resolver_start(b->settings.uri.host, b->settings.uri.port);
	if (b->resolver == NULL)
		broker_drop(b, 0, "cannot start name resolution", strerror(errno));
}

static int
open_socket(const struct addrinfo *address)
{
	int			fd = socket(address->ai_family,
							SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int			on = 1;

	if (fd < 0)
		return -1;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	if (connect(fd, address->ai_addr, address->ai_addrlen) == 0 ||
		errno == EINPROGRESS)
		return fd;
	close(fd);
	return -1;
}

/* Try the addresses from b->address on; each has the connect timeout. */
static void
begin_connecting(struct broker *b, msec_t now)
{
	set_state(b, BROKER_CONNECTING);
	for (; b->address; b->address = b->address->ai_next)
	{
		b->fd = open_socket(b->address);
		if (b->fd < 0)
			continue;
		b->deadline = now + b->settings.connect_timeout;
		return;
	}
	broker_drop(b, 0, "cannot connect", strerror(errno));
}

static void
next_address(struct broker *b, const char *why, msec_t now)
{
	close(b->fd);
	b->fd = -1;
	if (b->address->ai_next == NULL)
	{
		broker_drop(b, 0, "cannot connect", why);
		return;
	}
	b->address = b->address->ai_next;
	begin_connecting(b, now);
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
finish_connecting(struct broker *b, msec_t now)
{
	int			error = 0;
	socklen_t	size = sizeof(error);

	getsockopt(b->fd, SOL_SOCKET, SO_ERROR, &error, &size);
	if (error != 0)
	{
		next_address(b, strerror(error), now);
		return;
	}
	set_state(b, BROKER_STARTING);
	b->deadline = now + b->settings.connect_timeout;
	b->last_input = b->last_output = now;
	b->frame_max = FRAME_MAX;
	buffer_append(&b->out, PROTOCOL_HEADER, sizeof(PROTOCOL_HEADER));
	broker_flush(b);
}

/* ---- handshake ---- */

void
broker_send_method(struct broker *b, uint16_t channel, amqp_method_number_t id,
				   void *method)
{
	if (!frame_put_method(&b->out, channel, id, method))
		abort();				/* ours are constant but for checked names */
}

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
send_start_ok(struct broker *b)
{
	const struct broker_uri *uri = &b->settings.uri;
	char		response[URI_PART_MAX + URI_SECRET_MAX + 2];
	size_t		user = strlen(uri->user),
				password = strlen(uri->password);
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
		.mechanism = bytes_of("PLAIN"),
		.response = {user + password + 2, response},
		.locale = bytes_of("en_US"),
	};

	properties[3].value.kind = AMQP_FIELD_KIND_TABLE;
	properties[3].value.value.table = (amqp_table_t){5, capabilities};
	response[0] = response[user + 1] = '\0';
	memcpy(response + 1, uri->user, user);
	memcpy(response + user + 2, uri->password, password);
	broker_send_method(b, 0, AMQP_CONNECTION_START_OK_METHOD, &start_ok);
	explicit_bzero(response, sizeof(response));
}

static void
handle_start(struct broker *b, const amqp_connection_start_t *start)
{
	if (memmem(start->mechanisms.bytes, start->mechanisms.len, "PLAIN", 5) == NULL)
	{
		broker_drop(b, 0, "the broker does not offer PLAIN login", "");
		return;
	}
	send_start_ok(b);
	set_state(b, BROKER_TUNING);
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
	set_state(b, BROKER_OPENING);
}

static void
handle_open_ok(struct broker *b, msec_t now)
{
	set_state(b, BROKER_READY);
	b->deadline = CLOCK_NEVER;
	b->ready_since = now;
	log_info("broker ready", LOG_TEXT("host", b->settings.uri.host),
			 LOG_TEXT("port", b->settings.uri.port),
			 LOG_TEXT("vhost", b->settings.uri.vhost),
			 LOG_NUM("frame_max", b->frame_max),
			 LOG_NUM("heartbeat_ms", b->heartbeat));
	b->events.up(b->events.owner);
}

/* ---- connection-level methods ---- */

static void
handle_blocked(struct broker *b, const amqp_connection_blocked_t *blocked,
			   msec_t now)
{
	char		reason[TEXT_MAX];

	if (b->state != BROKER_READY)
		return;
	copy_text(reason, blocked->reason);
	set_state(b, BROKER_BLOCKED);
	b->blocked_since = now;
	log_warn("broker blocked publishing", LOG_TEXT("reason", reason));
}

static void
handle_unblocked(struct broker *b, msec_t now)
{
	if (b->state != BROKER_BLOCKED)
		return;
	set_state(b, BROKER_READY);
	log_info("broker unblocked publishing",
			 LOG_NUM("blocked_ms", now - b->blocked_since));
	b->events.unblocked(b->events.owner, now - b->blocked_since);
}

/* The broker ends the connection. */
static void
handle_close(struct broker *b, const amqp_connection_close_t *close)
{
	amqp_connection_close_ok_t close_ok = {0};
	int			code = close->reply_code;
	char		text[TEXT_MAX];

	copy_text(text, close->reply_text);
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
	else if (id == AMQP_CONNECTION_START_METHOD && b->state == BROKER_STARTING)
		handle_start(b, method);
	else if (id == AMQP_CONNECTION_TUNE_METHOD && b->state == BROKER_TUNING)
		handle_tune(b, method);
	else if (id == AMQP_CONNECTION_OPEN_OK_METHOD && b->state == BROKER_OPENING)
		handle_open_ok(b, now);
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

static void
scan_input(struct broker *b, msec_t now)
{
	struct frame frame;
	const char *problem = NULL;

	while (b->fd >= 0 && buffer_length(&b->in) > 0)
	{
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
				if (b->fd >= 0)
					buffer_consume(&b->in, frame.size);
				break;
		}
	}
}

static void
read_input(struct broker *b, msec_t now)
{
	for (int i = 0; i < READS_PER_TURN && b->fd >= 0; i++)
	{
		ssize_t		got = recv(b->fd, buffer_reserve(&b->in, READ_CHUNK),
							   READ_CHUNK, 0);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && errno == EAGAIN)
			return;
		if (got <= 0)
		{
			broker_drop(b, 0, "connection ended by the peer",
						got < 0 ? strerror(errno) : "end of input");
			return;
		}
		buffer_commit(&b->in, (size_t) got);
		b->last_input = now;
		scan_input(b, now);
		if (got < READ_CHUNK)
			return;
	}
}

/*
 * Send what waits, as much as the socket takes. The clock is read before every
 * send: this is where a lease that expired while we were stopped is noticed.
 */
void
broker_flush(struct broker *b)
{
	while (b->fd >= 0 && b->state != BROKER_CONNECTING &&
		   buffer_length(&b->out) > 0)
	{
		msec_t		now = clock_now();
		ssize_t		sent;

		if (b->guarded && now >= b->send_until)
		{
			broker_drop(b, 0, "lease expired with messages unsent", "");
			return;
		}
		sent = send(b->fd, buffer_head(&b->out), buffer_length(&b->out),
					MSG_NOSIGNAL);
		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0 && errno == EAGAIN)
			return;
		if (sent < 0)
		{
			broker_drop(b, 0, "cannot send", strerror(errno));
			return;
		}
		b->last_output = now;
		buffer_consume(&b->out, (size_t) sent);
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
	if (b->fd < 0)
		return 0;
	pfd->fd = b->fd;
	pfd->events = POLLIN;
	if (b->state == BROKER_CONNECTING || buffer_length(&b->out) > 0)
		pfd->events |= POLLOUT;
	return 1;
}

/* When broker_turn() must run though nothing came. */
msec_t
broker_deadline(struct broker *b)
{
	msec_t		deadline = b->deadline;

	if (b->state == BROKER_DOWN)
		return b->retry_at;
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
			begin_resolving(b, now);
		return;
	}
	if (b->deadline != CLOCK_NEVER && now >= b->deadline)
	{
		if (b->state == BROKER_CONNECTING)
			next_address(b, "connect timeout", now);
		else
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
	else if (revents & (POLLIN | POLLERR | POLLHUP))
		read_input(b, now);
	keep_time(b, now);
	broker_flush(b);
}

/* Begin an orderly end; afterwards no connection is made again. */
void
broker_close(struct broker *b, msec_t now)
{
	amqp_connection_close_t close = {
		.reply_code = AMQP_REPLY_SUCCESS,
		.reply_text = bytes_of("relay stopped"),
	};

	b->wants_connection = false;
	b->retry_at = CLOCK_NEVER;
	if (broker_is_open(b))
	{
		broker_send_method(b, 0, AMQP_CONNECTION_CLOSE_METHOD, &close);
		set_state(b, BROKER_CLOSING);
		b->deadline = now + BROKER_CLOSE_TIMEOUT;
		broker_flush(b);
	}
	else if (b->state != BROKER_CLOSING)
		broker_drop(b, 0, "relay stopped", "");
}
