/*
 * Audit: what happened on the platform, as it was told.  P 5.1.
 *
 * Relays publish a second copy of each message to acme.audit-feed, without the secrets
 * that redaction rules name.  That copy is kept whole in new_state, for good.
 */

SET client_min_messages = warning;
SET ROLE audit_owner;

CREATE TABLE audit.audit_entry (
	entry_id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
	happened_at timestamptz NOT NULL,
	event_id    text NOT NULL UNIQUE,
	event_name  text NOT NULL,
	origin      text NOT NULL,
	aggregate   text,
	tenant_id   text,
	trace_id    text NOT NULL,
	routing_key text,
	new_state   jsonb NOT NULL
);
CREATE INDEX audit_entry_aggregate ON audit.audit_entry (aggregate, happened_at);
CREATE INDEX audit_entry_trace ON audit.audit_entry (trace_id, happened_at);
COMMENT ON TABLE audit.audit_entry IS 'every message of the platform; append-only';
COMMENT ON COLUMN audit.audit_entry.new_state IS 'the message''s audit copy: redacted';

/*
 * on_event(message) returns void
 *
 *	 Handler of audit.feed.
 *	 Safe to repeat: what the inbox has forgotten is known by its event id.
 */
CREATE FUNCTION audit.on_event(message jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO audit.audit_entry (happened_at, event_id, event_name, origin, aggregate,
			tenant_id, trace_id, routing_key, new_state)
		VALUES ((message #>> '{header,timestamp}')::timestamptz,
				message #>> '{header,eventId}', message #>> '{body,eventName}',
				message #>> '{header,origin}', message #>> '{body,aggregate}',
				message #>> '{body,payload,tenantId}', message #>> '{header,traceId}',
				acme_outbox.message() ->> 'routing_key', message)
		ON CONFLICT ON CONSTRAINT audit_entry_event_id_key DO NOTHING;
END
$$;
COMMENT ON FUNCTION audit.on_event(jsonb) IS 'handler: keep an audit copy';

/* history(trace_id): all that came of one request, in order. */
CREATE FUNCTION audit.history(trace_id text)
RETURNS TABLE (happened_at timestamptz, origin text, event_name text, aggregate text)
LANGUAGE sql STABLE AS $$
	SELECT e.happened_at, e.origin, e.event_name, e.aggregate
	FROM audit.audit_entry e WHERE e.trace_id = history.trace_id
	ORDER BY e.happened_at, e.event_id
$$;
COMMENT ON FUNCTION audit.history(text) IS 'what came of one request, over all services';

/* Nobody who works here may change what was recorded. */
GRANT SELECT, INSERT ON audit.audit_entry TO audit_app;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA audit TO audit_app;

RESET ROLE;
SELECT acme_outbox.register_handler('audit.feed', 'audit.on_event', 'audit_app', 'audit');
