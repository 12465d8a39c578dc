/*
 * common.h
 *		What the benchmark's programs share: failing, clocks, opening a channel
 *		on RabbitMQ, running statements on PostgreSQL.
 */
#ifndef BENCH_COMMON_H
#define BENCH_COMMON_H

#include <amqp.h>
#include <libpq-fe.h>

#define CHANNEL 1

void		fail(const char *format,...)
			__attribute__((noreturn, format(printf, 1, 2)));

/* Monotonic, comparable between processes of one machine. */
double		now_seconds(void);

/* A positive whole number from the command line. */
long		number(const char *text, const char *what);

/* Log in, open CHANNEL; TCP without delay is the library's default. */
amqp_connection_state_t open_channel(const char *uri);
void		close_channel(amqp_connection_state_t conn);
void		check_reply(amqp_rpc_reply_t reply, const char *what);

/* The PG* variables say where. */
PGconn	   *open_database(void);
PGresult   *run(PGconn *conn, ExecStatusType expected, PGresult *result);

#endif
