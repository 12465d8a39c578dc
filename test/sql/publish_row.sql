-- publish_row(): a trigger that publishes the changed row.
SET client_min_messages = warning;
SET acme_outbox.origin = 'row';
\pset format unaligned
\pset tuples_only on
\set VERBOSITY terse
CREATE TABLE t.sale (id int PRIMARY KEY, "Customer" text, amount numeric, doubled numeric GENERATED ALWAYS AS (amount * 2) STORED);
CREATE FUNCTION t.sent() RETURNS SETOF text LANGUAGE sql AS $$
	SELECT concat_ws(' ', topic, coalesce(nullif(routing_key, ''), '-'), event_name, message_key, payload::json #> '{body,payload}')
	FROM acme_outbox.outbox_entry WHERE origin = 'row' ORDER BY id
$$;
CREATE TRIGGER created AFTER INSERT ON t.sale FOR EACH ROW EXECUTE FUNCTION acme_outbox.publish_row('sales', 'eu', 'SaleCreated', 'id');
CREATE TRIGGER changed AFTER UPDATE ON t.sale FOR EACH ROW EXECUTE FUNCTION acme_outbox.publish_row('sales', '', 'trading.sale.changed', 'Customer');
CREATE TRIGGER deleted AFTER DELETE ON t.sale FOR EACH ROW EXECUTE FUNCTION acme_outbox.publish_row('sales', 'eu', 'SaleDeleted', 'id');

\echo the row after INSERT and UPDATE, the old one after DELETE; numbers and letters kept
INSERT INTO t.sale VALUES (1, 'ann é', 1.10), (2, NULL, 100000000000000000000.5);
UPDATE t.sale SET amount = 2 WHERE id = 1;
-- no key where the column is null
UPDATE t.sale SET amount = NULL WHERE id = 2;
DELETE FROM t.sale WHERE id = 1;
SELECT t.sent();
\echo with the row, or not at all
BEGIN;
INSERT INTO t.sale VALUES (3);
ROLLBACK;
SELECT count(*) FROM t.sent();
\echo by COPY, MERGE and ON CONFLICT too
COPY t.sale (id, "Customer") FROM stdin;
4	bob
\.
INSERT INTO t.sale VALUES (4) ON CONFLICT (id) DO UPDATE SET "Customer" = 'carl';
MERGE INTO t.sale USING (VALUES (4), (5)) v (id) ON sale.id = v.id
	WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id) VALUES (v.id);
SELECT t.sent() OFFSET 5;
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'row';

\echo deferred: at commit, in that transaction
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON t.sale DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
	EXECUTE FUNCTION acme_outbox.publish_row('sales', 'late', 'SaleCreated', 'id');
BEGIN;
INSERT INTO t.sale VALUES (6, 'dan');
SELECT count(*) FROM t.sent();
COMMIT;
SELECT count(*) FROM t.sent();
DROP TRIGGER late ON t.sale;

\echo a partitioned table: the partition moved to and from
CREATE TABLE t.part (id int, n int) PARTITION BY LIST (n);
CREATE TABLE t.part1 (n int, id int);
ALTER TABLE t.part ATTACH PARTITION t.part1 FOR VALUES IN (1);
CREATE TRIGGER created AFTER INSERT ON t.part FOR EACH ROW EXECUTE FUNCTION acme_outbox.publish_row('parts', 'p', 'PartCreated', 'id');
INSERT INTO t.part VALUES (7, 1);
SELECT t.sent() OFFSET 2;
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'row';

\echo wrong kinds of trigger, arguments and columns fail where they fire
CREATE TABLE t.wrong (id int, n int);
CREATE VIEW t.wrong_view AS SELECT * FROM t.wrong;
CREATE FUNCTION t.attempt(definition text, statement text DEFAULT 'INSERT INTO t.wrong VALUES (1)') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	result text;
BEGIN
	EXECUTE 'CREATE TRIGGER w ' || definition;
	result := t.error(statement);
	EXECUTE 'DROP TRIGGER w ON t.' || CASE WHEN definition ~ 'wrong_view' THEN 'wrong_view' ELSE 'wrong' END;
	RETURN result;
