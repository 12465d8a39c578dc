-- Undelivered entries are not dropped with the extension, whichever way it goes and
-- whether or not the session has loaded the library; anything else may be dropped.
SET client_min_messages = warning;
\set database :DBNAME
\set administrator :USER
CREATE ROLE drop_test_owner SUPERUSER LOGIN;
CREATE ROLE drop_test_app LOGIN;
CREATE DATABASE acme_outbox_drop ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0;
GRANT CREATE ON DATABASE acme_outbox_drop TO drop_test_app;
\c acme_outbox_drop drop_test_owner
SET client_min_messages = warning;
CREATE EXTENSION acme_outbox;

-- an entry of this very transaction
BEGIN;
SELECT count(acme_outbox.publish('orders', 'k', 'a', 'OrderPlaced', '{}'::text));
DROP EXTENSION acme_outbox;
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;

-- one in each state, and parked messages
BEGIN;
SELECT count(acme_outbox.publish('orders', s || n, NULL, 'OrderPlaced', '{}'::text))
	FROM unnest('{PENDING,PUBLISHING,FAILED,PUBLISHED,ARCHIVED}'::text[]) WITH ORDINALITY AS u (s, n),
		generate_series(1, n);
UPDATE acme_outbox.outbox_entry
	SET status = rtrim(routing_key, '12345')::acme_outbox.entry_status;
SELECT count(acme_outbox.park_message('billing', '{"header": {"eventId": "e1"}}'::jsonb, r))
	FROM unnest('{INVALID_STATE,UNRESOLVABLE_ENTITY,RESOLVED}'::text[]) r;
UPDATE acme_outbox.parked_message SET resolved_at = now() WHERE reason = 'RESOLVED';
COMMIT;

-- every way, each from a session that has just begun
\c
DROP EXTENSION acme_outbox;
\c
DROP EXTENSION IF EXISTS acme_outbox CASCADE;
\c
DROP SCHEMA acme_outbox CASCADE;
\c
DROP OWNED BY drop_test_owner CASCADE;
\echo :LAST_ERROR_SQLSTATE
\c
SET session_replication_role = replica;
DROP EXTENSION plpgsql CASCADE;
\echo :LAST_ERROR_SQLSTATE
DO $$ BEGIN EXECUTE 'DROP EXTENSION acme_outbox'; END $$;
\echo :LAST_ERROR_SQLSTATE

-- it is all there
SELECT count(*) FROM acme_outbox.outbox_entry;

-- only parked messages are left
UPDATE acme_outbox.outbox_entry SET status = 'PUBLISHED' WHERE status <> 'ARCHIVED';
DROP EXTENSION acme_outbox;
\echo :LAST_ERROR_SQLSTATE

-- others drop what is theirs
\c - drop_test_app
CREATE SCHEMA theirs CREATE TABLE outbox_entry (status text) CREATE TABLE parked_message (resolved_at date);
INSERT INTO theirs.outbox_entry VALUES ('PENDING');
INSERT INTO theirs.parked_message VALUES (NULL);
\c
DROP SCHEMA theirs CASCADE;

-- without the library's file nobody is hindered, but told
\c - drop_test_owner
BEGIN;
UPDATE pg_proc SET probin = 'missing' WHERE proname = 'worker_preloaded';
CREATE SCHEMA theirs;
DROP SCHEMA theirs;
ROLLBACK;

-- what was delivered and dealt with goes; so does a table of the name that is not ours
SET client_min_messages = warning;
UPDATE acme_outbox.parked_message SET resolved_at = now();
DROP EXTENSION acme_outbox;
CREATE TABLE acme_outbox.outbox_entry (status text);
INSERT INTO acme_outbox.outbox_entry VALUES ('PENDING');
DROP SCHEMA acme_outbox CASCADE;

-- the way out, in a session that has just begun
CREATE EXTENSION acme_outbox;
BEGIN;
SELECT count(acme_outbox.publish('orders', 'k', 'a', 'OrderPlaced', '{}'::text));
COMMIT;
\c
SET acme_outbox.allow_drop = on;
DROP EXTENSION acme_outbox;
SELECT count(*) FROM pg_event_trigger;

-- a database goes as a whole
SET client_min_messages = warning;
CREATE EXTENSION acme_outbox;
BEGIN;
SELECT count(acme_outbox.publish('orders', 'k', 'a', 'OrderPlaced', '{}'::text));
COMMIT;
\c :database :administrator
DROP DATABASE acme_outbox_drop;
DROP ROLE drop_test_owner, drop_test_app;
