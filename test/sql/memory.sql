-- A session's memory is bounded, however many projections, handlers and inboxes it uses: more
-- of them add no plans. What the server itself remembers of tables is not counted.
SET client_min_messages = warning;
\pset format unaligned
\pset tuples_only on
CREATE SCHEMA memory;
CREATE TEMP TABLE kept (what text, plans bigint, bytes bigint);
CREATE FUNCTION memory.note(what text) RETURNS void LANGUAGE sql AS $$
	INSERT INTO kept SELECT what, count(*) FILTER (WHERE name = 'CachedPlanSource'), coalesce(sum(total_bytes), 0)
	FROM pg_backend_memory_contexts
	WHERE name IN ('CachedPlan', 'CachedPlanSource', 'CachedPlanQuery', 'SPI Plan',
		'projection target', 'projection shape', 'acme_outbox inboxes', 'acme_outbox handlers',
		'acme_outbox idempotency keys')
$$;
-- plans added between two notes
CREATE FUNCTION memory.added(earlier text, later text) RETURNS bigint LANGUAGE sql AS $$
	SELECT l.plans - e.plans FROM kept e, kept l WHERE e.what = earlier AND l.what = later
$$;
-- calls that each have a transaction of their own
CREATE PROCEDURE memory.each(call text, first int, last int) LANGUAGE plpgsql AS $$
BEGIN
	FOR n IN first .. last LOOP
		EXECUTE replace(call, '#', n::text);
		COMMIT;
	END LOOP;
END $$;
SELECT memory.note('start');

\echo -- 500 projections: at most 200 of them, three statements each, are kept
CALL memory.each('CREATE TABLE memory.p# (id int PRIMARY KEY, n int, last_event_at timestamptz)', 1, 500);
\set project 'SELECT acme_outbox.project(''memory.p#'', ''{"id": 1}'', ''{"n": 1}'', clock_timestamp())'
CALL memory.each(:'project', 1, 250);
SELECT memory.note('250 projections');
SELECT memory.added('start', '250 projections') BETWEEN 200 AND 600;
CALL memory.each(:'project', 251, 500);
SELECT memory.note('500 projections');
SELECT memory.added('250 projections', '500 projections') <= 0;
\echo -- in one transaction likewise
DO $$ BEGIN FOR n IN 1 .. 500 LOOP EXECUTE format('SELECT acme_outbox.project(%L, %L, %L, clock_timestamp())', 'memory.p' || n, '{"id": 1}', '{"n": 1}'); END LOOP; END $$;
SELECT memory.note('at once');
SELECT memory.added('500 projections', 'at once') <= 0;
SELECT bytes < 40000000 FROM kept WHERE what = 'at once';
\echo -- one projection, 220 sets of columns
DO $$ BEGIN EXECUTE 'CREATE TABLE memory.wide (id int PRIMARY KEY, last_event_at timestamptz, ' || (SELECT string_agg(format('c%s int', n), ', ') FROM generate_series(1, 220) n) || ')'; END $$;
CALL memory.each('SELECT acme_outbox.project(''memory.wide'', ''{"id": 1}'', ''{"c#": 1}'', clock_timestamp())', 1, 220);
SELECT memory.note('shapes');
SELECT memory.added('start', 'shapes') BETWEEN 200 AND 600;

\echo -- 500 handlers: at most 200, and those are kept
CALL memory.each('CREATE FUNCTION memory.h#(m jsonb) RETURNS void LANGUAGE plpgsql AS ''BEGIN END''', 1, 500);
\set process 'SELECT acme_outbox.inbox_process(''memory'', ''{"header": {"eventId": "#"}}'', ''memory.h#'')'
CALL memory.each(:'process', 1, 190);
SELECT memory.note('190 handlers');
SELECT memory.added('shapes', '190 handlers') BETWEEN 190 AND 200;
CALL memory.each(:'process', 191, 500);
SELECT memory.note('500 handlers');
SELECT memory.added('shapes', '500 handlers') BETWEEN 1 AND 200;
SELECT count(*) FROM acme_outbox.processed_event WHERE consumer = 'memory';

\echo -- 70 inboxes: at most 50, with guard, parking and keys
CALL memory.each('SELECT acme_outbox.create_inbox(''memory_#'')', 1, 70);
CREATE FUNCTION memory.work(inbox text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM set_config('acme_outbox.inbox_schema', inbox, true);
	PERFORM acme_outbox.inbox_accept('c', 'e');
	PERFORM acme_outbox.park_message('c', '{"header": {"eventId": "1"}}', 'INVALID_STATE');
	PERFORM acme_outbox.idempotency_begin('POST /x', 'k', NULL::text);
	PERFORM acme_outbox.idempotency_complete('POST /x', 'k', 200);
END $$;
CALL memory.each('SELECT memory.work(''memory_1'')', 1, 1);
SELECT memory.note('an inbox');
CALL memory.each('SELECT memory.work(''memory_#'')', 2, 45);
SELECT memory.note('45 inboxes');
SELECT memory.added('an inbox', '45 inboxes') BETWEEN 44 * 4 AND 44 * 6;
CALL memory.each('SELECT memory.work(''memory_#'')', 46, 70);
SELECT memory.note('70 inboxes');
SELECT memory.added('an inbox', '70 inboxes') < 50 * 6;
\echo -- a handler that goes through all of them leaves the inbox that it is called for in use
CREATE FUNCTION memory.visits(message jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	FOR n IN 1 .. 70 LOOP
		PERFORM set_config('acme_outbox.inbox_schema', 'memory_' || n, true);
		PERFORM acme_outbox.inbox_accept('visitor', message #>> '{header,eventId}');
	END LOOP;
	PERFORM set_config('acme_outbox.inbox_schema', 'memory_70', true);
	PERFORM acme_outbox.park('INVALID_STATE');
END $$;
SET acme_outbox.inbox_schema = 'memory_70';
SELECT ordinal, outcome FROM acme_outbox.inbox_try_process_batch('visited', ARRAY['{"header": {"eventId": "v1"}}', '{"header": {"eventId": "v2"}}', '{"header": {"eventId": "v3"}}'], 'memory.visits');
RESET acme_outbox.inbox_schema;
SELECT count(*), count(DISTINCT event_id) FROM memory_70.processed_event WHERE consumer = 'visited';
SELECT (SELECT count(*) FROM memory_1.parked_message), (SELECT count(*) FROM memory_70.idempotency_key WHERE completed_at IS NOT NULL);

SET client_min_messages = error;
DELETE FROM acme_outbox.processed_event WHERE consumer = 'memory';
CALL memory.each('SELECT acme_outbox.drop_inbox(''memory_#'')', 1, 70);
CALL memory.each('DROP SCHEMA memory_# CASCADE', 1, 70);
DROP SCHEMA memory CASCADE;
