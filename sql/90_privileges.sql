/*
 * Who may do what: one matrix, and the functions that apply it.
 *
 * PUBLIC gets nothing.  Roles are not made here: they belong to the cluster, and
 * outlive the extension.
 */

REVOKE ALL ON ALL TABLES IN SCHEMA acme_outbox FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA acme_outbox FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA acme_outbox FROM PUBLIC;

/* By name, as relay_grant; usage_given: the schema's USAGE came with the grant. */
CREATE TABLE acme_outbox.consumer_grant (
	role_name   name NOT NULL,
	schema      name NOT NULL REFERENCES acme_outbox.inbox,
	usage_given boolean NOT NULL,
	PRIMARY KEY (role_name, schema)
);
COMMENT ON TABLE acme_outbox.consumer_grant IS
	'which role consumes with which inbox; see grant_consumer()';

/*
 * privilege_matrix() returns setof (kind, privilege, object)
 *
 *	 owner: of an inbox that requires tenants, for the policies of its tables.
 */
CREATE FUNCTION acme_outbox.privilege_matrix()
RETURNS TABLE (kind text, privilege text, object text)
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
	SELECT f.kind, 'EXECUTE', 'FUNCTION ' || p.oid::regprocedure
	FROM (VALUES
		('publisher', 'publish'),
		('publisher', 'enqueue_job'),
		('publisher', 'envelope'),
		('publisher', 'publish_row'),
		('publisher', 'context'),
		('publisher', 'trace_id'),
		('publisher', 'traceparent'),
		('relay', 'contract_version'),
		('relay', 'relay_acquire'),
		('relay', 'relay_renew'),
		('relay', 'relay_release'),
		('relay', 'claim'),
		('relay', 'claim_failed'),
		('relay', 'settle'),
		('relay', 'run_due_duties'),
		('relay', 'backlog'),
		('consumer', 'context'),
		('consumer', 'trace_id'),
		('consumer', 'traceparent'),
		('consumer', 'tenant'),
		('consumer', 'tenant_visible'),
		('consumer', 'message'),
		('consumer', 'inbox_accept'),
		('consumer', 'inbox_record'),
		('consumer', 'inbox_attempt'),
		('consumer', 'inbox_process'),
		('consumer', 'inbox_try_process'),
		('consumer', 'inbox_try_process_batch'),
		('consumer', 'park'),
		('consumer', 'park_message'),
		('consumer', 'idempotency_begin'),
		('consumer', 'idempotency_complete'),
		('consumer', 'idempotency_abandon'),
		('consumer', 'project'),
		('consumer', 'project_delete'),
		('consumer', 'contract_version'),
		('owner', 'tenant'),
		('owner', 'tenant_visible'),
		('monitor', 'contract_version'),
		('monitor', 'backlog'),
		('monitor', 'parked_rows'),
		('monitor', 'parked_counts'),
		('monitor', 'metrics'),
		('monitor', 'metrics_text'),
		('monitor', 'consumed'),
		('monitor', 'worker_slots'),
		('monitor', 'worker_preloaded'),
		('operator', 'contract_version'),
		('operator', 'retry'),
		('operator', 'retry_failed'),
		('operator', 'cancel'),
		('operator', 'pause'),
		('operator', 'resume'),
		('operator', 'republish'),
		('operator', 'archive'),
		('operator', 'verify'),
		('operator', 'backlog'),
		('operator', 'stuck'),
		('operator', 'replay_parked'),
		('operator', 'replay_parked_where'),
		('operator', 'discard_parked'),
		('operator', 'parked_rows'),
		('operator', 'parked_counts'),
		('operator', 'worker_slots'),
		('operator', 'worker_preloaded')
	) AS f (kind, name)
	JOIN pg_proc p ON p.proname = f.name
		AND p.pronamespace = 'acme_outbox'::regnamespace
	UNION ALL
	SELECT k.kind, 'USAGE', 'SCHEMA acme_outbox'
	FROM (VALUES ('publisher'), ('relay'), ('consumer'), ('owner'), ('monitor'),
				 ('operator'))
		AS k (kind)
	UNION ALL
	VALUES ('relay', 'SELECT', 'TABLE acme_outbox.outbox_backlog'),
		('consumer', 'SELECT', 'TABLE acme_outbox.inbox'),
		('consumer', 'SELECT', 'TABLE acme_outbox.redaction_rule'),
		('monitor', 'SELECT', 'TABLE acme_outbox.outbox_backlog'),
		('monitor', 'SELECT', 'TABLE acme_outbox.parked_open'),
		('monitor', 'SELECT', 'TABLE acme_outbox.consumed_versions'),
		('monitor', 'SELECT', 'TABLE acme_outbox.worker_status'),
		('operator', 'SELECT', 'TABLE acme_outbox.outbox_backlog'),
		('operator', 'SELECT', 'TABLE acme_outbox.outbox_stuck'),
		('operator', 'SELECT', 'TABLE acme_outbox.outbox_failed'),
		('operator', 'SELECT', 'TABLE acme_outbox.outbox_pause'),
		('operator', 'SELECT', 'TABLE acme_outbox.operator_action'),
		('operator', 'SELECT', 'TABLE acme_outbox.parked_open'),
		('operator', 'SELECT', 'TABLE acme_outbox.worker_status'),
		-- all but the payload and the headers
		('operator', 'SELECT (origin, id, event_id, status, hold_reason, entry_type, event_name, topic, routing_key, message_key, tenant_id, trace_id, traceparent, created_at, next_attempt_at, published_at, failed_at, attempts, holds, lanes_done, redacted, claim_id, claimed_by, claimed_at, last_error)', 'TABLE acme_outbox.outbox')
