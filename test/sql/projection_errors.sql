-- What project(), project_delete() and projection_rebuild() refuse, and what they say:
-- the thing at fault by name, never a value.
SET client_min_messages = warning;
\pset format unaligned
\pset tuples_only on
CREATE SCHEMA rpt;
CREATE FUNCTION t.refused(target text, key text, fields text, event_at text DEFAULT '2026-01-01', event_id text DEFAULT NULL)
RETURNS text LANGUAGE sql AS $$
	SELECT t.error(format('SELECT acme_outbox.project(%s, %L, %L, %L, %L)', target, key, fields, event_at, event_id))
$$;
CREATE TABLE rpt.deal (id int PRIMARY KEY, a int, region text, email text, "Odd name" varchar(3), other int UNIQUE DEFERRABLE,
	g int GENERATED ALWAYS AS (1) STORED, auto int GENERATED ALWAYS AS IDENTITY, amount numeric CHECK (amount > 0),
	last_event_at timestamptz, last_event_id uuid);
CREATE UNIQUE INDEX ON rpt.deal (region) WHERE region <> '';
CREATE UNIQUE INDEX ON rpt.deal (lower(email));
CREATE INDEX ON rpt.deal (a);

\echo columns
SELECT t.refused($$'rpt.deal'$$, '{"id": 1}', '{"amout": 1}');
SELECT t.refused($$'rpt.deal'$$, '{"ID": 1}', '{}');
SELECT t.refused($$'rpt.deal'$$, '{"id": 1}', '{"": 1}');
SELECT t.refused($$'rpt.deal'$$, '{"id": 1}', '{"ctid": 1}');
SELECT t.refused($$'rpt.deal'$$, '{"id": 1}', '{"g": 1}');
SELECT t.refused($$'rpt.deal'$$, '{"id": 1}', '{"auto": 1}');
SELECT t.refused($$'rpt.deal'$$, '{"id": 1}', '{"last_event_at": "2026-01-01"}');
SELECT t.refused($$'rpt.deal'$$, '{"id": 1, "last_event_id": null}', '{}');
SELECT t.refused($$'rpt.deal'$$, '{"id": 1}', '[1]');
SELECT t.refused($$'rpt.deal'$$, '{"id": 1}', format('{"%s": 1}', repeat('é', 100)));
\echo keys
SELECT t.refused($$'rpt.deal'$$, NULL, '{}');
SELECT t.refused($$'rpt.deal'$$, '{}', '{}');
SELECT t.refused($$'rpt.deal'$$, '1', '{}');
SELECT t.refused($$'rpt.deal'$$, '{"id": null}', '{}');
SELECT t.refused($$'rpt.deal'$$, '{"a": 1}', '{}');
SELECT t.refused($$'rpt.deal'$$, '{"id": 1, "a": 1}', '{}');
SELECT t.refused($$'rpt.deal'$$, '{"region": "eu"}', '{}');
SELECT t.refused($$'rpt.deal'$$, '{"email": "a"}', '{}');
SELECT t.refused($$'rpt.deal'$$, '{"other": 1}', '{}');
SELECT t.refused($$'rpt.deal'$$, '{"id": 1}', '{"id": 2}');
\echo values: the column, not the value
SELECT t.refused($$'rpt.deal'$$, '{"id": 1}', '{"a": "secret"}');
SELECT t.refused($$'rpt.deal'$$, '{"id": 1}', '{"a": {"x": "secret"}}');
SELECT t.refused($$'rpt.deal'$$, '{"id": 1}', '{"a": 99999999999}');
SELECT t.refused($$'rpt.deal'$$, '{"id": "secret"}', '{}');
SELECT t.refused($$'rpt.deal'$$, '{"id": 1}', '{"Odd name": "secret"}');
SELECT t.refused($$'rpt.deal'$$, '{"id": 1}', '{"email": "secret", "amount": -1}');
SELECT acme_outbox.project('rpt.deal', '{"id": 1}', '{"amount": 1}', '2026-01-01');
SELECT t.refused($$'rpt.deal'$$, '{"id": 1}', '{"email": "secret", "amount": -1}', '2026-01-02');
CREATE DOMAIN rpt.code AS text CHECK (length(VALUE) < 3);
CREATE DOMAIN rpt.some AS text NOT NULL;
ALTER TABLE rpt.deal ADD code rpt.code, ADD codes rpt.code[], ADD needed rpt.some DEFAULT 'x';
SELECT t.refused($$'rpt.deal'$$, '{"id": 1}', '{"code": "secret"}', '2026-01-02');
SELECT t.refused($$'rpt.deal'$$, '{"id": 1}', '{"codes": ["ok", "secret"]}', '2026-01-02');
SELECT t.refused($$'rpt.deal'$$, '{"id": 1}', '{"codes": {"a": "secret"}}', '2026-01-02');
SELECT t.refused($$'rpt.deal'$$, '{"id": 1}', '{"needed": null}', '2026-01-02');
CREATE TABLE rpt.strict (id int PRIMARY KEY, a int NOT NULL, b text, last_event_at timestamptz);
SELECT t.refused($$'rpt.strict'$$, '{"id": 1}', '{"b": "secret"}');
\echo events
SELECT t.refused($$'rpt.deal'$$, '{"id": 1}', '{}', NULL);
SELECT t.refused($$'rpt.deal'$$, '{"id": 1}', '{}', 'infinity');
SELECT t.refused($$'rpt.deal'$$, '{"id": 1}', '{}', '2026-01-01', 'x');
SELECT t.refused($$'rpt.deal'$$, '{"id": 1}', '{}', '2026-01-01', '');
SELECT t.refused($$'rpt.strict'$$, '{"id": 1}', '{"a": 1}', '2026-01-01', repeat('x', 256));
\echo targets
CREATE VIEW rpt.a_view AS SELECT * FROM rpt.deal;
CREATE MATERIALIZED VIEW rpt.a_matview AS SELECT * FROM rpt.deal;
CREATE FOREIGN DATA WRAPPER projection_fdw;
CREATE SERVER projection_server FOREIGN DATA WRAPPER projection_fdw;
CREATE FOREIGN TABLE rpt.a_foreign (id int, last_event_at timestamptz) SERVER projection_server;
CREATE SEQUENCE rpt.a_sequence;
CREATE TABLE rpt.no_time (id int PRIMARY KEY);
CREATE TABLE rpt.bad_time (id int PRIMARY KEY, last_event_at timestamp);
CREATE TABLE rpt.round_time (id int PRIMARY KEY, last_event_at timestamptz(0));
CREATE TABLE rpt.bad_id (id int PRIMARY KEY, last_event_at timestamptz, last_event_id int);
SELECT t.refused(x, '{"id": 1}', '{}') FROM unnest(ARRAY['NULL', '0', '''rpt.a_view''', '''rpt.a_matview''', '''rpt.a_foreign''',
	'''rpt.a_sequence''', '''rpt.deal_pkey''', '''rpt.no_time''', '''rpt.bad_time''', '''rpt.round_time''', '''rpt.bad_id''', '''rpt.nowhere''']) x;
