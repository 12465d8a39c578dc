-- acme_outbox.autocommit_publish: an event that is bound to no business change.  A
-- statement outside a transaction block that does nothing but publish warns.
\pset format unaligned
\pset tuples_only on
\set VERBOSITY terse
SET acme_outbox.origin = 'auto';
CREATE TEMP TABLE orders (n int, id uuid);
INSERT INTO orders (n) VALUES (1), (2);
PREPARE alone AS SELECT acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}') IS NOT NULL;
CREATE FUNCTION pg_temp.place() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO orders (n) VALUES (3);
	RETURN acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}') IS NOT NULL;
END $$;
CREATE PROCEDURE pg_temp.place_all() LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO orders (n) VALUES (3);
	PERFORM acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}');
END $$;
CREATE FUNCTION pg_temp.on_order() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM acme_outbox.publish('orders', 'k', NEW.n::text, 'OrderPlaced', '{}');
	RETURN NEW;
END $$;
CREATE TABLE t.triggered (n int);
CREATE TRIGGER publishes BEFORE INSERT ON t.triggered FOR EACH ROW EXECUTE FUNCTION pg_temp.on_order();

\echo these warn
SELECT acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}') IS NOT NULL;
SELECT acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}'::jsonb) IS NOT NULL;
SELECT acme_outbox.enqueue_job('jobs', 'k', 'SendMail', '{}') IS NOT NULL;
VALUES (acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}') IS NOT NULL);
SELECT json_build_object('id', acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}')) IS NOT NULL;
EXECUTE alone;
SELECT count(id) FROM (SELECT acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}') AS id OFFSET 0) x;
SELECT (SELECT acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}')) IS NOT NULL;
SELECT count(*) FROM acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}');
WITH e AS MATERIALIZED (SELECT acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}') AS id)
	SELECT count(id) FROM e;
-- once, however many rows
SELECT count(acme_outbox.publish('orders', 'k', n::text, 'OrderPlaced', '{}')) FROM orders;
SELECT acme_outbox.publish('orders', 'k', n::text, 'OrderPlaced', '{}') IS NOT NULL FROM orders ORDER BY n LIMIT 2;

\echo these do not: in a transaction block
BEGIN;
SELECT acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}') IS NOT NULL;
SAVEPOINT s;
EXECUTE alone;
COMMIT;
-- two statements sent as one
INSERT INTO orders (n) VALUES (4)\; SELECT acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}') IS NOT NULL;
\echo with the change, in one statement
INSERT INTO orders VALUES (5, acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}'));
UPDATE orders SET id = acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}') WHERE n = 1;
DELETE FROM orders WHERE n = 5 RETURNING acme_outbox.publish('orders', 'k', 'A', 'OrderDeleted', '{}') IS NOT NULL;
WITH placed AS (INSERT INTO orders (n) VALUES (6) RETURNING n)
	SELECT acme_outbox.publish('orders', 'k', n::text, 'OrderPlaced', '{}') IS NOT NULL FROM placed;
CREATE TEMP TABLE made AS SELECT acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}');
\echo from a function, a procedure, a block, a trigger
SELECT pg_temp.place();
CALL pg_temp.place_all();
DO $$ BEGIN PERFORM acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}'); END $$;
INSERT INTO t.triggered VALUES (1);

\echo what the warning says
\set VERBOSITY default
SELECT acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}') IS NOT NULL;

\echo error stores nothing
SELECT count(*) AS before FROM acme_outbox.outbox_entry WHERE origin = 'auto' \gset
SET acme_outbox.autocommit_publish = error;
SELECT acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}') IS NOT NULL;
\echo :LAST_ERROR_SQLSTATE
SELECT count(*) - :before FROM acme_outbox.outbox_entry WHERE origin = 'auto';
SELECT pg_temp.place();
BEGIN;
SELECT acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}') IS NOT NULL;
COMMIT;
SELECT count(*) - :before FROM acme_outbox.outbox_entry WHERE origin = 'auto';
\echo off is silent
SET acme_outbox.autocommit_publish = off;
SELECT acme_outbox.publish('orders', 'k', 'A', 'OrderPlaced', '{}') IS NOT NULL;
DROP TABLE t.triggered;
