-- An entry's two updates touch no index, and the planner has no say in them.
SET client_min_messages = warning;
SET acme_outbox.autocommit_publish = off;
SET acme_outbox.origin = 'hot';
SET stats_fetch_consistency = none;
\pset format unaligned
\pset tuples_only on
VACUUM acme_outbox.outbox_entry;
SELECT t.acquire('hot');
SELECT pg_stat_force_next_flush() IS NULL;
SELECT coalesce(n_tup_upd, 0) AS updated, coalesce(n_tup_hot_upd, 0) AS hot
	FROM pg_stat_user_tables WHERE relid = 'acme_outbox.outbox_entry'::regclass \gset

\echo 2,000 entries of 512 bytes, claimed and published by the hundred: updates are HOT
-- all of them, but for the few that another session's snapshot may get in the way of
SELECT count(acme_outbox.publish('orders', 'h' || n, 'K' || n % 50, 'OrderPlaced', to_json(repeat('x', 510)))) FROM generate_series(1, 2000) n;
DO $$
BEGIN
	FOR i IN 1 .. 20 LOOP
		PERFORM t.claim('hot', 100);
		COMMIT;
		PERFORM t.settle('hot', '*', 'PUBLISHED');
		COMMIT;
	END LOOP;
END $$;
SELECT status, count(*) FROM acme_outbox.outbox_entry WHERE origin = 'hot' GROUP BY status;
SELECT pg_stat_force_next_flush() IS NULL;
SELECT n_tup_upd - :updated AS updates, (n_tup_hot_upd - :hot) >= 0.95 * (n_tup_upd - :updated) AS hot
	FROM pg_stat_user_tables WHERE relid = 'acme_outbox.outbox_entry'::regclass;
