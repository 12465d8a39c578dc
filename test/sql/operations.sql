-- What operators call.
SET client_min_messages = warning;
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

\echo peek: what would be sent, in publish order, unchanged by looking
SELECT t.pub('P', 'p1'), t.pub('P', 'p2'), t.pub('P', 'p3', not_before => '2101-01-01');
SELECT routing_key, message_key, hold_reason, envelope::json #>> '{body,payload,label}' FROM acme_outbox.peek(10, 'ops');
SELECT count(*) FROM acme_outbox.peek(1, 'ops');
SELECT count(*) FROM acme_outbox.peek(origin => 'nobody');
SELECT t.drain('ops');
DROP FUNCTION t.id_of;
