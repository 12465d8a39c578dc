-- What operators call.
SET client_min_messages = warning;
SET jit = off;
SET acme_outbox.autocommit_publish = off;
SET acme_outbox.origin = 'ops';
SET acme_outbox.max_attempts = 1;
\pset format unaligned
\pset tuples_only on
SELECT t.acquire('ops');
CREATE FUNCTION t.id_of(of_label text) RETURNS uuid LANGUAGE sql AS
$$ SELECT event_id FROM acme_outbox.outbox_entry WHERE origin = 'ops' AND routing_key = of_label $$;
SELECT coalesce(max(id), 0) AS before FROM acme_outbox.operator_action \gset

\echo retry: a failed or waiting entry, now, with its attempts forgotten
SELECT t.pub('A', 'failed'), t.pub('B', 'waiting'), t.pub('C', 'published'), t.pub('D', 'fresh'), t.claim('ops', 3);
SELECT t.settle('ops', 'failed', 'REJECTED', 'why'), t.settle('ops', 'waiting', 'UNROUTABLE'), t.settle('ops', 'published', 'PUBLISHED');
SELECT label, acme_outbox.retry(t.id_of(label)) FROM unnest(ARRAY['failed', 'waiting', 'published', 'fresh']) label;
SELECT acme_outbox.retry('0190a5d0-0000-7000-8000-0000000000ff');
SELECT label, status, hold_reason, attempts, holds, goes_on FROM t.state('ops');
SELECT t.verify('ops');
SELECT t.drain('ops');

\echo retry of one that its key holds: in its turn all the same
SET acme_outbox.max_attempts = 5;
SELECT t.pub('K', 'k1'), t.claim('ops'), t.settle('ops', 'k1', 'REJECTED');
SELECT t.pub('K', 'k2'), t.claim('ops');
SELECT acme_outbox.retry(t.id_of('k2'));
SELECT t.claim('ops');
SELECT acme_outbox.retry(t.id_of('k1'));
SELECT t.drain('ops');
SELECT t.verify('ops');
SET acme_outbox.max_attempts = 1;

\echo retry_failed: oldest failure first, filtered, counted before it is done
SELECT count(t.pub('R' || n, 'r' || n, CASE WHEN n % 2 = 0 THEN 'even' ELSE 'odd' END)) FROM generate_series(1, 6) n;
SELECT t.claim('ops');
SELECT t.settle('ops', 'r' || n, 'REJECTED') FROM generate_series(6, 1, -1) n;
SELECT acme_outbox.retry_failed(origin => 'ops', dry_run => true);
SELECT acme_outbox.retry_failed(origin => 'ops', topic => 'even', dry_run => true);
-- who does not say which changes nothing
SELECT acme_outbox.retry_failed(origin => 'ops', dry_run => NULL);
SELECT acme_outbox.retry_failed(origin => 'ops', event_name => 'NoSuch', dry_run => true);
SELECT acme_outbox.retry_failed(origin => 'nobody');
SELECT acme_outbox.retry_failed(origin => 'ops', max_rows => 2);
SELECT t.drain('ops');
SELECT acme_outbox.retry_failed(origin => 'ops', topic => 'even');
SELECT t.drain('ops');
SELECT acme_outbox.retry_failed(origin => 'ops');
SELECT t.drain('ops');
SELECT t.verify('ops');

\echo each left a trace, a dry run none
SELECT action, detail - 'event_id', affected, actor = current_user FROM acme_outbox.operator_action WHERE id > :before ORDER BY id;
SELECT acme_outbox.record_action('by hand', '{"why": "test"}', 7);

\echo a bound is at least 1; NULL is none
SELECT t.error(format('SELECT acme_outbox.%s', replace(call, '#', n)))
	FROM unnest(ARRAY['peek(#)', 'retry_failed(max_rows => #)', 'archive(max_rows => #)',
		'retry_failed(max_rows => #, dry_run => true)', 'republish(origin => ''ops'', max_rows => #)']) call,
		unnest(ARRAY['-1', '0']) n;
SELECT acme_outbox.retry_failed(origin => 'nobody', max_rows => NULL);

\echo peek: what would be sent, in publish order, unchanged by looking
SELECT t.pub('P', 'p1'), t.pub('P', 'p2'), t.pub('P', 'p3', not_before => '2101-01-01');
SELECT routing_key, message_key, hold_reason, envelope::json #>> '{body,payload,label}' FROM acme_outbox.peek(10, 'ops');
SELECT count(*) FROM acme_outbox.peek(1, 'ops');
SELECT count(*) FROM acme_outbox.peek(origin => 'nobody');
SELECT t.drain('ops');

