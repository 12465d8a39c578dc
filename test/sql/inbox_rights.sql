-- Whose rights count: consumers, monitors and tenants by logging in; and whatever a
-- service puts on its own tables runs as nobody but the service.
SET client_min_messages = warning;
\pset format unaligned
\pset tuples_only on
\set database :DBNAME
\set me :USER
CREATE ROLE rights_test_app LOGIN;
CREATE ROLE rights_test_other LOGIN;
CREATE ROLE rights_test_monitor LOGIN;
CREATE ROLE rights_test_operator LOGIN;
CREATE ROLE rights_test_service LOGIN;
CREATE SCHEMA svc AUTHORIZATION rights_test_service;
SELECT acme_outbox.create_inbox('svc', 'required');
SELECT acme_outbox.create_inbox('svc2');
SELECT acme_outbox.grant_consumer('rights_test_app', 'svc');
SELECT acme_outbox.grant_consumer('rights_test_app', 'svc');
SELECT acme_outbox.grant_consumer('rights_test_other', 'acme_outbox');
SELECT acme_outbox.grant_monitor('rights_test_monitor');
SELECT t.error($$SELECT acme_outbox.grant_consumer('rights_test_none', 'svc')$$);
SELECT t.error($$SELECT acme_outbox.grant_consumer('rights_test_app', 'nowhere')$$);
ALTER ROLE rights_test_app SET acme_outbox.inbox_schema = 'svc';
CREATE TABLE svc.ran (n bigserial, what text, as_user name, session name);
ALTER TABLE svc.ran OWNER TO rights_test_service;
GRANT INSERT, SELECT ON svc.ran TO rights_test_app;
GRANT USAGE ON SEQUENCE svc.ran_n_seq TO rights_test_app;
GRANT USAGE ON SCHEMA t TO rights_test_app, rights_test_other, rights_test_monitor;
CREATE FUNCTION t.env(event_id text) RETURNS text LANGUAGE sql AS $$
	SELECT format('{"header":{"eventId":"%s"},"body":{"eventName":"OrderPlaced","payload":{"secret":1}}}', event_id)
$$;
CREATE FUNCTION svc.parks(message jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO svc.ran (what, as_user, session) VALUES ('handler', current_user, session_user);
	IF (SELECT count(*) FROM svc.ran WHERE what = 'handler') = 1 THEN
		PERFORM acme_outbox.park('INVALID_STATE');
	END IF;
END $$;

\echo -- a consumer, logged in: its own inbox and no other; a tenant is required to park
\c :database rights_test_app
\set VERBOSITY terse
SELECT acme_outbox.inbox_process('c', t.env('t1'), 'svc.parks'); -- fail
BEGIN;
SELECT acme_outbox.context('tenant-a');
SELECT acme_outbox.inbox_process('c', t.env('t1'), 'svc.parks');
SELECT tenant_id, event_id FROM svc.parked_message;
SELECT acme_outbox.context('tenant-b');
SELECT tenant_id, event_id FROM svc.parked_message;
SELECT acme_outbox.context('');
SELECT count(*) FROM svc.parked_message; -- fail
ROLLBACK;
BEGIN;
SELECT acme_outbox.context('tenant-a');
SELECT acme_outbox.inbox_process('c', t.env('t1'), 'svc.parks');
INSERT INTO svc.parked_message (tenant_id, consumer, event_id, reason, payload) VALUES ('tenant-b', 'c', 'forged', 'X', '{}'); -- fail
ROLLBACK;
BEGIN;
SELECT acme_outbox.context('tenant-a');
SELECT acme_outbox.inbox_process('c', t.env('t1'), 'svc.parks');
COMMIT;
SELECT count(*) FROM svc.parked_message; -- fail
SELECT * FROM acme_outbox.inbox_attempt('c', 't1');
SELECT outcome FROM acme_outbox.inbox_try_process('c', t.env('t2'), 'svc.parks');
SET acme_outbox.inbox_schema = 'svc2'; -- fail
SELECT count(*) FROM svc2.processed_event; -- fail
SELECT * FROM acme_outbox.processed_event; -- fail
INSERT INTO acme_outbox.inbox VALUES ('x', 'none', 'x'); -- fail
SELECT acme_outbox.create_inbox('mine'); -- fail
SELECT * FROM acme_outbox.parked_counts(); -- fail
SELECT acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}'); -- fail
SELECT acme_outbox.grant_consumer('rights_test_app', 'svc2'); -- fail
SELECT * FROM acme_outbox.purge(); -- fail

\echo -- the handler of one consumer runs with the rights of its caller
\c :database rights_test_other
\set VERBOSITY terse
SELECT acme_outbox.inbox_accept('o', 'o1');
SELECT acme_outbox.inbox_process('o', t.env('o2'), 'svc.parks'); -- fail
SELECT count(*) FROM acme_outbox.processed_event WHERE event_id = 'o2';
SELECT acme_outbox.tenant_visible('tenant-a'); -- fail

