-- Parked messages: what is written, replayed once, with whose rights, and discarded.
SET client_min_messages = warning;
\pset format unaligned
\pset tuples_only on
\set database :DBNAME
\set me :USER
CREATE ROLE parked_test_app LOGIN;
CREATE ROLE parked_test_operator LOGIN;
CREATE ROLE parked_test_owner;
CREATE SCHEMA trading AUTHORIZATION parked_test_owner;
SELECT acme_outbox.create_inbox('trading');
SELECT acme_outbox.grant_consumer('parked_test_app', 'trading');
ALTER ROLE parked_test_app SET acme_outbox.inbox_schema = 'trading';
CREATE TABLE trading.deal (id text PRIMARY KEY, status text);
CREATE TABLE trading.log (n bigserial, line text);
GRANT SELECT, UPDATE, INSERT ON trading.deal TO parked_test_app;
GRANT INSERT, SELECT ON trading.log TO parked_test_app;
GRANT USAGE ON SEQUENCE trading.log_n_seq TO parked_test_app;
GRANT USAGE ON SCHEMA t TO parked_test_app, parked_test_operator;
CREATE FUNCTION t.env(event_id text, deal text) RETURNS text LANGUAGE sql AS $$
	SELECT format('{"header":{"eventId":"%1$s","traceId":"trace-%1$s"},"body":{"eventName":"accounting.invoice.processed","eventType":"EVENT","payload":{"deal":"%2$s","secret":"s3cr3t"}}}', event_id, deal)