\echo nothing changed: a notice says why, and what to do
-- entries of other tests
DELETE FROM acme_outbox.outbox_entry WHERE failed_at IS NOT NULL;
SET client_min_messages = notice;
SET acme_outbox.max_attempts = 1;
SELECT t.pub('N', 'n-failed'), t.pub('O', 'n-published'), t.pub('O', 'n-flying'), t.claim('ops');
SELECT t.settle('ops', 'n-failed', 'REJECTED'), t.settle('ops', 'n-published', 'PUBLISHED'), t.pub(NULL, 'n-fresh');
UPDATE acme_outbox.outbox_entry e SET event_id = ('0190a5d0-0000-7000-8000-00000000010' || v.n)::uuid FROM (VALUES (1, 'n-failed'), (2, 'n-published'), (3, 'n-flying'), (4, 'n-fresh')) v (n, l) WHERE e.routing_key = v.l AND e.origin = 'ops';
SELECT acme_outbox.retry(t.id_of('n-published')) + acme_outbox.retry(t.id_of('n-flying')) + acme_outbox.retry(t.id_of('n-fresh')) + acme_outbox.retry('0190a5d0-0000-7000-8000-0000000000ff');
SELECT acme_outbox.republish(t.id_of('n-failed')), acme_outbox.cancel(t.id_of('n-published'), 'too late');
SELECT acme_outbox.retry_failed('ops', 'no-such-topic', dry_run => true);
SELECT acme_outbox.archive('nobody');
SELECT acme_outbox.archive('ops'), acme_outbox.retry_failed('ops');
SET client_min_messages = warning;
SELECT t.settle('ops', '*', 'PUBLISHED'), t.drain('ops');
RESET acme_outbox.max_attempts;
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'ops';

\echo cancel: unsent, waiting or failed, it is never sent, and its key goes on
SELECT t.pub('C', 'c1'), t.claim('ops'), t.settle('ops', 'c1', 'UNROUTABLE'), t.pub('C', 'c2'), t.pub('C', 'c3'), t.claim('ops');
SELECT acme_outbox.cancel(t.id_of('c1'), 'wrong price'), acme_outbox.cancel(t.id_of('c2'), 'wrong price');
SELECT t.pub(NULL, 'c4'), acme_outbox.cancel(t.id_of('c4'), 'wrong price');
SELECT t.drain('ops'), t.verify('ops');
SELECT s.label, s.status, s.hold_reason, s.goes_on, e.last_error FROM t.state('ops') s JOIN acme_outbox.outbox_entry e ON e.origin = 'ops' AND e.routing_key = s.label;
SELECT t.error(format('SELECT acme_outbox.cancel(%L, %L)', t.id_of('c3'), why)) FROM unnest(ARRAY['', NULL]) why;
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'ops';

\echo archive: failed entries are closed, by filter; their key goes on where it was blocked
SET acme_outbox.max_attempts = 1;
SET acme_outbox.failed_key_policy = block;
SELECT t.pub('A', 'a1', 'left'), t.pub('B', 'b1', 'right'), t.claim('ops'), t.settle('ops', '*', 'REJECTED'), t.pub('A', 'a2', 'left'), t.claim('ops');
SELECT acme_outbox.archive('ops', dry_run => true), acme_outbox.archive('ops', dry_run => NULL), acme_outbox.archive('ops', 'left'), acme_outbox.archive('ops', 'left');
SELECT t.drain('ops'), t.verify('ops');
SELECT label, status, goes_on FROM t.state('ops');
RESET acme_outbox.failed_key_policy;
RESET acme_outbox.max_attempts;
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'ops';

\echo republish: the same ids and bytes again, in order, before what comes later; redacted ones are left out
SELECT count(t.pub('R', 'r' || n)) FROM generate_series(1, 4) n;
SELECT acme_outbox.redact_event('UserAsked', 'payload.token'), acme_outbox.publish('users', 'ruled', 'R', 'UserAsked', '{"token":1}', event_id => '0190a5d0-0000-7000-8000-0000000002aa') IS NOT NULL;
SELECT t.drain('ops');
SELECT string_agg(event_id || md5(payload), ',' ORDER BY id) AS sent FROM acme_outbox.outbox_entry WHERE origin = 'ops' AND routing_key LIKE 'r_' \gset
SET client_min_messages = notice;
SELECT acme_outbox.republish(origin => 'ops', dry_run => true), acme_outbox.republish(origin => 'ops', dry_run => NULL), acme_outbox.republish(origin => 'ops', until => now() - interval '1 hour'), acme_outbox.republish(origin => 'ops', topic => 'orders', max_rows => 3);
SET client_min_messages = warning;
SELECT t.error($$SELECT acme_outbox.republish('0190a5d0-0000-7000-8000-0000000002aa')$$), t.error('SELECT acme_outbox.republish()');
SELECT t.pub('R', 'r5'), acme_outbox.republish(t.id_of('r4'));
SELECT label, status, goes_on FROM t.state('ops');
SELECT routing_key, lanes_done, attempts FROM acme_outbox.claim('ops', t.epoch('ops'), 100, 100000);
SELECT t.settle('ops', '*', 'PUBLISHED'), t.verify('ops');
SELECT string_agg(event_id || md5(payload), ',' ORDER BY id) = :'sent' AS the_same FROM acme_outbox.outbox_entry WHERE origin = 'ops' AND routing_key LIKE 'r_' AND routing_key <> 'r5';
SELECT acme_outbox.unredact_event('UserAsked', 'payload.token');
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'ops';