SELECT regexp_replace(t.refused('4000000000', '{"id": 1}', '{}'), '\d+', 'N', 'g');
SELECT t.error($$SELECT acme_outbox.project_delete('rpt.no_time', '{"id": 1}', '2026-01-01')$$);
SELECT t.error($$SELECT acme_outbox.project_delete('rpt.deal', '{"a": 1}', '2026-01-01')$$);
SELECT t.error($$SELECT acme_outbox.project_delete('rpt.deal', '{"id": 1}', NULL)$$);
\echo seeds
CREATE FUNCTION rpt.nothing() RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION rpt.half() RETURNS TABLE (key jsonb, event_at timestamptz) LANGUAGE sql AS $$ SELECT '{}'::jsonb, now() $$;
CREATE FUNCTION rpt.wrong() RETURNS TABLE (key text, fields jsonb, event_at timestamptz) LANGUAGE sql AS $$ SELECT '', '{}'::jsonb, now() $$;
CREATE FUNCTION rpt.timeless() RETURNS TABLE (key jsonb, fields jsonb, event_at timestamptz) LANGUAGE sql AS $$ SELECT '{"id": 1}'::jsonb, '{}'::jsonb, NULL::timestamptz $$;
CREATE FUNCTION rpt.again() RETURNS void LANGUAGE sql AS $$ SELECT acme_outbox.projection_rebuild('rpt.strict', 'rpt.nothing') $$;
CREATE PROCEDURE rpt.proc() LANGUAGE sql AS '';
SELECT t.error(format('SELECT acme_outbox.projection_rebuild(%s, %s)', target, seed)) FROM (VALUES
	('NULL', '''rpt.nothing'''), ('''rpt.deal''', 'NULL'), ('''rpt.deal''', '''rpt.nowhere'''), ('''rpt.deal''', '''rpt.proc'''), ('''rpt.deal''', '''rpt.half'''),
	('''rpt.deal''', '''rpt.wrong()'''), ('''rpt.deal''', '''rpt.timeless'''), ('''rpt.deal''', '''rpt.again'''), ('''rpt.a_view''', '''rpt.nothing'''), ('''rpt.deal''', '''rpt.nothing(); DROP TABLE x''')) v (target, seed);
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT t.error($$SELECT acme_outbox.projection_rebuild('rpt.deal', 'rpt.nothing')$$);
COMMIT;
-- nothing of a failed rebuild is left: the guard is whole again
SELECT acme_outbox.project('rpt.deal', '{"id": 1}', '{"a": 2}', '2026-01-01');
\echo nothing was stored by what was refused
SELECT id, a, last_event_at::date FROM rpt.deal;
SELECT count(*) FROM acme_outbox.projection_tombstone;
SET client_min_messages = error;
DROP SCHEMA rpt CASCADE;
DROP FOREIGN DATA WRAPPER projection_fdw CASCADE;
DROP FUNCTION t.refused(text, text, text, text, text);
