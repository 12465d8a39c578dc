-- An event that has arrived and lacks only its audit copy: it waits for that alone, holds
-- back nothing of its key and is held back by nothing.
SET client_min_messages = warning;
SET jit = off;
SET acme_outbox.autocommit_publish = off;
SET acme_outbox.origin = 'lanes';
\pset format unaligned
\pset tuples_only on
SELECT t.acquire('lanes');
CREATE FUNCTION t.lanes() RETURNS TABLE (label text, status acme_outbox.entry_status, hold_reason acme_outbox.hold_reason, attempts smallint, lanes_done smallint, goes_on text) LANGUAGE sql AS
$$ SELECT s.label, s.status, s.hold_reason, s.attempts, e.lanes_done, s.goes_on FROM t.state('lanes') s JOIN acme_outbox.outbox_entry e ON e.origin = 'lanes' AND e.routing_key = s.label ORDER BY e.id $$;
-- what is claimed, and what of it has arrived before
CREATE FUNCTION t.claim_lanes() RETURNS text LANGUAGE sql AS
$$ SELECT coalesce(string_agg(routing_key || ':' || lanes_done, ' ' ORDER BY id), '-') FROM acme_outbox.claim('lanes', t.epoch('lanes'), 100, 1000000) $$;

\echo every outcome but PUBLISHED keeps the bits; the rest of the key goes on at once
SELECT t.pub('R', 'rej'), t.pub('U', 'unr'), t.pub('N', 'nack'), t.pub('L', 'rel'), t.pub('P', 'pub');
SELECT t.claim_lanes();
SELECT t.settle('lanes', 'rej', 'REJECTED', 'audit', 1), t.settle('lanes', 'unr', 'UNROUTABLE', 'audit', 1), t.settle('lanes', 'nack', 'NACKED', NULL, 1),
	t.settle('lanes', 'rel', 'RELEASED', NULL, 1), t.settle('lanes', 'pub', 'PUBLISHED', NULL, 1);
SELECT * FROM t.lanes();
SELECT pending, retry, unroutable, nacked, audit_only FROM acme_outbox.outbox_backlog WHERE origin = 'lanes';
UPDATE acme_outbox.outbox_entry SET created_at = created_at - interval '1 hour' WHERE origin = 'lanes';
SELECT topic, why FROM acme_outbox.outbox_stuck WHERE origin = 'lanes' AND hold_reason = 'NACKED';
SELECT t.pub('R', 'rej2'), t.pub('U', 'unr2'), t.pub('N', 'nack2'), t.pub('L', 'rel2');
-- rel is due at once, and comes with what it has
SELECT t.claim_lanes();
SELECT t.verify('lanes');
SELECT t.settle('lanes', '*', 'PUBLISHED', NULL, 2);
SELECT t.make_due('lanes'), t.claim_lanes();
SELECT t.settle('lanes', '*', 'PUBLISHED', NULL, 2);
SELECT label, status, lanes_done FROM t.lanes();
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'lanes';

\echo what waited for it goes when it has arrived, not when its audit copy has
SELECT t.pub('K', 'A'), t.claim_lanes(), t.settle('lanes', 'A', 'REJECTED');
SELECT t.pub('K', 'B'), t.pub('K', 'C'), t.claim_lanes();
SELECT t.make_due('lanes'), t.claim_lanes();
SELECT t.settle('lanes', 'A', 'NACKED', NULL, 1);
SELECT * FROM t.lanes();
SELECT t.claim_lanes();
\echo nor is it held by an earlier one of its key
SELECT t.settle('lanes', 'B', 'RELEASED', NULL, 1), t.settle('lanes', 'C', 'PUBLISHED');
UPDATE acme_outbox.outbox_entry SET lanes_done = 0, hold_reason = 'RETRY', attempts = 1, next_attempt_at = '2101-01-01' WHERE origin = 'lanes' AND routing_key = 'A';
SELECT t.pub('K', 'D'), t.claim_lanes();
SELECT * FROM t.lanes();
SELECT t.verify('lanes');
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'lanes';

