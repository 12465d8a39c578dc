-- What an operator sees.
SET client_min_messages = warning;
SET acme_outbox.autocommit_publish = off;
\pset format unaligned
\pset tuples_only on

-- a clean table
DELETE FROM acme_outbox.outbox_entry;
DELETE FROM acme_outbox.outbox_claim;
DELETE FROM acme_outbox.outbox_cursor;
DELETE FROM acme_outbox.relay_lease;
DELETE FROM acme_outbox.outbox_origin;
CREATE FUNCTION t.backlog(o text) RETURNS text LANGUAGE sql AS $$
	SELECT format('pending %s: retry %s unroutable %s nacked %s key %s scheduled %s; publishing %s failed %s skipped %s',
				  pending, retry, unroutable, nacked, key_held, scheduled, publishing, failed, skipped)
	FROM acme_outbox.outbox_backlog WHERE origin = o
$$;
CREATE FUNCTION t.seconds(i interval) RETURNS numeric LANGUAGE sql AS
$$ SELECT round(extract(epoch FROM i)) $$;
-- the cursor is set back or ahead, for what only concurrency makes
CREATE FUNCTION t.set_cursor(o text, last text, snapshot pg_snapshot, locked text DEFAULT '') RETURNS void LANGUAGE sql AS $$
	INSERT INTO acme_outbox.outbox_cursor (origin, position, last_id, seen, skipped)
	SELECT o, coalesce(max(c.position), 0) + 1, max(e.id), snapshot,
		   ARRAY(SELECT s.id FROM acme_outbox.outbox_entry s WHERE s.origin = o AND s.routing_key = ANY (string_to_array(locked, ' ')))
	FROM acme_outbox.outbox_entry e LEFT JOIN acme_outbox.outbox_cursor c ON c.origin = o
	WHERE e.origin = o AND e.routing_key = last
$$;

\echo an empty outbox
SELECT count(*) FROM acme_outbox.outbox_backlog;
SELECT count(*) FROM acme_outbox.outbox_stuck;

\echo an origin that was never relayed
SET acme_outbox.origin = 'views-never';
SELECT t.pub('A', 'a1'), t.pub('A', 'a2'), t.pub(NULL, 'later', 'orders', clock_timestamp() + interval '1 hour');
SELECT t.backlog('views-never');
SELECT relay, relay_active, relay_seen_at, lease_expires_at, blocking_pid, t.seconds(next_due - now()) BETWEEN 3590 AND 3610
	FROM acme_outbox.outbox_backlog;
SELECT origin, id, why, hint FROM acme_outbox.outbox_stuck;

\echo one that is
SET acme_outbox.origin = 'views';
SELECT t.acquire('views');
SELECT t.pub('A', 'a1'), t.pub('B', 'b1'), t.pub('C', 'c1'), t.pub('D', 'd1'), t.pub(NULL, 'p1'), t.pub(NULL, 'f1');
UPDATE acme_outbox.outbox_entry SET created_at = created_at - interval '10 minutes' WHERE routing_key = 'b1';
SELECT t.claim('views');
SELECT t.backlog('views');
SELECT t.settle('views', 'a1', 'REJECTED', 'refused'), t.settle('views', 'b1', 'UNROUTABLE', 'no queue'), t.settle('views', 'c1', 'NACKED'),
	t.settle('views', 'p1', 'PUBLISHED');
SET acme_outbox.max_attempts = 1;
SELECT t.settle('views', 'f1', 'REJECTED', 'too large');
RESET acme_outbox.max_attempts;
SELECT t.pub('A', 'a2'), t.pub('Z', 'z1');
SELECT t.claim('views');
SELECT t.pub('Z', 'z2'), t.pub('Z', 'z3');
SELECT t.backlog('views');
SELECT relay, relay_active, relay_seen_at IS NOT NULL, lease_expires_at > now(), t.seconds(oldest_age) BETWEEN 600 AND 630, next_due IS NOT NULL
	FROM acme_outbox.outbox_backlog WHERE origin = 'views';
SELECT origin, pending FROM acme_outbox.outbox_backlog ORDER BY origin;

\echo stuck: why, and what to do
SELECT routing_key, message_key, status, hold_reason, why, attempts, holds, last_error, hint
	FROM acme_outbox.outbox_stuck WHERE origin = 'views' ORDER BY id;