$$;
-- P 2.1
CREATE FUNCTION trading.on_invoice(message jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	deal trading.deal;
	wanted text := message -> 'body' -> 'payload' ->> 'deal';
BEGIN
	SELECT * INTO deal FROM trading.deal d WHERE d.id = wanted FOR UPDATE;
	IF NOT FOUND THEN
		PERFORM acme_outbox.park('UNRESOLVABLE_ENTITY', 'deal', wanted);
		RETURN;
	ELSIF deal.status <> 'FINALISED' THEN
		PERFORM acme_outbox.park('INVALID_STATE', 'deal', wanted);
		RETURN;
	END IF;
	UPDATE trading.deal SET status = 'INVOICED' WHERE id = wanted;
	INSERT INTO trading.log (line) VALUES (current_user || ' ' || (acme_outbox.message() ->> 'event_id') || ' ' || coalesce(acme_outbox.message() ->> 'routing_key', '-'));
END $$;

\echo -- the consumer, logged in
\c :database parked_test_app
\set VERBOSITY terse
SELECT acme_outbox.inbox_process('trading.deals', t.env('e1', 'd1'), 'trading.on_invoice', '{"routing_key":"rk"}');
SELECT acme_outbox.inbox_process('trading.deals', t.env('e1', 'd1'), 'trading.on_invoice');
INSERT INTO trading.deal VALUES ('d2', 'DRAFT'), ('d3', 'FINALISED');
SELECT acme_outbox.inbox_process('trading.deals', t.env('e2', 'd2'), 'trading.on_invoice');
SELECT acme_outbox.inbox_process('trading.deals', t.env('e3', 'd3'), 'trading.on_invoice');
SELECT tenant_id IS NULL, consumer, event_id, event_type, source_entity_type, source_entity_id, reason, payload -> 'body' -> 'payload', message FROM trading.parked_message ORDER BY event_id;
SELECT consumer, event_id FROM trading.processed_event ORDER BY 2;
\echo outside a handler
SELECT acme_outbox.park('INVALID_STATE'); -- fail
SELECT acme_outbox.park_message('trading.deals', t.env('e4', 'd4'), 'UNKNOWN_CURRENCY', 'deal', 'd4') IS NOT NULL;
SELECT acme_outbox.inbox_accept('trading.deals', 'e4');
BEGIN;
SELECT acme_outbox.inbox_accept('trading.deals', 'e5');
SELECT acme_outbox.park_message('trading.deals', t.env('e5', 'd5')::jsonb, 'INVALID_STATE') IS NOT NULL;
COMMIT;
SELECT event_id, guarded FROM trading.parked_message ORDER BY 1;
SELECT acme_outbox.park_message('trading.deals', t.env('e', 'd'), 'invalid state'); -- fail
SELECT acme_outbox.park_message('trading.deals', t.env('e', 'd'), NULL); -- fail
SELECT acme_outbox.park_message('trading.deals', 'secret', 'INVALID_STATE'); -- fail
SELECT acme_outbox.park_message('', t.env('e', 'd'), 'INVALID_STATE'); -- fail
\echo it can neither change the journal, nor replay or see others
UPDATE trading.parked_message SET reason = 'X'; -- fail
DELETE FROM trading.parked_message; -- fail
SELECT count(*) FROM trading.parked_resolution; -- fail
SELECT * FROM acme_outbox.parked_open; -- fail
SELECT acme_outbox.replay_parked('trading', '0190a5d0-0000-7000-8000-000000000001'); -- fail
SELECT acme_outbox.discard_parked('trading', '0190a5d0-0000-7000-8000-000000000001', 'x'); -- fail
SELECT acme_outbox.register_handler('trading.deals', 'trading.on_invoice', 'parked_test_app', 'trading'); -- fail

\c :database :me
SET client_min_messages = warning;
\pset format unaligned
\pset tuples_only on
\echo -- park inside a block that is rolled back did not happen
CREATE FUNCTION trading.changes_its_mind(message jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	BEGIN
		PERFORM acme_outbox.park('INVALID_STATE');
		RAISE EXCEPTION 'undo';
	EXCEPTION WHEN raise_exception THEN
		NULL;
	END;
	IF message -> 'body' -> 'payload' ->> 'deal' = 'again' THEN
		BEGIN
			PERFORM acme_outbox.park('INVALID_STATE', 'second', 'time');
		EXCEPTION WHEN division_by_zero THEN
			NULL;
		END;
	END IF;
END $$;
SET acme_outbox.inbox_schema = 'trading';
SELECT acme_outbox.inbox_process('mind', t.env('m1', 'x'), 'trading.changes_its_mind');
SELECT acme_outbox.inbox_process('mind', t.env('m2', 'again'), 'trading.changes_its_mind');
SELECT event_id, source_entity_type FROM trading.parked_message WHERE consumer = 'mind';
CREATE FUNCTION trading.parks_twice(message jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM acme_outbox.park('INVALID_STATE');
	PERFORM acme_outbox.park('INVALID_STATE');
END $$;
SELECT t.error($$SELECT acme_outbox.inbox_process('mind', t.env('m3', 'x'), 'trading.parks_twice')$$);

\echo -- what is open, over all inboxes
SELECT acme_outbox.park_message('other', t.env('o1', 'x'), 'INVALID_STATE') IS NOT NULL;
RESET acme_outbox.inbox_schema;
SELECT acme_outbox.park_message('default', t.env('o1', 'x'), 'INVALID_STATE') IS NOT NULL;
SELECT inbox, consumer, event_id, event_type, source_entity_type, source_entity_id, reason, trace_id FROM acme_outbox.parked_open ORDER BY 1, 2, 3;
SELECT inbox, consumer, event_type, reason, parked, still_open FROM acme_outbox.parked_counts() ORDER BY 1, 2, 4;
\echo -- an inbox that is gone does not hide the others
SELECT acme_outbox.create_inbox('gone');
DROP SCHEMA gone CASCADE;
SELECT count(*) FROM acme_outbox.parked_open;
SELECT acme_outbox.drop_inbox('gone');
SELECT t.error($$SELECT acme_outbox.drop_inbox('gone')$$);
SELECT count(*) FROM acme_outbox.parked_open;

\echo -- replay: nothing is registered
CREATE FUNCTION t.parked(of_event text) RETURNS uuid LANGUAGE sql AS $$ SELECT id FROM trading.parked_message WHERE event_id = of_event ORDER BY parked_at DESC, id DESC LIMIT 1 $$;
SELECT t.error($$SELECT acme_outbox.replay_parked('trading', t.parked('e1'))$$);
SELECT t.error($$SELECT acme_outbox.register_handler('trading.deals', 'trading.on_invoice', current_user, 'trading')$$);
SELECT t.error($$SELECT acme_outbox.register_handler('trading.deals', 'trading.on_invoice', 'parked_test_none', 'trading')$$);
SELECT t.error($$SELECT acme_outbox.register_handler('trading.deals', 'trading.on_invoice', 'parked_test_app', 'nowhere')$$);
SELECT acme_outbox.register_handler('trading.deals', 'trading.on_invoice', 'parked_test_app', 'trading');
SELECT t.error($$SELECT acme_outbox.replay_parked('trading', '0190a5d0-0000-7000-8000-000000000001')$$);
SELECT t.error($$SELECT acme_outbox.replay_parked('nowhere', '0190a5d0-0000-7000-8000-000000000001')$$);
SELECT t.error($$SELECT acme_outbox.replay_parked(NULL, NULL)$$);

\echo -- replay, by an operator, as the role of the consumer
GRANT USAGE ON SCHEMA acme_outbox TO parked_test_operator;
GRANT EXECUTE ON FUNCTION acme_outbox.replay_parked(name, uuid), acme_outbox.replay_parked_where(name, text, text, text, integer), acme_outbox.discard_parked(name, uuid, text) TO parked_test_operator;
GRANT SELECT ON acme_outbox.parked_open TO parked_test_operator;
GRANT EXECUTE ON FUNCTION acme_outbox.parked_rows() TO parked_test_operator;
SELECT t.parked('e1') AS e1, t.parked('e2') AS e2, t.parked('e4') AS e4, t.parked('e5') AS e5 \gset
\c :database parked_test_operator
\set VERBOSITY terse
SELECT event_id, acme_outbox.replay_parked(inbox, id) FROM acme_outbox.parked_open WHERE event_id = 'e1';
SELECT acme_outbox.replay_parked('trading', :'e1');
\c :database :me
SET client_min_messages = warning;
INSERT INTO trading.deal VALUES ('d1', 'FINALISED');
\echo it was parked once more, as another row; that one is applied, once
SELECT t.parked('e1') AS e1 \gset
SELECT acme_outbox.replay_parked('trading', :'e1');
SELECT acme_outbox.replay_parked('trading', :'e1');
SELECT line FROM trading.log ORDER BY n;
SELECT status FROM trading.deal WHERE id = 'd1';
SELECT action, outcome, actor = current_user AS me, role_name FROM trading.parked_resolution ORDER BY id;
\echo a failing handler raises, and the message stays open
UPDATE trading.deal SET status = 'FINALISED' WHERE id = 'd2';
REVOKE UPDATE ON trading.deal FROM parked_test_app;
SELECT t.error(format($$SELECT acme_outbox.replay_parked('trading', %L)$$, t.parked('e2')));
SELECT outcome, sqlstate, error FROM acme_outbox.replay_parked_where('trading', 'trading.deals', reason => 'INVALID_STATE');
SELECT count(*) FROM trading.parked_message WHERE event_id = 'e2' AND resolved_at IS NULL;
GRANT UPDATE ON trading.deal TO parked_test_app;
\echo many of them
INSERT INTO trading.deal VALUES ('d4', 'FINALISED');
SELECT t.error($$SELECT acme_outbox.replay_parked_where('trading', max_rows => -1)$$);
SELECT outcome, sqlstate FROM acme_outbox.replay_parked_where('trading', 'trading.deals', max_rows => 2);
SELECT outcome, sqlstate FROM acme_outbox.replay_parked_where('trading', 'trading.deals');
SELECT line FROM trading.log ORDER BY n;
\echo what was applied otherwise is a duplicate: parked after it was processed
SET acme_outbox.inbox_schema = 'trading';
SELECT acme_outbox.park_message('trading.deals', t.env('e3', 'd3'), 'INVALID_STATE') AS e3 \gset
UPDATE trading.deal SET status = 'FINALISED';
SELECT acme_outbox.replay_parked(:'e3');
\echo parked twice: applied once
BEGIN;
SELECT acme_outbox.park_message('trading.deals', t.env('e6', 'd3'), 'INVALID_STATE') AS e6a \gset
COMMIT;
DELETE FROM trading.processed_event WHERE event_id = 'e6';
SELECT acme_outbox.park_message('trading.deals', t.env('e6', 'd2'), 'INVALID_STATE') AS e6b \gset
SELECT acme_outbox.replay_parked('trading', :'e6a'), acme_outbox.replay_parked('trading', :'e6b');
SELECT count(*) FROM trading.log WHERE line LIKE '% e6 %';

\echo -- what is deferred is checked at once, except in a session of the role itself
CREATE TABLE trading.parent (id text PRIMARY KEY);
CREATE TABLE trading.child (id text REFERENCES trading.parent DEFERRABLE INITIALLY DEFERRED);
GRANT SELECT, INSERT ON trading.parent, trading.child TO parked_test_app;
CREATE FUNCTION trading.child_first(message jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO trading.child VALUES ('c');
	INSERT INTO trading.parent VALUES ('c');
END $$;
SELECT acme_outbox.register_handler('deferring', 'trading.child_first', 'parked_test_app', 'trading');
SELECT acme_outbox.park_message('deferring', t.env('f1', 'x'), 'INVALID_STATE') AS f1 \gset
SELECT t.sqlstate(format($$SELECT acme_outbox.replay_parked('trading', %L)$$, :'f1'));
GRANT EXECUTE ON FUNCTION acme_outbox.replay_parked(name, uuid) TO parked_test_app;
SET SESSION AUTHORIZATION parked_test_app;
SELECT acme_outbox.replay_parked('trading', :'f1');
RESET SESSION AUTHORIZATION;
SELECT count(*) FROM trading.child;

\echo -- what it publishes has the origin of the consuming role, whoever replays
CREATE FUNCTION trading.tell(message jsonb) RETURNS void LANGUAGE sql AS $$
	SELECT acme_outbox.publish('events', 'k', '', 'Told', '{}')
$$;
SELECT acme_outbox.grant_publisher('parked_test_app');
SELECT acme_outbox.register_handler('telling', 'trading.tell', 'parked_test_app', 'trading');
SELECT acme_outbox.park_message('telling', t.env(id, 'x'), 'INVALID_STATE')
	FROM unnest(ARRAY['t1', 't2', 't3']) id \g /dev/null
SET acme_outbox.origin = 'the operator';
SELECT acme_outbox.replay_parked('trading', id) FROM acme_outbox.parked_open WHERE event_id = 't1';
ALTER ROLE parked_test_app SET acme_outbox.origin = 'trading everywhere';
SELECT acme_outbox.replay_parked('trading', id) FROM acme_outbox.parked_open WHERE event_id = 't2';
SELECT format('ALTER ROLE parked_test_app IN DATABASE %I SET acme_outbox.origin = %L',
	current_database(), 'trading') \gexec
SELECT acme_outbox.replay_parked('trading', id) FROM acme_outbox.parked_open WHERE event_id = 't3';
SHOW acme_outbox.origin;
RESET acme_outbox.origin;
SELECT origin FROM acme_outbox.outbox_entry WHERE event_name = 'Told' ORDER BY id;
DELETE FROM acme_outbox.outbox_entry WHERE event_name = 'Told';
SELECT acme_outbox.revoke_publisher('parked_test_app');

\echo -- discarded
SELECT acme_outbox.park_message('trading.deals', t.env('e7', 'd7'), 'INVALID_STATE') AS e7 \gset
SELECT t.error(format($$SELECT acme_outbox.discard_parked('trading', %L, '')$$, :'e7'));
SELECT acme_outbox.discard_parked('trading', :'e7', 'test data');
SELECT acme_outbox.discard_parked(:'e7', 'again');
SELECT acme_outbox.replay_parked('trading', :'e7');
SELECT action, outcome, why, role_name FROM trading.parked_resolution WHERE parked_id = :'e7' ORDER BY id;
SELECT count(*) FROM acme_outbox.parked_open WHERE event_id = 'e7';
\echo -- parked messages have no retention, open or not
UPDATE trading.parked_message SET parked_at = now() - interval '10 years';
SELECT count(*) AS before FROM trading.parked_message \gset
SELECT count(*) > 0 FROM acme_outbox.purge();
SELECT count(*) = :before FROM trading.parked_message;

RESET acme_outbox.inbox_schema;
DROP FUNCTION t.parked, t.env;
REVOKE USAGE ON SCHEMA t FROM parked_test_app, parked_test_operator;
SELECT acme_outbox.revoke_consumer('parked_test_app', 'trading');
SELECT acme_outbox.drop_inbox('trading');
SELECT count(*) FROM acme_outbox.inbox_handler;
DROP SCHEMA trading CASCADE;
DROP OWNED BY parked_test_operator, parked_test_app;
DROP ROLE parked_test_app, parked_test_operator, parked_test_owner;
TRUNCATE acme_outbox.parked_message, acme_outbox.processed_event;
