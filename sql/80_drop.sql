/*
 * What keeps undelivered entries from being dropped (src/drop.c).
 */

/*
 * load_before_drop() returns event_trigger
 *
 *	 Loads the library, whose hook refuses to drop undelivered entries; does nothing
 *	 where it is loaded.  If it cannot be, warns, and is in nobody's way.
 */
CREATE FUNCTION acme_outbox.load_before_drop() RETURNS event_trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM acme_outbox.worker_preloaded();
EXCEPTION WHEN OTHERS THEN
	RAISE WARNING 'acme_outbox could not be loaded: if this statement drops it, undelivered entries go with it'
		USING DETAIL = SQLERRM, HINT = 'Put the extension''s library back in its place.';
END
$$;
COMMENT ON FUNCTION acme_outbox.load_before_drop() IS
	'load the library, which refuses to drop undelivered entries';

/* Statements that can reach the extension's tables; its members go only with it. */
CREATE EVENT TRIGGER acme_outbox_drop ON ddl_command_start
	WHEN TAG IN ('DROP EXTENSION', 'DROP SCHEMA', 'DROP OWNED', 'DROP LANGUAGE')
	EXECUTE FUNCTION acme_outbox.load_before_drop();
ALTER EVENT TRIGGER acme_outbox_drop ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER acme_outbox_drop IS
	'has DROP EXTENSION refused while undelivered entries exist';
