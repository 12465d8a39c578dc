#ifndef ACME_TELEMETRY_H
#define ACME_TELEMETRY_H

#include <stdbool.h>
#include <stdint.h>

#include "buffer.h"
#include "clock.h"

/* What is measured, in milliseconds. */
enum span
{
	SPAN_CONFIRM,				/* from publish() in SQL to the broker's confirm */
	SPAN_CLAIM,					/* one claim statement */
	SPAN_SETTLE,				/* one settle statement */
	SPAN_HANDLE,				/* one batch of messages handled, and committed */
	SPANS
};

#define TELEMETRY_OUTCOMES	8
#define TELEMETRY_LANES		4

/* Who tells; all of it must stay where it is. */
struct telemetry_source
{
	const char *version;
	const char *command;
	const char *name;			/* the origin or the consumer */
	const char *const *states;
	int			state_count;
	const char *outcomes[TELEMETRY_OUTCOMES];	/* what becomes of messages */
	const char *lanes[TELEMETRY_LANES]; /* those that it sends copies on */
	int			copy_outcomes;	/* so many of the outcomes a copy can have */
	bool		gives_up;		/* messages, and publishes their dead letters */
	unsigned	spans;			/* those it measures, as bits */
};

/* Where the loop is, as of its last turn. */
struct telemetry_now
{
	int			state;			/* an index into the source's states */
	bool		serving;		/* in a state in which it does its work */
	bool		database;		/* connected */
	bool		broker;			/* ready to take messages */
	int64_t		in_flight;
	int64_t		waiting;
	int64_t		uncopied;		/* given up, their dead letter unconfirmed */
	bool		letters_taken;	/* as far as is known */
	bool		stalled;		/* dead letters that are not taken hold up all */
};

/* The loop. */
void		telemetry_start(const struct telemetry_source *source);
void		telemetry_turn(const struct telemetry_now *now);
void		telemetry_sleep(msec_t due);
void		telemetry_awake(msec_t now);
void		telemetry_count_is(int outcome, uint64_t total);
void		telemetry_copy(int lane, int outcome);
void		telemetry_observe(enum span span, msec_t elapsed);

/* Any thread. */
bool		telemetry_alive(msec_t now);
const char *telemetry_not_ready(void);
void		telemetry_render(struct buffer *out);

#endif							/* ACME_TELEMETRY_H */