-- held by its key for more than a minute; in flight for more than reaper_warn_after
UPDATE acme_outbox.outbox_entry SET created_at = created_at - interval '61 seconds' WHERE routing_key = 'a2';
UPDATE acme_outbox.outbox_claim SET claimed_at = claimed_at - interval '16 minutes' WHERE origin = 'views';
SELECT routing_key, status, hold_reason, regexp_replace(why, 'for .*;', 'for N;'), claimed_by, t.seconds(now() - since) > 900 AS old, hint
	FROM acme_outbox.outbox_stuck WHERE origin = 'views' AND routing_key IN ('a2', 'd1', 'z1') ORDER BY id;
SET acme_outbox.reaper_warn_after = '1h';
SELECT count(*) FROM acme_outbox.outbox_stuck WHERE origin = 'views' AND status = 'PUBLISHING';
RESET acme_outbox.reaper_warn_after;
SELECT t.expire('views');
SELECT DISTINCT regexp_replace(why, 'for .*;', 'for N;'), hint FROM acme_outbox.outbox_stuck WHERE origin = 'views' AND status = 'PUBLISHING';
SET acme_outbox.stale_claim_policy = strand;
SELECT DISTINCT hint FROM acme_outbox.outbox_stuck WHERE origin = 'views' AND status = 'PUBLISHING';
RESET acme_outbox.stale_claim_policy;
SELECT regexp_replace(why, 'seen .* ago', 'seen N ago'), hint FROM acme_outbox.outbox_stuck WHERE origin = 'views' AND id IS NULL;

\echo outbox and outbox_failed
SELECT routing_key, status, claimed_by, claimed_at IS NOT NULL, payload::json->'body'->>'eventName' FROM acme_outbox.outbox WHERE origin = 'views' ORDER BY id;
SELECT routing_key, attempts, blocks_key, last_error FROM acme_outbox.outbox_failed;

\echo what committed late, and what was locked when the cursor passed it
SET acme_outbox.origin = 'views-late';
SELECT t.acquire('views-late');
SELECT pg_current_snapshot() AS seen \gset
SELECT t.pub(NULL, 'l1'), t.pub(NULL, 'l2');
SELECT t.pub(NULL, 'l3');
SELECT t.set_cursor('views-late', 'l3', :'seen');
SELECT t.backlog('views-late');
SELECT t.set_cursor('views-late', 'l3', :'seen', 'l2');
SELECT t.backlog('views-late');
SELECT t.set_cursor('views-late', 'l2', pg_current_snapshot(), 'l2');
SELECT t.backlog('views-late');
SELECT routing_key, why, hint FROM acme_outbox.outbox_stuck WHERE origin = 'views-late';
-- in progress in the cursor's snapshot
BEGIN;
SELECT t.pub(NULL, 'l4');
SELECT t.set_cursor('views-late', 'l4', format('%s:%s:%s', x.xid, x.xid + 1, x.xid)::pg_snapshot)
	FROM (SELECT pg_current_xact_id()::text::bigint AS xid) x;
COMMIT;
SELECT t.backlog('views-late');
SELECT t.drain('views-late');
SELECT t.backlog('views-late');

\echo the worker
SELECT database = current_database(), state = CASE WHEN acme_outbox.worker_preloaded() THEN 'running' ELSE 'not preloaded' END
	OR state IN ('none', 'starting')
	FROM acme_outbox.worker_status WHERE database = current_database();
SELECT count(*) FROM acme_outbox.worker_status WHERE database = current_database();

\echo a relay may read the backlog, and no more
CREATE ROLE views_relay;
SELECT acme_outbox.grant_relay('views_relay', 'views');
SET ROLE views_relay;
SELECT origin, pending FROM acme_outbox.outbox_backlog WHERE origin = 'views';
RESET ROLE;
SELECT relname, has_table_privilege('views_relay', oid, 'SELECT') FROM pg_class
	WHERE relnamespace = 'acme_outbox'::regnamespace AND relkind = 'v' ORDER BY 1;
DROP OWNED BY views_relay;
DROP ROLE views_relay;
SELECT count(*) FROM pg_class c WHERE relnamespace = 'acme_outbox'::regnamespace AND relkind = 'v' AND obj_description(oid, 'pg_class') IS NULL;

DELETE FROM acme_outbox.relay_grant WHERE role_name = 'views_relay';
DELETE FROM acme_outbox.outbox_entry;
DELETE FROM acme_outbox.outbox_claim;
DROP FUNCTION t.backlog(text), t.seconds(interval), t.set_cursor(text, text, pg_snapshot, text);