\echo -- the monitor, logged in: numbers and names, all tenants, no payload
\c :database rights_test_monitor
\set VERBOSITY terse
SELECT inbox, tenant_id, event_id, reason FROM acme_outbox.parked_open;
SELECT inbox, consumer, reason, parked, still_open FROM acme_outbox.parked_counts();
SELECT count(*) >= 0 FROM acme_outbox.outbox_backlog;
SELECT count(*) >= 0 FROM acme_outbox.worker_status; -- ok
SELECT * FROM acme_outbox.outbox; -- fail
SELECT payload FROM svc.parked_message; -- fail
SELECT payload FROM acme_outbox.parked_message; -- fail
SELECT acme_outbox.inbox_accept('m', 'm'); -- fail
SELECT attname FROM pg_attribute WHERE attrelid = 'acme_outbox.parked_open'::regclass AND attname IN ('payload', 'message', 'headers', 'last_error');

\echo -- the service arms its tables
\c :database rights_test_service
SET client_min_messages = warning;
CREATE FUNCTION svc.note(what text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO svc.ran (what, as_user, session) VALUES (what, current_user, session_user);
	BEGIN
		RESET ROLE;
		SET SESSION AUTHORIZATION DEFAULT;
		INSERT INTO svc.ran (what, as_user, session) VALUES (what || ' escaped', current_user, session_user);
	EXCEPTION WHEN insufficient_privilege THEN
		NULL;
	END;
	RETURN what;
END $$;
CREATE FUNCTION svc.on_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM svc.note(TG_OP || ' ' || TG_TABLE_NAME);
	RETURN coalesce(NEW, OLD);
END $$;
CREATE TRIGGER spy BEFORE INSERT OR UPDATE OR DELETE ON svc.processed_event FOR EACH ROW EXECUTE FUNCTION svc.on_row();
CREATE TRIGGER spy BEFORE INSERT OR UPDATE OR DELETE ON svc.parked_message FOR EACH ROW EXECUTE FUNCTION svc.on_row();
CREATE TRIGGER spy BEFORE INSERT OR UPDATE OR DELETE ON svc.parked_resolution FOR EACH ROW EXECUTE FUNCTION svc.on_row();
CREATE TRIGGER spy BEFORE INSERT OR UPDATE OR DELETE ON svc.consumer_attempt FOR EACH ROW EXECUTE FUNCTION svc.on_row();
CREATE FUNCTION svc.noted(what text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN svc.note(what); END $$;
ALTER TABLE svc.parked_resolution ADD COLUMN extra text DEFAULT svc.note('default');
CREATE INDEX spy ON svc.parked_resolution (svc.noted('index ' || action));
CREATE RULE spy AS ON DELETE TO svc.consumer_attempt DO ALSO SELECT svc.note('rule');
CREATE POLICY spy ON svc.parked_message AS RESTRICTIVE USING (svc.note('policy') IS NOT NULL);
GRANT EXECUTE ON FUNCTION svc.note(text), svc.noted(text), svc.on_row() TO PUBLIC;
UPDATE svc.processed_event SET processed_at = now() - interval '40 days' WHERE event_id = 't2';
UPDATE svc.consumer_attempt SET last_at = now() - interval '40 days';
TRUNCATE svc.ran;

\echo -- the duties and operators run it as the service, and it cannot get out
\c :database :me
SET client_min_messages = warning;
\set VERBOSITY terse
SELECT acme_outbox.register_handler('c', 'svc.parks', 'rights_test_app', 'svc');
GRANT USAGE ON SCHEMA acme_outbox TO rights_test_operator;
GRANT EXECUTE ON FUNCTION acme_outbox.replay_parked(name, uuid), acme_outbox.discard_parked(name, uuid, text) TO rights_test_operator;
SELECT what, result, affected FROM acme_outbox.purge() WHERE what IN ('processed', 'attempts');
SELECT count(*) FROM acme_outbox.parked_open;
SELECT id AS parked FROM acme_outbox.parked_open WHERE inbox = 'svc' \gset
INSERT INTO svc.ran (what, as_user, session) VALUES ('handler', 'x', 'x');
SET SESSION AUTHORIZATION rights_test_operator;
SELECT acme_outbox.replay_parked('svc', :'parked');
SELECT acme_outbox.discard_parked('svc', :'parked', 'why');
RESET SESSION AUTHORIZATION;
SELECT DISTINCT what, as_user FROM svc.ran WHERE as_user <> 'x' ORDER BY 1, 2;
SELECT DISTINCT as_user FROM svc.ran WHERE what LIKE '%escaped';
SELECT current_user = :'me';
\echo -- what would run later, as somebody else, is refused: a deferred trigger
CREATE FUNCTION svc.later() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO svc.ran (what, as_user) VALUES ('later', current_user); RETURN NULL; END $$;
SET ROLE rights_test_service;
CREATE CONSTRAINT TRIGGER later AFTER DELETE ON svc.processed_event DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION svc.later();
ALTER TABLE svc.processed_event DISABLE TRIGGER spy;
INSERT INTO svc.processed_event VALUES ('old', 'old', now() - interval '40 days');
ALTER TABLE svc.processed_event ENABLE TRIGGER spy;
RESET ROLE;
SELECT what, result, affected FROM acme_outbox.purge() WHERE what IN ('processed', 'attempts');
SELECT count(*) FROM svc.ran WHERE what = 'later';
\echo -- a table replaced by a view is not touched
SET ROLE rights_test_service;
ALTER TABLE svc.processed_event RENAME TO hidden;
CREATE VIEW svc.processed_event AS SELECT consumer, event_id, processed_at, svc.note('view') FROM svc.hidden;
RESET ROLE;
SELECT what, result FROM acme_outbox.purge() WHERE what = 'processed';
SELECT count(*) FROM svc.ran WHERE what LIKE 'view%';
SELECT what, as_user FROM svc.ran WHERE what LIKE '% escaped';
\echo -- a replay runs with the rights of the role, not of the operator or the owner
SET ROLE rights_test_service;
DROP VIEW svc.processed_event;
ALTER TABLE svc.hidden RENAME TO processed_event;
RESET ROLE;
CREATE TABLE t.precious (i int);
CREATE FUNCTION svc.reaches_out(message jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF acme_outbox.message() ->> 'attempt' = '1' THEN
		PERFORM acme_outbox.park('INVALID_STATE');
	ELSE
		DELETE FROM t.precious;
	END IF;
END $$;
SET acme_outbox.inbox_schema = 'svc2';
SELECT acme_outbox.inbox_process('r', t.env('r1'), 'svc.reaches_out', '{"attempt":1}');
UPDATE svc2.parked_message SET message = NULL;
SELECT acme_outbox.register_handler('r', 'svc.reaches_out', 'rights_test_app', 'svc2');
SELECT acme_outbox.grant_consumer('rights_test_app', 'svc2');
SELECT acme_outbox.replay_parked(id) FROM svc2.parked_message; -- fail
ALTER ROLE rights_test_app SUPERUSER;
SELECT acme_outbox.replay_parked(id) FROM svc2.parked_message; -- fail
ALTER ROLE rights_test_app NOSUPERUSER;
GRANT DELETE ON t.precious TO rights_test_app;
SELECT acme_outbox.replay_parked(id) FROM svc2.parked_message;
RESET acme_outbox.inbox_schema;

\echo -- taken back
CREATE FUNCTION t.holds(of_role name) RETURNS bigint LANGUAGE sql AS $$
	SELECT count(*) FROM (
		SELECT FROM pg_class c, aclexplode(c.relacl) a WHERE a.grantee = of_role::regrole AND c.relnamespace IN ('acme_outbox'::regnamespace, 'svc2'::regnamespace)
		UNION ALL SELECT FROM pg_proc p, aclexplode(p.proacl) a WHERE a.grantee = of_role::regrole AND p.pronamespace = 'acme_outbox'::regnamespace
		UNION ALL SELECT FROM pg_namespace n, aclexplode(n.nspacl) a WHERE a.grantee = of_role::regrole AND n.nspname IN ('acme_outbox', 'svc2')) x
$$;
SELECT acme_outbox.grant_publisher('rights_test_monitor');
SELECT acme_outbox.revoke_monitor('rights_test_monitor');
SET SESSION AUTHORIZATION rights_test_monitor;
SELECT * FROM acme_outbox.parked_open; -- fail
BEGIN;
SELECT acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}') IS NOT NULL; -- ok
ROLLBACK;
RESET SESSION AUTHORIZATION;
SELECT acme_outbox.revoke_publisher('rights_test_monitor');
SELECT acme_outbox.revoke_consumer('rights_test_app', 'svc2');
SET SESSION AUTHORIZATION rights_test_app;
SET acme_outbox.autocommit_publish = off;
SELECT acme_outbox.message() IS NULL; -- ok
RESET SESSION AUTHORIZATION;
SELECT acme_outbox.revoke_consumer('rights_test_app', 'svc');
SELECT acme_outbox.revoke_consumer('rights_test_other', 'acme_outbox');
SELECT acme_outbox.revoke_consumer('rights_test_other', 'acme_outbox');
SELECT t.holds(r) FROM unnest(ARRAY['rights_test_app', 'rights_test_other', 'rights_test_monitor']) r;

SELECT acme_outbox.drop_inbox('svc'), acme_outbox.drop_inbox('svc2');
SELECT t.holds('rights_test_service');
DROP SCHEMA svc, svc2 CASCADE;
DROP TABLE t.precious;
DROP FUNCTION t.env, t.holds;
DROP OWNED BY rights_test_app, rights_test_other, rights_test_monitor, rights_test_operator, rights_test_service;
DROP ROLE rights_test_app, rights_test_other, rights_test_monitor, rights_test_operator, rights_test_service;
TRUNCATE acme_outbox.processed_event, acme_outbox.consumer_attempt, acme_outbox.parked_message;
