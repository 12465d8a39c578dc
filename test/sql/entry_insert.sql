-- Both ways of inserting an entry write the same row, and an administrator's own
-- triggers, columns, checks and policies on the table count.
SET client_min_messages = warning;
SET acme_outbox.origin = 'insert';
BEGIN;

-- without an event id the row goes to the table directly, with one through the executor
CREATE TEMP TABLE made (event_id uuid);
INSERT INTO pg_temp.made SELECT acme_outbox.publish('orders', 'key', 'A', 'OrderPlaced', '{"a": 1}',
		trace_id => 't', headers => '{"h": 1}', tenant_id => 'x', not_before => '2999-01-01', event_id => id)
	FROM (VALUES (NULL), ('0190a5d0-0000-7000-8000-0000000000aa'::uuid)) v (id);
INSERT INTO pg_temp.made SELECT acme_outbox.publish('orders', NULL, NULL, 'OrderPlaced', '{"a": 1}',
		trace_id => 't', event_id => id)
	FROM (VALUES (NULL), ('0190a5d0-0000-7000-8000-0000000000ab'::uuid)) v (id);
INSERT INTO pg_temp.made SELECT acme_outbox.enqueue_job('orders', 'key', 'ShipOrder', '{"a": 1}',
		trace_id => 't', event_id => id)
	FROM (VALUES (NULL), ('0190a5d0-0000-7000-8000-0000000000ac'::uuid)) v (id);
SELECT count(*) AS stored, count(DISTINCT e.id) AS ids, count(DISTINCT e.xid) AS xids, count(payload_hash) AS given
	FROM pg_temp.made JOIN acme_outbox.outbox_entry e USING (event_id);
SELECT DISTINCT to_jsonb(e) - '{id,xid,created_at,event_id,payload,payload_hash}'::text[] AS alike
	FROM pg_temp.made JOIN acme_outbox.outbox_entry e USING (event_id) ORDER BY 1;

-- each index knows the direct ones
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SELECT count(*) FROM acme_outbox.outbox_entry WHERE origin = 'insert' AND id > 0;
SELECT count(*) FROM acme_outbox.outbox_entry WHERE origin = 'insert' AND xid = pg_current_xact_id();
SELECT count(*) FROM pg_temp.made JOIN acme_outbox.outbox_entry e USING (event_id);
SELECT count(*) FROM acme_outbox.outbox_entry WHERE origin = 'insert' AND next_attempt_at > now();
RESET enable_seqscan;
RESET enable_bitmapscan;

-- a column, with its default
SAVEPOINT own;
ALTER TABLE acme_outbox.outbox_entry ADD COLUMN region text NOT NULL DEFAULT 'eu';
SELECT count(acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}'));
SELECT region FROM acme_outbox.outbox_entry WHERE origin = 'insert' AND routing_key = 'k';
ROLLBACK TO own;

-- a default of a column that publish does not give: one value, then a text, then a function
ALTER TABLE acme_outbox.outbox_entry ALTER COLUMN attempts SET DEFAULT 3;
SELECT count(acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}'));
ALTER TABLE acme_outbox.outbox_entry ALTER COLUMN last_error SET DEFAULT 'none yet';
SELECT count(acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}'));
ALTER TABLE acme_outbox.outbox_entry ALTER COLUMN holds SET DEFAULT floor(3 + random());
SELECT count(acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}'));
SELECT status, attempts, holds, last_error FROM acme_outbox.outbox_entry
	WHERE origin = 'insert' AND routing_key = 'k' ORDER BY id;
ALTER TABLE acme_outbox.outbox_entry ALTER COLUMN last_error DROP DEFAULT, ALTER COLUMN holds DROP DEFAULT;
\set VERBOSITY terse
SELECT acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}');
\set VERBOSITY default
ROLLBACK TO own;
SELECT count(acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}'));
SELECT status, attempts, holds, last_error FROM acme_outbox.outbox_entry
	WHERE origin = 'insert' AND routing_key = 'k';
ROLLBACK TO own;

-- NOT NULL where the extension has none
SET CONSTRAINTS ALL IMMEDIATE;
UPDATE acme_outbox.outbox_entry SET tenant_id = '' WHERE tenant_id IS NULL;
ALTER TABLE acme_outbox.outbox_entry ALTER COLUMN tenant_id SET NOT NULL;
\set VERBOSITY terse
SELECT acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}');
\set VERBOSITY default
ROLLBACK TO own;

