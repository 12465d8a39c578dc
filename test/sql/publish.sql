-- What publish() stores.
SET client_min_messages = warning;
SET acme_outbox.origin = 'pub';
BEGIN;

-- every way a driver may pass a payload resolves without a cast: unknown literal,
-- text, varchar, json, jsonb, and parameters of these types

SELECT acme_outbox.publish('orders', 'literal', 'A', 'OrderPlaced', '{"a": 1}') IS NOT NULL AS ok;
SELECT acme_outbox.publish('orders', 'text', 'A', 'OrderPlaced', '{"a": 1}'::text) IS NOT NULL AS ok;
SELECT acme_outbox.publish('orders', 'varchar', 'A', 'OrderPlaced', '{"a": 1}'::varchar) IS NOT NULL AS ok;
SELECT acme_outbox.publish('orders', 'json', 'A', 'OrderPlaced', '{"a": 1}'::json) IS NOT NULL AS ok;
SELECT acme_outbox.publish('orders', 'jsonb', 'A', 'OrderPlaced', '{"a": 1}'::jsonb) IS NOT NULL AS ok;
PREPARE untyped AS SELECT acme_outbox.publish($1, $2, $3, $4, $5) IS NOT NULL AS ok;
EXECUTE untyped ('orders', 'untyped', 'A', 'OrderPlaced', '{"a": 1}');
PREPARE as_varchar (varchar, varchar, varchar, varchar, varchar) AS
	SELECT acme_outbox.publish($1, $2, $3, $4, $5) IS NOT NULL AS ok;
EXECUTE as_varchar ('orders', 'p-varchar', 'A', 'OrderPlaced', '{"a": 1}');
PREPARE as_json (text, text, text, text, json) AS
	SELECT acme_outbox.publish($1, $2, $3, $4, $5) IS NOT NULL AS ok;
EXECUTE as_json ('orders', 'p-json', 'A', 'OrderPlaced', '{"a": 1}');
PREPARE as_jsonb (text, text, text, text, jsonb) AS
	SELECT acme_outbox.publish($1, $2, $3, $4, payload => $5) IS NOT NULL AS ok;
EXECUTE as_jsonb ('orders', 'p-jsonb', 'A', 'OrderPlaced', '{"a": 1}');
SELECT acme_outbox.publish(topic => 'orders', routing_key => 'named', aggregate => 'A',
	event_name => 'OrderPlaced', payload => jsonb_build_object('a', 1)) IS NOT NULL AS ok;
DO $$
BEGIN
	PERFORM acme_outbox.publish('orders', 'plpgsql', 'A', 'OrderPlaced', '{"a": 1}');
	PERFORM acme_outbox.publish('orders', 'null-args', 'A', 'OrderPlaced', '{"a": 1}',
		'EVENT', NULL, NULL, '1.0.0', NULL, NULL, NULL, NULL, NULL, NULL);
END $$;
SELECT routing_key, payload::json #>> '{body,payload}' AS payload
	FROM acme_outbox.outbox_entry WHERE origin = 'pub' ORDER BY id;
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'pub';

-- the envelope: keys, order, no white space of ours
SELECT acme_outbox.publish('orders', 'eu.order', 'order-7', 'trading.sale.created', '{"x":1}',
	'COMMAND', trace_id => 'trace-1', schema_version => '2.1.0-rc.1', locale => 'es-ES',
	event_id => '0190a5d0-0000-7000-8000-000000000001') AS id;
SELECT regexp_replace(payload, '"timestamp":"[^"]*"', '"timestamp":"T"') AS envelope
	FROM acme_outbox.outbox_entry WHERE origin = 'pub';
-- no locale, no key
SELECT acme_outbox.publish('orders', NULL, NULL, 'OrderPlaced', '{}', trace_id => 't',
	event_id => '0190a5d0-0000-7000-8000-000000000002') AS id;
SELECT regexp_replace(payload, '"timestamp":"[^"]*"', '"timestamp":"T"') AS envelope
	FROM acme_outbox.outbox_entry WHERE event_id = '0190a5d0-0000-7000-8000-000000000002';