\echo pause a topic: its entries stay, they hold back their key, others go on; publishing does
SELECT t.pub('P', 'held', 'slow'), t.pub('Q', 'free'), acme_outbox.pause('ops', 'slow', 'consumer is down');
SELECT t.pub('P', 'behind'), t.claim('ops'), t.settle('ops', '*', 'PUBLISHED');
SELECT t.claim('ops'), t.verify('ops');
SELECT label, status, hold_reason, goes_on FROM t.state('ops');
SELECT pending, paused, key_held FROM acme_outbox.outbox_backlog WHERE origin = 'ops';
UPDATE acme_outbox.outbox_entry SET created_at = created_at - interval '1 hour' WHERE origin = 'ops';
SELECT topic, why, hint FROM acme_outbox.outbox_stuck WHERE origin = 'ops' AND hold_reason = 'PAUSED';
-- what waited before, what is retried and what had failed is held as well when its time comes
SELECT acme_outbox.retry(t.id_of('held')), t.claim('ops');
\echo resumed, it goes, and then the rest of its key
SELECT acme_outbox.resume('ops', 'slow'), t.claim('ops'), t.settle('ops', '*', 'PUBLISHED'), t.drain('ops'), t.verify('ops');
SELECT label, status FROM t.state('ops');
SELECT count(*) FROM acme_outbox.outbox_pause;
\echo pause the origin: nothing at all, dead letters neither
SET acme_outbox.max_attempts = 1;
SELECT t.pub('P', 'failed'), t.claim('ops'), t.settle('ops', '*', 'REJECTED'), acme_outbox.pause('ops', why => 'move'), t.pub('P', 'later'), acme_outbox.pause('ops', 'orders');
SELECT t.claim('ops'), (SELECT count(*) FROM acme_outbox.claim_failed('ops', t.epoch('ops'), 10)), t.verify('ops');
SELECT why, hint FROM acme_outbox.outbox_stuck WHERE origin = 'ops' AND id IS NULL AND hold_reason = 'PAUSED';
SET client_min_messages = notice;
SELECT acme_outbox.resume('ops', 'slow');
SELECT acme_outbox.pause('opss'), acme_outbox.resume('opss'), acme_outbox.resume('opss');
SET client_min_messages = warning;
SELECT acme_outbox.resume('ops'), t.drain('ops'), (SELECT count(*) FROM acme_outbox.claim_failed('ops', t.epoch('ops'), 10)), t.settle('ops', '*', 'ARCHIVED');
SELECT count(*) FROM acme_outbox.outbox_pause;
SELECT t.error($$SELECT acme_outbox.pause('')$$), t.sqlstate($$SELECT acme_outbox.pause('ops', '')$$);
RESET acme_outbox.max_attempts;
\echo more than a claim lets go at once
SELECT count(t.pub('M' || n, 'm', 'many')) FROM generate_series(1, 10005) n;
SELECT acme_outbox.pause('ops', 'many'), t.claim('ops'), t.claim('ops');
SELECT pending, paused FROM acme_outbox.outbox_backlog WHERE origin = 'ops';
SELECT acme_outbox.resume('ops', 'many');
SELECT count(*) FROM acme_outbox.claim('ops', t.epoch('ops'), 10, 100000);
SELECT pending, paused, (SELECT count(*) FROM acme_outbox.outbox_pause) FROM acme_outbox.outbox_backlog WHERE origin = 'ops';
SELECT count(*) FROM acme_outbox.claim('ops', t.epoch('ops'), 10, 100000);
SELECT pending, paused, (SELECT count(*) FROM acme_outbox.outbox_pause) FROM acme_outbox.outbox_backlog WHERE origin = 'ops';
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'ops';
\echo a pause that somebody deleted by hand is told
SELECT t.pub(NULL, 'lost', 'slow'), acme_outbox.pause('ops', 'slow'), t.claim('ops');
DELETE FROM acme_outbox.outbox_pause;
SELECT t.verify('ops');
UPDATE acme_outbox.outbox_entry SET next_attempt_at = NULL WHERE routing_key = 'lost';
SELECT t.drain('ops'), t.verify('ops');
SELECT action, detail - 'event_id' - 'until' AS detail, affected FROM acme_outbox.operator_action WHERE id > :before AND action IN ('cancel', 'pause', 'resume', 'republish', 'archive') ORDER BY id;
DROP FUNCTION t.id_of;
