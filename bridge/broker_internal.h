#ifndef ACME_BROKER_INTERNAL_H
#define ACME_BROKER_INTERNAL_H

/* What the files broker*.c share; everybody else includes broker.h. */
#include "amqp_text.h"
#include "broker.h"

#define BROKER_TEXT_MAX		256

/* Which of a process's connections; the broker shows them under the same name. */
#define LOG_CONNECTION(b)	LOG_TEXT("connection", (b)->settings.connection_name)

/* broker.c */
void		broker_set_state(struct broker *b, enum broker_state state);
const struct broker_host *broker_current_host(const struct broker *b);

/* broker_login.c */
bool		broker_login_method(struct broker *b, amqp_method_number_t id,
								void *method, msec_t now);

#endif							/* ACME_BROKER_INTERNAL_H */
