-- The inbox guard, handlers one by one, what they are told, and what is refused.
SET client_min_messages = warning;
\pset format unaligned
\pset tuples_only on
SET acme_outbox.autocommit_publish = off;
CREATE SCHEMA shop;
CREATE TABLE shop.change (id text);
CREATE FUNCTION t.env(event_id text, payload text DEFAULT '{}') RETURNS text LANGUAGE sql AS $$
	SELECT format('{"header":{"eventId":"%s","traceId":"trace-%s"},"body":{"aggregate":"a","eventName":"OrderPlaced","eventType":"EVENT","payload":%s}}',
		event_id, event_id, payload)
$$;
CREATE FUNCTION shop.on_order(message jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO shop.change VALUES (message -> 'header' ->> 'eventId');
	PERFORM 1 / (message -> 'body' -> 'payload' ->> 'divisor')::int;
END $$;

\echo the guard: once per consumer and event, if the transaction commits
SELECT acme_outbox.inbox_accept('c1', 'e1'), acme_outbox.inbox_accept('c1', 'e1'), acme_outbox.inbox_accept('c2', 'e1');
BEGIN;
SELECT acme_outbox.inbox_accept('c1', 'rolled back');
ROLLBACK;
SELECT acme_outbox.inbox_accept('c1', 'rolled back');
\echo text and uuid are the same id; literals resolve
SELECT acme_outbox.inbox_accept('c1', '0190a5d0-0000-7000-8000-000000000001'::uuid);
SELECT acme_outbox.inbox_accept('c1', '0190a5d0-0000-7000-8000-000000000001');
SELECT acme_outbox.inbox_accept('c1', '0190a5d0-0000-7000-8000-000000000001:7');
\echo apply, then record
SELECT acme_outbox.inbox_record('c1', 'late'), acme_outbox.inbox_record('c1', 'late');
SELECT acme_outbox.inbox_accept('c1', 'late');
SELECT t.error($$SELECT acme_outbox.inbox_accept(NULL, 'e')$$);
SELECT t.error($$SELECT acme_outbox.inbox_accept('c', '')$$);
SELECT t.error($$SELECT acme_outbox.inbox_accept('c', repeat('e', 256))$$);
SELECT t.error($$SELECT acme_outbox.inbox_record('', 'e')$$);

\echo attempts
SELECT * FROM acme_outbox.inbox_attempt('c1', 'e1', 2);
SELECT * FROM acme_outbox.inbox_attempt('c1', 'e1', 2);
SELECT * FROM acme_outbox.inbox_attempt('c1', 'e1', 2);
SELECT * FROM acme_outbox.inbox_attempt('c2', 'e1');
SELECT t.error($$SELECT acme_outbox.inbox_attempt('c1', 'e1', 0)$$);

\echo a handler: applied once
SELECT acme_outbox.inbox_process('c', t.env('p1'), 'shop.on_order');
SELECT acme_outbox.inbox_process('c', t.env('p1'), 'shop.on_order');
SELECT acme_outbox.inbox_process('c', t.env('p2')::json, 'shop.on_order(jsonb)');
SELECT acme_outbox.inbox_process('c', t.env('p3')::jsonb, 'shop.on_order');
SELECT acme_outbox.inbox_process('other', t.env('p3')::jsonb, 'shop.on_order');
SELECT * FROM shop.change ORDER BY 1;
\echo a failing one raises its own error, and nothing is left
SELECT t.error($$SELECT acme_outbox.inbox_process('c', t.env('p4', '{"divisor":0}'), 'shop.on_order')$$);
SELECT count(*) FROM shop.change WHERE id = 'p4';
SELECT count(*) FROM acme_outbox.processed_event WHERE event_id = 'p4';
SELECT acme_outbox.inbox_process('c', t.env('p4'), 'shop.on_order');

\echo what is no envelope; its text is not shown
SELECT t.error($$SELECT acme_outbox.inbox_process('c', 'secret', 'shop.on_order')$$);
SELECT t.error($$SELECT acme_outbox.inbox_process('c', '{"secret":"\u0000"}', 'shop.on_order')$$);
SELECT t.error($$SELECT acme_outbox.inbox_process('c', '{"body":{}}', 'shop.on_order')$$);
SELECT t.error($$SELECT acme_outbox.inbox_process('c', '{"header":{"eventId":7}}', 'shop.on_order')$$);
SELECT t.error($$SELECT acme_outbox.inbox_process('c', '[]', 'shop.on_order')$$);
SELECT t.error($$SELECT acme_outbox.inbox_process('c', NULL::text, 'shop.on_order')$$);
SELECT t.error($$SELECT acme_outbox.inbox_process('c', jsonb '"x"', 'shop.on_order')$$);
SELECT acme_outbox.inbox_process('c', '{"secret":"\u0000"}', 'shop.on_order'); -- fail

\echo what is no handler
CREATE FUNCTION shop.returns_int(jsonb) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION shop.takes_text(text) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION shop.returns_set(jsonb) RETURNS SETOF int LANGUAGE sql AS 'SELECT 1';
CREATE PROCEDURE shop.proc(jsonb) LANGUAGE sql AS '';
SELECT t.error(format($$SELECT acme_outbox.inbox_process('c', t.env('h1'), %L)$$, h))
	FROM unnest(ARRAY['on_order', 'shop.nothing', 'nowhere.on_order', 'shop.returns_int', 'shop.takes_text', 'shop.returns_set', 'shop.proc', 'a.b.c', '', NULL, 'shop.on_order; DROP TABLE x', repeat('x', 400)]) h;

\echo a handler is what its name means now
CREATE FUNCTION shop.changing(jsonb) RETURNS void LANGUAGE sql AS $$ INSERT INTO shop.change VALUES ('old') $$;
SELECT acme_outbox.inbox_process('c', t.env('g1'), 'shop.changing');
CREATE OR REPLACE FUNCTION shop.changing(jsonb) RETURNS void LANGUAGE sql AS $$ INSERT INTO shop.change VALUES ('new') $$;
SELECT acme_outbox.inbox_process('c', t.env('g2'), 'shop.changing');
DROP FUNCTION shop.changing(jsonb);
SELECT t.sqlstate($$SELECT acme_outbox.inbox_process('c', t.env('g3'), 'shop.changing')$$);
CREATE FUNCTION shop.changing(jsonb) RETURNS int LANGUAGE sql AS 'SELECT 1';
SELECT t.sqlstate($$SELECT acme_outbox.inbox_process('c', t.env('g3'), 'shop.changing')$$);
DROP FUNCTION shop.changing(jsonb);
CREATE FUNCTION shop.changing(jsonb) RETURNS void LANGUAGE sql AS $$ INSERT INTO shop.change VALUES ('again') $$;
SELECT acme_outbox.inbox_process('c', t.env('g3'), 'shop.changing');
SELECT * FROM shop.change WHERE id IN ('old', 'new', 'again');
\echo quoted names
CREATE SCHEMA "Odd.Name";
CREATE FUNCTION "Odd.Name"."On Order"(jsonb) RETURNS void LANGUAGE sql AS $$ INSERT INTO shop.change VALUES ('odd') $$;
SELECT acme_outbox.inbox_process('c', t.env('q1'), '"Odd.Name"."On Order"');

\echo what a handler is told
CREATE FUNCTION shop.tell(message jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO shop.change VALUES (acme_outbox.message()::text);
END $$;
SELECT acme_outbox.message() IS NULL;
SELECT acme_outbox.inbox_process('c', t.env('m1'), 'shop.tell', '{"routing_key":"order.placed","exchange":"orders","queue":"shop.orders","attempt":2,"redelivered":true,"headers":{"a":[1,{"b":null}]}}');
SELECT acme_outbox.inbox_process('c', t.env('m2'), 'shop.tell');
SELECT acme_outbox.inbox_process('c', t.env('m3'), 'shop.tell', '{"consumer":"forged","event_id":"forged"}');
SELECT id FROM shop.change WHERE id LIKE '{%';
SELECT acme_outbox.message() IS NULL;
\echo nested: each has its own, and the outer one comes back
CREATE FUNCTION shop.outer(message jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM acme_outbox.inbox_process('inner', t.env('n2'), 'shop.tell_id');
	BEGIN
		PERFORM acme_outbox.inbox_process('inner', t.env('n3', '{"divisor":0}'), 'shop.on_order');
	EXCEPTION WHEN division_by_zero THEN
		NULL;
	END;
	PERFORM shop.tell_id(message);
END $$;
CREATE FUNCTION shop.tell_id(message jsonb) RETURNS void LANGUAGE sql AS $$
	INSERT INTO shop.change VALUES ('id ' || (acme_outbox.message() ->> 'event_id'))
$$;
SELECT acme_outbox.inbox_process('c', t.env('n1'), 'shop.outer');
SELECT id FROM shop.change WHERE id LIKE 'id %';
SELECT acme_outbox.message() IS NULL;

\echo the context ends with the transaction, and settings of a handler with the handler
BEGIN;
SELECT acme_outbox.context('tenant-a', locale => 'es');
SELECT acme_outbox.tenant(), current_setting('acme_outbox.locale');
SELECT acme_outbox.context('');
SELECT acme_outbox.tenant() IS NULL, current_setting('acme_outbox.locale');
COMMIT;
SELECT current_setting('acme_outbox.locale');
SELECT t.sqlstate($$SELECT acme_outbox.context(repeat('x', 256))$$);
CREATE FUNCTION shop.sets(message jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO shop.change VALUES ('tenant ' || coalesce(acme_outbox.tenant(), 'none'));
	PERFORM acme_outbox.context('left behind');
	SET work_mem = '77MB';
END $$;
SELECT outcome FROM acme_outbox.inbox_try_process_batch('c', ARRAY[t.env('s1'), t.env('s2')], 'shop.sets');
SELECT id FROM shop.change WHERE id LIKE 'tenant %';
SELECT acme_outbox.tenant() IS NULL, current_setting('work_mem') <> '77MB';

\echo events that a handler publishes continue the trace of its message
CREATE FUNCTION shop.publishes(message jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM acme_outbox.publish('orders', message -> 'header' ->> 'eventId', 'a', 'OrderPacked', '{}');
END $$;
SELECT acme_outbox.inbox_process('c', t.env('t1'), 'shop.publishes');
SELECT acme_outbox.inbox_process('c', t.env('t2'), 'shop.publishes', '{"headers":{"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}}');
SELECT acme_outbox.inbox_process('c', t.env('t3'), 'shop.publishes', '{"headers":{"traceparent":"malformed"}}');
BEGIN;
SELECT acme_outbox.context('tenant-b', '00-5bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01', 'ca');
SELECT acme_outbox.inbox_process('c', t.env('t4'), 'shop.publishes', '{"headers":{"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}}');
COMMIT;
SELECT routing_key, trace_id, traceparent, tenant_id, payload::json -> 'header' ->> 'locale' FROM acme_outbox.outbox_entry WHERE event_name = 'OrderPacked' ORDER BY id;
DELETE FROM acme_outbox.outbox_entry;

\echo and can be asked for it; of a message without one, all that its handler publishes begins one
CREATE TABLE shop.asked (n bigserial, trace_id text, traceparent text);
CREATE FUNCTION shop.asks(message jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF message #>> '{header,eventId}' LIKE 'ask%' THEN
		INSERT INTO shop.asked (trace_id, traceparent) VALUES (acme_outbox.trace_id(), acme_outbox.traceparent());
	END IF;
	PERFORM acme_outbox.publish('orders', message #>> '{header,eventId}', n, 'OrderPacked', '{}')
		FROM unnest('{a,b}'::text[]) n;
END $$;
SELECT outcome FROM acme_outbox.inbox_try_process_batch('c', ARRAY[t.env('ask1'), t.env('ask2'),
	'{"header":{"eventId":"ask3"}}', '{"header":{"eventId":"ask4"}}', '{"header":{"eventId":"not1"}}',
	'{"header":{"eventId":"not2"}}'], 'shop.asks', ARRAY['{}',
	'{"headers":{"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}}', '{}', NULL, '{}', NULL]::jsonb[]);
SELECT trace_id, traceparent FROM shop.asked ORDER BY n LIMIT 2;
SELECT e.routing_key, count(DISTINCT (e.trace_id, e.traceparent)) AS traces, bool_and(e.traceparent IS NOT DISTINCT FROM a.traceparent) AS as_told
	FROM acme_outbox.outbox_entry e LEFT JOIN shop.asked a USING (trace_id) GROUP BY 1 ORDER BY 1;
SELECT count(DISTINCT trace_id) FROM acme_outbox.outbox_entry;
SELECT current_setting('acme_outbox.traceparent') = '' AS nothing_left;
DELETE FROM acme_outbox.outbox_entry;

\echo an inbox of its own
SELECT t.error($$SET acme_outbox.inbox_schema = 'shop'; SELECT acme_outbox.inbox_accept('c', 'e')$$);
RESET acme_outbox.inbox_schema;
CREATE ROLE inbox_test_owner;
CREATE SCHEMA own AUTHORIZATION inbox_test_owner;
SELECT acme_outbox.create_inbox('own');
SELECT acme_outbox.create_inbox('own');
SELECT acme_outbox.create_inbox('made', 'required');
SELECT schema, tenancy, owner = current_user AS mine FROM acme_outbox.inbox ORDER BY 1;
SELECT c.relname, pg_get_userbyid(c.relowner), c.relrowsecurity, c.relforcerowsecurity
	FROM pg_class c WHERE c.relnamespace = 'own'::regnamespace AND c.relkind = 'r' ORDER BY 1;
SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'made'::regnamespace AND c.relforcerowsecurity ORDER BY 1;
SELECT t.error($$SELECT acme_outbox.create_inbox('own', 'required')$$);
SELECT t.error($$SELECT acme_outbox.create_inbox('x', 'maybe')$$);
CREATE TABLE shop.processed_event (i int);
SELECT t.error($$SELECT acme_outbox.create_inbox('shop')$$);
SET acme_outbox.inbox_schema = 'own';
SELECT acme_outbox.inbox_accept('c1', 'e1'), acme_outbox.inbox_accept('c1', 'e1');
RESET acme_outbox.inbox_schema;
SELECT acme_outbox.inbox_accept('c1', 'e1');
\echo an inbox that is dropped is gone, and can be made again
SET acme_outbox.inbox_schema = 'own';
DROP TABLE own.processed_event, own.parked_message, own.parked_resolution, own.consumer_attempt;
SELECT t.sqlstate($$SELECT acme_outbox.inbox_accept('c1', 'e1')$$);
SELECT acme_outbox.create_inbox('own');
SELECT acme_outbox.inbox_accept('c1', 'e1');
RESET acme_outbox.inbox_schema;

\echo retention
UPDATE acme_outbox.processed_event SET processed_at = now() - interval '31 days' WHERE event_id IN ('e1', 'late');
UPDATE acme_outbox.consumer_attempt SET last_at = now() - interval '31 days' WHERE consumer = 'c1';
UPDATE own.processed_event SET processed_at = now() - interval '29 days';
SELECT * FROM acme_outbox.purge() WHERE what IN ('processed', 'attempts');
SELECT count(*) FROM acme_outbox.processed_event WHERE event_id IN ('e1', 'late');
SELECT count(*) FROM own.processed_event;
SELECT count(*) FROM acme_outbox.consumer_attempt;
UPDATE own.processed_event SET processed_at = now() - interval '31 days';
SET acme_outbox.retention_processed = 0;
SELECT * FROM acme_outbox.purge() WHERE what IN ('processed', 'attempts');
RESET acme_outbox.retention_processed;
SET acme_outbox.duty_batch_rows = 2;
INSERT INTO own.processed_event SELECT 'many', n, now() - interval '40 days' FROM generate_series(1, 30) n;
SELECT * FROM acme_outbox.purge() WHERE what = 'processed';
SELECT * FROM acme_outbox.purge() WHERE what = 'processed';
RESET acme_outbox.duty_batch_rows;

DROP SCHEMA shop, own, made, "Odd.Name" CASCADE;
SELECT acme_outbox.drop_inbox(schema) FROM acme_outbox.inbox WHERE schema <> 'acme_outbox';
DROP ROLE inbox_test_owner;
TRUNCATE acme_outbox.processed_event, acme_outbox.consumer_attempt;
DROP FUNCTION t.env;
