/*
 * amqp_probe: looks into queues and publishes, for the tests and the demo
 *
 * Plain librabbitmq, one connection, one channel. It declares nothing.
 *
 *	amqp_probe drain --uri URI --queue Q [--count N] [--timeout S] [--keep | --reject]
 *		takes messages and prints each as one JSON line; ends after N
 *		messages, or when none came for S seconds (default 2).  --keep puts
 *		them back in the end; --reject lets them die where they are.
 *	amqp_probe count --uri URI --queue Q[,Q...]
 *		prints the number of messages that are ready, after its name if there
 *		are several
 *	amqp_probe publish --uri URI --exchange E --key K [--count N]
 *		[--message-id ID] [--body TEXT] [--numbered] [--typed]
 *		publishes with confirms; exit status 0 once all are confirmed.
 *		--numbered: the message ids are ID-1, ID-2, ...  --typed: with a header
 *		of each AMQP type, named by its letter
 *	amqp_probe publish --uri URI --exchange E --key K --lines
 *		the same for each line of the input as a body
 *
 * A line of drain has the members message_id, routing_key, exchange,
 * redelivered, type, app_id, content_type, content_encoding, correlation_id,
 * reply_to, user_id, priority, delivery_mode,
 * timestamp, headers (object), kinds (the headers' types) and body (text, as
 * received).
 */
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <amqp.h>
#include <amqp_tcp_socket.h>
#include <json.h>

#define CHANNEL 1
#define PREFETCH 2000
#define ACK_EVERY 500
#define CONFIRM_WINDOW 500

struct options
{
	const char *uri;
	const char *queue;
	const char *exchange;
	const char *key;
	const char *message_id;
	const char *body;
	long		count;
	double		timeout;
	bool		keep;
	bool		reject;
	bool		numbered;
	bool		typed;
	bool		lines;
};

static void __attribute__((noreturn, format(printf, 1, 2)))
fail(const char *format,...)
{
	va_list		args;

	va_start(args, format);
	fputs("amqp_probe: ", stderr);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
	exit(1);
}

static void
check(amqp_rpc_reply_t reply, const char *what)
{
	if (reply.reply_type == AMQP_RESPONSE_NORMAL)
		return;
	if (reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION)
		fail("%s: %s", what, amqp_error_string2(reply.library_error));
	if (reply.reply_type == AMQP_RESPONSE_SERVER_EXCEPTION &&
		reply.reply.id == AMQP_CHANNEL_CLOSE_METHOD)
	{
		amqp_channel_close_t *m = reply.reply.decoded;

		fail("%s: %d %.*s", what, m->reply_code, (int) m->reply_text.len,
			 (char *) m->reply_text.bytes);
	}
	if (reply.reply_type == AMQP_RESPONSE_SERVER_EXCEPTION &&
		reply.reply.id == AMQP_CONNECTION_CLOSE_METHOD)
	{
		amqp_connection_close_t *m = reply.reply.decoded;

		fail("%s: %d %.*s", what, m->reply_code, (int) m->reply_text.len,
			 (char *) m->reply_text.bytes);
	}
	fail("%s: no answer", what);
}

static amqp_connection_state_t
open_connection(const char *uri)
{
	struct amqp_connection_info info;
	amqp_connection_state_t conn = amqp_new_connection();
	amqp_socket_t *socket = amqp_tcp_socket_new(conn);
	struct timeval timeout = {10, 0};
	char	   *copy = strdup(uri);
	int			status;

	if (amqp_parse_url(copy, &info) != AMQP_STATUS_OK)
		fail("malformed URI");
	status = amqp_socket_open_noblock(socket, info.host, info.port, &timeout);
	if (status != AMQP_STATUS_OK)
		fail("could not connect: %s", amqp_error_string2(status));
	check(amqp_login(conn, info.vhost, 0, 131072, 0, AMQP_SASL_METHOD_PLAIN,
					 info.user, info.password), "could not log in");
	amqp_channel_open(conn, CHANNEL);
	check(amqp_get_rpc_reply(conn), "could not open a channel");
	free(copy);
	return conn;
}

