/*
 * The platform's services: for each a schema, an owner, a login, a relay, an inbox.  P 2.
 *
 * Run once per database, by a superuser.  Safe to repeat.  Roles belong to the cluster,
 * what is set for them to this database only.
 */

SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS acme_outbox;

/* Nobody publishes under a login's name (docs/publish.md, "Who an event comes from"). */
DO $$ BEGIN
	EXECUTE format('ALTER DATABASE %I SET acme_outbox.require_origin = on', current_database());
END $$;

/* A role that may exist already, in another database's platform. */
CREATE FUNCTION pg_temp.create_role(role_name name, attributes text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role_name) THEN
		EXECUTE format('CREATE ROLE %I %s', role_name, attributes);
	END IF;
END
$$;

/*
 * create_service(service, tenancy)
 *
 *	 <service>        schema, with the service's tables, functions and inbox
 *	 <service>_owner  owns them; nobody logs in as it
 *	 <service>_app    what the application, its consumers and its jobs log in as
 *	 <service>_relay  what its bridge's relay logs in as; it reads no table
 */
CREATE FUNCTION pg_temp.create_service(service name, tenancy text DEFAULT 'required')
RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	owner name := service || '_owner';
	app   name := service || '_app';
	relay name := service || '_relay';
BEGIN
	PERFORM pg_temp.create_role(owner, 'NOLOGIN');
	PERFORM pg_temp.create_role(app, 'LOGIN');
	PERFORM pg_temp.create_role(relay, 'LOGIN');

	EXECUTE format('CREATE SCHEMA IF NOT EXISTS %I AUTHORIZATION %I', service, owner);
	EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', service, app);
	EXECUTE format('ALTER DEFAULT PRIVILEGES FOR ROLE %I REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC', owner);

	PERFORM acme_outbox.create_inbox(service, tenancy);
	PERFORM acme_outbox.grant_consumer(app, service);
	PERFORM acme_outbox.grant_publisher(app);
	PERFORM acme_outbox.grant_relay(relay, service);
	EXECUTE format('ALTER ROLE %I IN DATABASE %I SET acme_outbox.inbox_schema = %L',
		app, current_database(), service);
	EXECUTE format('ALTER ROLE %I IN DATABASE %I SET acme_outbox.origin = %L',
		app, current_database(), service);
END
$$;

SELECT pg_temp.create_service('trading');
SELECT pg_temp.create_service('inventory');
SELECT pg_temp.create_service('platform');
SELECT pg_temp.create_service('accounting');
SELECT pg_temp.create_service('commission');
SELECT pg_temp.create_service('notification');
SELECT pg_temp.create_service('reporting');
SELECT pg_temp.create_service('audit', tenancy => 'none');

/*
 * The one role that may set a purchase or sale to INVOICED: what trading.mark_invoiced()
 * runs as, and nothing else does.
 */
SELECT pg_temp.create_role('trading_invoicer', 'NOLOGIN');
