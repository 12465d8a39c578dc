-- project() and project_delete(): what wins, how values are taken, which tables fit.
SET client_min_messages = warning;
\pset format unaligned
\pset tuples_only on
CREATE SCHEMA rpt;
-- an event at second n, with an id that sorts by its last digit
CREATE FUNCTION t.at(n integer) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS
$$ SELECT '2026-01-01 00:00:00Z'::timestamptz + n * interval '1 second' $$;
CREATE FUNCTION t.id(n integer) RETURNS uuid LANGUAGE sql IMMUTABLE AS
$$ SELECT ('00000000-0000-7000-8000-00000000000' || n)::uuid $$;

\echo newer wins; the same time does not: no last_event_id
CREATE TABLE rpt.plain (id int PRIMARY KEY, a text, b text DEFAULT 'b', last_event_at timestamptz NOT NULL);
SELECT acme_outbox.project('rpt.plain', '{"id": 1}', '{"a": "2"}', t.at(2)),
	acme_outbox.project('rpt.plain', '{"id": 1}', '{"a": "1"}', t.at(1)),
	acme_outbox.project('rpt.plain', '{"id": 1}', '{"a": "other"}', t.at(2)),
	acme_outbox.project('rpt.plain', '{"id": 1}', '{"a": "other"}', t.at(2), t.id(9));
SELECT * FROM rpt.plain;
SELECT acme_outbox.project('rpt.plain', '{"id": 1}', '{"b": null}', t.at(3)) AS absent_stays_null_sets;
SELECT * FROM rpt.plain;
SELECT acme_outbox.project('rpt.plain', '{"id": 1}', NULL, t.at(4)), acme_outbox.project('rpt.plain', '{"id": 2}', '{}', t.at(4));
SELECT * FROM rpt.plain ORDER BY id;

\echo ties by event id: NULL first, then uuid order; text ids by their bytes
CREATE TABLE rpt.deal (id int PRIMARY KEY, a int, last_event_at timestamptz, last_event_id uuid);
SELECT acme_outbox.project('rpt.deal', '{"id": 1}', '{"a": 0}', t.at(1)),
	acme_outbox.project('rpt.deal', '{"id": 1}', '{"a": 0}', t.at(1)),
	acme_outbox.project('rpt.deal', '{"id": 1}', '{"a": 5}', t.at(1), t.id(5)),
	acme_outbox.project('rpt.deal', '{"id": 1}', '{"a": 4}', t.at(1), t.id(4)),
	acme_outbox.project('rpt.deal', '{"id": 1}', '{"a": 5}', t.at(1), t.id(5)),
	acme_outbox.project('rpt.deal', '{"id": 1}', '{"a": 0}', t.at(1)),
	acme_outbox.project('rpt.deal', '{"id": 1}', '{"a": 6}', t.at(1), '00000000-0000-7000-8000-00000000000A'),
	acme_outbox.project('rpt.deal', '{"id": 1}', '{"a": 7}', t.at(2));
SELECT * FROM rpt.deal;
CREATE TABLE rpt.texts (id int PRIMARY KEY, a int, last_event_at timestamptz, last_event_id text);
SELECT acme_outbox.project('rpt.texts', '{"id": 1}', '{"a": 1}', t.at(1), 'b'),
	acme_outbox.project('rpt.texts', '{"id": 1}', '{"a": 2}', t.at(1), 'B'),
	acme_outbox.project('rpt.texts', '{"id": 1}', '{"a": 3}', t.at(1), 'c'),
	acme_outbox.project('rpt.texts', '{"id": 1}', '{"a": 4}', t.at(2), t.id(1));
SELECT * FROM rpt.texts;
-- a row that came another way, without a time, is older than any event
INSERT INTO rpt.deal VALUES (2, 2);
SELECT acme_outbox.project('rpt.deal', '{"id": 2}', '{"a": 3}', t.at(-1000000000));
DELETE FROM rpt.deal;

\echo deletes: an older event does not bring the row back, a newer one does
SELECT acme_outbox.project('rpt.deal', '{"id": 1}', '{"a": 1}', t.at(5), t.id(5)),
	acme_outbox.project_delete('rpt.deal', '{"id": 1}', t.at(4), t.id(9)),
	acme_outbox.project_delete('rpt.deal', '{"id": 1}', t.at(5), t.id(4)),
	acme_outbox.project_delete('rpt.deal', '{"id": 1}', t.at(5), t.id(6)),
	acme_outbox.project_delete('rpt.deal', '{"id": 1}', t.at(5), t.id(6));
