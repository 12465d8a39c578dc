/*
 * Which version of which event each consumer was sent (src/consumed.c).  P ADR-0036, G 8.
 */

CREATE TABLE acme_outbox.consumed_version (
	consumer       text NOT NULL,
	event_name     text NOT NULL,
	schema_version text NOT NULL,
	handled        bigint NOT NULL,
	last_at        timestamptz NOT NULL,
	PRIMARY KEY (consumer, event_name, schema_version)
);
COMMENT ON TABLE acme_outbox.consumed_version IS
	'what consumed_versions shows, as of the last minute; written by save_consumed()';

INSERT INTO acme_outbox.duty_run (duty) VALUES ('consumed');

/*
 * counters() returns setof (name, labels, value, unsaved, last_at)
 *
 *	 The counters of this database, since the server started; see metrics().
 *	 unsaved  not in consumed_version yet   last_at  when last counted
 *	 Result: no rows where the library is not preloaded.
 */
CREATE FUNCTION acme_outbox.counters()
RETURNS TABLE (name text, labels jsonb, value bigint, unsaved bigint, last_at timestamptz)
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_counters';
COMMENT ON FUNCTION acme_outbox.counters() IS
	'counters of this database since the server started; none unless preloaded';

/* counters_about() returns one row about the counters' memory; nulls unless preloaded. */
CREATE FUNCTION acme_outbox.counters_about(OUT since timestamptz, OUT used integer,
	OUT size integer, OUT overflow bigint)
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_counters_about';
COMMENT ON FUNCTION acme_outbox.counters_about() IS
	'since when the counters count, and how full their memory is';

/*
 * save_consumed() returns (result, affected)
 *
 *	 Stores what was consumed since the last call, so that a restart does not lose it; a
 *	 duty, run once a minute.
 *	 result  done, contended (another session stores it right now) or more   affected
 *	 counters stored
 *	 Safe to repeat.
 */
CREATE FUNCTION acme_outbox.save_consumed(OUT result text, OUT affected bigint)
LANGUAGE C VOLATILE STRICT
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'acme_outbox_save_consumed';
COMMENT ON FUNCTION acme_outbox.save_consumed() IS
	'store what was consumed since the last call';

/* consumed() returns what the view consumed_versions shows. */
CREATE FUNCTION acme_outbox.consumed()
RETURNS TABLE (consumer text, event_name text, schema_version text, handled bigint,
	last_at timestamptz)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
	SELECT u.consumer, u.event_name, u.schema_version, sum(u.handled)::bigint, max(u.last_at)
	FROM (
		SELECT v.consumer, v.event_name, v.schema_version, v.handled, v.last_at
		FROM acme_outbox.consumed_version v
		UNION ALL
		SELECT c.labels->>'consumer', c.labels->>'event_name', c.labels->>'schema_version',
			   c.unsaved, c.last_at
		FROM acme_outbox.counters() c
		WHERE c.name = 'acme_outbox_consumed_messages_total' AND c.unsaved > 0
		  AND c.labels->>'event_name' <> '') u
	GROUP BY 1, 2, 3
$$;
COMMENT ON FUNCTION acme_outbox.consumed() IS 'what the view consumed_versions shows';

CREATE VIEW acme_outbox.consumed_versions AS SELECT * FROM acme_outbox.consumed();
COMMENT ON VIEW acme_outbox.consumed_versions IS
	'which version of which event each consumer was sent, how often, and when last';
COMMENT ON COLUMN acme_outbox.consumed_versions.handled IS
	'messages it was sent, whatever became of them: applied, duplicate, parked, failed';
COMMENT ON COLUMN acme_outbox.consumed_versions.last_at IS
	'when the last one''s transaction committed';