END $$;
SELECT t.attempt($$BEFORE INSERT ON t.wrong FOR EACH ROW EXECUTE FUNCTION acme_outbox.publish_row('a', 'b', 'Cc', 'id')$$);
SELECT t.attempt($$AFTER INSERT ON t.wrong FOR EACH STATEMENT EXECUTE FUNCTION acme_outbox.publish_row('a', 'b', 'Cc', 'id')$$);
SELECT t.attempt($$AFTER TRUNCATE ON t.wrong EXECUTE FUNCTION acme_outbox.publish_row('a', 'b', 'Cc', 'id')$$, 'TRUNCATE t.wrong');
SELECT t.attempt($$INSTEAD OF INSERT ON t.wrong_view FOR EACH ROW EXECUTE FUNCTION acme_outbox.publish_row('a', 'b', 'Cc', 'id')$$, 'INSERT INTO t.wrong_view VALUES (1)');
SELECT t.attempt($$AFTER INSERT ON t.wrong FOR EACH ROW EXECUTE FUNCTION acme_outbox.publish_row('a', 'b', 'Cc')$$);
SELECT t.attempt($$AFTER INSERT ON t.wrong FOR EACH ROW EXECUTE FUNCTION acme_outbox.publish_row('a', 'b', 'Cc', 'id', 'more')$$);
SELECT t.attempt($$AFTER INSERT ON t.wrong FOR EACH ROW EXECUTE FUNCTION acme_outbox.publish_row()$$);
SELECT t.attempt($$AFTER INSERT ON t.wrong FOR EACH ROW EXECUTE FUNCTION acme_outbox.publish_row('a', 'b', 'Cc', 'none')$$);
SELECT t.attempt($$AFTER INSERT ON t.wrong FOR EACH ROW EXECUTE FUNCTION acme_outbox.publish_row('a', 'b', 'Cc', 'ctid')$$);
SELECT t.attempt($$AFTER INSERT ON t.wrong FOR EACH ROW EXECUTE FUNCTION acme_outbox.publish_row('', 'b', 'Cc', 'id')$$);
SELECT t.attempt($$AFTER INSERT ON t.wrong FOR EACH ROW EXECUTE FUNCTION acme_outbox.publish_row('a', 'b', 'c c', 'id')$$);
SELECT t.attempt($$AFTER INSERT ON t.wrong FOR EACH ROW EXECUTE FUNCTION acme_outbox.publish_row('a', 'b', 'Cc', 'id')$$);
\echo called by hand
SELECT acme_outbox.publish_row();
SELECT acme_outbox.entry_requeued();
SELECT acme_outbox.entry_finished();
DROP TABLE t.sale, t.part, t.wrong CASCADE;
DROP FUNCTION t.sent, t.attempt;

\echo a cast function of a column runs as whoever changed the row, never as the owner
CREATE ROLE outbox_test_caster;
SELECT acme_outbox.grant_publisher('outbox_test_caster');
SET SESSION AUTHORIZATION outbox_test_caster;
CREATE TYPE pg_temp.mood AS ENUM ('sly');
CREATE FUNCTION pg_temp.as_json(pg_temp.mood) RETURNS json LANGUAGE plpgsql AS
$$ BEGIN RETURN to_json(current_user::text); END $$;
CREATE CAST (pg_temp.mood AS json) WITH FUNCTION pg_temp.as_json(pg_temp.mood);
CREATE TEMP TABLE sly (id int, v pg_temp.mood);
CREATE TRIGGER publish AFTER INSERT ON sly FOR EACH ROW
	EXECUTE FUNCTION acme_outbox.publish_row('orders', 'sly', 'SlyRow', 'id');
INSERT INTO sly VALUES (1, 'sly');
RESET SESSION AUTHORIZATION;
SELECT payload::json #>> '{body,payload,v}' FROM acme_outbox.outbox_entry WHERE routing_key = 'sly';
DROP TABLE sly;
DROP CAST (pg_temp.mood AS json);
DROP FUNCTION pg_temp.as_json;
DROP TYPE pg_temp.mood;
SELECT acme_outbox.revoke_publisher('outbox_test_caster');
DROP ROLE outbox_test_caster;