SELECT acme_outbox.project('rpt.deal', '{"id": 1}', '{"a": 1}', t.at(5), t.id(5)),
	acme_outbox.project('rpt.deal', '{"id": 1}', '{"a": 1}', t.at(5), t.id(6)),
	acme_outbox.project('rpt.deal', '{"id": 1}', '{"a": 1}', t.at(5));
SELECT target, key, last_event_at = t.at(5), last_event_id = t.id(6)::text FROM acme_outbox.projection_tombstone;
SELECT acme_outbox.project('rpt.deal', '{"id": 1}', '{"a": 2}', t.at(5), t.id(7));
SELECT count(*) FROM acme_outbox.projection_tombstone;
SELECT id, a FROM rpt.deal;
\echo ... also when the delete comes first, and of what never was
SELECT acme_outbox.project_delete('rpt.deal', '{"id": 3}', t.at(9)), acme_outbox.project_delete('rpt.deal', '{"id": 3}', t.at(8)),
	acme_outbox.project('rpt.deal', '{"id": 3}', '{"a": 3}', t.at(9)), acme_outbox.project('rpt.deal', '{"id": 3}', '{"a": 3}', t.at(7), t.id(1));
SELECT acme_outbox.project_delete('rpt.deal', '{"id": 3}', t.at(10)), acme_outbox.project('rpt.deal', '{"id": 3}', '{"a": 3}', t.at(9), t.id(1)),
	acme_outbox.project('rpt.deal', '{"id": 3}', '{"a": 3}', t.at(10), t.id(1));
\echo rolled back: neither row nor tombstone
BEGIN;
SELECT acme_outbox.project_delete('rpt.deal', '{"id": 3}', t.at(11));
ROLLBACK;
SELECT acme_outbox.project('rpt.deal', '{"id": 3}', '{"a": 4}', t.at(10), t.id(2));
SELECT count(*) FROM acme_outbox.projection_tombstone;

\echo values are those of jsonb_populate_record
CREATE TYPE rpt.mood AS ENUM ('sad', 'happy');
CREATE TYPE rpt.pair AS (x int, y text);
CREATE DOMAIN rpt.positive AS numeric CHECK (VALUE > 0);
CREATE DOMAIN rpt.some AS text NOT NULL;
CREATE TABLE rpt.wide (k1 text, k2 numeric, i int, n numeric(6,2), f float8, b boolean, t text, v varchar(5),
	c char(3), d date, ts timestamptz, u uuid, j json, jb jsonb, ia int[], ta text[][], m rpt.mood, p rpt.pair,
	pa rpt.pair[], pos rpt.positive, s rpt.some DEFAULT 'dflt', r int4range, by bytea, "Odd ""name" text,
	g numeric GENERATED ALWAYS AS (n * 2) STORED, last_event_at timestamptz, UNIQUE (k2, k1));
