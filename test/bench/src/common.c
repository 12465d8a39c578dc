/*
 * common.c
 *		What the benchmark's programs share.
 */
#include "common.h"

#include <amqp_tcp_socket.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FRAME_MAX 131072

void
fail(const char *format,...)
{
	va_list		args;

	fprintf(stderr, "%s: ", program_invocation_short_name);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(1);
}

double
now_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double) t.tv_sec + (double) t.tv_nsec / 1e9;
}

long
number(const char *text, const char *what)
{
	char	   *end;
	long		value = strtol(text, &end, 10);

	if (*text == '\0' || *end != '\0' || value <= 0)
		fail("%s is not a positive number: %s", what, text);
	return value;
}

void
check_reply(amqp_rpc_reply_t reply, const char *what)
{
	if (reply.reply_type == AMQP_RESPONSE_NORMAL)
		return;
	if (reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION)
		fail("%s: %s", what, amqp_error_string2(reply.library_error));
	fail("%s: the broker answered %s", what,
		 amqp_method_name(reply.reply.id));
}

amqp_connection_state_t
open_channel(const char *uri)
{
	amqp_connection_state_t conn = amqp_new_connection();
	amqp_socket_t *socket = amqp_tcp_socket_new(conn);
	struct amqp_connection_info info;
	char	   *copy = strdup(uri);
	int			status;

	if (copy == NULL || amqp_parse_url(copy, &info) != AMQP_STATUS_OK)
		fail("malformed URI");
	status = amqp_socket_open(socket, info.host, info.port);
	if (status != AMQP_STATUS_OK)
		fail("could not connect: %s", amqp_error_string2(status));
	check_reply(amqp_login(conn, info.vhost, 0, FRAME_MAX, 0,
						   AMQP_SASL_METHOD_PLAIN, info.user, info.password),
				"could not log in");
	amqp_channel_open(conn, CHANNEL);
	check_reply(amqp_get_rpc_reply(conn), "could not open a channel");
	free(copy);
	return conn;
}

void
close_channel(amqp_connection_state_t conn)
{
	check_reply(amqp_channel_close(conn, CHANNEL, AMQP_REPLY_SUCCESS),
				"could not close the channel");
	check_reply(amqp_connection_close(conn, AMQP_REPLY_SUCCESS),
				"could not close the connection");
	amqp_destroy_connection(conn);
}

PGconn *
open_database(void)
{
	PGconn	   *conn = PQconnectdb("");

	if (PQstatus(conn) != CONNECTION_OK)
		fail("%s", PQerrorMessage(conn));
	return conn;
}

/* Hands the result through if it is of the expected kind. */
PGresult *
run(PGconn *conn, ExecStatusType expected, PGresult *result)
{
	if (PQresultStatus(result) != expected)
		fail("%s", PQerrorMessage(conn));
	return result;
}
