-- Statements that were planned while their tables were empty read them by an index.
SET client_min_messages = warning;
\pset format unaligned
\pset tuples_only on
TRUNCATE acme_outbox.processed_event, acme_outbox.idempotency_key;
CREATE TABLE t.deal (id integer PRIMARY KEY, state text, last_event_at timestamptz,
	last_event_id uuid);
CREATE FUNCTION t.kept_handler(message jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	CASE message #>> '{body,payload,do}'
		WHEN 'park' THEN PERFORM acme_outbox.park('NO_DEAL', 'deal', '1');
		WHEN 'fail' THEN RAISE EXCEPTION 'no';
		ELSE NULL;
	END CASE;
END $$;
CREATE FUNCTION t.message(n integer, what text) RETURNS text LANGUAGE sql AS $$
	SELECT acme_outbox.envelope('deal-1', 'DealLocked', jsonb_build_object('do', what),
		event_id => ('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid)
$$;
-- of this transaction
CREATE FUNCTION t.whole_tables_read() RETURNS SETOF text LANGUAGE sql AS $$
	SELECT oid::regclass || ': ' || pg_stat_get_xact_numscans(oid) FROM pg_class
	WHERE relkind = 'r' AND relnamespace IN ('acme_outbox'::regnamespace, 't'::regnamespace)
		AND pg_stat_get_xact_numscans(oid) > 0
	ORDER BY 1
$$;
VACUUM ANALYZE acme_outbox.processed_event, acme_outbox.parked_message, acme_outbox.idempotency_key,
	acme_outbox.projection_tombstone, t.deal;
\c -
SET acme_outbox.origin = 'kept';

\echo idempotency keys
BEGIN;
SELECT decision FROM acme_outbox.idempotency_begin('POST /scan', 'k1', 'b');
SELECT acme_outbox.idempotency_complete('POST /scan', 'k1', 201, '{}'::text);
SELECT decision, status FROM acme_outbox.idempotency_begin('POST /scan', 'k1', 'b');
SELECT decision FROM acme_outbox.idempotency_begin('POST /scan', 'k2', 'b');
SELECT acme_outbox.idempotency_abandon('POST /scan', 'k2');
SELECT t.whole_tables_read();
COMMIT;

\echo messages: handled, parked, failed in a batch, seen before
BEGIN;
SELECT acme_outbox.inbox_process('kept', t.message(1, 'work'), 't.kept_handler');
SELECT acme_outbox.inbox_process('kept', t.message(1, 'work'), 't.kept_handler');
SELECT acme_outbox.inbox_process('kept', t.message(2, 'park'), 't.kept_handler');
SELECT outcome FROM acme_outbox.inbox_try_process_batch('kept', ARRAY[t.message(1, 'work'),
	t.message(3, 'fail'), t.message(4, 'work')], 't.kept_handler');
SELECT t.whole_tables_read();
COMMIT;

\echo projections: a new row, a newer event, a late one, deleted, buried
BEGIN;
SELECT acme_outbox.project('t.deal', '{"id": 1}', '{"state": "A"}', now(), gen_random_uuid());
SELECT acme_outbox.project('t.deal', '{"id": 1}', '{"state": "B"}', now() + '1 s', gen_random_uuid());
SELECT acme_outbox.project('t.deal', '{"id": 1}', '{"state": "C"}', now(), gen_random_uuid());
SELECT acme_outbox.project_delete('t.deal', '{"id": 1}', now() + '2 s', gen_random_uuid());
SELECT acme_outbox.project('t.deal', '{"id": 1}', '{"state": "D"}', now(), gen_random_uuid());
SELECT t.whole_tables_read();
COMMIT;

DROP FUNCTION t.kept_handler(jsonb), t.message(integer, text), t.whole_tables_read();
DROP TABLE t.deal;
DELETE FROM acme_outbox.parked_message WHERE consumer = 'kept';
TRUNCATE acme_outbox.processed_event, acme_outbox.idempotency_key, acme_outbox.projection_tombstone;