static void
close_connection(amqp_connection_state_t conn)
{
	amqp_connection_close(conn, AMQP_REPLY_SUCCESS);
	amqp_destroy_connection(conn);
}

static json_object *
json_bytes(amqp_bytes_t bytes)
{
	return json_object_new_string_len(bytes.bytes, (int) bytes.len);
}

static json_object *json_table(const amqp_table_t *table);

static json_object *
json_value(const amqp_field_value_t *value)
{
	json_object *array;

	switch (value->kind)
	{
		case AMQP_FIELD_KIND_BOOLEAN:
			return json_object_new_boolean(value->value.boolean);
		case AMQP_FIELD_KIND_I8:
			return json_object_new_int64(value->value.i8);
		case AMQP_FIELD_KIND_U8:
			return json_object_new_int64(value->value.u8);
		case AMQP_FIELD_KIND_I16:
			return json_object_new_int64(value->value.i16);
		case AMQP_FIELD_KIND_U16:
			return json_object_new_int64(value->value.u16);
		case AMQP_FIELD_KIND_I32:
			return json_object_new_int64(value->value.i32);
		case AMQP_FIELD_KIND_U32:
			return json_object_new_int64(value->value.u32);
		case AMQP_FIELD_KIND_I64:
			return json_object_new_int64(value->value.i64);
		case AMQP_FIELD_KIND_U64:
		case AMQP_FIELD_KIND_TIMESTAMP:
			return json_object_new_uint64(value->value.u64);
		case AMQP_FIELD_KIND_F32:
			return json_object_new_double(value->value.f32);
		case AMQP_FIELD_KIND_F64:
			return json_object_new_double(value->value.f64);
		case AMQP_FIELD_KIND_UTF8:
		case AMQP_FIELD_KIND_BYTES:
			return json_bytes(value->value.bytes);
		case AMQP_FIELD_KIND_ARRAY:
			array = json_object_new_array();
			for (int i = 0; i < value->value.array.num_entries; i++)
				json_object_array_add(array,
									  json_value(&value->value.array.entries[i]));
			return array;
		case AMQP_FIELD_KIND_TABLE:
			return json_table(&value->value.table);
		default:
			return NULL;
	}
}

static json_object *
json_table(const amqp_table_t *table)
{
	json_object *object = json_object_new_object();

	for (int i = 0; i < table->num_entries; i++)
	{
		amqp_bytes_t key = table->entries[i].key;
		char		name[256];

		snprintf(name, sizeof(name), "%.*s", (int) key.len, (char *) key.bytes);
		json_object_object_add(object, name,
							   json_value(&table->entries[i].value));
	}
	return object;
}

/* The type letter of each header. */
static json_object *
json_kinds(const amqp_table_t *table)
{
	json_object *object = json_object_new_object();

	for (int i = 0; i < table->num_entries; i++)
	{
		amqp_bytes_t key = table->entries[i].key;
		char		kind = (char) table->entries[i].value.kind;
		char		name[256];

		snprintf(name, sizeof(name), "%.*s", (int) key.len, (char *) key.bytes);
		json_object_object_add(object, name,
							   json_object_new_string_len(&kind, 1));
	}
	return object;
}

