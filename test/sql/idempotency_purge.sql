-- Retention of idempotency keys and of tombstones, by purge().
SET client_min_messages = warning;
\pset format unaligned
\pset tuples_only on
-- no duty run by a worker meanwhile
UPDATE acme_outbox.duty_run SET started_at = 'infinity';
CREATE FUNCTION t.keys() RETURNS text LANGUAGE sql AS
$$ SELECT string_agg(key, ' ' ORDER BY key) FROM acme_outbox.idempotency_key $$;
CREATE FUNCTION t.purged(part text) RETURNS text LANGUAGE sql AS
$$ SELECT result || ' ' || affected FROM acme_outbox.purge() WHERE what = part $$;
\echo only what is over goes: completed past its ttl; in flight past both
INSERT INTO acme_outbox.idempotency_key (endpoint, key, payload_hash, created_at, expires_at, in_flight_until, completed_at)
SELECT 'e', key, '', now() - interval '1 day', now() + expires * interval '1 hour', now() + flight * interval '1 hour', done
FROM (VALUES ('done old', -1, -1, now()), ('done old, long flight', -1, 1, now()), ('done live', 1, -1, now()),
	('flight old', -1, -1, NULL), ('flight, short ttl', -1, 1, NULL), ('flight over, ttl not', 1, -1, NULL)) v (key, expires, flight, done);
SELECT t.purged('keys'), t.keys();
SELECT t.purged('keys');
\echo in bounded batches
INSERT INTO acme_outbox.idempotency_key (endpoint, key, payload_hash, created_at, expires_at, in_flight_until)
SELECT 'e', 'x' || n, '', now(), now() - interval '1 hour', now() - interval '1 hour' FROM generate_series(1, 25) n;
SET acme_outbox.duty_batch_rows = 2;
SELECT t.purged('keys');
SELECT t.purged('keys');
RESET acme_outbox.duty_batch_rows;
\echo of every inbox, as the owner of its tables, whatever the tenants; one that fails does not keep the others
CREATE ROLE idempotency_owner;
CREATE SCHEMA pay AUTHORIZATION idempotency_owner;
SELECT acme_outbox.create_inbox('pay', 'required');
SELECT relforcerowsecurity, pg_get_userbyid(relowner) FROM pg_class WHERE oid = 'pay.idempotency_key'::regclass;
CREATE FUNCTION pay.who() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'deleted by %', current_user;
END $$;
CREATE TRIGGER who BEFORE DELETE ON pay.idempotency_key FOR EACH ROW EXECUTE FUNCTION pay.who();
INSERT INTO pay.idempotency_key (tenant_id, endpoint, key, payload_hash, created_at, expires_at, in_flight_until)
SELECT 'acme', 'e', 'k', '', now(), now() - interval '1 hour', now() - interval '1 hour';
INSERT INTO acme_outbox.idempotency_key (endpoint, key, payload_hash, created_at, expires_at, in_flight_until)
SELECT 'e', 'y', '', now(), now() - interval '1 hour', now() - interval '1 hour';
SELECT t.purged('keys');
SELECT t.keys();
DROP TRIGGER who ON pay.idempotency_key;
SELECT t.purged('keys');
SELECT count(*) FROM pay.idempotency_key;
\echo tombstones: by age, and of tables that are gone
CREATE TABLE pay.deal (id int PRIMARY KEY, last_event_at timestamptz);
CREATE TABLE pay.gone (id int PRIMARY KEY, last_event_at timestamptz);
SELECT count(acme_outbox.project_delete('pay.deal', jsonb_build_object('id', n), now())), count(acme_outbox.project_delete('pay.gone', jsonb_build_object('id', n), now()))
FROM generate_series(1, 5) n;
UPDATE acme_outbox.projection_tombstone SET deleted_at = now() - interval '31 days' WHERE target = 'pay.deal'::regclass AND key @> '{"id": 1}';
SET acme_outbox.retention_tombstones = 0;
SELECT t.purged('tombstones');
RESET acme_outbox.retention_tombstones;
SELECT t.purged('tombstones');
DROP TABLE pay.gone;
SELECT t.purged('tombstones');
SELECT target, key FROM acme_outbox.projection_tombstone ORDER BY key;
DELETE FROM acme_outbox.projection_tombstone;
TRUNCATE acme_outbox.idempotency_key;
SET client_min_messages = error;
DELETE FROM acme_outbox.inbox WHERE schema = 'pay';
DROP SCHEMA pay CASCADE;
DROP OWNED BY idempotency_owner;
DROP ROLE idempotency_owner;
DROP FUNCTION t.keys(), t.purged(text);
