/* acme_outbox: install script, concatenated from sql/NN_*.sql in order */

\echo Use "CREATE EXTENSION acme_outbox" to load this file. \quit

/*
 * Names are qualified throughout; the few expressions that are not resolve in
 * pg_catalog, which is searched first.  UTF8 only: an envelope is JSON, and JSON
 * on the wire is UTF-8.
 */
DO $$
BEGIN
	IF pg_catalog.current_setting('server_encoding') <> 'UTF8' THEN
		RAISE EXCEPTION 'acme_outbox needs a database in UTF8 encoding'
			USING ERRCODE = 'OX011',
				  DETAIL = pg_catalog.format('This database is encoded in %s.',
						   pg_catalog.current_setting('server_encoding')),
				  HINT = 'Create the database with ENCODING ''UTF8''.';
	END IF;
	/* whoever owns the schema, or left something in it, could stand in for our functions */
	IF EXISTS (
		SELECT FROM pg_catalog.pg_namespace n
		WHERE n.nspname = 'acme_outbox'
		  AND (NOT (SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.oid = n.nspowner)
			   OR EXISTS (SELECT FROM pg_catalog.aclexplode(n.nspacl) a
						  WHERE a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner)
			   OR EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.relnamespace = n.oid)
			   OR EXISTS (SELECT FROM pg_catalog.pg_proc p WHERE p.pronamespace = n.oid)
			   OR EXISTS (SELECT FROM pg_catalog.pg_type t WHERE t.typnamespace = n.oid)
			   OR EXISTS (SELECT FROM pg_catalog.pg_operator o WHERE o.oprnamespace = n.oid)))
	THEN
		RAISE EXCEPTION 'schema acme_outbox is in use or not a superuser''s alone'
			USING ERRCODE = 'duplicate_schema',
				  DETAIL = 'The extension takes the schema for itself: it must be empty, and nobody but a superuser may create in it.',
				  HINT = 'Look at what is in it; then DROP SCHEMA acme_outbox, and CREATE EXTENSION makes it anew.';
	END IF;
END
$$;
