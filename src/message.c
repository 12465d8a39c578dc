/*
 * message.c
 *		The message being handled, and what is read from an envelope.
 *
 * While a handler runs, a frame on a stack says what it handles: message() shows it,
 * park() marks it, publish() continues its trace.  Frames live in the C stack of
 * whoever runs the handler and are taken off on every way out.
 *
 * park() may be undone by a subtransaction that the handler itself rolls back; the
 * parked row goes with it, and so must the mark.  Subtransactions that begin after
 * the one that aborts, and before its end, are inside it: a mark made in one with the
 * same or a higher number is taken back.
 */
#include "acme_outbox.h"

#include "access/xact.h"
#include "message.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"

PG_FUNCTION_INFO_V1(acme_outbox_message);

static Handling *current = NULL;

static void
unmark_at_abort(SubXactEvent event, SubTransactionId mine,
				SubTransactionId parent, void *arg)
{
	if (event != SUBXACT_EVENT_ABORT_SUB)
		return;
	for (Handling *frame = current; frame != NULL; frame = frame->outer)
	{
		if (frame->parked_in != InvalidSubTransactionId && frame->parked_in >= mine)
			frame->parked_in = InvalidSubTransactionId;
	}
}

void
message_begin(Handling *handling)
{
	static bool registered = false;

	if (!registered)
	{
		RegisterSubXactCallback(unmark_at_abort, NULL);
		registered = true;
	}
	handling->outer = current;
	current = handling;
}

void
message_end(Handling *handling)
{
	current = handling->outer;
}

/* NULL outside a handler. */
Handling *
message_current(void)
{
	return current;
}

/*
 * Reading JSON
 */

/* A string of an object's key, or NULL. */
static char *
object_string(JsonbContainer *object, const char *key)
{
	JsonbValue *value;

	if (object == NULL || !JsonContainerIsObject(object))
		return NULL;
	value = getKeyJsonValueFromContainer(object, key, strlen(key), NULL);
	if (value == NULL || value->type != jbvString)
		return NULL;
	return pnstrdup(value->val.string.val, value->val.string.len);
}

/* An object's member that is an object or array, or NULL. */
static JsonbContainer *
object_member(Jsonb *jsonb, const char *key)
{
	JsonbValue *value;

	if (jsonb == NULL || !JB_ROOT_IS_OBJECT(jsonb))
		return NULL;
	value = getKeyJsonValueFromContainer(&jsonb->root, key, strlen(key), NULL);
	if (value == NULL || value->type != jbvBinary)
		return NULL;
	return value->val.binary.data;
}

/* envelope_string(e, "header", "eventId"): a string of a part, or NULL. */
char *
envelope_string(Jsonb *envelope, const char *part, const char *key)
{
	return object_string(object_member(envelope, part), key);
}

/* header.eventId if it is a usable one, else NULL. */
char *
envelope_event_id(Jsonb *envelope)
{
	char	   *event_id = envelope_string(envelope, "header", "eventId");

	if (event_id == NULL || event_id[0] == '\0' || strlen(event_id) > MAX_SHORT_STRING)
		return NULL;
	return event_id;
}

/*
 * The trace that a handler's own events continue
 */

/* NULL where there is none; not checked. */
const char *
message_traceparent(void)
{
	if (current == NULL)
		return NULL;
	return object_string(object_member(current->message, "headers"), "traceparent");
}

const char *
message_trace_id(void)
{
	const char *trace_id;

	if (current == NULL)
		return NULL;
	trace_id = envelope_string(current->envelope, "header", "traceId");
	if (trace_id == NULL || trace_id[0] == '\0' || strlen(trace_id) > MAX_SHORT_STRING)
		return NULL;
	return trace_id;
}

/*
 * message()
 */

static void
push_string(JsonbParseState **state, const char *key, const char *string)
{
	JsonbValue	value;

	value.type = jbvString;
	value.val.string.val = unconstify(char *, key);
	value.val.string.len = strlen(key);
	pushJsonbValue(state, WJB_KEY, &value);
	value.val.string.val = unconstify(char *, string);
	value.val.string.len = strlen(string);
	pushJsonbValue(state, WJB_VALUE, &value);
}

/* The transport's keys as they are. */
static void
push_members(JsonbParseState **state, Jsonb *object)
{
	JsonbIterator *it = JsonbIteratorInit(&object->root);
	JsonbIteratorToken token;
	JsonbValue	value;

	/* the object's begin and end are the caller's */
	(void) JsonbIteratorNext(&it, &value, true);
	while ((token = JsonbIteratorNext(&it, &value, true)) == WJB_KEY ||
		   token == WJB_VALUE)
		(void) pushJsonbValue(state, token, &value);
}

/* message() RETURNS jsonb */
Datum
acme_outbox_message(PG_FUNCTION_ARGS)
{
	JsonbParseState *state = NULL;
	JsonbValue *result;

	if (current == NULL)
		PG_RETURN_NULL();
	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	if (current->message != NULL && JB_ROOT_IS_OBJECT(current->message))
		push_members(&state, current->message);
	push_string(&state, "consumer", current->consumer);
	push_string(&state, "event_id", current->event_id);
	result = pushJsonbValue(&state, WJB_END_OBJECT, NULL);
	PG_RETURN_JSONB_P(JsonbValueToJsonb(result));
}
