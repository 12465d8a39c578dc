/*
 * trace.c
 *		Finds the trace context of an event; it is never empty (G 13.3).
 *
 * The trace id (any business correlation id): publish's argument, else that in its argument
 * traceparent, else the setting acme_outbox.trace_id, else that in acme_outbox.traceparent,
 * else that of the message being handled, else a new one: a trace begins.
 *
 * The traceparent: the argument, else the setting, else, where nobody has named a trace id,
 * the handled message's.  Where there is none and the trace id is a W3C one, it is made from
 * that, unsampled, so that consumers can continue the trace.
 *
 * All that one message's handler publishes is of one trace, also where the message had none.
 * What goes on in another transaction, a saga's next step or a job, asks trace_id() and
 * traceparent() and keeps what they say; a trace begun by asking is the transaction's.
 */
#include "acme_outbox.h"

#include "context.h"
#include "guc.h"
#include "message.h"
#include "random_bytes.h"
#include "trace.h"

static bool
is_hex_run(const char *s, int len, bool zero_allowed)
{
	bool		zero = true;

	for (int i = 0; i < len; i++)
	{
		if (!((s[i] >= '0' && s[i] <= '9') || (s[i] >= 'a' && s[i] <= 'f')))
			return false;
		zero = zero && s[i] == '0';
	}
	return zero_allowed || !zero;
}

/* version "-" trace-id "-" parent-id "-" flags; later versions may add fields */
static bool
is_traceparent(const char *s)
{
	size_t		len = strlen(s);

	if (len < TRACEPARENT_LEN || len > MAX_SHORT_STRING)
		return false;
	if (!is_hex_run(s, 2, true) || strncmp(s, "ff", 2) == 0)
		return false;
	if (s[2] != '-' || s[35] != '-' || s[52] != '-')
		return false;
	if (!is_hex_run(s + 3, TRACE_ID_LEN, false) ||
		!is_hex_run(s + 36, 16, false) || !is_hex_run(s + 53, 2, true))
		return false;
	return len == TRACEPARENT_LEN ||
		(strncmp(s, "00", 2) != 0 && s[TRACEPARENT_LEN] == '-');
}

static void
random_hex(char *out, int digits)
{
	static const char hex[] = "0123456789abcdef";
	unsigned char bytes[TRACE_ID_LEN / 2];

	random_bytes(bytes, digits / 2);
	for (int i = 0; i < digits / 2; i++)
	{
		out[2 * i] = hex[bytes[i] >> 4];
		out[2 * i + 1] = hex[bytes[i] & 0xF];
	}
	out[digits] = '\0';
}

static const char *
check_traceparent(const char *traceparent, const char *source)
{
	if (!is_traceparent(traceparent))
		ereport(ERROR,
				(errcode(ERRCODE_OX_TRACE),
				 errmsg("malformed traceparent in %s", source),
				 errdetail("It reads version-traceid-parentid-flags in lower-case hexadecimal digits."),
				 errhint("For example: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")));
	return traceparent;
}

static const char *
check_trace_id(const char *trace_id)
{
	if (trace_id[0] == '\0' || strlen(trace_id) > MAX_SHORT_STRING)
		ereport(ERROR,
				(errcode(ERRCODE_OX_TRACE),
				 errmsg("invalid trace_id"),
				 errdetail("A trace id has 1 to %d bytes.", MAX_SHORT_STRING)));
	return trace_id;
}

static const char *
new_trace_id(void)
{
	char	   *id = palloc(TRACE_ID_LEN + 1);

	random_hex(id, TRACE_ID_LEN);
	return id;
}

static const char *
make_traceparent(const char *trace_id)
{
	char	   *made;

	if (strlen(trace_id) != TRACE_ID_LEN ||
		!is_hex_run(trace_id, TRACE_ID_LEN, false))
		return NULL;
	made = palloc(TRACEPARENT_LEN + 1);
	memcpy(made, "00-", 3);
	memcpy(made + 3, trace_id, TRACE_ID_LEN);
	made[35] = '-';
	random_hex(made + 36, 16);
	strcpy(made + 52, "-00");
	return made;
}

/* A foreign sender's malformed one must not keep a handler from publishing. */
static const char *
handled_traceparent(void)
{
	const char *traceparent = message_traceparent();

	return traceparent != NULL && is_traceparent(traceparent) ? traceparent : NULL;
}

/* The traceparent to continue, or NULL: there is none, or a bare trace id counts before it. */
static const char *
find_traceparent(const char *trace_id, const char *traceparent)
{
	if (traceparent != NULL)
		return check_traceparent(traceparent, "argument traceparent");
	if (guc_traceparent[0] != '\0')
		return check_traceparent(guc_traceparent, "setting acme_outbox.traceparent");
	if (trace_id == NULL && guc_trace_id[0] == '\0')
		return handled_traceparent();
	return NULL;
}

/* The trace id to continue, or NULL: that of the traceparent, if any. */
static const char *
find_trace_id(const char *trace_id, const char *traceparent)
{
	if (trace_id != NULL)
		return check_trace_id(trace_id);
	if (traceparent != NULL)
		return NULL;
	if (guc_trace_id[0] != '\0')
		return check_trace_id(guc_trace_id);
	return guc_traceparent[0] != '\0' ? NULL : message_trace_id();
}

/* Of the transaction; in a handler, of the handler. */
static void
keep_for_the_rest(const Trace *trace)
{
	context_set("acme_outbox.traceparent", trace->traceparent);
}

void
trace_resolve(Trace *trace, const char *trace_id, const char *traceparent)
{
	trace->traceparent = find_traceparent(trace_id, traceparent);
	trace->trace_id = find_trace_id(trace_id, traceparent);
	trace->begun = trace->trace_id == NULL && trace->traceparent == NULL;

	if (trace->begun)
		trace->trace_id = new_trace_id();
	else if (trace->trace_id == NULL)
		trace->trace_id = pnstrdup(trace->traceparent + 3, TRACE_ID_LEN);
	if (trace->traceparent == NULL)
		trace->traceparent = make_traceparent(trace->trace_id);
	if (trace->begun && message_current() != NULL)
		keep_for_the_rest(trace);
}

/* What events published now continue; from now on, where that is nothing yet. */
void
trace_continue(Trace *trace)
{
	trace_resolve(trace, NULL, NULL);
	if (trace->begun)
		keep_for_the_rest(trace);
}
