-- The reaper, retention, and who runs them when.
SET client_min_messages = warning;
SET acme_outbox.autocommit_publish = off;
SET acme_outbox.origin = 'duty';
\pset format unaligned
\pset tuples_only on
\set VERBOSITY terse

-- a clean table, and no duty run by a worker meanwhile
UPDATE acme_outbox.duty_run SET started_at = 'infinity';
DELETE FROM acme_outbox.outbox_entry;
DELETE FROM acme_outbox.outbox_claim;
DELETE FROM acme_outbox.outbox_cursor;
DELETE FROM acme_outbox.operator_action;
DELETE FROM acme_outbox.purge_position;

-- some labels become that much older
CREATE FUNCTION t.age(labels text, by interval) RETURNS void LANGUAGE sql AS $$
	UPDATE acme_outbox.outbox_entry SET created_at = created_at - by,
		published_at = published_at - by, failed_at = failed_at - by
	WHERE origin = 'duty' AND (labels = '*' OR routing_key = ANY (string_to_array(labels, ' ')));
	UPDATE acme_outbox.outbox_claim c SET claimed_at = claimed_at - by
	WHERE origin = 'duty' AND EXISTS (SELECT FROM acme_outbox.outbox_entry e
		WHERE e.claim_id = c.claim_id AND (labels = '*' OR routing_key = ANY (string_to_array(labels, ' '))));
$$;
CREATE FUNCTION t.labels() RETURNS text LANGUAGE sql AS $$
	SELECT coalesce(string_agg(routing_key, ' ' ORDER BY id), '-') FROM acme_outbox.outbox_entry WHERE origin = 'duty'
$$;
SELECT t.acquire('duty');

\echo retention deletes what was published long ago, and nothing else
SELECT t.pub(NULL, 'old'), t.pub(NULL, 'archived'), t.pub(NULL, 'failed'), t.pub('A', 'held'), t.pub('A', 'behind'), t.pub(NULL, 'late');
SELECT t.claim('duty');
SET acme_outbox.max_attempts = 1;
SELECT t.settle('duty', 'old', 'PUBLISHED'), t.settle('duty', 'archived', 'ARCHIVED'), t.settle('duty', 'failed', 'REJECTED'), t.settle('duty', 'held', 'UNROUTABLE');
RESET acme_outbox.max_attempts;
SELECT t.pub(NULL, 'pending'), t.pub(NULL, 'young');
SELECT t.age('old archived failed held behind late pending', '8 days');
SELECT t.settle('duty', 'late', 'PUBLISHED');
SELECT t.claim('duty', 2);
SELECT t.settle('duty', 'young', 'PUBLISHED');
SELECT label, status FROM t.state('duty');
SELECT * FROM acme_outbox.purge();
SELECT t.labels();
SELECT * FROM acme_outbox.purge();
\echo of what was published late, when it was kept long enough and the walk starts over
SELECT t.age('late', '8 days');
SELECT * FROM acme_outbox.purge() WHERE what = 'published';
UPDATE acme_outbox.purge_position SET started_at = started_at - interval '59 minutes';
SELECT * FROM acme_outbox.purge() WHERE what = 'published';
UPDATE acme_outbox.purge_position SET started_at = started_at - interval '2 minutes';
SELECT affected FROM acme_outbox.purge() WHERE what = 'published';
SELECT affected FROM acme_outbox.purge() WHERE what = 'published';
SELECT t.labels();
SELECT t.verify('duty');

\echo retention_published, and 0 for ever
SELECT t.settle('duty', '*', 'PUBLISHED');
SELECT t.age('young', '2 days');
SET acme_outbox.retention_published = 0;
SELECT * FROM acme_outbox.purge() WHERE what = 'published';
SET acme_outbox.retention_published = '1d';
DELETE FROM acme_outbox.purge_position;
SELECT * FROM acme_outbox.purge() WHERE what = 'published';
SELECT t.labels();
RESET acme_outbox.retention_published;
DELETE FROM acme_outbox.outbox_entry;

