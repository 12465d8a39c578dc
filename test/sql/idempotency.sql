-- idempotency_begin(), _complete(), _abandon(): one session after another.
SET client_min_messages = warning;
\pset format unaligned
\pset tuples_only on
-- no duty run by a worker meanwhile
UPDATE acme_outbox.duty_run SET started_at = 'infinity';
CREATE FUNCTION t.ask(endpoint text, key text, request text, ttl interval DEFAULT '1 day',
	in_flight interval DEFAULT '1 minute', tenant text DEFAULT NULL) RETURNS text LANGUAGE sql AS $$
	SELECT concat_ws(' ', decision, code, status, response,
		CASE WHEN (decision = 'execute') <> (execution IS NOT NULL) THEN 'EXECUTION?' END)
	FROM acme_outbox.idempotency_begin(endpoint, key, request, ttl, in_flight, tenant)
$$;
-- as if so much time had passed
CREATE FUNCTION t.later(passed interval) RETURNS void LANGUAGE sql AS $$
	UPDATE acme_outbox.idempotency_key SET created_at = created_at - passed,
		expires_at = expires_at - passed, in_flight_until = in_flight_until - passed
$$;

\echo one transaction: begin, change, complete
BEGIN;
SELECT t.ask('POST /pay', 'k1', '{"amount": 1}');
-- its own key is in flight for itself too
SELECT t.ask('POST /pay', 'k1', '{"amount": 1}');
SELECT acme_outbox.idempotency_complete('POST /pay', 'k1', 201, '{"id": 7, "a": [1, null, "x"]}');
COMMIT;
SELECT t.ask('POST /pay', 'k1', '{"amount": 1}');
SELECT t.ask('POST /pay', 'k1', '{"amount": 2}');
\echo another endpoint and another tenant are other requests
SELECT t.ask('POST /refund', 'k1', '{"amount": 2}');
SELECT t.ask('POST /pay', 'k1', '{"amount": 2}', tenant => 'acme');
SELECT t.ask('POST /pay', 'k1', '{"amount": 1}', tenant => '');
\echo the tenant of the context is the default
BEGIN;
SELECT acme_outbox.context('acme');
SELECT t.ask('POST /pay', 'k1', '{"amount": 2}');
SELECT t.ask('POST /pay', 'k1', '{"amount": 1}', tenant => '');
COMMIT;

\echo two transactions
SELECT t.ask('POST /pay', 'k2', 'body');
SELECT t.ask('POST /pay', 'k2', 'body');
SELECT t.ask('POST /pay', 'k2', 'other body');
SELECT acme_outbox.idempotency_complete('POST /pay', 'k2', 204);
SELECT t.ask('POST /pay', 'k2', 'body');
-- again is no error, another response is
SELECT acme_outbox.idempotency_complete('POST /pay', 'k2', 204);
SELECT t.error($$SELECT acme_outbox.idempotency_complete('POST /pay', 'k2', 204, '1')$$);

\echo bodies: none, null, scalar
SELECT acme_outbox.idempotency_abandon('POST /pay', 'k3'), t.ask('POST /pay', 'k3', NULL);
SELECT acme_outbox.idempotency_complete('POST /pay', 'k3', 200, 'null');
SELECT decision, status, response IS NULL, response FROM acme_outbox.idempotency_begin('POST /pay', 'k3', '');
SELECT t.ask('POST /pay', 'k4', NULL);
SELECT acme_outbox.idempotency_complete('POST /pay', 'k4', 200, '"text"');
SELECT t.ask('POST /pay', 'k4', NULL);

\echo rolled back: free at once, and savepoints too
BEGIN;
SELECT t.ask('POST /pay', 'k5', 'b');
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT t.ask('POST /pay', 'k5', 'b');
ROLLBACK TO s;
SELECT t.ask('POST /pay', 'k5', 'b');
COMMIT;
-- more often than a transaction remembers executions: the last one is completed
BEGIN;
DO $$ BEGIN FOR i IN 1 .. 11 LOOP BEGIN PERFORM t.ask('POST /pay', 'again', 'b'); RAISE SQLSTATE 'UNDO0'; EXCEPTION WHEN SQLSTATE 'UNDO0' THEN NULL; END; END LOOP; END $$;
SELECT t.ask('POST /pay', 'again', 'b');
SELECT acme_outbox.idempotency_complete('POST /pay', 'again', 200);
COMMIT;
\echo abandoned: free at once
SELECT acme_outbox.idempotency_abandon('POST /pay', 'k5'), acme_outbox.idempotency_abandon('POST /pay', 'k5');
SELECT t.ask('POST /pay', 'k5', 'other body');
SELECT acme_outbox.idempotency_complete('POST /pay', 'k5', 200);
-- what is complete is not abandoned
SELECT acme_outbox.idempotency_abandon('POST /pay', 'k5');

