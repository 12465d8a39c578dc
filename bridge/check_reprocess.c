/*
 * check_reprocess.c
 *		"check --dlq D --queue Q": would a reprocessing work here?
 *
 * Rights are asked for by requests about an exchange and a queue that do not
 * exist: the broker looks at the right first, and says 403 or "not found". So
 * nothing is made, and where a run is at work, or has left its exchange, they are
 * not asked about. What only taking a message would tell, and what AMQP does not
 * tell at all, the report names.
 */
#include <stdio.h>
#include <string.h>

#include "amqp_text.h"
#include "asking.h"
#include "check.h"
#include "reprocess_names.h"

/* Is the queue there? */
bool
check_queue(struct report *report, struct asking *a, const char *check,
			const char *name)
{
	if (!asking_queue(a, name))
		report_line(report, VERDICT_FAIL, check, NULL,
					"\"%s\": the broker did not answer", name);
	else if (a->code == AMQP_NOT_FOUND)
		report_line(report, VERDICT_FAIL, check, "check its name, and the virtual "
					"host in RABBITMQ_URI", "\"%s\" does not exist", name);
	else if (a->code != 0)
		report_line(report, VERDICT_FAIL, check, NULL, "\"%s\": %s", name, a->text);
	else
	{
		report_line(report, VERDICT_OK, check, NULL, "\"%s\" exists, %u messages "
					"are ready", name, (unsigned) a->messages);
		return true;
	}
	return false;
}

/* Is there anything of a run? If not, rights can be asked about. */
static bool
report_run(struct report *report, struct asking *a, const char *exchange,
		   const char *lock)
{
	bool		is_locked = asking_queue(a, lock) && a->code != AMQP_NOT_FOUND;
	bool		exists = asking_exchange(a, exchange) && a->code == 0;

	if (is_locked)
		report_line(report, VERDICT_WARN, "run", "wait for its end",
					"a reprocessing of this queue is at work");
	else if (exists)
		report_line(report, VERDICT_WARN, "run", "the next run uses and removes it",
					"exchange \"%s\" was left by a run that did not end orderly",
					exchange);
	else
		report_line(report, VERDICT_OK, "run", NULL, "none is at work, and none has "
					"left its exchange");
	return !is_locked && !exists;
}

/* One right, by the answer to a request whose object is missing. */
static bool
has_right(struct report *report, const struct asking *a, bool answered)
{
	if (!answered)
		report_line(report, VERDICT_FAIL, "rights", NULL,
					"the broker did not answer");
	else if (a->code == AMQP_ACCESS_REFUSED)
		report_line(report, VERDICT_FAIL, "rights", "grant configure, write and "
					"read on the queue's name and names that begin with it", "%s",
					a->text);
	else
		return true;
	return false;
}

static void
report_rights(struct report *report, struct asking *a, const char *queue,
			  const char *exchange, const char *lock)
{
	amqp_exchange_delete_t configure = {
		.exchange = bytes_of(exchange), .if_unused = 1
	};
	amqp_queue_delete_t configure_lock = {
		.queue = bytes_of(lock), .if_unused = 1, .if_empty = 1
	};
	amqp_queue_bind_t bind = {
		.queue = bytes_of(queue), .exchange = bytes_of(exchange)
	};
	bool		has_all = true;

	has_all &= has_right(report, a, asking_ask(a, AMQP_EXCHANGE_DELETE_METHOD,
											   &configure));
	has_all &= has_right(report, a, asking_ask(a, AMQP_QUEUE_DELETE_METHOD,
											   &configure_lock));
	has_all &= has_right(report, a, asking_ask(a, AMQP_QUEUE_BIND_METHOD, &bind));
	has_all &= has_right(report, a, asking_right(a, exchange, REPROCESS_KEY));
	if (has_all)
		report_line(report, VERDICT_OK, "rights", NULL, "to make \"%s\" and the "
					"lock, to bind the queue, and to publish", exchange);
}

void
check_reprocess(struct report *report, const struct config *config,
				struct asking *a)
{
	const char *queue = config_text(config, SET_QUEUE);
	char		exchange[REPROCESS_NAME_MAX];
	char		lock[REPROCESS_NAME_MAX];
	bool		found;

	snprintf(exchange, sizeof(exchange), "%s" REPROCESS_SUFFIX, queue);
	snprintf(lock, sizeof(lock), "%s" LOCK_SUFFIX, queue);
	found = check_queue(report, a, "queue", queue);
	found &= check_queue(report, a, "dlq", config_text(config, SET_DLQ));
	if (found && report_run(report, a, exchange, lock))
		report_rights(report, a, queue, exchange, lock);
	else
		report_line(report, VERDICT_SKIP, "rights", NULL,
					"they are asked about where the queues exist and no run is at "
					"work");
	report_line(report, VERDICT_SKIP, "rights", NULL, "to read the dead-letter "
				"queue: only taking a message would tell");
	report_line(report, VERDICT_SKIP, "chain", "look at x-dead-letter-exchange and "
				"x-dead-letter-routing-key: rabbitmqctl list_queues name arguments; "
				"list_bindings", "whether what dies in the queue goes there: AMQP "
				"tells no arguments and no bindings");
}
