/*
 * Redaction (P 5.1; docs/design.md 6.1): what an event may carry to those who need it,
 * and must not leave behind.
 */

/*
 * check_redaction_rule(event_name, path) returns boolean: true, or error OX004 for the
 * name, OX106 with a position for the path.
 */
CREATE FUNCTION acme_outbox.check_redaction_rule(event_name text, path text) RETURNS boolean
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'acme_outbox_check_redaction_rule';
COMMENT ON FUNCTION acme_outbox.check_redaction_rule(text, text) IS
	'true if a redaction rule can be applied, else an error';

CREATE TABLE acme_outbox.redaction_rule (
	event_name text NOT NULL,
	path       text NOT NULL,
	PRIMARY KEY (event_name, path),
	CHECK (acme_outbox.check_redaction_rule(event_name, path))
);
COMMENT ON TABLE acme_outbox.redaction_rule IS
	'what is cut out of an event for the audit lane and dead letters, and once it is published';
COMMENT ON COLUMN acme_outbox.redaction_rule.path IS
	'dotted, from the envelope''s body: payload.token, payload.cards.*.number, payload."a.b"';

CREATE FUNCTION acme_outbox.redaction_rule_changed() RETURNS trigger
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_redaction_rule_changed';
COMMENT ON FUNCTION acme_outbox.redaction_rule_changed() IS
	'trigger: sessions read the rules anew';

CREATE TRIGGER redaction_rule_changed
	AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON acme_outbox.redaction_rule
	FOR EACH STATEMENT EXECUTE FUNCTION acme_outbox.redaction_rule_changed();
/* also where rows arrive by replication */
ALTER TABLE acme_outbox.redaction_rule ENABLE ALWAYS TRIGGER redaction_rule_changed;

/*
 * redact_event(event_name, VARIADIC paths) returns bigint
 * unredact_event(event_name, VARIADIC paths) returns bigint
 *
 *	 Adds or takes away rules of an event.  P 5.1.
 *	 paths  from the envelope's body: 'payload.token', 'payload.cards.*.number'
 *	 Result: rules that were added, or were there to be taken away.
 *	 Errors: OX004 event name; OX106 path, with the position; 23502 null.
 *	 For what is claimed or settled after the commit.  What was published before keeps
 *	 its payload until its retention ends.  Safe to repeat.
 */
CREATE FUNCTION acme_outbox.redact_event(event_name text, VARIADIC paths text[])
RETURNS bigint
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
	WITH added AS (
		INSERT INTO acme_outbox.redaction_rule (event_name, path)
		SELECT redact_event.event_name, p FROM unnest(paths) p
		ON CONFLICT DO NOTHING
		RETURNING 1
	)
	SELECT acme_outbox.record_action('redact_event',
		jsonb_build_object('event_name', event_name, 'paths', paths),
		(SELECT count(*) FROM added))
$$;
COMMENT ON FUNCTION acme_outbox.redact_event(text, text[]) IS
	'have parts of an event cut out for the audit lane and once it is published';

CREATE FUNCTION acme_outbox.unredact_event(event_name text, VARIADIC paths text[])
RETURNS bigint
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
	WITH gone AS (
		DELETE FROM acme_outbox.redaction_rule r
		WHERE r.event_name = unredact_event.event_name AND r.path = ANY (paths)
		RETURNING 1
	)
	SELECT acme_outbox.record_action('unredact_event',
		jsonb_build_object('event_name', event_name, 'paths', paths),
		(SELECT count(*) FROM gone))
$$;
COMMENT ON FUNCTION acme_outbox.unredact_event(text, text[]) IS
	'take redaction rules of an event away; returns how many';

/*
 * redacted(event_name, envelope) returns text
 *
 *	 The envelope as the audit lane gets it: to try a rule, and to apply it to entries
 *	 that were published before.  Without a rule the envelope itself.
 *	 Safe to repeat: reads only.
 */
CREATE FUNCTION acme_outbox.redacted(event_name text, envelope text) RETURNS text
LANGUAGE C STABLE STRICT SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'acme_outbox_redacted';
COMMENT ON FUNCTION acme_outbox.redacted(text, text) IS
	'an envelope without what the event''s redaction rules name';
