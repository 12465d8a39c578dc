-- What claim() hands out.
SET client_min_messages = warning;
SET acme_outbox.autocommit_publish = off;
SET acme_outbox.origin = 'claims';
\pset format unaligned
\pset tuples_only on

\echo rows come in id order, share one claim, and are those of one origin
SELECT t.pub('A', 'a1'), t.pub('B', 'b1'), t.pub('A', 'a2'), t.pub(NULL, 'n1');
SET acme_outbox.origin = 'claims2';
SELECT t.pub('A', 'not-ours');
SET acme_outbox.origin = 'claims';
SELECT t.acquire('claims');
CREATE TEMP TABLE got AS
	SELECT * FROM acme_outbox.claim('claims', t.epoch('claims'), 100, 1000000) WITH ORDINALITY;
SELECT string_agg(routing_key, ' ' ORDER BY ordinality), count(DISTINCT claim_id),
	   bool_and(id = (SELECT e.id FROM acme_outbox.outbox_entry e WHERE e.event_id = got.event_id)) FROM got;
SELECT c.origin, c.claimed_by, c.epoch = t.epoch('claims'), c.ids = (SELECT array_agg(id ORDER BY id) FROM got)
	FROM acme_outbox.outbox_claim c JOIN (SELECT DISTINCT claim_id FROM got) g USING (claim_id);
SELECT label, status, hold_reason FROM t.state('claims');
-- each field of an entry
SELECT got.entry_type, got.event_name, got.topic, got.message_key, got.tenant_id, got.trace_id = e.trace_id,
	   got.traceparent = e.traceparent, got.headers, got.payload = e.payload, got.created_at = e.created_at,
	   got.attempts, got.lanes_done, got.mandatory, got.last_error
	FROM got JOIN acme_outbox.outbox_entry e USING (event_id) WHERE got.routing_key = 'a1';
-- they are not handed out twice
SELECT t.claim('claims');
SELECT t.settle('claims', '*', 'PUBLISHED');
SELECT label, status FROM t.state('claims');
SELECT t.verify('claims');

\echo limits: rows, and bytes with at least one row
SELECT count(t.pub('A', 'l' || n)) FROM generate_series(1, 5) n;
SELECT t.claim('claims', 2);
SELECT t.claim('claims', 1);
SELECT t.claim('claims', 100, 1);
SELECT t.claim('claims', 100, 1);
SELECT t.claim('claims', 100, 1);
SELECT t.settle('claims', '*', 'PUBLISHED');
-- a row counts as its envelope and 256 bytes: two fit, the third waits
BEGIN;
SELECT acme_outbox.publish('orders', 'size-' || n, NULL, 'OrderPlaced', '"' || repeat('x', 1000) || '"', trace_id => 't') IS NOT NULL
	FROM generate_series(1, 3) n;
COMMIT;
SELECT max(octet_length(payload)) + 256 + 4 AS bytes FROM acme_outbox.outbox_entry WHERE routing_key LIKE 'size-_' \gset
SELECT t.claim('claims', 100, 2 * :bytes);
SELECT t.claim('claims', 100, 2 * :bytes);
SELECT t.settle('claims', '*', 'PUBLISHED');
-- one larger than the limit goes alone, and does not stop what follows
SELECT t.pub(NULL, 'small-1'), acme_outbox.publish('orders', 'large', NULL, 'OrderPlaced', to_json(repeat('x', 100000))) IS NOT NULL, t.pub(NULL, 'small-2');
SELECT t.claim('claims', 100, 5000);
SELECT t.claim('claims', 100, 5000);
SELECT t.claim('claims', 100, 5000);
SELECT t.settle('claims', '*', 'PUBLISHED');

\echo mandatory, unless the topic says otherwise
INSERT INTO acme_outbox.topic_policy (topic, mandatory) VALUES ('optional', false), ('must', true);
SELECT t.pub(NULL, 'm1', 'orders'), t.pub(NULL, 'm2', 'optional'), t.pub(NULL, 'm3', 'must');
SELECT topic, mandatory FROM acme_outbox.claim('claims', t.epoch('claims'), 100, 1000000);
SELECT t.settle('claims', '*', 'PUBLISHED');
DELETE FROM acme_outbox.topic_policy;