-- a check
ALTER TABLE acme_outbox.outbox_entry ADD CHECK (topic <> 'forbidden') NOT VALID;
\set VERBOSITY terse
SELECT acme_outbox.publish('forbidden', 'k', 'A', 'OrderPlaced', '{}');
\set VERBOSITY default
ROLLBACK TO own;

-- a trigger; the event is still published once
CREATE FUNCTION pg_temp.notice() RETURNS trigger LANGUAGE plpgsql
	AS $$ BEGIN RAISE WARNING '% %', TG_WHEN, NEW.routing_key; RETURN NEW; END $$;
CREATE TRIGGER mine BEFORE INSERT ON acme_outbox.outbox_entry FOR EACH ROW EXECUTE FUNCTION pg_temp.notice();
SELECT count(acme_outbox.publish('orders', 'triggered', 'A', 'OrderPlaced', '{}'));
SELECT count(*) FROM acme_outbox.outbox_entry WHERE origin = 'insert' AND routing_key = 'triggered';
DROP TRIGGER mine ON acme_outbox.outbox_entry;
CREATE TRIGGER mine AFTER INSERT ON acme_outbox.outbox_entry FOR EACH ROW EXECUTE FUNCTION pg_temp.notice();
SELECT count(acme_outbox.publish('orders', 'triggered', 'A', 'OrderPlaced', '{}'));
ROLLBACK TO own;

-- an index of one's own, with an expression and a predicate
CREATE INDEX mine ON acme_outbox.outbox_entry (upper(topic)) WHERE event_name = 'OrderPlaced';
SELECT count(acme_outbox.publish('orders', 'indexed', 'A', 'OrderPlaced', '{}'));
SET LOCAL enable_seqscan = off;
SELECT routing_key FROM acme_outbox.outbox_entry
	WHERE upper(topic) = 'ORDERS' AND event_name = 'OrderPlaced' AND routing_key = 'indexed';
ROLLBACK TO own;

-- indexes of one's own for rows with a tenant, in two ways, and for rows without
CREATE INDEX mine_tenants ON acme_outbox.outbox_entry (topic) WHERE tenant_id IS NOT NULL AND topic = 'parts';
CREATE INDEX mine_x ON acme_outbox.outbox_entry (topic, id) WHERE tenant_id = 'x';
CREATE INDEX mine_others ON acme_outbox.outbox_entry (topic) WHERE tenant_id IS NULL;
SELECT count(acme_outbox.publish('parts', 'k', 'A', 'OrderPlaced', '{}', tenant_id => t))
	FROM (VALUES ('x'), (NULL), ('y'), (NULL), (NULL), ('x')) v (t);
SET LOCAL enable_seqscan = off;
SET LOCAL enable_bitmapscan = off;
SELECT count(*) FROM acme_outbox.outbox_entry WHERE topic = 'parts' AND tenant_id IS NOT NULL;
SELECT count(*) FROM acme_outbox.outbox_entry WHERE topic = 'parts' AND tenant_id = 'x';
SELECT count(*) FROM acme_outbox.outbox_entry WHERE topic = 'parts' AND tenant_id IS NULL;
ROLLBACK TO own;

-- a unique index of one's own says no, and nothing is half stored
CREATE UNIQUE INDEX mine ON acme_outbox.outbox_entry (routing_key) WHERE routing_key = 'only-one';
SELECT count(acme_outbox.publish('orders', 'only-one', 'A', 'OrderPlaced', '{}'));
SAVEPOINT one;
SELECT acme_outbox.publish('orders', 'only-one', 'A', 'OrderPlaced', '{}');
ROLLBACK TO one;
SELECT count(*) FROM acme_outbox.outbox_entry WHERE origin = 'insert' AND routing_key = 'only-one';
ROLLBACK TO own;

-- the table is locked against a concurrent change, as by any INSERT
SELECT count(acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}'));
SELECT mode FROM pg_locks WHERE pid = pg_backend_pid() AND relation = 'acme_outbox.outbox_entry'::regclass
	AND mode LIKE 'Row%' ORDER BY 1;
ROLLBACK;

-- read-only
BEGIN READ ONLY;
SELECT acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}');
ROLLBACK;
