-- What publish() refuses: with a SQLSTATE of its own, before anything is stored, and
-- without a word of the payload.
SET client_min_messages = warning;
SET acme_outbox.origin = 'bad';
SET acme_outbox.autocommit_publish = off;

-- one call per line: the arguments are named, the rest are good ones
CREATE TABLE t.refused (n int GENERATED ALWAYS AS IDENTITY, what text, error text);
CREATE FUNCTION t.refuse(what text, arguments text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	good text[] := ARRAY['topic => ''orders''', 'routing_key => ''k''', 'aggregate => ''A''',
						 'event_name => ''OrderPlaced''', 'payload => ''{"s":"SECRET"}'''];
	call text := arguments;
	argument text;
	error text;
BEGIN
	FOREACH argument IN ARRAY good LOOP
		IF position(split_part(argument, ' ', 1) || ' =>' IN arguments) = 0 THEN
			call := call || ', ' || argument;
		END IF;
	END LOOP;
	error := t.error('SELECT acme_outbox.publish(' || call || ')');
	INSERT INTO t.refused (what, error) VALUES (what, error);
	RETURN error;
END $$;
SELECT CASE WHEN is_called THEN last_value ELSE 0 END AS ids_before FROM acme_outbox.outbox_entry_id_seq \gset
\pset format unaligned
\pset tuples_only on

\echo payload
SELECT t.refuse('null', 'payload => NULL::text');
SELECT t.refuse('null json', 'payload => NULL::json');
SELECT t.refuse('null jsonb', 'payload => NULL::jsonb');
SELECT t.refuse('empty', $$payload => ''$$);
SELECT t.refuse('word', $$payload => 'SECRET'$$);
SELECT t.refuse('open', $$payload => '{"s": "SECRET'$$);
SELECT t.refuse('single quotes', $$payload => '{''s'': 1}'$$);
SELECT t.refuse('two values', $$payload => '{} {"s":"SECRET"}'$$);
SELECT t.refuse('trailing comma', $$payload => '{"s":"SECRET",}'$$);
SELECT t.refuse('NaN', $$payload => '{"s": NaN}'$$);
SELECT t.refuse('control character', $$payload => E'{"s": "SECRET\x01"}'$$);
SELECT t.refuse('bad escape', $$payload => '{"s": "SECRET\q"}'$$);
SELECT t.refuse('bad unicode escape', $$payload => '{"s": "SECRET\u00zz"}'$$);
SELECT t.refuse('byte order mark', $$payload => E'\ufeff{}'$$);
-- a position counts bytes
SELECT t.refuse('after two-byte letters', $$payload => '"éééé" x'$$);

\echo payload size: the limit itself is allowed
SET acme_outbox.max_payload_bytes = 16;
SELECT t.sqlstate($$SELECT acme_outbox.publish('orders', 'k', NULL, 'OrderPlaced', '"12345678901234"')$$);
SELECT t.refuse('17 bytes', $$payload => '"SECRET789012345"'$$);
SELECT t.refuse('17 bytes, two-byte letters', $$payload => '"ééééééé "'$$);
SELECT t.refuse('jsonb: as rendered', $$payload => '{"secret":[1,2]}'::jsonb$$);
RESET acme_outbox.max_payload_bytes;
SELECT t.refuse('1 MiB and a byte', $$payload => '"' || repeat('x', 1024 * 1024 - 1) || '"'$$);

\echo topic and routing key
SELECT t.refuse('null', 'topic => NULL');
SELECT t.refuse('empty', $$topic => ''$$);
SELECT t.sqlstate($$SELECT acme_outbox.publish(repeat('x', 255), repeat('x', 255), repeat('x', 255), 'OrderPlaced', '{}')$$);
SELECT t.refuse('256 bytes', $$topic => repeat('x', 256)$$);
SELECT t.refuse('256 bytes in 128 letters', $$topic => repeat('é', 128)$$);
SELECT t.refuse('256 bytes', $$routing_key => repeat('x', 256)$$);

\echo aggregate, tenant, kind, locale, schema version, options, time
SELECT t.refuse('256 bytes', $$aggregate => repeat('x', 256)$$);
SELECT t.refuse('256 bytes', $$tenant_id => repeat('x', 256)$$);
SELECT t.refuse('unknown kind', $$kind => 'event'$$);
SELECT t.refuse('null kind', $$kind => NULL$$);
SELECT t.refuse('empty', $$locale => ''$$);
SELECT t.refuse('36 bytes', $$locale => repeat('x', 36)$$);
SELECT t.refuse('not a tag', $$locale => 'es ES'$$);
SELECT t.refuse('null', 'schema_version => NULL');
SELECT t.refuse('two numbers', $$schema_version => '1.0'$$);
SELECT t.refuse('four numbers', $$schema_version => '1.0.0.0'$$);
SELECT t.refuse('a letter', $$schema_version => 'v1.0.0'$$);
SELECT t.refuse('65 bytes', $$schema_version => '1.0.0-' || repeat('x', 59)$$);
SELECT t.refuse('unknown option', $$options => '{"s":"SECRET"}'$$);
SELECT t.refuse('not an object', $$options => '["SECRET"]'$$);
SELECT t.refuse('infinity', $$not_before => 'infinity'$$);
SELECT t.refuse('-infinity', $$not_before => '-infinity'$$);

\echo event name
SELECT t.refuse('null', 'event_name => NULL');
SELECT split_part(t.refuse(name, format('event_name => %L', name)), ' | ', 2)
	FROM unnest(ARRAY['', 'orderPlaced', 'Order Placed', 'Order.Placed', 'order', '.a.b', 'a..b',
					  'a.b.', 'a.B', 'Ordér', 'Order_Placed', 'a b.c', '1Order',
					  repeat('é', 200)]) name;
SELECT t.refuse('256 bytes', $$event_name => 'X' || repeat('x', 255)$$);
-- what is a name
SELECT name, t.sqlstate(format('SELECT acme_outbox.publish(''orders'', ''k'', NULL, %L, ''{}'')', name))
	FROM unnest(ARRAY['O', 'OrderPlaced2', 'a.b', 'trading.sale-line.created_1', '1.2']) name;
SELECT t.sqlstate($$SELECT acme_outbox.publish('orders', 'k', NULL, 'X' || repeat('x', 254), '{}')$$);
-- arguments in the wrong order: the payload is where the name should be, and an error
-- shows a name only where it looks like one
SELECT t.refuse('payload as name', $$event_name => '{"s":"SECRET"}', payload => 'OrderPlaced'$$);

\echo headers
SELECT array_to_string((string_to_array(t.refuse(headers, format('headers => %L', headers)), ' | '))[1:3], ' | ')
	FROM unnest(ARRAY['[]', '"x"', 'null', '{"": 1}', '{"a": {"": 1}}', '{"x-death": 1}', '{"X-Death": 1}',
		'{"TraceParent": "x"}', '{"x-delivery-count": 1}', '{"x-error-code": 1}', '{"X-ERROR-": 1}',
		'{"x-original-exchange": 1}', '{"x-first-death-queue": 1}', '{"x-last-death-reason": 1}',
		'{"a": 1e400}', '{"a": [-1e400]}']) headers;
SELECT t.refuse('name of 256 bytes', $$headers => jsonb_build_object(repeat('x', 256), 1)$$);
-- reserved only at the top, and only whole names
SELECT headers, t.sqlstate(format('SELECT acme_outbox.publish(''orders'', ''k'', NULL, ''OrderPlaced'', ''{}'', headers => %L)', headers))
	FROM unnest(ARRAY['{"a": {"x-death": 1}}', '{"x-deathly": 1}', '{"x-error": 1}', '{}', '{"a": 1e308}']) headers;
SELECT t.sqlstate($$SELECT acme_outbox.publish('orders', 'k', NULL, 'OrderPlaced', '{}', headers => jsonb_build_object(repeat('x', 255), 1))$$);
-- 32 levels, not 33; the object itself is the first
SELECT t.sqlstate($$SELECT acme_outbox.publish('orders', 'k', NULL, 'OrderPlaced', '{}',
	headers => (repeat('{"a":', 31) || '{}' || repeat('}', 31))::jsonb)$$);
SELECT t.refuse('33 levels', $$headers => (repeat('{"a":', 32) || '{}' || repeat('}', 32))::jsonb$$);
SELECT t.refuse('33 levels, arrays', $$headers => ('{"a":' || repeat('[', 32) || repeat(']', 32) || '}')::jsonb$$);
-- as encoded: the table 5, a name 1 + 1, a string 5 + its bytes
SET acme_outbox.max_headers_bytes = 32;
SELECT t.sqlstate($$SELECT acme_outbox.publish('orders', 'k', NULL, 'OrderPlaced', '{}',
	headers => jsonb_build_object('a', repeat('x', 20)))$$);
SELECT t.refuse('33 bytes', $$headers => jsonb_build_object('a', repeat('x', 21))$$);
RESET acme_outbox.max_headers_bytes;
SELECT t.refuse('64 KiB and some', $$headers => jsonb_build_object('a', repeat('x', 65536))$$);

\echo trace
SELECT DISTINCT t.refuse(tp, format('traceparent => %L', tp))
	FROM unnest(ARRAY['', 'x',
		'00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7',
		'00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1',
		'00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x',
		'00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01',
		'00-00000000000000000000000000000000-00f067aa0ba902b7-01',
		'00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01',
		'ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01',
		'0x-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01',
		'00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01',
		'00-4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7-01',
		'00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7_01',
		'00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01',
		'01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01x',
		'00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0g']) tp;
SELECT t.refuse('empty', $$trace_id => ''$$);
SELECT t.refuse('256 bytes', $$trace_id => repeat('x', 256)$$);
SET acme_outbox.traceparent = 'SECRET';
SELECT t.refuse('setting', 'kind => ''EVENT''');
RESET acme_outbox.traceparent;

\echo origin
SET acme_outbox.origin = '';
SET acme_outbox.require_origin = on;
SELECT t.refuse('required', 'kind => ''EVENT''');
SELECT t.error($$SELECT acme_outbox.envelope('A', 'OrderPlaced', '{}')$$);
RESET acme_outbox.require_origin;
SELECT set_config('acme_outbox.origin', repeat('x', 256), false) <> '';
SELECT t.refuse('256 bytes', 'kind => ''EVENT''');
SELECT set_config('acme_outbox.origin', repeat('x', 255), false) <> '';
SELECT t.sqlstate($$SELECT acme_outbox.publish('orders', 'k', NULL, 'OrderPlaced', '{}')$$);
SET acme_outbox.origin = 'bad';

\echo jobs and envelopes are checked alike
SELECT t.sqlstate($$SELECT acme_outbox.enqueue_job('', 'k', 'SendMail', '{}')$$),
	t.sqlstate($$SELECT acme_outbox.enqueue_job('jobs', 'k', 'send mail', '{}')$$),
	t.sqlstate($$SELECT acme_outbox.enqueue_job('jobs', 'k', 'SendMail', '{')$$),
	t.sqlstate($$SELECT acme_outbox.enqueue_job('jobs', 'k', 'SendMail', '{}', options => '{"a":1}')$$),
	t.sqlstate($$SELECT acme_outbox.envelope('A', 'order placed', '{}')$$),
	t.sqlstate($$SELECT acme_outbox.envelope('A', 'OrderPlaced', '{')$$),
	t.sqlstate($$SELECT acme_outbox.envelope('A', 'OrderPlaced', '{}', 'event')$$);

\echo a read-only transaction
\set VERBOSITY terse
BEGIN READ ONLY;
SELECT acme_outbox.publish('orders', 'k', NULL, 'OrderPlaced', '{"s":"SECRET"}');
ROLLBACK;

\echo deep nesting is an error of the statement, not a crash
SELECT t.sqlstate($$SELECT acme_outbox.publish('orders', 'k', NULL, 'OrderPlaced', repeat('[', 500000) || repeat(']', 500000))$$);
SELECT t.sqlstate($$SELECT acme_outbox.publish('orders', 'k', NULL, 'OrderPlaced', repeat('[', 1000000))$$);
SELECT t.sqlstate($$SELECT acme_outbox.publish('orders', 'k', NULL, 'OrderPlaced', repeat('{"a":', 200000))$$);
SELECT t.sqlstate($$SELECT acme_outbox.publish('orders', 'k', NULL, 'OrderPlaced', (repeat('[', 3000) || repeat(']', 3000))::jsonb)$$);

\echo all were refused, none with anything of the payload, none after an id was taken
SELECT count(*) FILTER (WHERE error = 'no error'), count(*) FILTER (WHERE error !~ '^OX0') FROM t.refused;
SELECT what, error FROM t.refused WHERE error ~ 'SECRET';
SELECT last_value - :ids_before - count(*) AS ids_lost FROM acme_outbox.outbox_entry_id_seq,
	acme_outbox.outbox_entry WHERE payload ~ '"origin":"(bad|x+)"' GROUP BY last_value;
SELECT count(*) FROM acme_outbox.outbox_entry WHERE payload ~ 'SECRET';
DROP TABLE t.refused;
DROP FUNCTION t.refuse;