\echo a claim that finds nothing writes nothing: no xid, no row
SELECT t.claim('claims');
SELECT max(position) AS position FROM acme_outbox.outbox_cursor WHERE origin = 'claims' \gset
BEGIN;
SELECT count(*) FROM acme_outbox.claim('claims', t.epoch('claims'), 100, 1000000);
SELECT pg_current_xact_id_if_assigned() IS NULL;
COMMIT;
SELECT max(position) = :position FROM acme_outbox.outbox_cursor WHERE origin = 'claims';

\echo one that finds something is flushed whatever the session prefers
SET synchronous_commit = off;
BEGIN;
SELECT t.claim('claims');
SHOW synchronous_commit;
COMMIT;
SHOW synchronous_commit;
SET synchronous_commit = 'local';
BEGIN;
SELECT t.claim('claims');
SHOW synchronous_commit;
COMMIT;
SET synchronous_commit = 'remote_apply';
BEGIN;
SELECT t.claim('claims');
SHOW synchronous_commit;
COMMIT;
RESET synchronous_commit;

\echo what it refuses
SELECT t.error(format($$SELECT * FROM acme_outbox.claim('claims', %s, %s)$$, t.epoch('claims'), arguments))
	FROM unnest(ARRAY['0, 1', '-1, 1', '10001, 1', '1, 0', '1, -1']) arguments;
SELECT t.claim('claims', 10000);
SELECT t.error(format($$SELECT * FROM acme_outbox.claim_failed('claims', %s, %s)$$, t.epoch('claims'), n))
	FROM unnest(ARRAY[0, 10001]) n;
\set VERBOSITY terse
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT * FROM acme_outbox.claim('claims', t.epoch('claims'), 1, 1);
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT * FROM acme_outbox.claim_failed('claims', t.epoch('claims'), 1);
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
BEGIN READ ONLY;
SELECT * FROM acme_outbox.claim('claims', t.epoch('claims'), 1, 1);
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
-- an origin that nobody acquired, and an epoch of another
SELECT t.sqlstate($$SELECT * FROM acme_outbox.claim('nobody', 1, 1, 1)$$);
SELECT t.acquire('claims2');
SELECT t.sqlstate(format($$SELECT * FROM acme_outbox.claim('claims', %s, 1, 1)$$, t.epoch('claims2')));
SELECT t.sqlstate(format($$SELECT * FROM acme_outbox.claim_failed('claims', %s, 1)$$, t.epoch('claims2')));
SELECT t.drain('claims2');

\echo due: waiting rows whose time has come, at most half of the batch while there are others
SELECT count(t.pub(NULL, 's' || n, not_before => '2101-01-01')) FROM generate_series(1, 6) n;
SELECT t.claim('claims');
SELECT t.verify('claims');
SELECT t.make_due('claims');
SELECT count(t.pub(NULL, 'f' || n)) FROM generate_series(1, 3) n;
SELECT t.claim('claims', 4);
SELECT t.claim('claims', 4);
SELECT t.claim('claims', 4);
SELECT t.settle('claims', '*', 'PUBLISHED');
SELECT t.verify('claims');

\echo ids out of order: given by hand, a sequence that goes back, a huge one
CREATE FUNCTION t.put(label text, explicit_id bigint) RETURNS void LANGUAGE sql AS $$
	INSERT INTO acme_outbox.outbox_entry (xid, id, created_at, event_id, entry_type, origin, topic,
			routing_key, event_name, trace_id, payload)
		OVERRIDING SYSTEM VALUE
		VALUES (pg_current_xact_id(), explicit_id, clock_timestamp(), gen_random_uuid(), 'DOMAIN_EVENT',
			'claims', 'orders', label, 'OrderPlaced', 't', '{}')