\echo crash: executed again after in_flight_ttl, whatever the body; no purge needed
SELECT t.ask('POST /pay', 'k6', 'b');
SELECT t.later('59 seconds');
SELECT t.ask('POST /pay', 'k6', 'b');
SELECT t.later('2 seconds');
SELECT t.ask('POST /pay', 'k6', 'c');
SELECT t.ask('POST /pay', 'k6', 'b');
\echo a late first is fenced, named or not; the second completes by name
SELECT execution AS first FROM acme_outbox.idempotency_begin('POST /pay', 'k7', 'b') \gset
SELECT t.later('61 seconds');
SELECT execution AS second FROM acme_outbox.idempotency_begin('POST /pay', 'k7', 'b') \gset
SELECT t.error(format($$SELECT acme_outbox.idempotency_complete('POST /pay', 'k7', 200, NULL, NULL, %L)$$, :'first'));
SELECT t.error($$SELECT acme_outbox.idempotency_complete('POST /pay', 'k7', 200)$$);
SELECT acme_outbox.idempotency_abandon('POST /pay', 'k7'), acme_outbox.idempotency_abandon('POST /pay', 'k7', NULL, :'first');
SELECT acme_outbox.idempotency_complete('POST /pay', 'k7', 200, '2', NULL, :'second');
SELECT t.ask('POST /pay', 'k7', 'b');
\echo in one transaction the execution need not be named
SELECT t.ask('POST /pay', 'k8', 'b');
SELECT t.later('61 seconds');
BEGIN;
SELECT t.ask('POST /pay', 'k8', 'b');
SELECT acme_outbox.idempotency_complete('POST /pay', 'k8', 200);
COMMIT;
SELECT t.ask('POST /pay', 'k8', 'b');
\echo late, but nobody else began: accepted
SELECT t.ask('POST /pay', 'k9', 'b');
SELECT t.later('61 seconds');
SELECT acme_outbox.idempotency_complete('POST /pay', 'k9', 200);
SELECT t.ask('POST /pay', 'k9', 'b');

\echo expired: absent
SELECT t.later('1 day');
SELECT t.ask('POST /pay', 'k9', 'another');
SELECT t.ask('POST /pay', 'k1', '{"amount": 1}', ttl => '1 second', in_flight => '1 second');
SELECT acme_outbox.idempotency_complete('POST /pay', 'k1', 200);
SELECT t.later('1 second');
SELECT t.ask('POST /pay', 'k1', '{"amount": 1}');

\echo keys: null, empty, long
SELECT t.ask('POST /pay', NULL, 'b'), t.ask(NULL, NULL, NULL);
SELECT acme_outbox.idempotency_complete('POST /pay', NULL, 200), acme_outbox.idempotency_abandon('POST /pay', NULL);
SELECT t.error($$SELECT acme_outbox.idempotency_begin('POST /pay', '', 'b')$$);
SELECT t.error($$SELECT acme_outbox.idempotency_begin('', 'k', 'b')$$);
SELECT t.error($$SELECT acme_outbox.idempotency_begin(NULL, 'k', 'b')$$);
SELECT t.ask('POST /pay', repeat('k', 255), 'b'), t.ask(repeat('é', 127), repeat('é', 127), 'b');
SELECT t.error($$SELECT acme_outbox.idempotency_begin('POST /pay', repeat('k', 256), 'b')$$);
SELECT t.error($$SELECT acme_outbox.idempotency_begin(repeat('é', 128), 'k', 'b')$$);
SELECT t.error($$SELECT acme_outbox.idempotency_begin('POST /pay', 'k', 'b', tenant_id => repeat('t', 256))$$);
\echo lifetimes and statuses
SELECT t.error($$SELECT acme_outbox.idempotency_begin('POST /pay', 'k', 'b', ttl => NULL)$$);
SELECT t.error($$SELECT acme_outbox.idempotency_begin('POST /pay', 'k', 'b', ttl => '0')$$);
SELECT t.error($$SELECT acme_outbox.idempotency_begin('POST /pay', 'k', 'b', in_flight_ttl => '-1 s')$$);
SELECT t.error($$SELECT acme_outbox.idempotency_complete('POST /pay', 'k9', NULL)$$);
SELECT t.error($$SELECT acme_outbox.idempotency_complete('POST /pay', 'k9', 99)$$);
SELECT t.error($$SELECT acme_outbox.idempotency_complete('POST /pay', 'nobody', 200)$$);

