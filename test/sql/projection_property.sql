-- A projection is its newest events, whatever the order and number of deliveries: 1,000
-- events on 20 rows, with ties and deletes, in 20 random orders, each delivered twice.
SET client_min_messages = warning;
CREATE SCHEMA rpt;
SELECT setseed(0.26);
-- few times, so that many events tie; three in ten are deletes
CREATE TABLE rpt.event AS
	SELECT n, 1 + floor(random() * 20)::int AS row, '2026-01-01Z'::timestamptz + floor(random() * 30) * interval '1 second' AS at,
		md5(random()::text)::uuid AS id, random() < 0.3 AS is_delete, floor(random() * 1000)::int AS a
	FROM generate_series(1, 1000) n;
CREATE TABLE rpt.ties (id int PRIMARY KEY, a int, b text, last_event_at timestamptz, last_event_id uuid);
CREATE TABLE rpt.texts (id int PRIMARY KEY, a int, b text, last_event_at timestamptz, last_event_id text);
-- without last_event_id: one event a time and row
CREATE TABLE rpt.times (id int PRIMARY KEY, a int, b text, last_event_at timestamptz);

CREATE FUNCTION rpt.deliver(target regclass, e rpt.event) RETURNS boolean LANGUAGE sql AS $$
	SELECT CASE WHEN e.is_delete THEN acme_outbox.project_delete(target, jsonb_build_object('id', e.row), e.at, e.id)
		ELSE acme_outbox.project(target, jsonb_build_object('id', e.row), jsonb_build_object('a', e.a, 'b', e.n::text), e.at, e.id) END
$$;
CREATE FUNCTION rpt.content(target regclass) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	content text;
BEGIN
	EXECUTE format('SELECT string_agg(t::text, E''\n'' ORDER BY id) FROM %s t', target) INTO content;
	RETURN content;
END $$;
-- what must come out, told without the functions under test
CREATE VIEW rpt.newest AS
	SELECT DISTINCT ON (e.row) e.* FROM rpt.event e ORDER BY e.row, e.at DESC, e.id DESC;
CREATE VIEW rpt.lone AS
	SELECT DISTINCT ON (e.row, e.at) e.* FROM rpt.event e ORDER BY e.row, e.at, e.n;

CREATE TABLE rpt.outcome (target regclass, run int, content text, tombstones text, applied_again bigint);
DO $$
DECLARE
	target regclass;
	e rpt.event;
	again bigint;
	events rpt.event[];
BEGIN
	FOREACH target IN ARRAY '{rpt.ties,rpt.texts,rpt.times}'::regclass[] LOOP
		FOR run IN 1..20 LOOP
			EXECUTE format('TRUNCATE %s', target);
			DELETE FROM acme_outbox.projection_tombstone;
			again := 0;
			IF target = 'rpt.times'::regclass THEN
				SELECT array_agg(l::rpt.event ORDER BY random()) INTO events
					FROM (SELECT v.* FROM rpt.lone v CROSS JOIN generate_series(1, 2)) l;
			ELSE
				SELECT array_agg(l::rpt.event ORDER BY random()) INTO events
					FROM (SELECT v.* FROM rpt.event v CROSS JOIN generate_series(1, 2)) l;
			END IF;
			FOREACH e IN ARRAY events LOOP
				PERFORM rpt.deliver(target, e);
			END LOOP;
			-- and once more: nothing changes
			IF run = 20 THEN
				FOREACH e IN ARRAY events LOOP
					again := again + rpt.deliver(target, e)::int;
				END LOOP;
			END IF;
			INSERT INTO rpt.outcome SELECT target, run, rpt.content(target),
				(SELECT string_agg(concat_ws(' ', key, last_event_at, last_event_id), ',' ORDER BY key) FROM acme_outbox.projection_tombstone), again;
		END LOOP;
	END LOOP;
END $$;
SELECT target, count(*) AS runs, count(DISTINCT content) AS contents, count(DISTINCT tombstones) AS tombstones, sum(applied_again) AS applied_again
FROM rpt.outcome GROUP BY target ORDER BY target::text;
-- the right content, deletes included
SELECT (SELECT content FROM rpt.outcome WHERE target = 'rpt.ties'::regclass LIMIT 1) =
	(SELECT string_agg(format('(%s,%s,%s,"%s",%s)', row, a, n, at, id), E'\n' ORDER BY row) FROM rpt.newest WHERE NOT is_delete) AS as_told;
SELECT (SELECT content FROM rpt.outcome WHERE target = 'rpt.times'::regclass LIMIT 1) =
	(SELECT string_agg(format('(%s,%s,%s,"%s")', row, a, n, at), E'\n' ORDER BY row)
	FROM (SELECT DISTINCT ON (l.row) * FROM rpt.lone l ORDER BY l.row, l.at DESC) x WHERE NOT is_delete) AS as_told;
-- what was provoked: ties at the top, rows deleted, rows that stay
SELECT count(*) FILTER (WHERE is_delete) > 0 AS deleted, count(*) FILTER (WHERE NOT is_delete) > 0 AS kept,
	(SELECT count(*) > 0 FROM rpt.newest w WHERE (SELECT count(*) FROM rpt.event e WHERE e.row = w.row AND e.at = w.at) > 1) AS tied
FROM rpt.newest;
DELETE FROM acme_outbox.projection_tombstone;
SET client_min_messages = error;
DROP SCHEMA rpt CASCADE;
