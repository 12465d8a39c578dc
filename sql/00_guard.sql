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
END
$$;
