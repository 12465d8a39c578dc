-- What an administrator may do to outbox_entry and its indexes: what changes rows past the
-- executor, and reads them past the planner, heeds it.
SET client_min_messages = error;
SET acme_outbox.autocommit_publish = off;
SET acme_outbox.origin = 'table';
\pset format unaligned
\pset tuples_only on
SELECT t.acquire('table');
BEGIN;

\echo a column that must have a value: neither insert nor update leaves it null
SAVEPOINT own;
ALTER TABLE acme_outbox.outbox_entry ALTER COLUMN traceparent SET DEFAULT '', ALTER COLUMN last_error SET DEFAULT '';
UPDATE acme_outbox.outbox_entry SET last_error = '' WHERE last_error IS NULL;
SET CONSTRAINTS ALL IMMEDIATE;
ALTER TABLE acme_outbox.outbox_entry ALTER COLUMN last_error SET NOT NULL;
SELECT t.pub('A', 'a1');
SELECT t.claim('table');
SELECT t.error($$SELECT t.settle('table', '*', 'PUBLISHED')$$) LIKE '23502 | null value in column "last_error"%' AS refused;
SELECT label, status FROM t.state('table');
ROLLBACK TO own;

\echo a partition of another table: its bounds count
CREATE TABLE t.parent (LIKE acme_outbox.outbox_entry) PARTITION BY LIST (topic);
CREATE TABLE t.others PARTITION OF t.parent DEFAULT;
DELETE FROM acme_outbox.outbox_entry WHERE topic <> 'orders';
SET CONSTRAINTS ALL IMMEDIATE;
ALTER TABLE t.parent ATTACH PARTITION acme_outbox.outbox_entry FOR VALUES IN ('orders');
SELECT t.pub('A', 'a1', 'orders');
SELECT t.sqlstate($$SELECT t.pub('A', 'a2', 'parts')$$);
SELECT t.claim('table'), t.settle('table', '*', 'PUBLISHED');
SELECT routing_key, status FROM t.parent WHERE origin = 'table';
ROLLBACK TO own;

\echo a table that inherits from it: its rows are never changed, wherever they lie
TRUNCATE acme_outbox.outbox_entry;
CREATE TABLE t.archive () INHERITS (acme_outbox.outbox_entry);
INSERT INTO t.archive (xid, id, created_at, published_at, event_id, entry_type, status, origin, topic, event_name, trace_id, payload)
	SELECT '3', -n, '2000-01-01', '2000-01-01', gen_random_uuid(), 'DOMAIN_EVENT', 'PUBLISHED', 'archive', 'orders', 'E', 't', '{}' FROM generate_series(1, 20) n;
SELECT t.pub('A', 'a1'), t.claim('table'), t.settle('table', '*', 'PUBLISHED');
UPDATE ONLY acme_outbox.outbox_entry SET created_at = '2000-01-01', published_at = '2000-01-01' WHERE origin = 'table';
SELECT affected FROM acme_outbox.purge() WHERE what = 'published';
SELECT count(*) FROM t.archive;
ROLLBACK TO own;

\echo published for replication without an identity: subscribers would miss the updates
CREATE PUBLICATION own_publication FOR TABLE acme_outbox.outbox_entry;
SELECT t.pub('A', 'a1'), t.claim('table'), t.settle('table', '*', 'PUBLISHED');
ALTER TABLE acme_outbox.outbox_entry REPLICA IDENTITY NOTHING;
SELECT t.pub('A', 'a2');
SELECT t.error($$SELECT t.claim('table')$$);
ALTER TABLE acme_outbox.outbox_entry REPLICA IDENTITY FULL;
SELECT t.claim('table'), t.settle('table', '*', 'PUBLISHED');
ROLLBACK TO own;

\echo an index that is being built, or whose building failed, lacks entries: nothing is claimed
SELECT t.pub('A', 'a1');
UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'acme_outbox.outbox_entry_xid'::regclass;
SELECT t.error($$SELECT t.claim('table')$$);
REINDEX INDEX acme_outbox.outbox_entry_xid;
SELECT t.claim('table'), t.settle('table', '*', 'PUBLISHED');
ROLLBACK TO own;

\echo so does one of that name with other columns, another predicate or another table
SELECT t.pub('A', 'a1');
SAVEPOINT index;
DROP INDEX acme_outbox.outbox_entry_xid;
CREATE INDEX outbox_entry_xid ON acme_outbox.outbox_entry (origin, xid);
SELECT t.error($$SELECT t.claim('table')$$);
ROLLBACK TO index;
DROP INDEX acme_outbox.outbox_entry_due;
CREATE INDEX outbox_entry_due ON acme_outbox.outbox_entry (origin, next_attempt_at);
SELECT t.error($$SELECT t.claim('table')$$);
ROLLBACK TO index;
DROP INDEX acme_outbox.outbox_entry_xid;
CREATE TABLE acme_outbox.copy (LIKE acme_outbox.outbox_entry);
CREATE INDEX outbox_entry_xid ON acme_outbox.copy (origin, xid, id);
SELECT t.error($$SELECT t.claim('table')$$);
ROLLBACK TO index;
DROP INDEX acme_outbox.outbox_entry_xid;
SELECT t.error($$SELECT t.claim('table')$$);
CREATE INDEX outbox_entry_xid ON acme_outbox.outbox_entry (origin, xid, id);
SELECT t.claim('table'), t.settle('table', '*', 'PUBLISHED');
ROLLBACK;