\echo refused by the audit lane until it is given up: it fails, and blocks no key for that
SET acme_outbox.max_attempts = 2;
SET acme_outbox.failed_key_policy = block;
SELECT t.pub('F', 'F1'), t.pub('F', 'F2'), t.claim_lanes();
SELECT t.settle('lanes', 'F1', 'REJECTED', 'audit', 1), t.settle('lanes', 'F2', 'REJECTED', 'business');
SELECT t.make_due('lanes', 'F1'), t.claim_lanes(), t.settle('lanes', 'F1', 'REJECTED', 'audit');
SELECT * FROM t.lanes();
SELECT t.pub('F', 'F3'), t.claim_lanes();
-- F2 itself, refused by the business lane, does block
SELECT t.make_due('lanes', 'F2'), t.claim_lanes(), t.settle('lanes', 'F2', 'REJECTED', 'business');
SELECT t.claim_lanes();
SELECT * FROM t.lanes();
SELECT event_name, blocks_key, audit_only, last_error FROM acme_outbox.outbox_failed WHERE origin = 'lanes' ORDER BY id;
SELECT why FROM acme_outbox.outbox_stuck WHERE origin = 'lanes' AND status = 'FAILED' ORDER BY id;
\echo a dead-letter copy that fails leaves it as it is; a retry sends no more than the audit copy
SELECT count(*) FROM acme_outbox.claim_failed('lanes', t.epoch('lanes'), 1), acme_outbox.outbox_entry e WHERE e.id = claim_failed.id AND e.routing_key = 'F1';
SELECT t.settle('lanes', '*', 'RELEASED');
SELECT * FROM t.lanes() WHERE label = 'F1';
SELECT acme_outbox.retry(event_id) FROM acme_outbox.outbox_entry WHERE origin = 'lanes' AND routing_key = 'F1';
SELECT t.claim_lanes();
SELECT t.settle('lanes', 'F1', 'PUBLISHED', NULL, 2);
SELECT * FROM t.lanes();
SELECT t.verify('lanes');
RESET acme_outbox.failed_key_policy;
RESET acme_outbox.max_attempts;
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'lanes';

\echo a takeover keeps what has arrived, and its key goes on
SELECT t.pub('T', 'T1'), t.claim_lanes(), t.settle('lanes', 'T1', 'RELEASED', NULL, 1), t.claim_lanes();
SELECT t.pub('T', 'T2'), t.acquire('lanes');
SELECT t.claim_lanes();
SELECT t.settle('lanes', '*', 'PUBLISHED', NULL, 3);
\echo nor does it block its key while it is stranded, nor when the reaper fails it
SET acme_outbox.stale_claim_policy = strand;
SET acme_outbox.failed_key_policy = block;
SELECT t.pub('S', 'S1'), t.claim_lanes(), t.settle('lanes', 'S1', 'RELEASED', NULL, 1), t.claim_lanes();
SELECT t.pub('S', 'S2'), t.acquire('lanes');
SELECT t.claim_lanes();
SELECT t.settle('lanes', '*', 'PUBLISHED', NULL, 3), t.expire('lanes');
SET acme_outbox.reaper_fail_after = '1s';
UPDATE acme_outbox.outbox_claim SET claimed_at = claimed_at - interval '1 hour' WHERE origin = 'lanes';
SET client_min_messages = error;
SELECT failed > 0 FROM acme_outbox.reap();
SET client_min_messages = warning;
SELECT * FROM t.lanes() WHERE label LIKE 'S%';
RESET acme_outbox.reaper_fail_after;
RESET acme_outbox.failed_key_policy;
RESET acme_outbox.stale_claim_policy;
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'lanes';

\echo the reaper wakes, and verify() reports, what only such an entry seems to hold
SELECT t.acquire('lanes'), t.pub('W', 'W1'), t.claim_lanes(), t.settle('lanes', 'W1', 'RELEASED', NULL, 1), t.claim_lanes(), t.pub('W', 'W2');
SET session_replication_role = replica;
UPDATE acme_outbox.outbox_entry SET next_attempt_at = 'infinity', hold_reason = 'KEY' WHERE origin = 'lanes' AND routing_key = 'W2';
RESET session_replication_role;
SELECT t.verify('lanes');
SELECT woken > 0 FROM acme_outbox.reap();
SELECT * FROM t.lanes();
SELECT t.verify('lanes');
\echo lanes are bits
SELECT t.error(format('SELECT * FROM acme_outbox.settle(%s, 1, ''{1}'', ''{RELEASED}'', ''{%s}'', ''{NULL}'')', t.epoch('lanes'), l)) FROM unnest(ARRAY[4, -1]) l;
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'lanes';
DROP FUNCTION t.lanes, t.claim_lanes;
