-- verify() tells what is lost from sight: each problem is faked by an administrator
-- with triggers off, seen, and gone when undone.
SET client_min_messages = warning;
SET acme_outbox.autocommit_publish = off;
SET acme_outbox.origin = 'verify';
\pset format unaligned
\pset tuples_only on
SELECT t.acquire('verify');
SELECT count(t.pub('K', 'v' || n)) FROM generate_series(1, 12) n;
SELECT t.claim('verify', 5), t.settle('verify', '*', 'PUBLISHED');
SELECT t.verify('verify');
SET session_replication_role = replica;

\echo PENDING behind the cursor
UPDATE acme_outbox.outbox_entry SET status = 'PENDING' WHERE origin = 'verify' AND routing_key IN ('v1', 'v3');
SELECT problem, entries, sample = (SELECT array_agg(id ORDER BY id) FROM acme_outbox.outbox_entry WHERE origin = 'verify' AND routing_key IN ('v1', 'v3')) FROM acme_outbox.verify() WHERE origin = 'verify';
-- due, it would be found
UPDATE acme_outbox.outbox_entry SET next_attempt_at = now() WHERE origin = 'verify' AND routing_key IN ('v1', 'v3');
SELECT t.verify('verify');
UPDATE acme_outbox.outbox_entry SET status = 'PUBLISHED', next_attempt_at = NULL WHERE origin = 'verify' AND routing_key IN ('v1', 'v3');

\echo waiting for ever, for no reason
UPDATE acme_outbox.outbox_entry SET next_attempt_at = 'infinity' WHERE origin = 'verify' AND routing_key = 'v6';
SELECT t.verify('verify');
UPDATE acme_outbox.outbox_entry SET next_attempt_at = 'infinity', hold_reason = 'RETRY' WHERE origin = 'verify' AND routing_key = 'v6';
SELECT t.verify('verify');
UPDATE acme_outbox.outbox_entry SET next_attempt_at = NULL, hold_reason = NULL WHERE origin = 'verify' AND routing_key = 'v6';
SELECT t.verify('verify');

\echo held by a key that nothing holds
UPDATE acme_outbox.outbox_entry SET next_attempt_at = 'infinity', hold_reason = 'KEY' WHERE origin = 'verify' AND routing_key >= 'v6' AND status = 'PENDING' OR origin = 'verify' AND routing_key LIKE 'v1_';
SELECT t.verify('verify');
-- by an earlier one that waits, it is
UPDATE acme_outbox.outbox_entry SET next_attempt_at = '2101-01-01', hold_reason = 'RETRY' WHERE origin = 'verify' AND routing_key = 'v6';
SELECT t.verify('verify');
-- by one that is scheduled for later, it is not
UPDATE acme_outbox.outbox_entry SET hold_reason = 'SCHEDULED' WHERE origin = 'verify' AND routing_key = 'v6';
SELECT t.verify('verify');
UPDATE acme_outbox.outbox_entry SET next_attempt_at = NULL, hold_reason = NULL WHERE origin = 'verify' AND status = 'PENDING';
SELECT t.verify('verify');

\echo PUBLISHING in no claim
UPDATE acme_outbox.outbox_entry SET status = 'PUBLISHING', claim_id = 17 WHERE origin = 'verify' AND routing_key IN ('v6', 'v7');
SELECT t.verify('verify');
UPDATE acme_outbox.outbox_entry SET status = 'PENDING', claim_id = NULL WHERE origin = 'verify' AND routing_key IN ('v6', 'v7');
SELECT t.verify('verify');

\echo two problems are two rows
UPDATE acme_outbox.outbox_entry SET status = 'PENDING' WHERE origin = 'verify' AND routing_key = 'v2';
UPDATE acme_outbox.outbox_entry SET status = 'PUBLISHING' WHERE origin = 'verify' AND routing_key = 'v9';
SELECT problem, entries FROM acme_outbox.verify() WHERE origin = 'verify';
UPDATE acme_outbox.outbox_entry SET status = 'PUBLISHED' WHERE origin = 'verify' AND routing_key = 'v2';
UPDATE acme_outbox.outbox_entry SET status = 'PENDING' WHERE origin = 'verify' AND routing_key = 'v9';
RESET session_replication_role;
SELECT t.drain('verify'), t.verify('verify');