$$;
SELECT t.put('below', -5);
SELECT t.verify('claims');
SELECT t.drain('claims');
SELECT t.put('huge', 9000000000000000000);
SELECT t.drain('claims');
SELECT t.pub(NULL, 'normal-1');
SELECT t.verify('claims');
SELECT t.drain('claims');
SELECT t.put('largest', 9223372036854775807);
SELECT t.pub(NULL, 'normal-2');
SELECT t.drain('claims');
SELECT t.put('smallest', -9223372036854775807);
SELECT t.pub(NULL, 'normal-3');
SELECT t.drain('claims');
-- published by the claiming transaction itself, after the claim and below its cursor
SELECT t.pub(NULL, 'own-1');
BEGIN;
SELECT t.pub(NULL, 'own-2'), t.claim('claims');
SELECT t.put('own-below', -7);
COMMIT;
SELECT t.verify('claims'), t.claim('claims'), t.claim('claims'), t.settle('claims', '*', 'PUBLISHED');
SELECT last_value AS id FROM acme_outbox.outbox_entry_id_seq \gset
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'claims';
SELECT setval('acme_outbox.outbox_entry_id_seq', 1) = 1;
SELECT count(t.pub(NULL, 'again-' || n)) FROM generate_series(1, 3) n;
SELECT setval('acme_outbox.outbox_entry_id_seq', :id) = :id;
SELECT t.verify('claims');
SELECT t.drain('claims', 2);
SELECT t.verify('claims');

\echo rows of a transaction that this cluster has not reached yet: restored from another
DELETE FROM acme_outbox.outbox_cursor WHERE origin = 'claims';
SELECT count(t.pub(NULL, 'restored-' || n)) FROM generate_series(1, 3) n;
UPDATE acme_outbox.outbox_entry SET xid = '9223372036854775000', status = 'PUBLISHING', claim_id = 17 WHERE routing_key = 'restored-1';
SET session_replication_role = replica;
UPDATE acme_outbox.outbox_entry SET xid = '9223372036854775000' WHERE routing_key = 'restored-2';
RESET session_replication_role;
SELECT t.verify('claims');
SELECT t.drain('claims');
SELECT t.verify('claims');
SELECT t.pub(NULL, 'after');
SELECT t.drain('claims');

\echo the cursor is insert-only, and kept short
SELECT count(t.pub(NULL, 'c' || n)) FROM generate_series(1, 450) n;
SELECT count(*) FROM (SELECT t.claim('claims', 1) FROM generate_series(1, 450)) x;
SELECT count(*) <= 200, max(position) > 400 FROM acme_outbox.outbox_cursor WHERE origin = 'claims';
SELECT t.settle('claims', '*', 'PUBLISHED');
SELECT t.verify('claims');
SELECT count(*) FROM acme_outbox.outbox_claim WHERE origin LIKE 'claims%';

\echo claim_failed: FAILED entries, oldest failure first, for a dead-letter copy
SELECT count(t.pub('K' || n, 'd' || n)) FROM generate_series(1, 3) n;
SET acme_outbox.max_attempts = 1;
SELECT t.claim('claims');
SELECT t.settle('claims', 'd2', 'REJECTED', 'no'), t.settle('claims', 'd1', 'REJECTED', 'no'), t.settle('claims', 'd3', 'REJECTED', 'too big');
SELECT label, status, attempts, goes_on FROM t.state('claims') WHERE label IN ('d1', 'd2', 'd3');
SELECT string_agg(routing_key || ' ' || attempts || ' ' || last_error, ', ')
	FROM acme_outbox.claim_failed('claims', t.epoch('claims'), 2);
SELECT t.claim('claims');
SELECT label, status FROM t.state('claims') WHERE label IN ('d1', 'd2', 'd3');
SELECT t.settle('claims', 'd1', 'ARCHIVED');
-- every other outcome makes it FAILED again, and not at once
SELECT t.settle('claims', 'd2', 'UNROUTABLE');
SELECT label, status, attempts, holds, goes_on FROM t.state('claims') WHERE label IN ('d1', 'd2', 'd3');
SELECT string_agg(routing_key, ' ') FROM acme_outbox.claim_failed('claims', t.epoch('claims'), 10);
SELECT t.settle('claims', 'd3', 'RELEASED');
SELECT string_agg(routing_key, ' ') FROM acme_outbox.claim_failed('claims', t.epoch('claims'), 10);
SELECT t.settle('claims', 'd3', 'PUBLISHED');
SELECT label, status, attempts, holds, goes_on FROM t.state('claims') WHERE label IN ('d1', 'd2', 'd3');
SELECT t.verify('claims');
RESET acme_outbox.max_attempts;
DROP FUNCTION t.put;
