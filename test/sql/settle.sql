-- What settle() makes of each outcome.
SET client_min_messages = warning;
SET acme_outbox.autocommit_publish = off;
SET acme_outbox.origin = 'settle';
\pset format unaligned
\pset tuples_only on
SELECT t.acquire('settle');
-- how long it waits, in seconds
CREATE FUNCTION t.wait(of_label text) RETURNS numeric LANGUAGE sql AS $$
	SELECT round(extract(epoch FROM next_attempt_at - clock_timestamp()))
	FROM acme_outbox.outbox_entry WHERE origin = 'settle' AND routing_key = of_label
$$;
-- claim and settle one label, over and over; the wait after each
CREATE FUNCTION t.rounds(of_label text, outcome acme_outbox.settle_outcome, n int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	waits text[] := '{}';
BEGIN
	FOR i IN 1 .. n LOOP
		PERFORM t.claim('settle');
		PERFORM t.settle('settle', of_label, outcome, 'round ' || i);
		waits := waits || coalesce(t.wait(of_label)::text, (SELECT status::text FROM t.state('settle') WHERE label = of_label));
		PERFORM t.make_due('settle', of_label);
	END LOOP;
	RETURN array_to_string(waits, ' ');
END $$;

\echo the six outcomes
SELECT t.pub(NULL, 'published'), t.pub(NULL, 'rejected'), t.pub(NULL, 'unroutable'), t.pub(NULL, 'nacked'), t.pub(NULL, 'released'), t.pub(NULL, 'archived');
SELECT t.claim('settle');
SELECT t.settle('settle', 'published', 'PUBLISHED'), t.settle('settle', 'rejected', 'REJECTED', 'bad'), t.settle('settle', 'unroutable', 'UNROUTABLE', 'no queue'),
	t.settle('settle', 'nacked', 'NACKED'), t.settle('settle', 'released', 'RELEASED'), t.settle('settle', 'archived', 'ARCHIVED');
SELECT s.*, e.last_error, e.lanes_done, e.published_at IS NOT NULL AS published, e.claim_id
	FROM t.state('settle') s JOIN acme_outbox.outbox_entry e ON e.routing_key = s.label AND e.origin = 'settle' ORDER BY e.id;
SELECT count(*) FROM acme_outbox.outbox_claim WHERE origin = 'settle';
SELECT t.verify('settle');
SELECT t.make_due('settle');
SELECT t.claim('settle');
SELECT t.settle('settle', '*', 'PUBLISHED');

\echo refused: 30 s doubled, FAILED at the fifth; the error is kept
SELECT t.pub(NULL, 'five'), t.rounds('five', 'REJECTED', 5);
SELECT status, attempts, failed_at IS NOT NULL, last_error FROM acme_outbox.outbox_entry WHERE routing_key = 'five';
\echo at most backoff_cap
SET acme_outbox.max_attempts = 1000;
SELECT t.pub(NULL, 'cap'), t.rounds('cap', 'REJECTED', 10);
SET acme_outbox.backoff_base = '7s';
SET acme_outbox.backoff_cap = '20s';
SELECT t.pub(NULL, 'settings'), t.rounds('settings', 'REJECTED', 4);
-- a count that would shift everything out
UPDATE acme_outbox.outbox_entry SET attempts = 900 WHERE routing_key = 'settings';
SELECT t.rounds('settings', 'REJECTED', 1);
SET acme_outbox.max_attempts = 2;
SELECT t.pub(NULL, 'two'), t.rounds('two', 'REJECTED', 2);
\echo rules of the topic go before the settings
INSERT INTO acme_outbox.topic_policy (topic, max_attempts, backoff_base, backoff_cap) VALUES ('own', 4, '100s', '150s'), ('nulls', NULL, NULL, NULL);
SELECT t.pub(NULL, 'own', 'own'), t.rounds('own', 'REJECTED', 4);
SELECT t.pub(NULL, 'nulls', 'nulls'), t.rounds('nulls', 'REJECTED', 2);
DELETE FROM acme_outbox.topic_policy;
RESET acme_outbox.backoff_base;
RESET acme_outbox.backoff_cap;
RESET acme_outbox.max_attempts;

\echo unroutable and nacked: 1 s doubled to a minute, for ever, not charged
SELECT t.pub(NULL, 'hold'), t.rounds('hold', 'UNROUTABLE', 8);
SELECT t.rounds('hold', 'NACKED', 1);
SELECT status, attempts, holds FROM t.state('settle') WHERE label = 'hold';
UPDATE acme_outbox.outbox_entry SET holds = 32767 WHERE routing_key = 'hold';
SELECT t.rounds('hold', 'NACKED', 1);
SET acme_outbox.hold_backoff_base = '5s';
SET acme_outbox.hold_backoff_cap = '12s';
SELECT t.pub(NULL, 'hold-set'), t.rounds('hold-set', 'NACKED', 3);
RESET acme_outbox.hold_backoff_base;
RESET acme_outbox.hold_backoff_cap;
\echo released: due at once, any number of times, not charged
SELECT t.pub(NULL, 'rel'), t.rounds('rel', 'RELEASED', 20);
SELECT status, attempts, holds, hold_reason FROM t.state('settle') WHERE label = 'rel';
SELECT t.drain('settle') IS NOT NULL;

\echo the error is kept to 1000 bytes and whole letters; NULL keeps the one before
SELECT t.pub(NULL, 'err'), t.claim('settle');
SELECT t.settle('settle', 'err', 'REJECTED', 'x' || repeat('é', 600));
SELECT octet_length(last_error), last_error = 'x' || repeat('é', 499) FROM acme_outbox.outbox_entry WHERE routing_key = 'err';
SELECT t.make_due('settle', 'err'), t.claim('settle');
SELECT t.settle('settle', 'err', 'REJECTED');
SELECT octet_length(last_error) FROM acme_outbox.outbox_entry WHERE routing_key = 'err';
SELECT t.make_due('settle', 'err'), t.claim('settle');
SELECT t.settle('settle', 'err', 'REJECTED', repeat('x', 1000));
SELECT octet_length(last_error) FROM acme_outbox.outbox_entry WHERE routing_key = 'err';
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'settle';

\echo part by part: the claim shrinks, and goes with its last entry
SELECT count(t.pub('K', 'p' || n)) FROM generate_series(1, 4) n;
SELECT t.claim('settle');
SELECT t.settle('settle', 'p2 p3', 'PUBLISHED');
SELECT cardinality(ids) FROM acme_outbox.outbox_claim WHERE origin = 'settle';
SELECT t.settle('settle', 'p1', 'PUBLISHED');
SELECT cardinality(ids) FROM acme_outbox.outbox_claim WHERE origin = 'settle';
SELECT t.settle('settle', 'p4', 'RELEASED');
SELECT count(*) FROM acme_outbox.outbox_claim WHERE origin = 'settle';
SELECT t.drain('settle');

\echo many outcomes and lanes in one call, in any order
SELECT count(t.pub(NULL, 'm' || n)) FROM generate_series(1, 4) n;
CREATE TEMP TABLE c AS SELECT * FROM acme_outbox.claim('settle', t.epoch('settle'), 10, 100000);
SELECT (SELECT DISTINCT claim_id FROM c) AS claim_id, t.epoch('settle') AS epoch,
	(SELECT array_agg(id ORDER BY id DESC) FROM c) AS ids, (SELECT max(id) FROM c) AS last, (SELECT min(id) FROM c) AS first \gset
SELECT * FROM acme_outbox.settle(:epoch, :claim_id, :'ids', '{PUBLISHED,REJECTED,PUBLISHED,PUBLISHED}', '{NULL,2,3,1}', '{NULL,no,ignored,NULL}');
SELECT s.label, s.status, s.hold_reason, s.attempts, e.lanes_done, e.last_error FROM t.state('settle') s JOIN acme_outbox.outbox_entry e ON e.routing_key = s.label AND e.origin = 'settle' WHERE s.label LIKE 'm%' ORDER BY s.label;
\echo repeating it changes and reports nothing
SELECT * FROM acme_outbox.settle(:epoch, :claim_id, :'ids', '{PUBLISHED,REJECTED,PUBLISHED,PUBLISHED}', '{NULL,2,3,1}', '{NULL,no,ignored,NULL}');
SELECT label, status, attempts FROM t.state('settle') WHERE label LIKE 'm%' ORDER BY label;
\echo another outcome for what is settled is a difference
SELECT id = :first, expected, found FROM acme_outbox.settle(:epoch, :claim_id, ARRAY[:first], '{RELEASED}', '{NULL}', '{NULL}');

\echo arguments
SELECT t.error(format('SELECT * FROM acme_outbox.settle(%s, %s, %s)', :epoch, :claim_id, a)) FROM unnest(ARRAY[
	$$'{1,2}', '{PUBLISHED}', '{NULL,NULL}', '{NULL,NULL}'$$, $$'{1}', '{PUBLISHED}', '{}', '{NULL}'$$,
	$$'{1}', '{PUBLISHED}', '{NULL}', '{NULL,NULL}'$$, $$'{NULL}', '{PUBLISHED}', '{NULL}', '{NULL}'$$,
	$$'{1}', '{NULL}', '{NULL}', '{NULL}'$$, $$'{1,1}', '{PUBLISHED,RELEASED}', '{NULL,NULL}', '{NULL,NULL}'$$]) a;
SELECT t.sqlstate(format('SELECT * FROM acme_outbox.settle(%s, %s, ''{1}'', ''{SENT}'', ''{NULL}'', ''{NULL}'')', :epoch, :claim_id));
-- nothing to settle is fine
SELECT count(*) FROM acme_outbox.settle(:epoch, :claim_id, '{}', '{}', '{}', '{}');
\echo a missing array must not look like everything was settled
SELECT t.sqlstate(format('SELECT * FROM acme_outbox.settle(%s, %s, %s)', :epoch, :claim_id, a)) FROM unnest(ARRAY[
	$$NULL, '{PUBLISHED}', '{NULL}', '{NULL}'$$, $$'{1}', NULL, '{NULL}', '{NULL}'$$]) a;
SELECT t.sqlstate(format('SELECT * FROM acme_outbox.settle(%s, ''{1}'', ''{PUBLISHED}'', ''{NULL}'', ''{NULL}'')', a)) FROM unnest(ARRAY['NULL, 1', format('%s, NULL', :epoch)]) a;

\echo ids of nobody, of another claim, of another origin, and a claim that is none
SELECT t.pub(NULL, 'o1'), t.pub(NULL, 'o2'), t.claim('settle', 1), t.claim('settle', 1);
SELECT (SELECT claim_id FROM acme_outbox.outbox_entry WHERE routing_key = 'o1') AS c1, (SELECT id FROM acme_outbox.outbox_entry WHERE routing_key = 'o2') AS o2 \gset
SELECT id = :o2 AS of_the_other, expected, found FROM acme_outbox.settle(:epoch, :c1, ARRAY[:o2, 9200000000000000000], '{PUBLISHED,PUBLISHED}', '{NULL,NULL}', '{NULL,NULL}');
SELECT expected, found FROM acme_outbox.settle(:epoch, 12345, ARRAY[:o2], '{PUBLISHED}', '{NULL}', '{NULL}');
SELECT label, status FROM t.state('settle') WHERE label IN ('o1', 'o2');
SELECT t.acquire('settle2');
SELECT expected, found FROM acme_outbox.settle(t.epoch('settle2'), :c1, ARRAY[:o2], '{PUBLISHED}', '{NULL}', '{NULL}');
SELECT label, status FROM t.state('settle') WHERE label IN ('o1', 'o2');
SELECT t.settle('settle', '*', 'PUBLISHED');
\echo a claim of an older epoch is not settled under the newer one
SELECT t.pub(NULL, 'old'), t.claim('settle');
SELECT claim_id AS old_claim, id AS old_id FROM acme_outbox.outbox_entry WHERE routing_key = 'old' \gset
SELECT t.acquire('settle');
SELECT expected, found FROM acme_outbox.settle(t.epoch('settle'), :old_claim, ARRAY[:old_id], '{PUBLISHED}', '{NULL}', '{NULL}');
SELECT count(*) FROM acme_outbox.outbox_claim WHERE claim_id = :old_claim;
SELECT t.drain('settle');

\echo whoever moved a row in between wins
SELECT t.pub(NULL, 'w-pending'), t.pub(NULL, 'w-published'), t.pub(NULL, 'w-failed'), t.pub(NULL, 'w-gone'), t.pub(NULL, 'w-kept');
SELECT id AS gone FROM acme_outbox.outbox_entry WHERE routing_key = 'w-gone' \gset
SELECT t.claim('settle');
UPDATE acme_outbox.outbox_entry SET status = 'PENDING' WHERE routing_key = 'w-pending';
UPDATE acme_outbox.outbox_entry SET status = 'PUBLISHED' WHERE routing_key = 'w-published';
UPDATE acme_outbox.outbox_entry SET status = 'FAILED' WHERE routing_key = 'w-failed';
DELETE FROM acme_outbox.outbox_entry WHERE routing_key = 'w-gone';
SELECT claim_id AS claim_id, ids FROM acme_outbox.outbox_claim WHERE origin = 'settle' \gset
SELECT coalesce(e.routing_key, CASE WHEN s.id = :gone THEN 'w-gone' END), s.expected, s.found
	FROM acme_outbox.settle(t.epoch('settle'), :claim_id, :'ids', array_fill('PUBLISHED'::acme_outbox.settle_outcome, ARRAY[5]), array_fill(NULL::smallint, ARRAY[5]), array_fill(NULL::text, ARRAY[5])) s
	LEFT JOIN acme_outbox.outbox_entry e ON e.id = s.id AND e.origin = 'settle' ORDER BY s.id;
SELECT label, status, hold_reason, goes_on FROM t.state('settle') WHERE label LIKE 'w-%';
SELECT count(*) FROM acme_outbox.outbox_claim WHERE origin = 'settle';
SELECT t.drain('settle');
SELECT t.verify('settle');
DROP FUNCTION t.wait, t.rounds;

\echo given up by hand: everything that looks for failed entries finds it, and so does retry_failed()
SELECT t.pub('G', 'given-up'), t.claim('settle');
UPDATE acme_outbox.outbox_entry SET status = 'FAILED' WHERE routing_key = 'given-up';
SELECT routing_key FROM acme_outbox.outbox_failed WHERE routing_key = 'given-up';
SELECT acme_outbox.retry_failed('settle') > 0 AS retried;
SELECT label, status, hold_reason, goes_on FROM t.state('settle') WHERE label = 'given-up';
\echo corrected before any claim reached it: it keeps its place
SELECT t.pub(NULL, 'corrected');
UPDATE acme_outbox.outbox_entry SET topic = 'right' WHERE routing_key = 'corrected';
SELECT label, status, hold_reason, goes_on FROM t.state('settle') WHERE label = 'corrected';
\echo a null argument is an error, not an empty result
SELECT * FROM acme_outbox.claim('settle', NULL, 1, 1);
SELECT * FROM acme_outbox.relay_acquire('settle', NULL);
\echo the relay is told of an entry that is given up
SET acme_outbox.max_attempts = 1;
SELECT t.pub(NULL, 'hopeless'), t.claim('settle');
\set VERBOSITY terse
SELECT s.* FROM acme_outbox.outbox_claim c, acme_outbox.outbox_entry e,
	acme_outbox.settle(c.epoch, c.claim_id, ARRAY[e.id], '{REJECTED}', '{NULL}', '{too large}') s
	WHERE c.origin = 'settle' AND e.routing_key = 'hopeless' AND e.id = ANY (c.ids);
\set VERBOSITY default
RESET acme_outbox.max_attempts;