\echo duty_batch_rows: ten batches an origin, then more
SELECT count(t.pub(NULL, 'b' || n)) FROM generate_series(1, 25) n;
SELECT t.claim('duty') IS NOT NULL, t.settle('duty', '*', 'PUBLISHED');
SELECT t.age('*', '8 days');
SET acme_outbox.duty_batch_rows = 2;
SELECT * FROM acme_outbox.purge() WHERE what = 'published';
SELECT * FROM acme_outbox.purge() WHERE what = 'published';
SELECT * FROM acme_outbox.purge() WHERE what = 'published';
RESET acme_outbox.duty_batch_rows;

\echo actions of operators, and positions of cursors
INSERT INTO acme_outbox.operator_action (acted_at, action, detail, affected)
	SELECT now() - n * interval '30 days', 'test', '{}', n FROM generate_series(5, 1, -1) n;
SET acme_outbox.retention_actions = 0;
SELECT * FROM acme_outbox.purge() WHERE what = 'actions';
RESET acme_outbox.retention_actions;
SELECT * FROM acme_outbox.purge() WHERE what = 'actions';
SET acme_outbox.retention_actions = '50d';
SELECT * FROM acme_outbox.purge() WHERE what = 'actions';
SELECT string_agg(affected::text, ' ' ORDER BY id) FROM acme_outbox.operator_action;
RESET acme_outbox.retention_actions;
INSERT INTO acme_outbox.outbox_cursor (origin, position, last_id, seen, skipped)
	SELECT 'duty', 1000 + n, c.last_id, c.seen, '{}' FROM generate_series(1, 130) n,
	(SELECT * FROM acme_outbox.outbox_cursor WHERE origin = 'duty' ORDER BY position DESC LIMIT 1) c;
SELECT result, affected >= 30 FROM acme_outbox.purge() WHERE what = 'cursors';
SELECT count(*), min(position), max(position) FROM acme_outbox.outbox_cursor WHERE origin = 'duty';
SELECT * FROM acme_outbox.purge() WHERE what = 'cursors';

\echo the reaper warns about what is in flight for too long
SELECT t.pub('K', 'k1'), t.pub('K', 'k2'), t.pub(NULL, 'n1');
SELECT t.claim('duty');
SELECT * FROM acme_outbox.reap();
SELECT t.age('*', '16 minutes');
\set VERBOSITY default
SELECT * FROM acme_outbox.reap();
SELECT t.expire('duty');
SELECT * FROM acme_outbox.reap();
\set VERBOSITY terse
SET acme_outbox.reaper_warn_after = '20min';
SELECT * FROM acme_outbox.reap();
RESET acme_outbox.reaper_warn_after;

\echo it fails nothing: too young, only warnings, or to be reclaimed
SET acme_outbox.stale_claim_policy = strand;
SELECT warned, failed FROM acme_outbox.reap();
SELECT t.age('*', '4 hours');
SET acme_outbox.reaper_fail_after = 0;
SELECT warned, failed FROM acme_outbox.reap();
RESET acme_outbox.reaper_fail_after;
SET acme_outbox.stale_claim_policy = reclaim;
SELECT warned, failed FROM acme_outbox.reap();
SET acme_outbox.stale_claim_policy = strand;
\echo nor with a live lease of that epoch behind it
UPDATE acme_outbox.relay_lease SET expires_at = clock_timestamp() + interval '1 hour' WHERE origin = 'duty';
SELECT warned, failed FROM acme_outbox.reap();
\echo but it does when another relay has taken over; what waited for the key goes on
SELECT t.expire('duty');
SELECT t.acquire('duty', 'relay-2');
SELECT t.pub('K', 'k3'), t.pub('K', 'k4');
SELECT t.claim('duty');
SELECT * FROM acme_outbox.reap();
SELECT label, status, hold_reason, goes_on FROM t.state('duty');
SELECT DISTINCT last_error ~ '^stranded in PUBLISHING for 04:16:\d\d, never confirmed; reaper$', claim_id
	FROM acme_outbox.outbox_entry WHERE status = 'FAILED';