SELECT acme_outbox.project('rpt.wide', '{"k1": "a", "k2": 1}', v, t.at(1))
FROM (VALUES ('{"i": 1, "n": 1.005, "f": 1e3, "b": true, "t": 17, "v": "abc", "c": "x", "d": "2026-02-03",
	"ts": "2026-02-03T04:05:06Z", "u": "00000000-0000-7000-8000-00000000000A", "j": {"b":  [1, null], "a": 1},
	"jb": {"b": [1, null], "a": 1}, "ia": [1, null, 3], "ta": [["a", "b"], ["c", null]], "m": "happy", "p": {"y": "why", "x": 1},
	"pa": [{"x": 1}, null, {"y": "z"}], "pos": 5.5, "s": "S", "r": "[1,3)", "by": "\\x0102", "Odd \"name": "odd"}'::jsonb)) x (v);
\x on
SELECT * FROM rpt.wide;
SELECT acme_outbox.project('rpt.wide', '{"k1": "b", "k2": "2.0"}',
	'{"t": {"a": 1}, "jb": "text", "j": null, "ia": "{7,8}", "b": "no", "i": "5", "p": "(3,q)", "f": "NaN", "ta": null, "n": null}', t.at(1));
SELECT i, f, b, t, j, jb, ia, p, s, ta, n FROM rpt.wide WHERE k1 = 'b';
\x off
SELECT (r).i, (r).b, (r).t, (r).j IS NULL, (r).jb, (r).ia, (r).p FROM (SELECT jsonb_populate_record(NULL::rpt.wide,
	'{"t": {"a": 1}, "jb": "text", "j": null, "ia": "{7,8}", "b": "no", "i": "5", "p": "(3,q)", "s": "s"}')) x (r);
\echo one key, however it is spelled
SELECT acme_outbox.project_delete('rpt.wide', '{"k2": 2, "k1": "b"}', t.at(2)), acme_outbox.project('rpt.wide', '{"k1": "b", "k2": 2.000}', '{}', t.at(1));
SELECT key FROM acme_outbox.projection_tombstone WHERE target = 'rpt.wide'::regclass;
-- a field may repeat the key
SELECT acme_outbox.project('rpt.wide', '{"k1": "b", "k2": 2}', '{"k1": "b", "k2": 2.0, "i": 1}', t.at(3));
SET TimeZone = 'Asia/Tokyo';
SET DateStyle = 'German';
CREATE TABLE rpt.by_time (at timestamptz, day date, n int, last_event_at timestamptz, PRIMARY KEY (at, day));
SELECT acme_outbox.project_delete('rpt.by_time', '{"at": "2026-01-01T09:00:00+09", "day": "2026-01-01"}', t.at(2));
RESET TimeZone;
RESET DateStyle;
SELECT acme_outbox.project('rpt.by_time', '{"at": "2026-01-01T00:00:00Z", "day": "2026-01-01"}', '{"n": 1}', t.at(1));

\echo partitioned tables, identity keys, inheritance of rights
CREATE TABLE rpt.part (id int, region text, a int, last_event_at timestamptz, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE rpt.part_eu PARTITION OF rpt.part FOR VALUES IN ('eu');
CREATE TABLE rpt.part_us (a int, last_event_at timestamptz, region text NOT NULL, id int NOT NULL);
ALTER TABLE rpt.part ATTACH PARTITION rpt.part_us FOR VALUES IN ('us');
SELECT acme_outbox.project('rpt.part', jsonb_build_object('id', 1, 'region', r), jsonb_build_object('a', n), t.at(n)) FROM (VALUES ('eu', 1), ('us', 2), ('us', 1), ('us', 3)) v (r, n);
SELECT acme_outbox.project_delete('rpt.part', '{"id": 1, "region": "eu"}', t.at(1)), acme_outbox.project_delete('rpt.part', '{"id": 1, "region": "eu"}', t.at(2));
SELECT tableoid::regclass, id, a FROM rpt.part;
CREATE TABLE rpt.identity (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a int, last_event_at timestamptz);
SELECT acme_outbox.project('rpt.identity', '{"id": 7}', '{"a": 1}', t.at(1)), acme_outbox.project('rpt.identity', '{"id": 7}', '{"a": 2}', t.at(2));
SELECT id, a FROM rpt.identity;
CREATE ROLE projection_app;
GRANT USAGE ON SCHEMA acme_outbox, rpt, t TO projection_app;
SELECT format('GRANT EXECUTE ON FUNCTION %s TO projection_app', p.oid::regprocedure) FROM pg_proc p
	WHERE p.pronamespace = 'acme_outbox'::regnamespace AND p.proname IN ('project', 'project_delete') \gexec
SET ROLE projection_app;
SELECT t.sqlstate($$SELECT acme_outbox.project('rpt.plain', '{"id": 1}', '{"a": "x"}', t.at(100))$$);
SELECT t.sqlstate($$SELECT acme_outbox.project_delete('rpt.plain', '{"id": 1}', t.at(100))$$);
RESET ROLE;
GRANT SELECT, INSERT, UPDATE ON rpt.plain TO projection_app;
SET ROLE projection_app;
SELECT acme_outbox.project('rpt.plain', '{"id": 1}', '{"a": "x"}', t.at(100));
SELECT t.sqlstate($$SELECT acme_outbox.project_delete('rpt.plain', '{"id": 1}', t.at(101))$$);
RESET ROLE;
GRANT DELETE ON rpt.plain TO projection_app;
SET ROLE projection_app;
-- the tombstone is not the caller's business
SELECT acme_outbox.project_delete('rpt.plain', '{"id": 1}', t.at(101)), acme_outbox.project('rpt.plain', '{"id": 1}', '{"a": "x"}', t.at(100)), acme_outbox.project('rpt.plain', '{"id": 1}', '{"a": "y"}', t.at(102)), current_user;
SELECT t.sqlstate('SELECT FROM acme_outbox.projection_tombstone');
RESET ROLE;
DROP OWNED BY projection_app;
DROP ROLE projection_app;

\echo the kept statements follow ALTER TABLE, new indexes, renames, swaps, DROP
CREATE FUNCTION t.put(field text, n integer) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN acme_outbox.project('rpt.live', '{"id": 1}', jsonb_build_object(field, n), t.at(n));
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE || ' ' || SQLERRM;
END $$;
CREATE TABLE rpt.live (id int PRIMARY KEY, a int, last_event_at timestamptz);
SELECT t.put('a', 1), t.put('z', 2);
ALTER TABLE rpt.live ADD COLUMN z int;
SELECT t.put('z', 2);
ALTER TABLE rpt.live ALTER a TYPE text;
ALTER TABLE rpt.live RENAME COLUMN z TO y;
SELECT t.put('a', 3), t.put('z', 4), t.put('y', 4);
ALTER TABLE rpt.live DROP COLUMN y, ADD COLUMN last_event_id uuid;
SELECT t.put('y', 5), t.put('a', 5);
SELECT * FROM rpt.live;
ALTER TABLE rpt.live DROP CONSTRAINT live_pkey;
SELECT t.put('a', 6);
CREATE UNIQUE INDEX ON rpt.live (id) INCLUDE (a);
SELECT t.put('a', 6);
CREATE TABLE rpt.next (LIKE rpt.live INCLUDING ALL);
ALTER TABLE rpt.live RENAME TO old;
ALTER TABLE rpt.next RENAME TO live;
SELECT t.put('a', 1);
SELECT a FROM rpt.live UNION ALL SELECT a FROM rpt.old;
-- the schema is renamed, and another takes its place
ALTER SCHEMA rpt RENAME TO rpt_old;
CREATE SCHEMA rpt;
SELECT t.put('a', 2);
CREATE TABLE rpt.live (id int PRIMARY KEY, a int, last_event_at timestamptz);
SELECT t.put('a', 3);
SELECT a::text FROM rpt.live UNION ALL SELECT a FROM rpt_old.live;
SELECT 'rpt_old.live'::regclass::oid AS live \gset
SELECT acme_outbox.project(:live::regclass, '{"id": 1}', '{"a": 9}', t.at(9));
SELECT a FROM rpt_old.live;
DROP TABLE rpt.live;
SELECT t.put('a', 4);
DROP SCHEMA rpt CASCADE;
ALTER SCHEMA rpt_old RENAME TO rpt;

\echo a trigger that projects, into the same table too
CREATE TABLE rpt.chain (id int PRIMARY KEY, n int, last_event_at timestamptz);
CREATE FUNCTION rpt.next() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF NEW.n > 0 THEN
		PERFORM acme_outbox.project(TG_RELID::regclass, jsonb_build_object('id', NEW.id + 1), jsonb_build_object('n', NEW.n - 1), NEW.last_event_at);
	END IF;
	RETURN NEW;
END $$;
CREATE TRIGGER next BEFORE INSERT OR UPDATE ON rpt.chain FOR EACH ROW EXECUTE FUNCTION rpt.next();
SELECT acme_outbox.project('rpt.chain', '{"id": 1}', '{"n": 3}', t.at(1)), acme_outbox.project('rpt.chain', '{"id": 1}', '{"n": 4}', t.at(2));
SELECT string_agg(id || ':' || n, ' ' ORDER BY id) FROM rpt.chain;
\echo a trigger that keeps the row
CREATE FUNCTION rpt.keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER keep BEFORE UPDATE OR DELETE ON rpt.plain FOR EACH ROW EXECUTE FUNCTION rpt.keep();
SELECT acme_outbox.project('rpt.plain', '{"id": 1}', '{"a": "x"}', t.at(200)), acme_outbox.project_delete('rpt.plain', '{"id": 1}', t.at(200));

\echo memory stays bounded over many targets
DO $$
BEGIN
	FOR i IN 1..500 LOOP
		EXECUTE format('CREATE TABLE rpt.many%s (id int PRIMARY KEY, a int, last_event_at timestamptz)', i);
	END LOOP;
	FOR round IN 1..2 LOOP
		FOR i IN 1..500 LOOP
			PERFORM acme_outbox.project(('rpt.many' || i)::regclass, '{"id": 1}', '{"a": 1}', t.at(round));
		END LOOP;
	END LOOP;
END $$;
SELECT count(*) <= 200 FROM pg_backend_memory_contexts WHERE name = 'projection target';
SELECT count(*) <= 200 FROM pg_backend_memory_contexts WHERE name = 'projection shape';
DO $$
BEGIN
	FOR i IN 1..500 LOOP
		EXECUTE format('DROP TABLE rpt.many%s', i);
	END LOOP;
END $$;
DELETE FROM acme_outbox.projection_tombstone;
SET client_min_messages = error;
DROP SCHEMA rpt CASCADE;
DROP FUNCTION t.put(text, integer);
