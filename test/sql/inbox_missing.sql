-- An inbox that is not there, or of which tables were dropped, is told by name (OX201) by
-- every function of a consumer, also where its statements are planned already; create_inbox
-- makes again what is missing, and only that.
SET client_min_messages = warning;
\pset format unaligned
\pset tuples_only on
CREATE ROLE outbox_test_missing LOGIN;
SELECT acme_outbox.create_inbox('missing');
SELECT acme_outbox.grant_consumer('outbox_test_missing', 'missing');
GRANT USAGE ON SCHEMA t TO outbox_test_missing;
CREATE FUNCTION missing.on_message(message jsonb) RETURNS void LANGUAGE sql AS 'SELECT';
CREATE FUNCTION missing.on_parked(message jsonb) RETURNS void LANGUAGE sql AS $$ SELECT acme_outbox.park('INVALID_STATE') $$;
GRANT USAGE ON SCHEMA missing TO outbox_test_missing;
-- every function that uses an inbox, once
CREATE FUNCTION t.calls() RETURNS TABLE (call text) LANGUAGE sql AS $$ VALUES
	($c$inbox_accept('c', gen_random_uuid())$c$),
	($c$inbox_record('c', gen_random_uuid())$c$),
	($c$inbox_attempt('c', 'e1')$c$),
	($c$inbox_process('c', t.message(), 'missing.on_message')$c$),
	($c$inbox_process('c', t.message(), 'missing.on_parked')$c$),
	($c$inbox_try_process('c', t.message(), 'missing.on_message')$c$),
	($c$inbox_try_process_batch('c', ARRAY[t.message()], 'missing.on_message')$c$),
	($c$park_message('c', t.message(), 'INVALID_STATE')$c$),
	($c$idempotency_begin('POST /x', gen_random_uuid()::text, '{}')$c$),
	($c$idempotency_complete('POST /x', 'k', 200)$c$),
	($c$idempotency_abandon('POST /x', 'k')$c$)
$$;
CREATE FUNCTION t.message() RETURNS jsonb LANGUAGE sql AS $$ SELECT jsonb_build_object('header', jsonb_build_object('eventId', gen_random_uuid())) $$;
CREATE FUNCTION t.outcomes() RETURNS TABLE (call text, result text) LANGUAGE plpgsql AS $$
BEGIN
	FOR call IN SELECT c.call FROM t.calls() c LOOP
		BEGIN
			EXECUTE 'SELECT acme_outbox.' || call;
			result := 'ok';
		EXCEPTION WHEN OTHERS THEN
			GET STACKED DIAGNOSTICS result = MESSAGE_TEXT;
			result := SQLSTATE || ' ' || result;
		END;
		call := substring(call, '^\w+');
		RETURN NEXT;
	END LOOP;
END
$$;

\echo -- no inbox, a schema that does not exist
SET acme_outbox.inbox_schema = 'nowhere';
SELECT * FROM t.outcomes();
SELECT t.error($$SELECT acme_outbox.idempotency_begin('POST /x', 'k', '{}')$$);

\echo -- all there: what is planned here is planned again below
SET acme_outbox.inbox_schema = 'missing';
SELECT * FROM t.outcomes() WHERE result <> 'ok';

\echo -- one table dropped after the other
INSERT INTO missing.processed_event VALUES ('c', 'stays');
DROP TABLE missing.idempotency_key;
SELECT * FROM t.outcomes() WHERE result <> 'ok';
DROP TABLE missing.parked_message;
SELECT * FROM t.outcomes() WHERE result <> 'ok';
DROP TABLE missing.consumer_attempt;
SELECT * FROM t.outcomes() WHERE result <> 'ok';
SELECT t.error($$SELECT acme_outbox.inbox_attempt('c', 'e1')$$);

\echo -- the tenancy stays; what was dropped comes back, with its grants; the rest is left alone
SELECT t.error($$SELECT acme_outbox.create_inbox('missing', 'required')$$);
SELECT acme_outbox.create_inbox('missing');
SELECT count(*) FROM missing.processed_event WHERE event_id = 'stays';
SET SESSION AUTHORIZATION outbox_test_missing;
SELECT * FROM t.outcomes() WHERE result <> 'ok';
RESET SESSION AUTHORIZATION;
DROP TABLE missing.processed_event;
SELECT * FROM t.outcomes() WHERE result <> 'ok';
SELECT acme_outbox.create_inbox('missing');
SELECT * FROM t.outcomes() WHERE result <> 'ok';

\echo -- tables of a service that happen to have such a name are not taken over
CREATE SCHEMA missing_foreign;
CREATE TABLE missing_foreign.consumer_attempt (i int);
SELECT t.error($$SELECT acme_outbox.create_inbox('missing_foreign')$$);

RESET acme_outbox.inbox_schema;
SELECT acme_outbox.revoke_consumer('outbox_test_missing', 'missing');
SELECT acme_outbox.drop_inbox('missing');
DROP SCHEMA missing, missing_foreign CASCADE;
DROP FUNCTION t.calls, t.message, t.outcomes;
REVOKE USAGE ON SCHEMA t FROM outbox_test_missing;
DROP ROLE outbox_test_missing;