static void
print_message(const amqp_envelope_t *envelope)
{
	const amqp_basic_properties_t *p = &envelope->message.properties;
	json_object *line = json_object_new_object();

#define ADD_BYTES(flag, member) \
	if (p->_flags & (flag)) \
		json_object_object_add(line, #member, json_bytes(p->member))

	ADD_BYTES(AMQP_BASIC_MESSAGE_ID_FLAG, message_id);
	json_object_object_add(line, "routing_key",
						   json_bytes(envelope->routing_key));
	json_object_object_add(line, "exchange", json_bytes(envelope->exchange));
	json_object_object_add(line, "redelivered",
						   json_object_new_boolean(envelope->redelivered));
	ADD_BYTES(AMQP_BASIC_TYPE_FLAG, type);
	ADD_BYTES(AMQP_BASIC_APP_ID_FLAG, app_id);
	ADD_BYTES(AMQP_BASIC_CONTENT_TYPE_FLAG, content_type);
	ADD_BYTES(AMQP_BASIC_CONTENT_ENCODING_FLAG, content_encoding);
	ADD_BYTES(AMQP_BASIC_CORRELATION_ID_FLAG, correlation_id);
	ADD_BYTES(AMQP_BASIC_REPLY_TO_FLAG, reply_to);
	ADD_BYTES(AMQP_BASIC_USER_ID_FLAG, user_id);
	if (p->_flags & AMQP_BASIC_PRIORITY_FLAG)
		json_object_object_add(line, "priority",
							   json_object_new_int(p->priority));
	if (p->_flags & AMQP_BASIC_DELIVERY_MODE_FLAG)
		json_object_object_add(line, "delivery_mode",
							   json_object_new_int(p->delivery_mode));
	if (p->_flags & AMQP_BASIC_TIMESTAMP_FLAG)
		json_object_object_add(line, "timestamp",
							   json_object_new_uint64(p->timestamp));
	if (p->_flags & AMQP_BASIC_HEADERS_FLAG)
	{
		json_object_object_add(line, "headers", json_table(&p->headers));
		json_object_object_add(line, "kinds", json_kinds(&p->headers));
	}
	json_object_object_add(line, "body", json_bytes(envelope->message.body));
	puts(json_object_to_json_string_ext(line, JSON_C_TO_STRING_PLAIN |
										JSON_C_TO_STRING_NOSLASHESCAPE));
	json_object_put(line);
#undef ADD_BYTES
}

static void
drain(const struct options *opt)
{
	amqp_connection_state_t conn = open_connection(opt->uri);
	struct timeval timeout;
	uint64_t	last_tag = 0;
	long		seen = 0;

	timeout.tv_sec = (time_t) opt->timeout;
	timeout.tv_usec = (suseconds_t) ((opt->timeout - timeout.tv_sec) * 1e6);

	/* Messages to be put back stay unacknowledged: no limit on those. */
	amqp_basic_qos(conn, CHANNEL, 0, opt->keep ? 0 : PREFETCH, 0);
	check(amqp_get_rpc_reply(conn), "could not set the prefetch");
	amqp_basic_consume(conn, CHANNEL, amqp_cstring_bytes(opt->queue),
					   amqp_empty_bytes, 0, 0, 0, amqp_empty_table);
	check(amqp_get_rpc_reply(conn), "could not consume");

	while (opt->count < 0 || seen < opt->count)
	{
		amqp_envelope_t envelope;
		amqp_rpc_reply_t reply;

		amqp_maybe_release_buffers(conn);
		reply = amqp_consume_message(conn, &envelope, &timeout, 0);
		if (reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION &&
			reply.library_error == AMQP_STATUS_TIMEOUT)
			break;
		check(reply, "could not take a message");
		print_message(&envelope);
		last_tag = envelope.delivery_tag;
		if (opt->reject)
			amqp_basic_reject(conn, CHANNEL, last_tag, 0);
		if (++seen % ACK_EVERY == 0 && !opt->keep && !opt->reject)
			amqp_basic_ack(conn, CHANNEL, last_tag, 1);
		amqp_destroy_envelope(&envelope);
	}
	fflush(stdout);
	if (last_tag > 0 && !opt->keep && !opt->reject)
		amqp_basic_ack(conn, CHANNEL, last_tag, 1);
	amqp_channel_close(conn, CHANNEL, AMQP_REPLY_SUCCESS);
	close_connection(conn);
}

static void
count(const struct options *opt)
{
	amqp_connection_state_t conn = open_connection(opt->uri);
	bool		many = strchr(opt->queue, ',') != NULL;
	char	   *names = strdup(opt->queue);

	if (names == NULL)
		fail("out of memory");
	for (char *name = strtok(names, ","); name; name = strtok(NULL, ","))
	{
		amqp_queue_declare_ok_t *ok =
			amqp_queue_declare(conn, CHANNEL, amqp_cstring_bytes(name),
							   1, 0, 0, 0, amqp_empty_table);

		check(amqp_get_rpc_reply(conn), "could not look at the queue");
		if (many)
			printf("%s ", name);
		printf("%" PRIu32 "\n", ok->message_count);
	}
	free(names);
	close_connection(conn);
}

/* Wait until no more than LEFT of the tags up to SENT are unconfirmed. */
static void
await_confirms(amqp_connection_state_t conn, uint64_t *confirmed,
			   uint64_t sent, uint64_t left)
{
	while (sent - *confirmed > left)
	{
		struct timeval timeout = {30, 0};
		amqp_frame_t frame;
		amqp_basic_ack_t *ack;

		amqp_maybe_release_buffers(conn);
		if (amqp_simple_wait_frame_noblock(conn, &frame, &timeout) != 0)
			fail("no confirm");
		if (frame.frame_type != AMQP_FRAME_METHOD)
			continue;
		if (frame.payload.method.id == AMQP_CHANNEL_CLOSE_METHOD)
		{
			amqp_channel_close_t *m = frame.payload.method.decoded;

			fail("not confirmed: %d %.*s", m->reply_code, (int) m->reply_text.len,
				 (char *) m->reply_text.bytes);
		}
		if (frame.payload.method.id != AMQP_BASIC_ACK_METHOD)
			fail("not confirmed: %s",
				 amqp_method_name(frame.payload.method.id));
		ack = frame.payload.method.decoded;
		*confirmed = ack->multiple ? ack->delivery_tag : *confirmed + 1;
	}
}

/* One header of each type that a broker takes. */
static void
fill_typed(amqp_table_entry_t *entries, amqp_table_entry_t *inner)
{
	static const char kinds[] = "tbBsuIilfdTSxVDFA";
	static char names[sizeof(kinds)][2];

	inner->key = amqp_cstring_bytes("x-death");
	inner->value.kind = AMQP_FIELD_KIND_UTF8;
	inner->value.value.bytes = amqp_cstring_bytes("not one");
	for (size_t i = 0; i < sizeof(kinds) - 1; i++)
	{
		amqp_field_value_t *value = &entries[i].value;

		names[i][0] = kinds[i];
		entries[i].key = amqp_cstring_bytes(names[i]);
		memset(value, 0, sizeof(*value));
		value->kind = (uint8_t) kinds[i];
		if (strchr("Sx", kinds[i]))
			value->value.bytes = amqp_cstring_bytes("text");
		else if (kinds[i] == 'F')
			value->value.table = (amqp_table_t){1, inner};
		else if (kinds[i] == 'A')
			value->value.array = (amqp_array_t){1, &inner->value};
		else if (kinds[i] == 'f')
			value->value.f32 = 1.5;
		else if (kinds[i] == 'd')
			value->value.f64 = -2.5;
		else if (kinds[i] == 'D')
			value->value.decimal = (amqp_decimal_t){2, 12345};
		else if (kinds[i] != 'V')
			value->value.u64 = kinds[i] == 't' ? 1 : 100;
	}
}

/* The next line of the input, without its end; false: there is none. */
static bool
next_line(amqp_bytes_t *body)
{
	static char *line = NULL;
	static size_t room = 0;
	ssize_t		length = getline(&line, &room, stdin);

	if (length < 0)
		return false;
	if (length > 0 && line[length - 1] == '\n')
		length--;
	*body = (amqp_bytes_t) {(size_t) length, line};
	return true;
}

static void
publish(const struct options *opt)
{
	amqp_table_entry_t typed[17];
	amqp_table_entry_t inner;
	char		id[256];
	amqp_connection_state_t conn = open_connection(opt->uri);
	amqp_basic_properties_t properties = {0};
	uint64_t	confirmed = 0;
	uint64_t	sent = 0;
	long		total = opt->lines ? LONG_MAX : opt->count < 0 ? 1 : opt->count;
	amqp_bytes_t body = amqp_cstring_bytes(opt->body);

	amqp_confirm_select(conn, CHANNEL);
	check(amqp_get_rpc_reply(conn), "could not select confirms");
	properties._flags = AMQP_BASIC_DELIVERY_MODE_FLAG;
	properties.delivery_mode = AMQP_DELIVERY_PERSISTENT;
	if (opt->message_id)
	{
		properties._flags |= AMQP_BASIC_MESSAGE_ID_FLAG;
		properties.message_id = amqp_cstring_bytes(opt->message_id);
	}
	if (opt->typed)
	{
		fill_typed(typed, &inner);
		properties._flags |= AMQP_BASIC_HEADERS_FLAG;
		properties.headers = (amqp_table_t){17, typed};
	}
	while (sent < (uint64_t) total)
	{
		int			status;

		if (opt->numbered)
		{
			snprintf(id, sizeof(id), "%s-%" PRIu64, opt->message_id, sent + 1);
			properties.message_id = amqp_cstring_bytes(id);
		}
		if (opt->lines && !next_line(&body))
			break;
		status = amqp_basic_publish(conn, CHANNEL,
									amqp_cstring_bytes(opt->exchange),
									amqp_cstring_bytes(opt->key), 0, 0,
									&properties, body);
		if (status != AMQP_STATUS_OK)
			fail("could not publish: %s", amqp_error_string2(status));
		await_confirms(conn, &confirmed, ++sent, CONFIRM_WINDOW);
	}
	await_confirms(conn, &confirmed, sent, 0);
	close_connection(conn);
}

static const char *
required(const char *value, const char *flag)
{
	if (value == NULL)
		fail("%s is required", flag);
	return value;
}

int
main(int argc, char **argv)
{
	static const struct option flags[] = {
		{"uri", required_argument, NULL, 'u'},
		{"queue", required_argument, NULL, 'q'},
		{"exchange", required_argument, NULL, 'e'},
		{"key", required_argument, NULL, 'k'},
		{"message-id", required_argument, NULL, 'i'},
		{"body", required_argument, NULL, 'b'},
		{"count", required_argument, NULL, 'n'},
		{"timeout", required_argument, NULL, 't'},
		{"keep", no_argument, NULL, 'K'},
		{"reject", no_argument, NULL, 'R'},
		{"numbered", no_argument, NULL, 'N'},
		{"typed", no_argument, NULL, 'T'},
		{"lines", no_argument, NULL, 'l'},
		{NULL, 0, NULL, 0}
	};
	struct options opt = {
		.exchange = "", .key = "", .body = "", .count = -1, .timeout = 2
	};
	int			flag;

	while ((flag = getopt_long(argc, argv, "", flags, NULL)) != -1)
	{
		switch (flag)
		{
			case 'u':
				opt.uri = optarg;
				break;
			case 'q':
				opt.queue = optarg;
				break;
			case 'e':
				opt.exchange = optarg;
				break;
			case 'k':
				opt.key = optarg;
				break;
			case 'i':
				opt.message_id = optarg;
				break;
			case 'b':
				opt.body = optarg;
				break;
			case 'n':
				opt.count = atol(optarg);
				break;
			case 't':
				opt.timeout = atof(optarg);
				break;
			case 'K':
				opt.keep = true;
				break;
			case 'R':
				opt.reject = true;
				break;
			case 'N':
				opt.numbered = true;
				break;
			case 'T':
				opt.typed = true;
				break;
			case 'l':
				opt.lines = true;
				break;
			default:
				return 2;
		}
	}
	if (optind != argc - 1)
		fail("which of drain, count, publish?");
	required(opt.uri, "--uri");

	if (strcmp(argv[optind], "publish") == 0)
		publish(&opt);
	else if (strcmp(argv[optind], "drain") == 0)
		drain((required(opt.queue, "--queue"), &opt));
	else if (strcmp(argv[optind], "count") == 0)
		count((required(opt.queue, "--queue"), &opt));
	else
		fail("unrecognized command \"%s\"", argv[optind]);
	return 0;
}