$$;
ALTER FUNCTION acme_outbox.privilege_matrix() STABLE;
COMMENT ON FUNCTION acme_outbox.privilege_matrix() IS
	'what grant_publisher, grant_relay, grant_consumer, grant_monitor and grant_operator give';

CREATE FUNCTION acme_outbox.apply_privileges(role_name name, wanted_kind text, granting boolean)
RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	item record;
BEGIN
	IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role_name) THEN
		RAISE EXCEPTION 'role "%" does not exist', role_name
			USING ERRCODE = 'undefined_object',
				  HINT = 'Create it first: CREATE ROLE ' || quote_ident(role_name) || ' LOGIN';
	END IF;
	FOR item IN SELECT * FROM acme_outbox.privilege_matrix() m WHERE m.kind = wanted_kind LOOP
		IF granting THEN
			EXECUTE format('GRANT %s ON %s TO %I', item.privilege, item.object, role_name);
		ELSE
			EXECUTE format('REVOKE %s ON %s FROM %I', item.privilege, item.object, role_name);
		END IF;
	END LOOP;
END
$$;
COMMENT ON FUNCTION acme_outbox.apply_privileges(name, text, boolean) IS
	'grant or revoke one kind of the privilege matrix';

/*
 * granted_directly(role_name, function) returns boolean: EXECUTE given to the role itself,
 * not to one that it is a member of.
 */
