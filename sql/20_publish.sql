/*
 * Publishing (docs/design.md section 7).  Each function has an overload for a payload
 * as text, json and jsonb, so that literals, varchar, json and jsonb resolve without a
 * cast from any driver.
 */

/*
 * publish(topic, routing_key, aggregate, event_name, payload, ...) returns uuid
 *
 *	 Stores an event in the caller's transaction; it reaches the broker if and only
 *	 if that transaction commits.  P 1, G 4.4.
 *
 *	 topic           exchange, 1-255 bytes
 *	 routing_key     at most 255 bytes; NULL or '' for fanout
 *	 aggregate       id of what the event is about, and the key within which order is
 *	                 kept; at most 255 bytes; NULL: unordered
 *	 event_name      PascalCase or dotted lower case, past tense
 *	 payload         any JSON, at most acme_outbox.max_payload_bytes
 *	 kind            EVENT or COMMAND
 *	 trace_id        correlation id; else the traceparent's, else a new one (G 13.3)
 *	 traceparent     W3C trace context; else acme_outbox.traceparent
 *	 schema_version  semantic version of the payload (G 8)
 *	 locale          language tag
 *	 headers         JSON object, sent as AMQP headers
 *	 tenant_id       kept with the entry
 *	 not_before      not sent earlier; NULL or past: at once
 *	 event_id        the caller's own id; then publishing the same again is a no-op
 *	 options         none yet
 *
 *	 Result: the event id, also the message id at the broker.
 *	 Errors: OX001-OX011 (docs/errors.md), before anything is stored.
 *	 Safe to repeat: only with an event_id.
 */
CREATE FUNCTION acme_outbox.publish(
	topic text, routing_key text, aggregate text, event_name text, payload text,
	kind text DEFAULT 'EVENT', trace_id text DEFAULT NULL, traceparent text DEFAULT NULL,
	schema_version text DEFAULT '1.0.0', locale text DEFAULT NULL,
	headers jsonb DEFAULT NULL, tenant_id text DEFAULT NULL,
	not_before timestamptz DEFAULT NULL, event_id uuid DEFAULT NULL,
	options jsonb DEFAULT '{}')
RETURNS uuid
LANGUAGE C VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'acme_outbox_publish';

CREATE FUNCTION acme_outbox.publish(
	topic text, routing_key text, aggregate text, event_name text, payload json,
	kind text DEFAULT 'EVENT', trace_id text DEFAULT NULL, traceparent text DEFAULT NULL,
	schema_version text DEFAULT '1.0.0', locale text DEFAULT NULL,
	headers jsonb DEFAULT NULL, tenant_id text DEFAULT NULL,
	not_before timestamptz DEFAULT NULL, event_id uuid DEFAULT NULL,
	options jsonb DEFAULT '{}')
RETURNS uuid
LANGUAGE C VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'acme_outbox_publish';

CREATE FUNCTION acme_outbox.publish(
	topic text, routing_key text, aggregate text, event_name text, payload jsonb,
	kind text DEFAULT 'EVENT', trace_id text DEFAULT NULL, traceparent text DEFAULT NULL,
	schema_version text DEFAULT '1.0.0', locale text DEFAULT NULL,
	headers jsonb DEFAULT NULL, tenant_id text DEFAULT NULL,
	not_before timestamptz DEFAULT NULL, event_id uuid DEFAULT NULL,
	options jsonb DEFAULT '{}')
RETURNS uuid
LANGUAGE C VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'acme_outbox_publish_jsonb';

COMMENT ON FUNCTION acme_outbox.publish(text, text, text, text, text, text, text, text, text, text, jsonb, text, timestamptz, uuid, jsonb) IS
	'store an event in this transaction; returns its id (payload as text, bytes kept)';
COMMENT ON FUNCTION acme_outbox.publish(text, text, text, text, json, text, text, text, text, text, jsonb, text, timestamptz, uuid, jsonb) IS
	'store an event in this transaction; returns its id (payload as json, bytes kept)';
COMMENT ON FUNCTION acme_outbox.publish(text, text, text, text, jsonb, text, text, text, text, text, jsonb, text, timestamptz, uuid, jsonb) IS
	'store an event in this transaction; returns its id (payload as jsonb)';

/*
 * enqueue_job(topic, routing_key, job_name, payload, ...) returns uuid
 *
 *	 The same for a background job (P 1: entryType JOB): a COMMAND to a worker queue.
 *	 aggregate is optional: jobs of one aggregate keep their order.  The other
 *	 parameters, errors and repeatability are publish's.
 */
CREATE FUNCTION acme_outbox.enqueue_job(
	topic text, routing_key text, job_name text, payload text,
	aggregate text DEFAULT NULL, trace_id text DEFAULT NULL, traceparent text DEFAULT NULL,
	schema_version text DEFAULT '1.0.0', locale text DEFAULT NULL,
	headers jsonb DEFAULT NULL, tenant_id text DEFAULT NULL,
	not_before timestamptz DEFAULT NULL, event_id uuid DEFAULT NULL,
	options jsonb DEFAULT '{}')
RETURNS uuid
LANGUAGE C VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'acme_outbox_enqueue_job';

CREATE FUNCTION acme_outbox.enqueue_job(
	topic text, routing_key text, job_name text, payload json,
	aggregate text DEFAULT NULL, trace_id text DEFAULT NULL, traceparent text DEFAULT NULL,
	schema_version text DEFAULT '1.0.0', locale text DEFAULT NULL,
	headers jsonb DEFAULT NULL, tenant_id text DEFAULT NULL,
	not_before timestamptz DEFAULT NULL, event_id uuid DEFAULT NULL,
	options jsonb DEFAULT '{}')
