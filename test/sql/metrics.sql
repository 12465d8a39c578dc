-- metrics(): gauges of every state, labels without anything private, and Prometheus's
-- text.  The same with and without counters, that is, preloaded or not.
SET client_min_messages = warning;
SET acme_outbox.autocommit_publish = off;
\pset format unaligned
\pset tuples_only on
CREATE FUNCTION t.metric(metric text, wanted jsonb) RETURNS text LANGUAGE sql AS $$
	SELECT coalesce(string_agg(CASE WHEN name LIKE '%age%' THEN trunc(value::numeric, -1) ELSE value END::text, ' '), '-') FROM acme_outbox.metrics()
	WHERE name = 'acme_outbox_' || metric AND labels @> wanted
$$;

\echo an origin that was never relayed
SET acme_outbox.origin = 'metrics';
SELECT t.pub('A', 'a1'), t.pub('A', 'a2'), t.pub('B', 'b1'), t.pub('C', 'c1'), t.pub('D', 'd1'), t.pub(NULL, 'f1');
UPDATE acme_outbox.outbox_entry SET created_at = created_at - interval '100 seconds' WHERE origin = 'metrics' AND routing_key = 'a1';
SELECT n, t.metric(n, '{"origin": "metrics"}') FROM unnest('{pending_entries,oldest_entry_age_seconds,publishing_entries,failed_entries,relay_active,relay_seen_age_seconds,oldest_claim_age_seconds,skipped_entries,blocking_transaction_age_seconds}'::text[]) n;

\echo one that is
SELECT t.acquire('metrics'), t.claim('metrics');
SELECT t.settle('metrics', 'b1', 'UNROUTABLE', 'secret error'), t.settle('metrics', 'c1', 'NACKED');
SET acme_outbox.max_attempts = 1;
SELECT t.settle('metrics', 'f1', 'REJECTED', 'secret error');
RESET acme_outbox.max_attempts;
SELECT t.settle('metrics', 'd1', 'REJECTED', 'secret error');
SELECT t.pub('B', 'b2'), t.pub(NULL, 'later', 'orders', clock_timestamp() + interval '1 hour');
SELECT t.claim('metrics');
UPDATE acme_outbox.outbox_claim SET claimed_at = claimed_at - interval '50 seconds' WHERE origin = 'metrics';
UPDATE acme_outbox.relay_lease SET renewed_at = clock_timestamp() - interval '70 seconds' WHERE origin = 'metrics';
SELECT n, t.metric(n, '{"origin": "metrics"}') FROM unnest('{pending_entries,publishing_entries,failed_entries,relay_active,relay_seen_age_seconds,oldest_claim_age_seconds}'::text[]) n;
SELECT labels->>'reason', value FROM acme_outbox.metrics() WHERE name = 'acme_outbox_waiting_entries' AND labels->>'origin' = 'metrics';

\echo parked messages
SELECT count(acme_outbox.park_message('metrics', jsonb_build_object('header', jsonb_build_object('eventId', 'm' || n),
		'body', jsonb_build_object('eventName', E'a\\b"c\nd', 'payload', 'secret payload')), 'INVALID_STATE', 'sale', 'secret'))
	FROM generate_series(1, 3) n;
UPDATE acme_outbox.parked_message SET resolved_at = now() WHERE event_id = 'm3';
SELECT labels, value FROM acme_outbox.metrics() WHERE name = 'acme_outbox_parked_open_messages' AND labels->>'consumer' = 'metrics';

\echo counters there are where the library is preloaded
SELECT t.metric('counters_enabled', '{}')::int::bool = acme_outbox.worker_preloaded();
SELECT (t.metric('published_entries_total', '{"origin": "metrics", "topic": "orders"}') = '8') = acme_outbox.worker_preloaded();
SELECT (SELECT count(*) > 0 FROM acme_outbox.counters()) = acme_outbox.worker_preloaded();
BEGIN;
UPDATE acme_outbox.duty_run SET started_at = clock_timestamp() - interval '3 days' WHERE duty = 'reap';
SELECT t.metric('duty_age_seconds', '{"duty": "reap"}');
ROLLBACK;

\echo every sample is catalogued, with exactly its labels, and none twice
SELECT m.* FROM acme_outbox.metrics() m LEFT JOIN acme_outbox.metric_catalog() c USING (name)
	WHERE c.name IS NULL OR m.kind <> c.kind OR m.help <> c.help
	   OR ARRAY(SELECT jsonb_object_keys(m.labels) ORDER BY 1) <> ARRAY(SELECT unnest(c.labels) ORDER BY 1);
SELECT name, labels FROM acme_outbox.metrics() GROUP BY 1, 2 HAVING count(*) > 1;
SELECT name FROM acme_outbox.metric_catalog() WHERE name !~ '^acme_outbox_[a-z_]+$' OR kind NOT IN ('gauge', 'counter') OR (kind = 'counter') <> (name LIKE '%\_total');

\echo text: escaped, each name once with its help and type, each line of the grammar
SELECT line FROM string_to_table(acme_outbox.metrics_text(), E'\n') line
	WHERE line LIKE '%acme_outbox_parked_open_messages%' AND (line LIKE '#%' OR line LIKE '%consumer="metrics"%');
SELECT line FROM string_to_table(acme_outbox.metrics_text(), E'\n') line
	WHERE line !~ '^# HELP [a-z_]+ [^\\]+$' AND line !~ '^# TYPE [a-z_]+ (gauge|counter)$'
	  AND line !~ '^[a-z_]+(\{([a-z_]+="([^"\\]|\\["\\n])*",?)+\})? [-+0-9.e]+$';
SELECT line FROM string_to_table(acme_outbox.metrics_text(), E'\n') line WHERE line LIKE '# TYPE%' GROUP BY 1 HAVING count(*) > 1;
SELECT acme_outbox.metrics_text() ~ 'secret';

\echo a monitor reads them, and nothing else
CREATE ROLE metrics_monitor;
SELECT acme_outbox.grant_monitor('metrics_monitor');
GRANT USAGE ON SCHEMA t TO metrics_monitor;
SET ROLE metrics_monitor;
SELECT count(*) > 10 FROM acme_outbox.metrics();
SELECT length(acme_outbox.metrics_text()) > 1000;
SELECT count(*) >= 0 FROM acme_outbox.consumed_versions;
SELECT t.sqlstate(q) FROM unnest('{"SELECT acme_outbox.counters()","SELECT acme_outbox.save_consumed()","SELECT FROM acme_outbox.consumed_version","SELECT acme_outbox.metric_samples()"}'::text[]) q;
RESET ROLE;
REVOKE USAGE ON SCHEMA t FROM metrics_monitor;
SELECT acme_outbox.revoke_monitor('metrics_monitor');
DROP ROLE metrics_monitor;

-- leave nothing behind
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'metrics';
DELETE FROM acme_outbox.outbox_claim WHERE origin = 'metrics';
DELETE FROM acme_outbox.outbox_origin WHERE origin = 'metrics';
DELETE FROM acme_outbox.parked_message WHERE consumer = 'metrics';
DELETE FROM acme_outbox.processed_event WHERE consumer = 'metrics';
DROP FUNCTION t.metric;