SELECT count(*) FROM acme_outbox.outbox_claim;
SELECT t.drain('duty');
SELECT t.verify('duty');
DELETE FROM acme_outbox.outbox_entry;

\echo failed_key_policy, that of the topic before the setting; an earlier error is kept
INSERT INTO acme_outbox.topic_policy (topic, failed_key_policy) VALUES ('go', 'continue');
SET acme_outbox.failed_key_policy = block;
SELECT t.pub('B', 'b1'), t.pub('G', 'g1', 'go'), t.pub(NULL, 'n1');
UPDATE acme_outbox.outbox_entry SET last_error = 'was refused' WHERE routing_key = 'b1';
SELECT t.claim('duty');
SELECT t.expire('duty'), t.age('*', '5 hours');
SELECT * FROM acme_outbox.reap();
SELECT t.acquire('duty', 'relay-2');
SELECT t.pub('B', 'b2'), t.pub('G', 'g2', 'go');
SELECT t.claim('duty');
SELECT label, status, hold_reason, goes_on FROM t.state('duty');
SELECT last_error ~ '^stranded .*; reaper; before that: was refused$' FROM acme_outbox.outbox_entry WHERE routing_key = 'b1';
\echo a blocked key is not woken
SELECT woken FROM acme_outbox.reap();
SELECT t.settle('duty', '*', 'PUBLISHED');
RESET acme_outbox.failed_key_policy;
DELETE FROM acme_outbox.topic_policy;
DELETE FROM acme_outbox.outbox_entry;

\echo at most duty_batch_rows at a time
SET acme_outbox.duty_batch_rows = 3;
SELECT count(t.pub(NULL, 'm' || n)) FROM generate_series(1, 5) n;
SELECT t.claim('duty');
SELECT t.expire('duty'), t.age('*', '5 hours');
SELECT * FROM acme_outbox.reap();
SELECT cardinality(ids) FROM acme_outbox.outbox_claim;
SELECT * FROM acme_outbox.reap();
SELECT * FROM acme_outbox.reap();
RESET acme_outbox.duty_batch_rows;
RESET acme_outbox.stale_claim_policy;
DELETE FROM acme_outbox.outbox_entry;

\echo a claim that was removed by hand
SELECT t.acquire('duty', 'relay-2');
SELECT t.pub(NULL, 'lost');
SELECT t.claim('duty');
DELETE FROM acme_outbox.outbox_claim;
SELECT * FROM acme_outbox.reap();
UPDATE acme_outbox.outbox_entry SET status = 'PENDING';
SELECT t.drain('duty');
SELECT * FROM acme_outbox.reap();

\echo the safety net: keys whose entries all wait for each other
CREATE FUNCTION t.hold(labels text, reason acme_outbox.hold_reason, at timestamptz DEFAULT 'infinity') RETURNS void LANGUAGE sql AS $$
	UPDATE acme_outbox.outbox_entry SET hold_reason = reason, next_attempt_at = at
	WHERE origin = 'duty' AND routing_key = ANY (string_to_array(labels, ' '))
$$;
DELETE FROM acme_outbox.outbox_entry;
SELECT t.pub('A', 'a1'), t.pub('A', 'a2'), t.pub('B', 'b1'), t.pub('B', 'b2'), t.pub('C', 'c1'), t.pub('C', 'c2'), t.pub('D', 'd1'), t.pub('D', 'd2');
SELECT t.hold('a1 a2 b2 c2 d2', 'KEY'), t.hold('b1', 'RETRY', clock_timestamp() + interval '1 hour'),
	   t.hold('d1', 'SCHEDULED', clock_timestamp() + interval '1 hour');