CREATE FUNCTION acme_outbox.granted_directly(role_name name, function text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
	SELECT EXISTS (
		SELECT FROM pg_proc p, aclexplode(p.proacl) a, pg_roles r
		WHERE p.oid = function::regprocedure AND a.grantee = r.oid AND r.rolname = role_name)
$$;
COMMENT ON FUNCTION acme_outbox.granted_directly(name, text) IS
	'whether a role itself was granted a function';

/*
 * held_kinds(role_name) returns text[]: what a role itself was granted.  Of kinds that no
 * table remembers, one function of their own tells.
 */
CREATE FUNCTION acme_outbox.held_kinds(role_name name) RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
	SELECT array_remove(ARRAY[
		CASE WHEN acme_outbox.granted_directly(role_name, 'acme_outbox.publish_row()')
			 THEN 'publisher' END,
		CASE WHEN EXISTS (SELECT FROM acme_outbox.relay_grant g
						  WHERE g.role_name = held_kinds.role_name) THEN 'relay' END,
		CASE WHEN EXISTS (SELECT FROM acme_outbox.consumer_grant g
						  WHERE g.role_name = held_kinds.role_name) THEN 'consumer' END,
		CASE WHEN EXISTS (SELECT FROM acme_outbox.inbox i
						  WHERE i.owner = held_kinds.role_name AND i.tenancy = 'required')
			 THEN 'owner' END,
		CASE WHEN acme_outbox.granted_directly(role_name, 'acme_outbox.parked_counts()')
			 THEN 'monitor' END,
		CASE WHEN acme_outbox.granted_directly(role_name, 'acme_outbox.stuck()')
			 THEN 'operator' END], NULL)
$$;
COMMENT ON FUNCTION acme_outbox.held_kinds(name) IS
	'kinds of the privilege matrix that a role has';

/* What the kinds share, the schema's USAGE above all, stays while the role has another. */
CREATE FUNCTION acme_outbox.revoke_kind(role_name name, unwanted_kind text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	held text[];
	kind text;
BEGIN
	/* of a role that is gone, only what our tables remember was left */
	IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role_name) THEN
		RETURN;
	END IF;
	held := array_remove(acme_outbox.held_kinds(role_name), unwanted_kind);
	PERFORM acme_outbox.apply_privileges(role_name, unwanted_kind, false);
	FOREACH kind IN ARRAY held LOOP
		PERFORM acme_outbox.apply_privileges(role_name, kind, true);
	END LOOP;
END
$$;
COMMENT ON FUNCTION acme_outbox.revoke_kind(name, text) IS
	'take one kind of the privilege matrix back, and leave the others whole';

/*
 * grant_publisher(role_name), revoke_publisher(role_name)
 *
 *	 Lets a service publish.  Whom its events come from is set apart:
 *	 ALTER ROLE service SET acme_outbox.origin = 'service'.
 *	 Errors: 42704 unknown role.  Safe to repeat.
 */
CREATE FUNCTION acme_outbox.grant_publisher(role_name name) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$ SELECT acme_outbox.apply_privileges(role_name, 'publisher', true) $$;
COMMENT ON FUNCTION acme_outbox.grant_publisher(name) IS 'let a role publish';

CREATE FUNCTION acme_outbox.revoke_publisher(role_name name) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$ SELECT acme_outbox.revoke_kind(role_name, 'publisher') $$;
COMMENT ON FUNCTION acme_outbox.revoke_publisher(name) IS 'take the right to publish back';

/*
 * grant_relay(role_name, origin), revoke_relay(role_name, origin)
 *
 *	 Lets a role be the relay of an origin, and of no other.
 *	 Errors: 42704 unknown role.  Safe to repeat.
 */
CREATE FUNCTION acme_outbox.grant_relay(role_name name, origin text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF coalesce(origin, '') = '' THEN
		RAISE EXCEPTION 'origin is %', CASE WHEN origin IS NULL THEN 'null' ELSE 'empty' END
			USING ERRCODE = 'OX009',
				  HINT = 'It is the service whose events the role may relay, as acme_outbox.origin names it.';
	END IF;
	PERFORM acme_outbox.apply_privileges(role_name, 'relay', true);
	INSERT INTO acme_outbox.relay_grant VALUES (role_name, origin) ON CONFLICT DO NOTHING;
END
$$;
COMMENT ON FUNCTION acme_outbox.grant_relay(name, text) IS 'let a role relay an origin';

CREATE FUNCTION acme_outbox.revoke_relay(role_name name, origin text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	DELETE FROM acme_outbox.relay_grant g
		WHERE g.role_name = revoke_relay.role_name AND g.origin = revoke_relay.origin;
	IF NOT EXISTS (SELECT FROM acme_outbox.relay_grant g WHERE g.role_name = revoke_relay.role_name) THEN
		PERFORM acme_outbox.revoke_kind(role_name, 'relay');
	END IF;
END
$$;
COMMENT ON FUNCTION acme_outbox.revoke_relay(name, text) IS
	'take the right to relay an origin back';

/*
 * inbox_privileges(schema) returns setof (privilege, object)
 *
 *	 What a consumer needs of an inbox's own tables.  It cannot change or delete what
 *	 was parked, nor write the journal of resolutions.
 */
CREATE FUNCTION acme_outbox.inbox_privileges(schema name)
RETURNS TABLE (privilege text, object text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
	SELECT t.privilege, format('TABLE %I.%I', schema, t.name)
	FROM (VALUES
		('SELECT, INSERT, DELETE', 'processed_event'),
		('SELECT, INSERT', 'parked_message'),
		('SELECT, INSERT, UPDATE', 'consumer_attempt'),
		('SELECT, INSERT, UPDATE, DELETE', 'idempotency_key')
	) AS t (privilege, name)
	WHERE to_regclass(format('%I.%I', schema, t.name)) IS NOT NULL
$$;
COMMENT ON FUNCTION acme_outbox.inbox_privileges(name) IS
	'what grant_consumer gives on an inbox''s tables';

/*
 * grant_consumer(role_name, schema), revoke_consumer(role_name, schema)
 *
 *	 Lets a role handle messages with the inbox of a schema.  Which inbox its sessions
 *	 use is set apart: ALTER ROLE service SET acme_outbox.inbox_schema = 'schema'.
 *	 Errors: OX201 no such inbox; 42704 unknown role.  Safe to repeat.
 */
CREATE FUNCTION acme_outbox.grant_consumer(role_name name, schema name) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	item    record;
	had_use boolean;
BEGIN
	IF NOT EXISTS (SELECT FROM acme_outbox.inbox i WHERE i.schema = grant_consumer.schema) THEN
		RAISE EXCEPTION 'schema "%" has no inbox', schema
			USING ERRCODE = 'OX201', HINT = 'SELECT acme_outbox.create_inbox(''schema'')';
	END IF;
	PERFORM acme_outbox.apply_privileges(role_name, 'consumer', true);
	had_use := schema = 'acme_outbox' OR has_schema_privilege(role_name, schema, 'USAGE');
	IF NOT had_use THEN
		EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', schema, role_name);
	END IF;
	FOR item IN SELECT * FROM acme_outbox.inbox_privileges(schema) LOOP
		EXECUTE format('GRANT %s ON %s TO %I', item.privilege, item.object, role_name);
	END LOOP;
	INSERT INTO acme_outbox.consumer_grant VALUES (role_name, schema, NOT had_use)
		ON CONFLICT DO NOTHING;
END
$$;
COMMENT ON FUNCTION acme_outbox.grant_consumer(name, name) IS
	'let a role handle messages with an inbox';

CREATE FUNCTION acme_outbox.revoke_consumer(role_name name, schema name) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	item  record;
	given boolean;
BEGIN
	FOR item IN SELECT * FROM acme_outbox.inbox_privileges(schema) LOOP
		EXECUTE format('REVOKE %s ON %s FROM %I', item.privilege, item.object, role_name);
	END LOOP;
	DELETE FROM acme_outbox.consumer_grant g
		WHERE g.role_name = revoke_consumer.role_name AND g.schema = revoke_consumer.schema
		RETURNING g.usage_given INTO given;
	IF given AND to_regnamespace(quote_ident(schema)) IS NOT NULL THEN
		EXECUTE format('REVOKE USAGE ON SCHEMA %I FROM %I', schema, role_name);
	END IF;
	IF NOT EXISTS (SELECT FROM acme_outbox.consumer_grant g
				   WHERE g.role_name = revoke_consumer.role_name) THEN
		PERFORM acme_outbox.revoke_kind(role_name, 'consumer');
	END IF;
END
$$;
COMMENT ON FUNCTION acme_outbox.revoke_consumer(name, name) IS
	'take the right to handle messages with an inbox back';

/*
 * grant_monitor(role_name), revoke_monitor(role_name)
 *
 *	 Lets a role watch: backlog, parked messages, worker.  No payload, headers or error
 *	 text.  Errors: 42704 unknown role.  Safe to repeat.
 */
CREATE FUNCTION acme_outbox.grant_monitor(role_name name) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$ SELECT acme_outbox.apply_privileges(role_name, 'monitor', true) $$;
COMMENT ON FUNCTION acme_outbox.grant_monitor(name) IS 'let a role watch';

CREATE FUNCTION acme_outbox.revoke_monitor(role_name name) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$ SELECT acme_outbox.revoke_kind(role_name, 'monitor') $$;
COMMENT ON FUNCTION acme_outbox.revoke_monitor(name) IS 'take the right to watch back';

/*
 * grant_operator(role_name), revoke_operator(role_name)
 *
 *	 Lets a role mend what does not go on: see it with its error texts, retry, cancel,
 *	 pause, republish and archive, replay and discard what was parked.  No payload or
 *	 headers, and no change of a table by hand.
 *	 Errors: 42704 unknown role.  Safe to repeat.
 */
CREATE FUNCTION acme_outbox.grant_operator(role_name name) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$ SELECT acme_outbox.apply_privileges(role_name, 'operator', true) $$;
COMMENT ON FUNCTION acme_outbox.grant_operator(name) IS 'let a role call what operators call';

CREATE FUNCTION acme_outbox.revoke_operator(role_name name) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$ SELECT acme_outbox.revoke_kind(role_name, 'operator') $$;
COMMENT ON FUNCTION acme_outbox.revoke_operator(name) IS 'take what operators call back';

REVOKE ALL ON TABLE acme_outbox.consumer_grant FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA acme_outbox FROM PUBLIC;
