-- Who an event is, whose it is, and which trace it belongs to.
SET client_min_messages = warning;
SET acme_outbox.origin = 'who';
SET acme_outbox.autocommit_publish = off;
\pset format unaligned
\pset tuples_only on

\echo the same event_id again: a no-op for the same event
SELECT acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{"s":"SECRET"}',
	event_id => '0190a5d0-0000-7000-8000-00000000000a');
SELECT acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{"s":"SECRET"}',
	event_id => '0190a5d0-0000-7000-8000-00000000000a');
-- json of the same bytes is the same payload; what only accompanies the event may differ
SELECT acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{"s":"SECRET"}'::json,
	headers => '{"a": 1}', trace_id => 'other', event_id => '0190a5d0-0000-7000-8000-00000000000a');
-- twice in one statement, and in one transaction
SELECT acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}', event_id => i)
	FROM (VALUES ('0190a5d0-0000-7000-8000-00000000000b'::uuid), ('0190a5d0-0000-7000-8000-00000000000b')) v (i);
SELECT count(*) FROM acme_outbox.outbox_entry WHERE origin = 'who';
-- without a routing key
SELECT acme_outbox.publish('orders', NULL, 'A', 'OrderPlaced', '{}', event_id => '0190a5d0-0000-7000-8000-00000000000c');
SELECT acme_outbox.publish('orders', NULL, 'A', 'OrderPlaced', '{}', event_id => '0190a5d0-0000-7000-8000-00000000000c');

\echo the same event_id for another event: refused, whatever differs
CREATE FUNCTION t.reuse(call text) RETURNS text LANGUAGE sql AS
$$ SELECT t.error('SELECT acme_outbox.publish(' || call || ', event_id => ''0190a5d0-0000-7000-8000-00000000000a'')') $$;
SELECT t.reuse($$'invoices', 'k', 'A', 'OrderPlaced', '{"s":"SECRET"}'$$);
SELECT split_part(t.reuse(call), ' | ', 1) FROM (VALUES
	($$'orders', 'k2', 'A', 'OrderPlaced', '{"s":"SECRET"}'$$),
	($$'orders', '', 'A', 'OrderPlaced', '{"s":"SECRET"}'$$),
	($$'orders', NULL, 'A', 'OrderPlaced', '{"s":"SECRET"}'$$),
	($$'orders', 'k', 'A', 'OrderShipped', '{"s":"SECRET"}'$$),
	($$'orders', 'k', 'A', 'OrderPlaced', '{"s": "SECRET"}'$$),
	($$'orders', 'k', 'B', 'OrderPlaced', '{"s":"SECRET"}'$$),
	($$'orders', 'k', NULL, 'OrderPlaced', '{"s":"SECRET"}'$$),
	($$'orders', 'k', 'A', 'OrderPlaced', '{"s":"SECRET"}', kind => 'COMMAND'$$),
	($$'orders', 'k', 'A', 'OrderPlaced', '{"s":"SECRET"}', schema_version => '2.0.0'$$),
	($$'orders', 'k', 'A', 'OrderPlaced', '{"s":"SECRET"}', tenant_id => 't'$$),
	($$'orders', 'k', 'A', 'OrderPlaced', '{"s":"SECRET"}'::jsonb$$)) v (call);
SELECT split_part(t.error($$SELECT acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}',
	event_id => '0190a5d0-0000-7000-8000-00000000000c')$$), ' | ', 1);