\echo A is stuck; B waits for b1; C for c1, in flight; the first of D is scheduled and blocks nobody
SELECT t.claim('duty', 1);
SELECT * FROM acme_outbox.reap();
SELECT label, status, hold_reason, goes_on FROM t.state('duty');
SELECT * FROM acme_outbox.reap();
SELECT t.settle('duty', '*', 'PUBLISHED');
SELECT t.drain('duty');
SELECT t.make_due('duty');
SELECT t.drain('duty');
SELECT t.verify('duty');
\echo an entry that was locked when the cursor passed it comes first
DELETE FROM acme_outbox.outbox_entry;
SELECT t.pub('S', 's1'), t.pub('S', 's2');
SELECT t.hold('s2', 'KEY');
INSERT INTO acme_outbox.outbox_cursor (origin, position, last_id, seen, skipped)
	SELECT 'duty', c.position + 1, e.id, pg_current_snapshot(), ARRAY[e.id - 1]
	FROM (SELECT * FROM acme_outbox.outbox_cursor WHERE origin = 'duty' ORDER BY position DESC LIMIT 1) c,
		 acme_outbox.outbox_entry e WHERE e.routing_key = 's2';
SELECT woken FROM acme_outbox.reap();
SELECT t.drain('duty');

\echo what is due, and when
-- within one transaction, so that nobody else runs them
BEGIN;
UPDATE acme_outbox.duty_run SET started_at = '-infinity', result = NULL;
SELECT duty, result FROM acme_outbox.run_due_duties();
SELECT duty, result FROM acme_outbox.run_due_duties();
CREATE FUNCTION t.ran(ago interval, result text) RETURNS text LANGUAGE sql AS $$
	UPDATE acme_outbox.duty_run SET started_at = clock_timestamp() - ago, result = ran.result;
	SELECT coalesce(string_agg(duty, ' '), '-') FROM acme_outbox.run_due_duties()
$$;
SELECT t.ran('59s', 'done'), t.ran('61s', 'done'), t.ran('14min', 'done'), t.ran('15min', 'done');
SET LOCAL acme_outbox.reaper_interval = '30s';
SET LOCAL acme_outbox.retention_interval = '1h';
SELECT t.ran('29s', 'done'), t.ran('31s', 'done'), t.ran('59min', 'done'), t.ran('1h', 'done');
\echo what was contended or failed is due after a minute, what has more at once
SET LOCAL acme_outbox.reaper_interval = '1h';
SELECT t.ran('59s', 'contended'), t.ran('60s', 'contended'), t.ran('60s', 'failed'), t.ran('0', 'more');
\echo a failing duty does not stop the other
ALTER TABLE acme_outbox.purge_position RENAME TO hidden;
UPDATE acme_outbox.duty_run SET started_at = '-infinity';
SELECT duty, result FROM acme_outbox.run_due_duties();
ALTER TABLE acme_outbox.hidden RENAME TO purge_position;
SELECT t.ran('61s', 'failed');
\echo rows of duty_run that are missing come back
DELETE FROM acme_outbox.duty_run;
SELECT duty, result FROM acme_outbox.run_due_duties();
SELECT duty, result, affected FROM acme_outbox.duty_run ORDER BY 1;
ROLLBACK;

\echo settings of the session are untouched
SET lock_timeout = '7s';
SELECT result FROM acme_outbox.reap();
SELECT result FROM acme_outbox.purge() LIMIT 1;
SHOW lock_timeout;
SHOW enable_seqscan;
RESET lock_timeout;

DELETE FROM acme_outbox.outbox_entry;
DELETE FROM acme_outbox.operator_action;
UPDATE acme_outbox.duty_run SET started_at = '-infinity', result = NULL;
DROP FUNCTION t.age(text, interval), t.labels(), t.hold(text, acme_outbox.hold_reason, timestamptz);
