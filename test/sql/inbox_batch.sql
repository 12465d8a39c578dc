-- Many messages in one transaction: each applied exactly once or reported, in the order
-- given, in few subtransactions; what is not a message's fault is never taken for it.
SET client_min_messages = warning;
\pset format unaligned
\pset tuples_only on
CREATE SCHEMA shop;
CREATE TABLE shop.line (id int PRIMARY KEY);
CREATE TABLE shop.change (n bigserial, id text, line int REFERENCES shop.line DEFERRABLE INITIALLY DEFERRED);
CREATE FUNCTION t.env(event_id text, payload text DEFAULT '{}') RETURNS text LANGUAGE sql AS $$
	SELECT format('{"header":{"eventId":"%s"},"body":{"eventName":"OrderPlaced","payload":%s}}', event_id, payload)
$$;
-- payload: divisor fails at once, line fails at the end, park parks, raise is an SQLSTATE
CREATE FUNCTION shop.on_order(message jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	event_id text := message -> 'header' ->> 'eventId';
	payload jsonb := message -> 'body' -> 'payload';
BEGIN
	INSERT INTO shop.change (id, line) VALUES (event_id, (payload ->> 'line')::int);
	PERFORM 1 / (payload ->> 'divisor')::int;
	IF payload ? 'park' THEN
		PERFORM acme_outbox.park('INVALID_STATE', 'order', payload ->> 'park');
		RETURN;
	END IF;
	IF payload ? 'raise' THEN
		RAISE EXCEPTION 'secret %', payload USING ERRCODE = payload ->> 'raise';
	END IF;
END $$;
-- in how many transactions and subtransactions the changes were made
CREATE FUNCTION t.transactions() RETURNS bigint LANGUAGE sql AS $$ SELECT count(DISTINCT xmin::text) FROM shop.change $$;
CREATE FUNCTION t.reset() RETURNS void LANGUAGE sql AS $$
	TRUNCATE shop.change, acme_outbox.processed_event, acme_outbox.parked_message
$$;

\echo one by one
SELECT * FROM acme_outbox.inbox_try_process('c', t.env('1'), 'shop.on_order');
SELECT * FROM acme_outbox.inbox_try_process('c', t.env('1'), 'shop.on_order');
SELECT * FROM acme_outbox.inbox_try_process('c', t.env('2', '{"park":"o1"}')::json, 'shop.on_order');
SELECT outcome, sqlstate, error, context LIKE 'SQL %PL/pgSQL function shop.on_order(jsonb) line %' FROM acme_outbox.inbox_try_process('c', t.env('3', '{"divisor":0}')::jsonb, 'shop.on_order');
SELECT outcome, sqlstate FROM acme_outbox.inbox_try_process('c', t.env('4', '{"line":1}'), 'shop.on_order');
SELECT * FROM acme_outbox.inbox_try_process('c', 'no json', 'shop.on_order');
SELECT * FROM acme_outbox.inbox_try_process('c', '{}', 'shop.on_order');
SELECT id FROM shop.change ORDER BY n;
SELECT event_id FROM acme_outbox.processed_event ORDER BY 1;
\echo a handler that parked and then failed has failed
CREATE FUNCTION shop.parks_and_fails(message jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM acme_outbox.park('INVALID_STATE');
	RAISE EXCEPTION 'after all';
END $$;
SELECT outcome, error FROM acme_outbox.inbox_try_process('c', t.env('5'), 'shop.parks_and_fails');
SELECT count(*) FROM acme_outbox.parked_message WHERE event_id = '5';
SELECT count(*) FROM acme_outbox.processed_event WHERE event_id = '5';

\echo a thousand: one fails at once, one at the end, one parks, one is none, five are there twice
SELECT t.reset();
SELECT acme_outbox.inbox_accept('c', 'e0017'), acme_outbox.inbox_accept('c', 'e0018');
CREATE TABLE t.outcome AS
SELECT * FROM acme_outbox.inbox_try_process_batch('c', (
	SELECT array_agg(CASE n
		WHEN 300 THEN t.env('e0300', '{"divisor":0}')
		WHEN 500 THEN t.env('e0500', '{"line":7}')
		WHEN 700 THEN t.env('e0700', '{"park":"o700"}')
		WHEN 800 THEN '{"body":{}}'
		WHEN 901 THEN t.env('e0900')
		WHEN 902 THEN t.env('e0900')
		WHEN 903 THEN t.env('e0002')
		ELSE t.env('e' || to_char(n, 'FM0000')) END ORDER BY n)
	FROM generate_series(1, 1000) n), 'shop.on_order');
SELECT outcome, count(*), min(ordinal), max(ordinal) FROM t.outcome GROUP BY 1 ORDER BY 1;
SELECT * FROM t.outcome WHERE outcome NOT IN ('applied', 'failed') ORDER BY 1;
SELECT ordinal, sqlstate FROM t.outcome WHERE outcome = 'failed' ORDER BY 1;
SELECT bool_and(ordinal = n) FROM (SELECT ordinal, row_number() OVER () AS n FROM t.outcome) o;
SELECT count(*), count(DISTINCT id), t.transactions() <= 32 FROM shop.change;
\echo applied in the order given
SELECT count(*) FROM (SELECT id < lag(id) OVER (ORDER BY n) AS back FROM shop.change) c WHERE back;
SELECT count(*) FROM acme_outbox.processed_event;
\echo the guards of what failed are gone: delivered again, it is applied
SELECT outcome, count(*) FROM acme_outbox.inbox_try_process_batch('c', ARRAY[t.env('e0300'), t.env('e0500'), t.env('e0700'), t.env('e0900')], 'shop.on_order') GROUP BY 1 ORDER BY 1;

\echo a batch without failures is one subtransaction
SELECT t.reset();
SELECT outcome, count(*) FROM acme_outbox.inbox_try_process_batch('c', ARRAY(SELECT t.env(n::text)::jsonb FROM generate_series(1, 200) n), 'shop.on_order') GROUP BY 1;
SELECT count(*), t.transactions() FROM shop.change;
\echo every other one fails: 32 subtransactions, and the rest is for later
SELECT t.reset();
SELECT outcome, count(*), min(ordinal), max(ordinal) FROM acme_outbox.inbox_try_process_batch('c', ARRAY(SELECT t.env(n::text, CASE WHEN n % 2 = 0 THEN '{"divisor":0}' ELSE '{}' END) FROM generate_series(1, 200) n), 'shop.on_order') GROUP BY 1 ORDER BY 1;
SELECT count(*), t.transactions() FROM shop.change;
SELECT count(*) FROM acme_outbox.processed_event;
SELECT outcome, count(*) FROM acme_outbox.inbox_try_process_batch('c', ARRAY(SELECT t.env(n::text) FROM generate_series(1, 200) n), 'shop.on_order') GROUP BY 1 ORDER BY 1;
\echo all fail
SELECT t.reset();
SELECT outcome, count(*) FROM acme_outbox.inbox_try_process_batch('c', ARRAY(SELECT t.env(n::text, '{"divisor":0}') FROM generate_series(1, 200) n), 'shop.on_order') GROUP BY 1;
SELECT outcome, count(*) FROM acme_outbox.inbox_try_process_batch('c', ARRAY(SELECT t.env(n::text, '{"line":0}') FROM generate_series(1, 20) n), 'shop.on_order') GROUP BY 1;
SELECT count(*) FROM shop.change;
SELECT count(*) FROM acme_outbox.processed_event;

\echo deferred constraints stay deferred: a handler may mend it later, and so may the caller
SELECT t.reset();
CREATE FUNCTION shop.child_first(message jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO shop.change (id, line) VALUES ('child', (message -> 'header' ->> 'eventId')::int);
	INSERT INTO shop.line VALUES ((message -> 'header' ->> 'eventId')::int);
END $$;
BEGIN;
SELECT outcome FROM acme_outbox.inbox_try_process_batch('c', ARRAY[t.env('11'), t.env('12', '{}'), t.env('13')], 'shop.child_first');
SELECT outcome FROM acme_outbox.inbox_try_process('c', t.env('14'), 'shop.child_first');
INSERT INTO shop.change (id, line) VALUES ('mine', 15);
INSERT INTO shop.line VALUES (15);
COMMIT;
SELECT id, line FROM shop.change ORDER BY n;

\echo what messages of a batch are told
SELECT t.reset();
CREATE FUNCTION shop.tell(message jsonb) RETURNS void LANGUAGE sql AS $$ INSERT INTO shop.change (id) VALUES (acme_outbox.message()::text) $$;
SELECT outcome FROM acme_outbox.inbox_try_process_batch('c', ARRAY[t.env('1'), t.env('2'), t.env('3')], 'shop.tell', ARRAY['{"attempt":1}', NULL, '{"attempt":3}']::jsonb[]);
SELECT id FROM shop.change ORDER BY n;
SELECT t.error($$SELECT acme_outbox.inbox_try_process_batch('c', ARRAY[t.env('1')], 'shop.tell', '{}')$$);
SELECT t.error($$SELECT acme_outbox.inbox_try_process_batch('c', NULL::text[], 'shop.tell')$$);
SELECT count(*) FROM acme_outbox.inbox_try_process_batch('c', '{}'::text[], 'shop.tell');
SELECT outcome FROM acme_outbox.inbox_try_process_batch('c', ARRAY[NULL, t.env('9')], 'shop.tell');
SELECT t.sqlstate($$SELECT acme_outbox.inbox_try_process_batch('c', ARRAY[t.env('10')], 'shop.missing')$$);
SELECT t.sqlstate($$SELECT acme_outbox.inbox_try_process_batch('', ARRAY[t.env('10')], 'shop.tell')$$);

\echo not the fault of a message: raised, and nothing is left
SELECT t.reset();
SELECT code, t.sqlstate(format($$SELECT acme_outbox.inbox_try_process_batch('c', ARRAY[t.env('1'), t.env('2', '{"raise":"%s"}')], 'shop.on_order')$$, code))
	FROM unnest(ARRAY['40001', '40P01', '53100', '53200', '58030', '57P01', '57P02', '57P03']) code;
SELECT count(*) FROM shop.change;
\echo its fault: reported
SELECT code, (acme_outbox.inbox_try_process('c', t.env('f' || code, format('{"raise":"%s"}', code)), 'shop.on_order')).outcome
	FROM unnest(ARRAY['P0001', '23505', '55P03', '54001', 'OX003', '57000']) code;
\echo cancel
SET statement_timeout = '100ms';
CREATE FUNCTION shop.sleeps(message jsonb) RETURNS void LANGUAGE sql AS $$ SELECT pg_sleep(60) $$;
SELECT outcome FROM acme_outbox.inbox_try_process('c', t.env('slow'), 'shop.sleeps'); -- fail
SELECT outcome FROM acme_outbox.inbox_try_process_batch('c', ARRAY[t.env('slow')], 'shop.sleeps'); -- fail
RESET statement_timeout;
SELECT count(*) FROM acme_outbox.processed_event WHERE event_id = 'slow';

DROP TABLE t.outcome;
SELECT t.reset();
DROP SCHEMA shop CASCADE;
DROP FUNCTION t.env, t.transactions, t.reset;