\echo text and bytea by their bytes, json and jsonb by their value
SELECT t.ask('POST /hash', 't', '{"a": 1}'), t.ask('POST /hash', 't', '{"a":1}');
SELECT decision FROM acme_outbox.idempotency_begin('POST /hash', 't', '{"a": 1}'::bytea);
SELECT decision FROM acme_outbox.idempotency_begin('POST /hash', 'j', '{"a": 1, "b": [2]}'::json);
SELECT decision FROM acme_outbox.idempotency_begin('POST /hash', 'j', '{"b":[2],"a":1}'::jsonb);
SELECT decision FROM acme_outbox.idempotency_begin('POST /hash', 'j', '{"b":[2],"a":2}'::jsonb);
SELECT payload_hash = encode(sha256('{"a": 1}'), 'hex') FROM acme_outbox.idempotency_key WHERE endpoint = 'POST /hash' AND key = 't';
SELECT payload_hash = encode(sha256('{"a": 1, "b": [2]}'), 'hex') FROM acme_outbox.idempotency_key WHERE endpoint = 'POST /hash' AND key = 'j';
\echo stored in the shape of the platform; nothing is kept of the request
SELECT tenant_id = '', stored_response, completed_at IS NOT NULL, expires_at - created_at FROM acme_outbox.idempotency_key WHERE endpoint = 'POST /pay' AND key = 'k8';

\echo tables of a service: its own, with tenants
CREATE SCHEMA pay;
SELECT acme_outbox.create_idempotency_table('pay', 'required');
CREATE ROLE idempotency_app;
GRANT USAGE ON SCHEMA acme_outbox, pay, t TO idempotency_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON pay.idempotency_key TO idempotency_app;
SELECT format('GRANT EXECUTE ON FUNCTION %s TO idempotency_app', p.oid::regprocedure) FROM pg_proc p
	WHERE p.pronamespace = 'acme_outbox'::regnamespace AND p.proname ~ '^(idempotency_|context|tenant)' ORDER BY 1 \gexec
ALTER TABLE pay.idempotency_key OWNER TO idempotency_app;
SET acme_outbox.inbox_schema = 'pay';
SET ROLE idempotency_app;
SELECT t.error($$SELECT acme_outbox.idempotency_begin('POST /pay', 'k1', 'b')$$);
SELECT t.error($$SELECT acme_outbox.idempotency_begin('POST /pay', 'k1', 'b', tenant_id => '')$$);
-- the table is empty: no row could have told
SELECT t.sqlstate($$SELECT acme_outbox.idempotency_complete('POST /pay', 'k1', 200)$$);
SELECT t.sqlstate($$SELECT acme_outbox.idempotency_abandon('POST /pay', 'k1')$$);
SELECT t.ask('POST /pay', 'k1', 'b', tenant => 'acme');
SELECT acme_outbox.idempotency_complete('POST /pay', 'k1', 200, tenant_id => 'acme');
BEGIN;
SELECT acme_outbox.context('acme');
SELECT t.ask('POST /pay', 'k1', 'b');
SELECT count(*) FROM pay.idempotency_key;
SELECT acme_outbox.context('other');
SELECT count(*) FROM pay.idempotency_key;
SELECT t.ask('POST /pay', 'k1', 'c');
-- somebody else's tenant
SELECT t.sqlstate($$SELECT acme_outbox.idempotency_begin('POST /pay', 'k1', 'b', tenant_id => 'acme')$$);
COMMIT;
SELECT t.error('SELECT count(*) FROM pay.idempotency_key');
RESET ROLE;
SELECT tenant_id, key FROM pay.idempotency_key ORDER BY 1;
\echo the session follows the setting, and the table, wherever it goes
RESET acme_outbox.inbox_schema;
SELECT t.ask('POST /pay', 'k8', 'b');
SET acme_outbox.inbox_schema = 'pay';
DROP TABLE pay.idempotency_key;
SELECT acme_outbox.create_idempotency_table('pay');
SELECT t.ask('POST /pay', 'k1', 'b');
SELECT t.error($$SELECT acme_outbox.create_idempotency_table('pay', 'some')$$);
SELECT t.sqlstate($$SELECT acme_outbox.create_idempotency_table('pay')$$);
RESET acme_outbox.inbox_schema;

\echo no rights without a grant
SET ROLE idempotency_app;
SELECT t.sqlstate($$SELECT acme_outbox.idempotency_begin('POST /pay', 'k1', 'b')$$);
RESET ROLE;
DROP SCHEMA pay CASCADE;
DROP OWNED BY idempotency_app;
DROP ROLE idempotency_app;
DROP FUNCTION t.later(interval), t.ask(text, text, text, interval, interval, text);
TRUNCATE acme_outbox.idempotency_key;
