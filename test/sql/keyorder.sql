-- Entries of one key keep their order, whatever the broker and operators do to them.
SET client_min_messages = warning;
SET jit = off;
SET acme_outbox.autocommit_publish = off;
SET acme_outbox.origin = 'keys';
\pset format unaligned
\pset tuples_only on
SELECT t.acquire('keys');

\echo A refused: B and C of its key wait, others flow
SELECT t.pub('K', 'A'), t.pub('L', 'L1');
SELECT t.claim('keys');
SELECT t.settle('keys', 'A', 'REJECTED'), t.settle('keys', 'L1', 'PUBLISHED');
SELECT t.pub('K', 'B'), t.pub('L', 'L2'), t.pub('K', 'C'), t.pub(NULL, 'N');
SELECT t.claim('keys');
SELECT label, status, hold_reason, goes_on FROM t.state('keys');
SELECT t.verify('keys');
SELECT t.settle('keys', '*', 'PUBLISHED');
SELECT t.claim('keys');
\echo A is due: it goes alone, since it was refused before; then the whole run, in order
SELECT t.make_due('keys');
SELECT t.claim('keys');
SELECT t.verify('keys');
SELECT t.claim('keys');
SELECT t.settle('keys', 'A', 'PUBLISHED');
SELECT t.claim('keys');
SELECT t.verify('keys');
SELECT t.settle('keys', '*', 'PUBLISHED');
SELECT t.verify('keys');

\echo A alone fits: B and C go when A is confirmed, not before
SELECT t.pub('K', 'A2'), t.claim('keys');
SELECT t.settle('keys', 'A2', 'UNROUTABLE');
SELECT t.pub('K', 'B2'), t.pub('K', 'C2'), t.claim('keys');
SELECT t.make_due('keys');
SELECT t.claim('keys', 1);
SELECT t.verify('keys');
SELECT t.claim('keys', 100);
SELECT t.settle('keys', 'A2', 'PUBLISHED');
SELECT t.verify('keys');
SELECT t.claim('keys', 100);
SELECT t.settle('keys', '*', 'PUBLISHED');

\echo A is in flight again and refused again: they still wait
SELECT t.pub('K', 'A3'), t.claim('keys'), t.settle('keys', 'A3', 'NACKED');
SELECT t.pub('K', 'B3'), t.claim('keys');
SELECT t.make_due('keys');
SELECT t.claim('keys', 1);
SELECT t.settle('keys', 'A3', 'NACKED');
SELECT t.pub('K', 'C3'), t.claim('keys');
SELECT label, hold_reason, goes_on FROM t.state('keys') WHERE label LIKE '_3';
SELECT t.make_due('keys');
SELECT t.drain('keys', 2);
SELECT t.verify('keys');

\echo a whole claim is unroutable, then routable: order is kept
SELECT count(t.pub('K', 'U' || n)) FROM generate_series(1, 4) n;
SELECT t.claim('keys', 2);
SELECT t.settle('keys', '*', 'UNROUTABLE');
SELECT t.claim('keys');
SELECT label, hold_reason, goes_on FROM t.state('keys') WHERE label LIKE 'U_';
-- the second is due before the first
SELECT t.make_due('keys', 'U2');
SELECT t.claim('keys');
SELECT label, hold_reason, goes_on FROM t.state('keys') WHERE label LIKE 'U_';
SELECT t.verify('keys');
SELECT t.make_due('keys');
SELECT t.drain('keys');
SELECT t.verify('keys');

\echo released entries go out again before later ones of their key
SELECT count(t.pub('K', 'R' || n)) FROM generate_series(1, 3) n;
SELECT t.claim('keys', 2);
SELECT t.settle('keys', '*', 'RELEASED');
SELECT t.drain('keys', 2);
SELECT t.verify('keys');

\echo scheduled entries block nobody, and wait for nobody until they are due
SELECT t.pub('K', 'S1', not_before => '2101-01-01'), t.pub('K', 'S2');
SELECT t.drain('keys');
SELECT t.verify('keys');
SELECT t.pub('K', 'S3'), t.claim('keys'), t.settle('keys', 'S3', 'REJECTED');
SELECT t.claim('keys');
SELECT label, hold_reason, goes_on FROM t.state('keys') WHERE label LIKE 'S_';
SELECT t.make_due('keys', 'S1');
SELECT t.claim('keys');
SELECT t.settle('keys', '*', 'PUBLISHED');
-- once due it waits like any other
SELECT t.pub('K', 'S4', not_before => '2101-01-01');
SELECT t.make_due('keys', 'S4');
SELECT t.claim('keys');
SELECT label, hold_reason, goes_on FROM t.state('keys') WHERE label LIKE 'S_';
SELECT t.make_due('keys');
SELECT t.drain('keys');
SELECT t.verify('keys');