SET acme_outbox.origin = 'another';
SELECT split_part(t.reuse($$'orders', 'k', 'A', 'OrderPlaced', '{"s":"SECRET"}'$$), ' | ', 1);
SET acme_outbox.origin = 'who';
-- an id that publish() made cannot be taken: it has no hash to compare
SELECT acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}') AS made \gset
SELECT split_part(t.error(format($$SELECT acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}', event_id => %L)$$, :'made')), ' | ', 1);
SELECT count(*) FROM acme_outbox.outbox_entry WHERE origin IN ('who', 'another');
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'who';

\echo trace: the argument, else the setting, else a new one
\set arg '00-11111111111111111111111111111111-2222222222222222-01'
\set guc '00-33333333333333333333333333333333-4444444444444444-00'
CREATE FUNCTION t.traced(trace_id text, traceparent text) RETURNS text LANGUAGE sql AS $$
	SELECT acme_outbox.publish('orders', 'traced', NULL, 'OrderPlaced', '{}',
		trace_id => trace_id, traceparent => traceparent);
	SELECT concat_ws(' ', e.trace_id, e.traceparent,
			CASE WHEN e.payload::json #>> '{header,traceId}' = e.trace_id THEN 'same' ELSE 'other' END)
		FROM acme_outbox.outbox_entry e WHERE origin = 'who' ORDER BY id DESC LIMIT 1
$$;
SELECT t.traced(NULL, :'arg');
SELECT t.traced('order-17', :'arg');
SET acme_outbox.traceparent = :'guc';
SELECT t.traced(NULL, NULL);
SELECT t.traced(NULL, :'arg');
SELECT t.traced('order-17', NULL);
RESET acme_outbox.traceparent;
-- later versions may add fields
SELECT t.traced(NULL, '01-11111111111111111111111111111111-2222222222222222-01-more');
-- generated: both agree, unsampled
SELECT t.traced(NULL, NULL) ~ '^([0-9a-f]{32}) 00-\1-[0-9a-f]{16}-00 same$';
SELECT t.traced(NULL, NULL) <> t.traced(NULL, NULL);
-- a trace id of W3C's form makes a traceparent, another does not
SELECT t.traced('11111111111111111111111111111111', NULL) ~ '^1{32} 00-1{32}-[0-9a-f]{16}-00 same$';
SELECT t.traced('order-17', NULL);
SELECT t.traced('00000000000000000000000000000000', NULL);
SELECT t.traced('1111111111111111111111111111111A', NULL);
-- the settings: a trace id counts before the traceparent's, and before an argument of neither
SET acme_outbox.trace_id = 'order-18';
SELECT t.traced(NULL, NULL);
SELECT t.traced('order-17', NULL);
SELECT t.traced(NULL, :'arg');
SET acme_outbox.traceparent = :'guc';
SELECT t.traced(NULL, NULL);
SELECT acme_outbox.trace_id(), acme_outbox.traceparent();
SET acme_outbox.trace_id = '33333333333333333333333333333333';
RESET acme_outbox.traceparent;
SELECT t.traced(NULL, NULL) ~ '^3{32} 00-3{32}-[0-9a-f]{16}-00 same$';
SELECT t.error(format('SET acme_outbox.trace_id = %L; SELECT acme_outbox.trace_id()', repeat('x', 256)));
RESET acme_outbox.trace_id;
-- asking for the trace begins one, for the rest of the transaction and not longer
BEGIN;
SELECT acme_outbox.trace_id() AS begun, acme_outbox.traceparent() AS context \gset
SELECT :'context' ~ ('^00-' || :'begun' || '-[0-9a-f]{16}-00$') AS of_one_trace,
	   acme_outbox.trace_id() = :'begun' AS again,
	   t.traced(NULL, NULL) = concat_ws(' ', :'begun', :'context', 'same') AS published_with_it;
COMMIT;
SELECT t.traced(NULL, NULL) LIKE :'begun' || '%' AS still, current_setting('acme_outbox.traceparent') = '' AS none;
BEGIN;
SAVEPOINT undone;
SELECT acme_outbox.trace_id() AS undone \gset
ROLLBACK TO undone;
SELECT acme_outbox.trace_id() = :'undone' AS outlives_a_rollback;
COMMIT;
-- what was kept is continued elsewhere
BEGIN;
SELECT acme_outbox.context(traceparent => :'context');
SELECT t.traced(NULL, NULL) = concat_ws(' ', :'begun', :'context', 'same') AS continued;
SELECT acme_outbox.context(traceparent => '', trace_id => 'order-19');
SELECT t.traced(NULL, NULL), acme_outbox.traceparent() IS NULL AS no_w3c;
COMMIT;
-- envelope() follows the setting too
SET acme_outbox.traceparent = :'guc';
SELECT acme_outbox.envelope('A', 'OrderPlaced', '{}')::json #>> '{header,traceId}';
RESET acme_outbox.traceparent;
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'who';

\echo origin: what the administrator set, else the user that logged in
\set database :DBNAME
\set me :USER
CREATE ROLE outbox_test_app LOGIN;
CREATE ROLE outbox_test_other NOLOGIN;
GRANT outbox_test_other TO outbox_test_app;
SELECT acme_outbox.grant_publisher('outbox_test_app');
SELECT acme_outbox.grant_publisher('outbox_test_other');
CREATE FUNCTION t.origin() RETURNS text LANGUAGE sql AS
$$ SELECT acme_outbox.envelope('A', 'OrderPlaced', '{}')::json #>> '{header,origin}' $$;
GRANT USAGE ON SCHEMA t TO outbox_test_app, outbox_test_other;

\c :database outbox_test_app
SELECT t.origin();
-- SET ROLE does not change it
SET ROLE outbox_test_other;
SELECT t.origin();
RESET ROLE;
-- it is not the user's to set, in any way; here the library is loaded
SET acme_outbox.origin = 'evil';
SET LOCAL acme_outbox.origin = 'evil';
SET acme_outbox.require_origin = off;
SELECT set_config('acme_outbox.origin', 'evil', true);
ALTER ROLE outbox_test_app SET acme_outbox.origin = 'evil';
CREATE FUNCTION pg_temp.evil() RETURNS text LANGUAGE sql SET acme_outbox.origin = 'evil' AS $$ SELECT t.origin() $$;
SELECT t.origin();

-- a fresh session, where perhaps it is not yet: the attempt may pass, its value may not
\c :database outbox_test_app
SET client_min_messages = error;
DO $$
BEGIN
	PERFORM set_config('acme_outbox.origin', 'evil', false);
EXCEPTION WHEN insufficient_privilege THEN
	NULL;
END $$;
SELECT t.origin();
RESET client_min_messages;
SELECT t.origin();
\c :database outbox_test_app
SET client_min_messages = error;
DO $$ BEGIN EXECUTE 'ALTER ROLE outbox_test_app SET acme_outbox.origin = ''evil'''; EXCEPTION WHEN insufficient_privilege THEN NULL; END $$;
\c :database outbox_test_app
SELECT t.origin();

-- an administrator's ALTER ROLE counts, from the first call of a session
\c :database :me
ALTER ROLE outbox_test_app SET acme_outbox.origin = 'shop';
\c :database outbox_test_app
SELECT t.origin();
SET ROLE outbox_test_other;
SELECT t.origin();
RESET ROLE;
-- and is what a pooler's reset returns to
DISCARD ALL;
SELECT t.origin();
RESET acme_outbox.origin;
SELECT t.origin();

-- per role in a database goes before the role's own
\c :database :me
ALTER ROLE outbox_test_app IN DATABASE :database SET acme_outbox.origin = 'shop-here';
\c :database outbox_test_app
SELECT t.origin();
\c :database :me
ALTER ROLE outbox_test_app IN DATABASE :database RESET acme_outbox.origin;
ALTER ROLE outbox_test_app RESET acme_outbox.origin;
-- require_origin for everybody of a database
ALTER DATABASE :database SET acme_outbox.require_origin = on;
\c :database outbox_test_app
SELECT t.origin();
\c :database :me
ALTER DATABASE :database RESET acme_outbox.require_origin;
-- SET SESSION AUTHORIZATION is a log-in
\c :database :me
SET SESSION AUTHORIZATION outbox_test_app;
SELECT t.origin();
RESET SESSION AUTHORIZATION;

DROP FUNCTION t.traced, t.reuse, t.origin;
REVOKE USAGE ON SCHEMA t FROM outbox_test_app, outbox_test_other;
SELECT acme_outbox.revoke_publisher('outbox_test_app');
SELECT acme_outbox.revoke_publisher('outbox_test_other');
DROP ROLE outbox_test_app, outbox_test_other;
