-- Claim and settle change rows directly, and through the executor where an
-- administrator gave the table a trigger of his own: the same rows come out.
SET client_min_messages = warning;
SET acme_outbox.origin = 'update';
SET acme_outbox.autocommit_publish = off;
\pset format unaligned
\pset tuples_only on
SELECT t.acquire('update');

CREATE FUNCTION pg_temp.rows_of(claimed text) RETURNS TABLE (entry jsonb) LANGUAGE sql AS $$
	SELECT to_jsonb(e) - '{id,xid,created_at,event_id,trace_id,traceparent,payload,claim_id,published_at}'::text[]
		|| jsonb_build_object('claimed', claim_id IS NOT NULL, 'published', published_at IS NOT NULL)
	FROM acme_outbox.outbox_entry e WHERE origin = 'update' AND topic = claimed ORDER BY id
$$;

\echo directly
SELECT t.pub(NULL, 'one'), t.pub('K', 'two'), t.pub('K', 'three');
UPDATE acme_outbox.outbox_entry SET topic = 'directly' WHERE origin = 'update';
SELECT t.claim('update');
SELECT entry FROM pg_temp.rows_of('directly');
SELECT t.settle('update', '*', 'PUBLISHED');
SELECT entry FROM pg_temp.rows_of('directly');

\echo through the executor
CREATE TABLE t.seen (how text);
GRANT INSERT ON t.seen TO PUBLIC;
CREATE FUNCTION t.see() RETURNS trigger LANGUAGE plpgsql
	AS $$ BEGIN INSERT INTO t.seen VALUES (TG_WHEN || ' ' || OLD.status || ' ' || NEW.status); RETURN NEW; END $$;
SELECT t.pub(NULL, 'one'), t.pub('K', 'two'), t.pub('K', 'three');
UPDATE acme_outbox.outbox_entry SET topic = 'executor' WHERE origin = 'update' AND topic <> 'directly';
CREATE TRIGGER mine AFTER UPDATE ON acme_outbox.outbox_entry FOR EACH ROW EXECUTE FUNCTION t.see();
SELECT t.claim('update');
SELECT t.settle('update', '*', 'PUBLISHED');
SELECT how, count(*) FROM t.seen GROUP BY how ORDER BY how;
SELECT count(*) AS others FROM (
	(SELECT entry - 'topic' FROM pg_temp.rows_of('directly') EXCEPT ALL SELECT entry - 'topic' FROM pg_temp.rows_of('executor'))
	UNION ALL
	(SELECT entry - 'topic' FROM pg_temp.rows_of('executor') EXCEPT ALL SELECT entry - 'topic' FROM pg_temp.rows_of('directly'))) d;
DROP TRIGGER mine ON acme_outbox.outbox_entry;
DROP FUNCTION t.see();
DROP TABLE t.seen;

\echo rows that find no room in their page: every index finds them
ALTER TABLE acme_outbox.outbox_entry SET (fillfactor = 100);
SELECT count(acme_outbox.publish('moved', 'k' || n, NULL, 'Happened',
	to_json((SELECT string_agg(md5(n || ' ' || i), '') FROM generate_series(1, 40) i))::text)) FROM generate_series(1, 300) n;
ALTER TABLE acme_outbox.outbox_entry SET (fillfactor = 45);
CREATE TEMP TABLE place AS SELECT id, (ctid::text::point)[0] AS page FROM acme_outbox.outbox_entry
	WHERE origin = 'update' AND topic = 'moved';
SELECT count(*) FROM acme_outbox.claim('update', t.epoch('update'), 500, 10000000);
SELECT t.settle('update', '*', 'PUBLISHED') LIKE 'ok%' AS settled;
SELECT count(*) > 5 AS moved FROM pg_temp.place p JOIN acme_outbox.outbox_entry e USING (id)
	WHERE e.origin = 'update' AND (e.ctid::text::point)[0] <> p.page;
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SELECT count(*) AS by_id FROM pg_temp.place p JOIN acme_outbox.outbox_entry e
	ON e.origin = 'update' AND e.id = p.id AND e.status = 'PUBLISHED';
SELECT count(*) AS by_event_id FROM (SELECT event_id FROM acme_outbox.outbox_entry WHERE topic = 'moved' OFFSET 0) s
	JOIN acme_outbox.outbox_entry e USING (event_id) WHERE e.status = 'PUBLISHED';
RESET enable_seqscan;
RESET enable_bitmapscan;
SELECT * FROM acme_outbox.verify() WHERE origin = 'update';
