-- How a claim finds its rows does not depend on statistics or the caller's settings.
SET client_min_messages = warning;
SET acme_outbox.autocommit_publish = off;
SET acme_outbox.origin = 'plan';
SET stats_fetch_consistency = none;
\pset format unaligned
-- nobody may put the statistics right meanwhile
ALTER TABLE acme_outbox.outbox_entry SET (autovacuum_enabled = off);
SELECT t.acquire('plan');
-- claim and settle through the functions alone: helpers read the table too
CREATE FUNCTION t.work() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	row acme_outbox.claimed_entry;
	ids bigint[] := '{}';
	refused bigint[] := '{}';
	n bigint;
	differences bigint := 0;
BEGIN
	FOR row IN SELECT * FROM acme_outbox.claim('plan', t.epoch('plan'), 100, 8000000) LOOP
		IF row.routing_key LIKE 'r%' THEN
			refused := refused || row.id;
		ELSE
			ids := ids || row.id;
		END IF;
	END LOOP;
	IF row.claim_id IS NOT NULL THEN
		SELECT count(*) INTO n FROM acme_outbox.settle(t.epoch('plan'), row.claim_id, ids || refused,
			array_fill('PUBLISHED'::acme_outbox.settle_outcome, ARRAY[cardinality(ids)])
				|| array_fill('REJECTED'::acme_outbox.settle_outcome, ARRAY[cardinality(refused)]),
			array_fill(NULL::smallint, ARRAY[cardinality(ids || refused)]),
			array_fill(NULL::text, ARRAY[cardinality(ids || refused)]));
		differences := n;
	END IF;
	PERFORM pg_stat_force_next_flush();
	RETURN cardinality(ids) || ' published, ' || cardinality(refused) || ' rejected, ' || differences || ' not settled';
END $$;
-- the table is large enough for a plan to go wrong
SELECT count(acme_outbox.publish('orders', 'x' || n, 'K' || n, 'OrderPlaced', '{}')) FROM generate_series(1, 3000) n;
SELECT t.pub('R', 'r1'), t.pub('R', 'x-behind');
DO $$ BEGIN FOR i IN 1 .. 40 LOOP PERFORM t.work(); END LOOP; END $$;

-- a round: publish; note the counters; claim and settle; note them again
CREATE TABLE t.mark (n int GENERATED ALWAYS AS IDENTITY, what text, seq bigint, fresh bigint,
	late bigint, due bigint, keys bigint);
CREATE FUNCTION t.publish50() RETURNS bigint LANGUAGE sql AS $$
	SELECT pg_stat_force_next_flush();
	SELECT count(acme_outbox.publish('orders', 'x' || n, 'K' || n, 'OrderPlaced', '{}')) FROM generate_series(1, 50) n
$$;
CREATE FUNCTION t.note(what text) RETURNS void LANGUAGE sql AS $$
	INSERT INTO t.mark (what, seq, fresh, late, due, keys)
	SELECT what, (SELECT seq_scan FROM pg_stat_user_tables WHERE relid = 'acme_outbox.outbox_entry'::regclass),
		max(idx_scan) FILTER (WHERE indexrelname = 'outbox_entry_pkey'),
		max(idx_scan) FILTER (WHERE indexrelname = 'outbox_entry_xid'),
		max(idx_scan) FILTER (WHERE indexrelname = 'outbox_entry_due'),
		max(idx_scan) FILTER (WHERE indexrelname = 'outbox_entry_waiting_key')
	FROM pg_stat_user_indexes WHERE relid = 'acme_outbox.outbox_entry'::regclass
$$;
\set begin 'SELECT t.publish50(); SELECT t.note(NULL);'
:begin
SELECT t.work();
SELECT t.note('as it is');
UPDATE pg_class SET reltuples = 0, relpages = 0 WHERE oid = 'acme_outbox.outbox_entry'::regclass;
:begin
SELECT t.work();
SELECT t.note('statistics say: empty');
UPDATE pg_class SET reltuples = 1e9, relpages = 1 WHERE oid = 'acme_outbox.outbox_entry'::regclass;
:begin
SELECT t.work();
SELECT t.note('statistics say: a billion rows in a page');
UPDATE pg_class SET reltuples = 1, relpages = 1000000 WHERE oid = 'acme_outbox.outbox_entry'::regclass;
:begin
SELECT t.work();
SELECT t.note('statistics say: a row in a million pages');
-- the caller's settings are against it, in this session and a fresh one
\set settings 'SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_tidscan = off; SET enable_seqscan = on; SET jit = on; SET jit_above_cost = 0; SET random_page_cost = 1000000; SET plan_cache_mode = force_custom_plan; SET force_parallel_mode = on;'
:settings
:begin
SELECT t.work();
SELECT t.note('settings against it');
\c
SET acme_outbox.autocommit_publish = off;
SET acme_outbox.origin = 'plan';
SET stats_fetch_consistency = none;
:settings
:begin
SELECT t.work();
SELECT t.note('settings against it, fresh session');
-- never a sequential scan; each lane read through its index
SELECT m.what, m.seq - b.seq AS seq_scans, m.fresh > b.fresh AS fresh, m.late > b.late AS late,
	   m.due > b.due AS due, m.keys > b.keys AS keys
	FROM t.mark m JOIN t.mark b ON b.n = m.n - 1 WHERE m.what IS NOT NULL ORDER BY m.n;
\c
SELECT count(*) FROM acme_outbox.outbox_entry WHERE origin = 'plan' AND status <> 'PUBLISHED' AND routing_key NOT IN ('r1', 'x-behind');
ALTER TABLE acme_outbox.outbox_entry RESET (autovacuum_enabled);
ANALYZE acme_outbox.outbox_entry;
DROP TABLE t.mark;
DROP FUNCTION t.work, t.publish50, t.note;
