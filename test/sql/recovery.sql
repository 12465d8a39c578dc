-- A restored database: no cursor, no claims, and entries in flight.  They are released
-- first, a bounded number by each claim, and nothing of their keys goes before them.
SET client_min_messages = warning;
SET jit = off;
SET acme_outbox.autocommit_publish = off;
SET acme_outbox.origin = 'recovery';
\pset format unaligned
\pset tuples_only on
CREATE FUNCTION t.in_flight(n integer, status acme_outbox.entry_status, key text, of_label text) RETURNS void LANGUAGE sql AS $$
	INSERT INTO acme_outbox.outbox_entry (xid, created_at, event_id, entry_type, origin, topic, routing_key, message_key, event_name, trace_id, payload, status, claim_id)
	SELECT pg_current_xact_id(), now(), gen_random_uuid(), 'DOMAIN_EVENT', 'recovery', 't', of_label, coalesce(key, 'k' || i), 'E', 't', '{}', status,
		CASE WHEN status = 'PUBLISHING' THEN 77 END FROM generate_series(1, n) i
$$;
CREATE FUNCTION t.left_over() RETURNS text LANGUAGE sql AS $$
	SELECT count(*) FILTER (WHERE status = 'PUBLISHING') || ' in flight, ' || count(*) FILTER (WHERE hold_reason = 'RETRY') || ' due' FROM acme_outbox.outbox_entry WHERE origin = 'recovery'
$$;
-- published long ago, 12,000 in flight, and of key Z: waiting behind the last of these
SELECT t.in_flight(10, 'PUBLISHED', NULL, 'old'), t.in_flight(12000, 'PUBLISHING', NULL, 'orphan'), t.in_flight(1, 'PUBLISHING', 'Z', 'Z1'), t.pub('Z', 'Z2'), t.pub('Z', 'Z3');
UPDATE acme_outbox.outbox_entry SET next_attempt_at = now(), hold_reason = 'RETRY', attempts = 1 WHERE origin = 'recovery' AND routing_key = 'Z2';
SELECT t.acquire('recovery');
\echo two claims release 5,000 each and hand out nothing; a third the rest, and goes on
SELECT t.claim('recovery'), t.left_over();
SELECT t.claim('recovery'), t.left_over();
SELECT orphans_to IS NOT NULL AS noted FROM acme_outbox.outbox_cursor WHERE origin = 'recovery' ORDER BY position DESC LIMIT 1;
\echo another relay goes on where it stopped
SELECT t.expire('recovery'), t.acquire('recovery', 'relay-2');
SELECT count(*) AS claimed, string_agg(routing_key, ' ' ORDER BY n) FILTER (WHERE routing_key LIKE 'Z%') AS of_z
	FROM (SELECT row_number() OVER () AS n, c.* FROM acme_outbox.claim('recovery', t.epoch('recovery'), 1000, 10000000) c) x;
SELECT t.left_over();
SELECT t.settle('recovery', '*', 'PUBLISHED');
SELECT t.verify('recovery');
SELECT orphans_to IS NULL AS over FROM acme_outbox.outbox_cursor WHERE origin = 'recovery' ORDER BY position DESC LIMIT 1;
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'recovery' AND routing_key = 'orphan';
\echo key Z in its order
SELECT t.drain('recovery');
SELECT t.verify('recovery');
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'recovery';
DELETE FROM acme_outbox.outbox_cursor WHERE origin = 'recovery';
\echo under strand they are given up
SET acme_outbox.stale_claim_policy = strand;
SELECT t.in_flight(2, 'PUBLISHING', NULL, 'stranded'), t.pub(NULL, 'fresh');
SELECT t.acquire('recovery', 'relay-2');
SELECT t.drain('recovery');
SELECT label, status FROM t.state('recovery');
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'recovery';
DROP FUNCTION t.in_flight, t.left_over;