-- the columns beside it
SELECT entry_type, status, topic, routing_key, message_key, event_name, trace_id, attempts,
	   holds, lanes_done, claim_id, hold_reason, next_attempt_at, xid = pg_current_xact_id() AS own_xid,
	   created_at = (payload::json #>> '{header,timestamp}')::timestamptz AS same_time
	FROM acme_outbox.outbox_entry WHERE origin = 'pub' ORDER BY id;
-- UTC in microseconds, ending in Z, whatever the session's time zone and date style
SET LOCAL timezone = 'Asia/Kathmandu';
SET LOCAL datestyle = 'German, DMY';
SELECT acme_outbox.publish('orders', 'time', NULL, 'OrderPlaced', '{}') IS NOT NULL AS ok;
SELECT payload ~ '"timestamp":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"' AS format,
	   (payload::json #>> '{header,timestamp}')::timestamptz = created_at AS right
	FROM acme_outbox.outbox_entry WHERE origin = 'pub' AND routing_key = 'time';
RESET timezone;
RESET datestyle;
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'pub';

-- event ids are UUIDs of version 7 and rise with time
CREATE TEMP TABLE made AS
	SELECT n, acme_outbox.publish('orders', 'id', NULL, 'OrderPlaced', '{}') AS id
	FROM generate_series(1, 50) n;
SELECT bool_and(id::text ~ '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-') AS version_7,
	   count(DISTINCT id) AS different,
	   bool_and(('x' || translate(left(id::text, 13), '-', ''))::bit(48)::bigint
		BETWEEN extract(epoch FROM clock_timestamp() - interval '1 minute') * 1000
			AND extract(epoch FROM clock_timestamp()) * 1000) AS now
	FROM made;
SELECT count(*) AS disordered FROM made a JOIN made b ON b.n > a.n
	AND left(b.id::text, 18) < left(a.id::text, 18);
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'pub';

-- text and json keep their bytes: white space, key order, duplicates, escapes, numbers
CREATE TEMP TABLE kept (label text, bytes text);
INSERT INTO kept VALUES
	('space', E' {\n\t"b" :  1 ,\r\n "a":[ ] } '),
	('order', '{"z":1,"a":2,"m":3}'),
	('duplicates', '{"a":1,"a":2}'),
	('escapes', '{"a":"\u00e9\/\ud83d\ude00\n"}'),
	('unicode', '{"a":"é漢字😀"}'),
	('numbers', '[1.10,1e400,-0,100000000000000000000000000000]'),
	('scalar', '"just a string"'), ('null', 'null'), ('number', '42'), ('array', '[]'),
	('true', 'true'), ('empty key', '{"":""}');
SELECT count(acme_outbox.publish('orders', label, NULL, 'OrderPlaced', bytes)) FROM kept;
SELECT count(acme_outbox.publish('orders', label, NULL, 'OrderPlaced', bytes::json)) FROM kept;
SELECT label, count(*) AS copies,
	   bool_and(right(payload, length(bytes) + 2) = bytes || '}}') AS kept
	FROM kept JOIN acme_outbox.outbox_entry ON routing_key = label AND origin = 'pub'
	GROUP BY label, bytes ORDER BY label;
-- jsonb is rendered as jsonb is: numerics exactly
SELECT acme_outbox.publish('orders', 'jsonb', NULL, 'OrderPlaced',
	'{"bb": 1.10, "a": 123456789012345678901234567890.5, "c": "\u00e9"}'::jsonb) IS NOT NULL AS ok;
SELECT payload::json #> '{body,payload}' AS payload
	FROM acme_outbox.outbox_entry WHERE origin = 'pub' AND routing_key = 'jsonb';
-- strings of the header and the body are escaped
SELECT acme_outbox.publish('orders', 'escaped', E'key "quoted" \\ \n 😀', 'OrderPlaced', '{}',
	trace_id => '"trace"') IS NOT NULL AS ok;
SELECT payload::json #>> '{body,aggregate}' AS aggregate, payload::json #>> '{header,traceId}' AS trace,
	   message_key = E'key "quoted" \\ \n 😀' AS key
	FROM acme_outbox.outbox_entry WHERE origin = 'pub' AND routing_key = 'escaped';
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'pub';

-- '' is no tenant and no key; '' and NULL routing keys are kept apart
SELECT acme_outbox.publish('orders', '', '', 'OrderPlaced', '{}', tenant_id => '') IS NOT NULL AS ok;
SELECT acme_outbox.publish('orders', NULL, NULL, 'OrderPlaced', '{}', tenant_id => 'acme') IS NOT NULL AS ok;
SELECT routing_key, message_key, tenant_id, payload::json #>> '{body,aggregate}' AS aggregate
	FROM acme_outbox.outbox_entry WHERE origin = 'pub' ORDER BY id;
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'pub';

-- headers are kept, with any JSON in them
SELECT acme_outbox.publish('orders', 'headers', NULL, 'OrderPlaced', '{}',
	headers => '{"priority": 5, "nested": {"list": [1, 2.5, true, null, "x"]}, "é": "ü"}') IS NOT NULL AS ok;
SELECT headers FROM acme_outbox.outbox_entry WHERE origin = 'pub';
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'pub';

-- not_before: the past is at once, the future waits as SCHEDULED
SELECT count(acme_outbox.publish('orders', label, NULL, 'OrderPlaced', '{}', not_before => at))
	FROM (VALUES ('none', NULL), ('past', '2001-01-01'::timestamptz), ('now', now()),
		  ('future', '2101-01-01'), ('last', '294276-12-31 00:00Z')) v (label, at);
SELECT routing_key, hold_reason, next_attempt_at IS NOT NULL AS waits, status
	FROM acme_outbox.outbox_entry WHERE origin = 'pub' ORDER BY id;
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'pub';

-- enqueue_job: a COMMAND of entry type JOB, in its three forms
SELECT acme_outbox.enqueue_job('jobs', 'mail', 'SendMail', '{"to": "x"}') IS NOT NULL AS ok;
SELECT acme_outbox.enqueue_job('jobs', 'mail', 'SendMail', '{"to": "x"}'::json) IS NOT NULL AS ok;
SELECT acme_outbox.enqueue_job('jobs', 'mail', 'SendMail', '{"to": "x"}'::jsonb, aggregate => 'A',
	tenant_id => 'acme', event_id => '0190a5d0-0000-7000-8000-000000000003') IS NOT NULL AS ok;
SELECT entry_type, event_name, message_key, tenant_id, payload::json #>> '{body,eventType}' AS type,
	   payload::json #> '{body,payload}' AS payload
	FROM acme_outbox.outbox_entry WHERE origin = 'pub' ORDER BY id;
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'pub';

-- envelope() renders what publish() would store, and stores nothing
SELECT regexp_replace(acme_outbox.envelope('order-7', 'OrderPlaced', '{"x": 1}', trace_id => 't',
	event_id => '0190a5d0-0000-7000-8000-000000000001'), '"timestamp":"[^"]*"', '"timestamp":"T"');
SELECT regexp_replace(acme_outbox.envelope('order-7', 'OrderPlaced', '{"x": 1}'::jsonb, 'COMMAND',
	trace_id => 't', locale => 'de', event_id => '0190a5d0-0000-7000-8000-000000000001'),
	'"timestamp":"[^"]*"', '"timestamp":"T"');
SELECT count(*) FROM acme_outbox.outbox_entry WHERE origin = 'pub';
COMMIT;

-- a payload of exactly 1 MiB, and what the toaster does to it
BEGIN;
SELECT acme_outbox.publish('orders', 'large', NULL, 'OrderPlaced',
	'"' || repeat('x', 1024 * 1024 - 2) || '"') IS NOT NULL AS ok;
SELECT length(payload::json #>> '{body,payload}') = 1024 * 1024 - 2 AS whole
	FROM acme_outbox.outbox_entry WHERE origin = 'pub';
ROLLBACK;

-- what is rolled back was never published; a savepoint takes back its own only
SELECT count(*) FROM acme_outbox.outbox_entry WHERE origin = 'pub';
BEGIN;
SELECT t.pub('A', 'kept-1');
SAVEPOINT s;
SELECT t.pub('A', 'undone');
ROLLBACK TO s;
SELECT t.pub('A', 'kept-2');
SAVEPOINT s2;
SELECT t.pub('A', 'kept-3');
RELEASE s2;
COMMIT;
SELECT routing_key, xid = min(xid) OVER () AS one_xid
	FROM acme_outbox.outbox_entry WHERE origin = 'pub' ORDER BY id;

-- publishing by many rows of one statement
CREATE TEMP TABLE form (n int, how text);
INSERT INTO pg_temp.form SELECT n, acme_outbox.publish('orders', 'row-' || n, 'A', 'OrderPlaced', '{}')::text
	FROM generate_series(1, 3) n;
SELECT count(*), count(DISTINCT e.xid) AS xids FROM pg_temp.form f
	JOIN acme_outbox.outbox_entry e ON e.event_id::text = f.how;
