/*
 * Who may do what: one matrix, and the functions that apply it.
 *
 * PUBLIC gets nothing.  Roles are not made here: they belong to the cluster, and
 * outlive the extension.
 */

REVOKE ALL ON ALL TABLES IN SCHEMA acme_outbox FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA acme_outbox FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA acme_outbox FROM PUBLIC;

/* privilege_matrix() returns setof (grantee_kind, privilege, object) */
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
		('relay', 'contract_version'),
		('relay', 'relay_acquire'),
		('relay', 'relay_renew'),
		('relay', 'relay_release'),
		('relay', 'claim'),
		('relay', 'claim_failed'),
		('relay', 'settle'),
		('relay', 'run_due_duties'),
		('relay', 'backlog')
	) AS f (kind, name)
	JOIN pg_proc p ON p.proname = f.name
		AND p.pronamespace = 'acme_outbox'::regnamespace
	UNION ALL
	SELECT k.kind, 'USAGE', 'SCHEMA acme_outbox'
	FROM (VALUES ('publisher'), ('relay')) AS k (kind)
	UNION ALL
	VALUES ('relay', 'SELECT', 'TABLE acme_outbox.outbox_backlog')
$$;
ALTER FUNCTION acme_outbox.privilege_matrix() STABLE;
COMMENT ON FUNCTION acme_outbox.privilege_matrix() IS
	'what grant_publisher and grant_relay give';

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

/* The schema's USAGE stays while the role has the other kind. */
CREATE FUNCTION acme_outbox.revoke_publisher(role_name name) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM acme_outbox.apply_privileges(role_name, 'publisher', false);
	IF EXISTS (SELECT FROM acme_outbox.relay_grant g WHERE g.role_name = revoke_publisher.role_name) THEN
		PERFORM acme_outbox.apply_privileges(role_name, 'relay', true);
	END IF;
END
$$;
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
	PERFORM acme_outbox.apply_privileges(role_name, 'relay', true);
	INSERT INTO acme_outbox.relay_grant VALUES (role_name, origin) ON CONFLICT DO NOTHING;
END
$$;
COMMENT ON FUNCTION acme_outbox.grant_relay(name, text) IS 'let a role relay an origin';

CREATE FUNCTION acme_outbox.revoke_relay(role_name name, origin text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	publishes boolean := has_function_privilege(role_name,
		'acme_outbox.publish_row()', 'EXECUTE');
BEGIN
	DELETE FROM acme_outbox.relay_grant g
		WHERE g.role_name = revoke_relay.role_name AND g.origin = revoke_relay.origin;
	IF EXISTS (SELECT FROM acme_outbox.relay_grant g WHERE g.role_name = revoke_relay.role_name) THEN
		RETURN;
	END IF;
	PERFORM acme_outbox.apply_privileges(role_name, 'relay', false);
	IF publishes THEN
		PERFORM acme_outbox.apply_privileges(role_name, 'publisher', true);
	END IF;
END
$$;
COMMENT ON FUNCTION acme_outbox.revoke_relay(name, text) IS
	'take the right to relay an origin back';

REVOKE ALL ON FUNCTION acme_outbox.privilege_matrix(),
	acme_outbox.apply_privileges(name, text, boolean),
	acme_outbox.grant_publisher(name), acme_outbox.revoke_publisher(name),
	acme_outbox.grant_relay(name, text), acme_outbox.revoke_relay(name, text) FROM PUBLIC;