\echo FAILED lets its key go on ...
SET acme_outbox.max_attempts = 1;
SELECT t.pub('K', 'F1'), t.pub('K', 'F2'), t.claim('keys', 1);
SELECT t.settle('keys', 'F1', 'REJECTED');
SELECT t.drain('keys');
SELECT t.verify('keys');
\echo ... also when others waited for it already
SET acme_outbox.max_attempts = 2;
SELECT t.pub('K', 'F3'), t.claim('keys'), t.settle('keys', 'F3', 'REJECTED');
SELECT t.pub('K', 'F4'), t.pub('K', 'F5'), t.claim('keys');
SELECT t.make_due('keys');
SELECT t.claim('keys', 1);
SELECT t.settle('keys', 'F3', 'REJECTED');
SELECT t.drain('keys');
SELECT t.verify('keys');
\echo failed_key_policy = block: its key waits until somebody deals with it
SET acme_outbox.max_attempts = 1;
SET acme_outbox.failed_key_policy = block;
SELECT t.pub('K', 'G1'), t.pub('L', 'G-other'), t.pub('K', 'G2'), t.claim('keys', 1);
SELECT t.settle('keys', 'G1', 'REJECTED');
SELECT t.drain('keys');
SELECT label, status, hold_reason, goes_on FROM t.state('keys') WHERE label LIKE 'G_';
SELECT t.verify('keys');
-- by a plain UPDATE: it goes out again, and its key after it
UPDATE acme_outbox.outbox_entry SET status = 'PENDING' WHERE origin = 'keys' AND routing_key = 'G1';
SELECT t.verify('keys');
SELECT t.drain('keys');
SELECT status, failed_at FROM acme_outbox.outbox_entry WHERE origin = 'keys' AND routing_key = 'G1';
-- by retry()
SELECT t.pub('K', 'G3'), t.pub('K', 'G4'), t.claim('keys', 1);
SELECT t.settle('keys', 'G3', 'REJECTED'), t.claim('keys');
SELECT acme_outbox.retry(event_id) FROM acme_outbox.outbox_entry WHERE origin = 'keys' AND routing_key = 'G3';
SELECT t.drain('keys');
-- by a dead-letter copy: it holds its key until that is confirmed
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'keys' AND status = 'FAILED';
SELECT t.pub('K', 'G5'), t.claim('keys'), t.settle('keys', 'G5', 'REJECTED');
SELECT routing_key FROM acme_outbox.claim_failed('keys', t.epoch('keys'), 10);
SELECT t.pub('K', 'G6'), t.claim('keys');
SELECT t.settle('keys', 'G5', 'NACKED');
SELECT t.claim('keys');
SELECT routing_key FROM acme_outbox.claim_failed('keys', t.epoch('keys'), 10);
SELECT t.settle('keys', 'G5', 'ARCHIVED');
SELECT t.drain('keys');
-- by hand: finished, or deleted
SELECT t.pub('K', 'G7'), t.claim('keys'), t.settle('keys', 'G7', 'REJECTED');
SELECT t.pub('K', 'G8'), t.claim('keys');
UPDATE acme_outbox.outbox_entry SET status = 'ARCHIVED' WHERE origin = 'keys' AND routing_key = 'G7';
SELECT t.drain('keys');
SELECT t.pub('K', 'G9'), t.claim('keys'), t.settle('keys', 'G9', 'REJECTED');
SELECT t.pub('K', 'G10'), t.claim('keys');
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'keys' AND routing_key = 'G9';
SELECT t.drain('keys');
SELECT t.verify('keys');
RESET acme_outbox.failed_key_policy;
\echo a topic may say so, and differ from the setting
INSERT INTO acme_outbox.topic_policy (topic, failed_key_policy) VALUES ('strict', 'block'), ('lax', 'continue');
SELECT t.pub('T', 'H1', 'strict'), t.claim('keys'), t.settle('keys', 'H1', 'REJECTED');
SELECT t.pub('T', 'H2', 'strict'), t.claim('keys');
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'keys' AND routing_key = 'H1';
SELECT t.drain('keys');
SET acme_outbox.failed_key_policy = block;
SELECT t.pub('T', 'H3', 'lax'), t.claim('keys'), t.settle('keys', 'H3', 'REJECTED');
SELECT t.pub('T', 'H4', 'lax');
SELECT t.drain('keys');
RESET acme_outbox.failed_key_policy;
RESET acme_outbox.max_attempts;
DELETE FROM acme_outbox.topic_policy;
SELECT t.verify('keys');