RETURNS uuid
LANGUAGE C VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'acme_outbox_enqueue_job';

CREATE FUNCTION acme_outbox.enqueue_job(
	topic text, routing_key text, job_name text, payload jsonb,
	aggregate text DEFAULT NULL, trace_id text DEFAULT NULL, traceparent text DEFAULT NULL,
	schema_version text DEFAULT '1.0.0', locale text DEFAULT NULL,
	headers jsonb DEFAULT NULL, tenant_id text DEFAULT NULL,
	not_before timestamptz DEFAULT NULL, event_id uuid DEFAULT NULL,
	options jsonb DEFAULT '{}')
RETURNS uuid
LANGUAGE C VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'acme_outbox_enqueue_job_jsonb';

COMMENT ON FUNCTION acme_outbox.enqueue_job(text, text, text, text, text, text, text, text, text, jsonb, text, timestamptz, uuid, jsonb) IS
	'store a job in this transaction; returns its id (payload as text, bytes kept)';
COMMENT ON FUNCTION acme_outbox.enqueue_job(text, text, text, json, text, text, text, text, text, jsonb, text, timestamptz, uuid, jsonb) IS
	'store a job in this transaction; returns its id (payload as json, bytes kept)';
COMMENT ON FUNCTION acme_outbox.enqueue_job(text, text, text, jsonb, text, text, text, text, text, jsonb, text, timestamptz, uuid, jsonb) IS
	'store a job in this transaction; returns its id (payload as jsonb)';

/*
 * envelope(aggregate, event_name, payload, ...) returns text
 *
 *	 Renders the message that publish would store (G 3), and stores nothing.
 *	 Parameters and errors as publish's.  Safe to repeat; ids and times differ.
 */
CREATE FUNCTION acme_outbox.envelope(
	aggregate text, event_name text, payload text, kind text DEFAULT 'EVENT',
	trace_id text DEFAULT NULL, schema_version text DEFAULT '1.0.0',
	locale text DEFAULT NULL, event_id uuid DEFAULT NULL)
RETURNS text LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_envelope';

CREATE FUNCTION acme_outbox.envelope(
	aggregate text, event_name text, payload json, kind text DEFAULT 'EVENT',
	trace_id text DEFAULT NULL, schema_version text DEFAULT '1.0.0',
	locale text DEFAULT NULL, event_id uuid DEFAULT NULL)
RETURNS text LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_envelope';

CREATE FUNCTION acme_outbox.envelope(
	aggregate text, event_name text, payload jsonb, kind text DEFAULT 'EVENT',
	trace_id text DEFAULT NULL, schema_version text DEFAULT '1.0.0',
	locale text DEFAULT NULL, event_id uuid DEFAULT NULL)
RETURNS text LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_envelope_jsonb';

COMMENT ON FUNCTION acme_outbox.envelope(text, text, text, text, text, text, text, uuid) IS
	'render the message that publish() would store (payload as text)';
COMMENT ON FUNCTION acme_outbox.envelope(text, text, json, text, text, text, text, uuid) IS
	'render the message that publish() would store (payload as json)';
COMMENT ON FUNCTION acme_outbox.envelope(text, text, jsonb, text, text, text, text, uuid) IS
	'render the message that publish() would store (payload as jsonb)';

/*
 * publish_row('topic', 'routing key', 'EventName', 'id_column') returns trigger
 *
 *	 For AFTER ... FOR EACH ROW triggers: publishes the changed row (the old one of a
 *	 DELETE) as payload, with the named column as aggregate.
 *	 Errors: as publish; 42703 for an unknown id column; 39P01 for another kind of
 *	 trigger.
 */
CREATE FUNCTION acme_outbox.publish_row() RETURNS trigger
LANGUAGE C VOLATILE SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'acme_outbox_publish_row';
COMMENT ON FUNCTION acme_outbox.publish_row() IS
	'trigger: publish the changed row; arguments: topic, routing key, event name, id column';

/*
 * checked_max_rows(max_rows) returns integer: the same, if it is at least 1.
 *
 *	 For a LIMIT that a caller gave.  NULL: no bound.
 *	 Errors: 22023.  Safe to repeat.
 */
CREATE FUNCTION acme_outbox.checked_max_rows(max_rows integer) RETURNS integer
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'acme_outbox_checked_max_rows';
COMMENT ON FUNCTION acme_outbox.checked_max_rows(integer) IS
	'the argument, if it is a bound';

/*
 * peek(max_rows, origin) returns setof: what would be sent next, in publish order.
 *
 *	 max_rows  rows at most; NULL: all
 *	 origin    of this origin only; NULL: of all
 *	 Errors: 22023 max_rows below 1.  Reads only; safe to repeat.
 */
CREATE FUNCTION acme_outbox.peek(max_rows integer DEFAULT 10, origin text DEFAULT NULL)
RETURNS TABLE (origin text, id bigint, event_id uuid, event_name text, topic text,
			   routing_key text, message_key text, hold_reason acme_outbox.hold_reason,
			   next_attempt_at timestamptz, envelope text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
	SELECT e.origin, e.id, e.event_id, e.event_name, e.topic, e.routing_key,
		   e.message_key, e.hold_reason, e.next_attempt_at, e.payload
	FROM acme_outbox.outbox_entry e
	WHERE e.status = 'PENDING' AND (peek.origin IS NULL OR e.origin = peek.origin)
	ORDER BY e.origin, e.id
	LIMIT acme_outbox.checked_max_rows(max_rows)
$$;
COMMENT ON FUNCTION acme_outbox.peek(integer, text) IS 'what would be sent next';
