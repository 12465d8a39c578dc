/*
 * trace.h
 *		W3C trace context of an event (G 13).
 */
#ifndef ACME_OUTBOX_TRACE_H
#define ACME_OUTBOX_TRACE_H

#define TRACE_ID_LEN 32
#define TRACEPARENT_LEN 55

typedef struct Trace
{
	const char *trace_id;		/* never NULL */
	const char *traceparent;	/* NULL: trace_id is not a W3C one */
	bool		begun;			/* nothing to continue: a new one */
} Trace;

extern void trace_resolve(Trace *trace, const char *trace_id,
						  const char *traceparent);
extern void trace_continue(Trace *trace);

#endif							/* ACME_OUTBOX_TRACE_H */