\echo an operator finishes or deletes the head: what waits for it flows
CREATE FUNCTION t.waiting_chain(prefix text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM t.pub('O', prefix || 1), t.claim('keys'), t.settle('keys', prefix || 1, 'REJECTED');
	PERFORM t.pub('O', prefix || 2), t.pub('O', prefix || 3), t.claim('keys');
	RETURN (SELECT string_agg(concat_ws('/', label, hold_reason, goes_on), ' ') FROM t.state('keys') WHERE label LIKE prefix || '_');
END $$;
SELECT t.waiting_chain('a');
UPDATE acme_outbox.outbox_entry SET status = 'PUBLISHED' WHERE origin = 'keys' AND routing_key = 'a1';
SELECT t.drain('keys'), t.verify('keys');
SELECT t.waiting_chain('b');
UPDATE acme_outbox.outbox_entry SET status = 'FAILED' WHERE origin = 'keys' AND routing_key = 'b1';
SELECT t.drain('keys'), t.verify('keys');
SELECT t.waiting_chain('c');
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'keys' AND routing_key = 'c1';
SELECT t.drain('keys'), t.verify('keys');
-- one in the middle: the head still holds the last
SELECT t.waiting_chain('d');
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'keys' AND routing_key = 'd2';
SELECT t.drain('keys'), t.verify('keys');
SELECT t.make_due('keys'), t.drain('keys'), t.verify('keys');
-- one in the middle is given up: it holds nothing afterwards
SELECT t.waiting_chain('e');
UPDATE acme_outbox.outbox_entry SET status = 'FAILED' WHERE origin = 'keys' AND routing_key = 'e2';
SELECT t.make_due('keys'), t.drain('keys'), t.verify('keys');
-- in flight, with others behind it
SELECT t.waiting_chain('f');
SELECT t.make_due('keys'), t.claim('keys', 1);
UPDATE acme_outbox.outbox_entry SET status = 'PUBLISHED' WHERE origin = 'keys' AND routing_key = 'f1';
SELECT t.settle('keys', 'f1', 'PUBLISHED');
SELECT t.drain('keys'), t.verify('keys');
SELECT t.waiting_chain('g');
SELECT t.make_due('keys'), t.claim('keys', 1);
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'keys' AND routing_key = 'g1';
SELECT t.drain('keys'), t.verify('keys');
SELECT t.acquire('keys'), t.drain('keys');

\echo an operator sends again what was published or failed
SELECT t.pub('P', 'again'), t.drain('keys');
UPDATE acme_outbox.outbox_entry SET status = 'PENDING' WHERE origin = 'keys' AND routing_key = 'again';
SELECT label, status, hold_reason, goes_on FROM t.state('keys') WHERE label = 'again';
SELECT t.verify('keys');
SELECT t.drain('keys');
SET acme_outbox.max_attempts = 1;
SELECT t.pub('P', 'failed'), t.claim('keys'), t.settle('keys', 'failed', 'REJECTED');
UPDATE acme_outbox.outbox_entry SET status = 'PENDING' WHERE origin = 'keys' AND routing_key = 'failed';
SELECT t.verify('keys');
SELECT t.drain('keys');
SELECT label, status FROM t.state('keys') WHERE label = 'failed';
-- after a dead-letter copy that did not get through, it is FAILED with a time to wait
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'keys' AND status = 'FAILED';
SELECT t.pub('P', 'dead'), t.claim('keys'), t.settle('keys', 'dead', 'REJECTED');
SELECT routing_key FROM acme_outbox.claim_failed('keys', t.epoch('keys'), 1);
SELECT t.settle('keys', 'dead', 'NACKED');
UPDATE acme_outbox.outbox_entry SET status = 'PENDING' WHERE origin = 'keys' AND routing_key = 'dead';
SELECT t.make_due('keys');
SELECT t.drain('keys');
SELECT label, status FROM t.state('keys') WHERE label = 'dead';
RESET acme_outbox.max_attempts;
-- or corrects one that was not sent yet
SELECT t.pub('P', 'typo-1', 'odrers'), t.pub('P', 'typo-2');
UPDATE acme_outbox.outbox_entry SET topic = 'orders' WHERE origin = 'keys' AND routing_key = 'typo-1';
SELECT t.drain('keys'), t.verify('keys');

\echo 12,000 entries of a blocked key do not stop another
SELECT t.pub('M', 'many-head'), t.claim('keys'), t.settle('keys', 'many-head', 'REJECTED');
SELECT count(t.pub('M', 'many')) FROM generate_series(1, 12000) n;
ANALYZE acme_outbox.outbox_entry;
SELECT t.pub('Q', 'behind');
-- the first claim has nothing to hand out
SELECT t.claim('keys');
SELECT t.claim('keys');
SELECT t.settle('keys', 'behind', 'PUBLISHED');
SELECT t.verify('keys');
UPDATE acme_outbox.outbox_entry SET status = 'PUBLISHED' WHERE origin = 'keys' AND routing_key = 'many-head';
-- in order, claim by claim
DO $$
DECLARE
	last bigint := 0;
	lowest bigint;
	highest bigint;
BEGIN
	WHILE t.claim('keys', 5000) <> '-' LOOP
		SELECT min(id), max(id) INTO lowest, highest FROM acme_outbox.outbox_claim c, unnest(c.ids) AS id WHERE origin = 'keys';
		ASSERT lowest > last, 'out of order';
		last := highest;
		PERFORM t.settle('keys', '*', 'PUBLISHED');
		COMMIT;
	END LOOP;
END $$;
SELECT status, count(*) FROM acme_outbox.outbox_entry WHERE origin = 'keys' AND routing_key = 'many' GROUP BY status;
SELECT t.verify('keys');
DROP FUNCTION t.waiting_chain;

\echo a scheduled entry that is due does not overtake an earlier one of its key that no claim has reached
SET acme_outbox.origin = 'sched';
SELECT t.acquire('sched');
SELECT count(t.pub(NULL, 'filler')) FROM generate_series(1, 20);
SELECT t.pub('S', 'first'), t.pub('S', 'second', not_before => clock_timestamp() + interval '10 ms');
SELECT pg_sleep(0.02);
-- ten at a time: first is beyond the first claim
SELECT count(*), bool_or(routing_key = 'second') FROM acme_outbox.claim('sched', t.epoch('sched'), 10, 1000000);
SELECT t.settle('sched', '*', 'PUBLISHED');
SELECT t.drain('sched') LIKE '%first second';
SELECT t.verify('sched');
RESET acme_outbox.origin;

\echo an entry moved to another origin by hand is sent there, though its cursor has passed the id
SELECT t.acquire('moved-a'), t.acquire('moved-b');
SET acme_outbox.origin = 'moved-a';
SELECT t.pub(NULL, 'moved');
SET acme_outbox.origin = 'moved-b';
SELECT t.pub(NULL, 'passes');
SELECT t.drain('moved-b');
UPDATE acme_outbox.outbox_entry SET origin = 'moved-b' WHERE routing_key = 'moved';
SELECT t.drain('moved-b');
SELECT t.verify('moved-b');
RESET acme_outbox.origin;

\echo a hundred thousand scheduled keys cost an idle claim nothing (a claim that walked them took seconds)
SET acme_outbox.origin = 'many-scheduled';
SELECT t.acquire('many-scheduled');
INSERT INTO acme_outbox.outbox_entry (xid, created_at, event_id, entry_type, origin, topic, message_key,
	event_name, trace_id, payload, next_attempt_at, hold_reason)
	SELECT pg_current_xact_id(), now(), gen_random_uuid(), 'DOMAIN_EVENT', 'many-scheduled', 't', 'k' || i,
		'E', 't', '{}', now() + interval '1 day', 'SCHEDULED' FROM generate_series(1, 100000) i;
SELECT t.claim('many-scheduled');
SET statement_timeout = '2s';
SELECT t.claim('many-scheduled');
RESET statement_timeout;
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'many-scheduled';
RESET acme_outbox.origin;

\echo finishing many entries of one key by hand is linear
SET acme_outbox.origin = 'bulk-key';
SET acme_outbox.hold_backoff_base = '1min';
SELECT t.acquire('bulk-key');
SELECT t.pub('B', 'head');
SELECT t.claim('bulk-key'), t.settle('bulk-key', 'head', 'UNROUTABLE');
SELECT count(t.pub('B', 'tail')) FROM generate_series(1, 3000);
SELECT t.claim('bulk-key', 5000);
SET statement_timeout = '10s';
UPDATE acme_outbox.outbox_entry SET status = 'ARCHIVED' WHERE routing_key = 'tail';
RESET statement_timeout;
SELECT count(*) FROM acme_outbox.outbox_entry WHERE routing_key = 'tail' AND next_attempt_at IS NULL;
RESET acme_outbox.origin;

\echo nor is a key forgotten that was looked at before in the transaction, or in a part of it that was undone
SET acme_outbox.origin = 'twice';
SELECT t.acquire('twice');
SELECT t.pub('T', 'one'), t.pub('U', 'uno');
SELECT t.claim('twice'), t.settle('twice', '*', 'UNROUTABLE');
SELECT t.pub('T', 'two'), t.pub('T', 'three'), t.pub('U', 'due'), t.claim('twice');
BEGIN;
SET CONSTRAINTS ALL IMMEDIATE;
UPDATE acme_outbox.outbox_entry SET status = 'ARCHIVED' WHERE routing_key = 'one';
UPDATE acme_outbox.outbox_entry SET status = 'ARCHIVED' WHERE routing_key = 'two';
SAVEPOINT undone;
UPDATE acme_outbox.outbox_entry SET status = 'ARCHIVED' WHERE routing_key = 'uno';
ROLLBACK TO undone;
UPDATE acme_outbox.outbox_entry SET status = 'ARCHIVED' WHERE routing_key = 'uno';
COMMIT;
SELECT t.verify('twice'), t.claim('twice');
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'twice';
RESET acme_outbox.origin;
RESET acme_outbox.hold_backoff_base;

\echo two thousand rows of one key, scheduled: what is published of the key meanwhile does not pass them
SET acme_outbox.origin = 'scheduled-key';
SET stats_fetch_consistency = none;
SELECT t.acquire('scheduled-key');
SELECT count(t.pub('S', 's' || n, not_before => '2101-01-01')) FROM generate_series(1, 2000) n;
SELECT t.pub('S', 'refused'), t.claim('scheduled-key'), t.settle('scheduled-key', 'refused', 'UNROUTABLE');
SELECT pg_stat_force_next_flush() IS NULL;
SELECT sum(idx_tup_read) AS read FROM pg_stat_user_indexes WHERE indexrelname IN ('outbox_entry_due', 'outbox_entry_waiting_key', 'outbox_entry_scheduled') \gset
SELECT t.pub('S', 'behind'), t.claim('scheduled-key'), t.make_due('scheduled-key', 'refused'), t.claim('scheduled-key'), t.settle('scheduled-key', 'refused', 'PUBLISHED'), t.claim('scheduled-key'), t.settle('scheduled-key', 'behind', 'PUBLISHED');
SELECT t.pub('S', 'free'), t.drain('scheduled-key');
SELECT pg_stat_force_next_flush() IS NULL;
SELECT sum(idx_tup_read) - :read BETWEEN 1 AND 500 AS few FROM pg_stat_user_indexes WHERE indexrelname IN ('outbox_entry_due', 'outbox_entry_waiting_key', 'outbox_entry_scheduled');
SELECT label, hold_reason FROM t.state('scheduled-key') WHERE label IN ('s1', 's2000', 'free');
\echo all of them due at once: in their order, whatever their times, and before what is published then
UPDATE acme_outbox.outbox_entry SET next_attempt_at = clock_timestamp() - id % 7 * interval '1 ms' WHERE origin = 'scheduled-key' AND hold_reason = 'SCHEDULED';
SELECT t.pub('S', 'last');
SELECT scheduled FROM acme_outbox.outbox_backlog WHERE origin = 'scheduled-key';
CREATE TEMP TABLE sent AS SELECT label, n FROM regexp_split_to_table(t.drain('scheduled-key', 500), ' ') WITH ORDINALITY AS x (label, n);
SELECT count(*), count(*) FILTER (WHERE label = 's' || n) AS in_place, max(n) FILTER (WHERE label = 'last') AS last_at FROM sent;
SELECT t.verify('scheduled-key');
DROP TABLE sent;
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'scheduled-key';
RESET acme_outbox.origin;
