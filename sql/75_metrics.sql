/*
 * Metrics for any exporter (docs/metrics.md).  No payload, key, tenant or error text is
 * ever in a label.
 */

/*
 * metric_catalog() returns setof (name, kind, labels, help): every metric there is.
 * docs/metrics.md has the same list; a test compares them.
 */
CREATE FUNCTION acme_outbox.metric_catalog()
RETURNS TABLE (name text, kind text, labels text[], help text)
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
	SELECT 'acme_outbox_' || m.name, m.kind, m.labels::text[], m.help
	FROM (VALUES
		('pending_entries', 'gauge', '{origin}', 'Entries not delivered and not in flight, waiting ones included.'),
		('oldest_entry_age_seconds', 'gauge', '{origin}', 'Age of the oldest undelivered entry that is due; 0 if there is none.'),
		('waiting_entries', 'gauge', '{origin,reason}', 'Pending entries that wait, by reason.'),
		('publishing_entries', 'gauge', '{origin}', 'Entries handed to a relay and not settled yet.'),
		('oldest_claim_age_seconds', 'gauge', '{origin}', 'Age of the oldest batch in flight; 0 if there is none.'),
		('failed_entries', 'gauge', '{origin}', 'Entries that were given up and that nobody has dealt with.'),
		('skipped_entries', 'gauge', '{origin}', 'Entries that other sessions held locked when a claim passed them.'),
		('relay_active', 'gauge', '{origin}', '1 if a relay holds the lease, else 0.'),
		('relay_seen_age_seconds', 'gauge', '{origin}', 'Time since a relay last renewed its lease; absent if there never was one.'),
		('blocking_transaction_age_seconds', 'gauge', '{origin}', 'Age of the oldest open writing transaction, whose entries nobody can see yet; 0 if there is none.'),
		('parked_open_messages', 'gauge', '{consumer,event_type,reason}', 'Parked messages that nobody has replayed or discarded.'),
		('worker_up', 'gauge', '{}', '1 if this database has its background worker, else 0.'),
		('duty_age_seconds', 'gauge', '{duty}', 'Time since a duty last ran, by the worker or a relay.'),
		('published_entries_total', 'counter', '{origin,topic}', 'Entries stored by publish.'),
		('settled_entries_total', 'counter', '{origin,outcome}', 'Entries settled, by what the broker did with them.'),
		('relay_stuck_publishing_total', 'counter', '{event_type}', 'Entries that a run of the reaper found stuck in PUBLISHING.'),
		('consumed_messages_total', 'counter', '{consumer,event_name,schema_version,outcome}', 'Messages that consumers were sent, by what became of them.'),
		('consumer_redeliveries_total', 'counter', '{consumer}', 'Messages that had been processed before.'),
		('parked_messages_total', 'counter', '{consumer,event_type,reason}', 'Messages parked.'),
		('idempotency_decisions_total', 'counter', '{decision}', 'Requests, by what idempotency_begin decided.'),
		('projected_events_total', 'counter', '{target,outcome}', 'Events that changed a projection (applied) or came too late (stale).'),
		('counters_enabled', 'gauge', '{}', '1 if counters are kept, 0 where the library is not preloaded.'),
		('counters_start_time_seconds', 'gauge', '{}', 'Unix time since which counters count.'),
		('counter_sets', 'gauge', '{}', 'Label sets that all databases'' counters have.'),
		('counter_sets_limit', 'gauge', '{}', 'Label sets they can have.'),
		('counter_overflow_total', 'counter', '{}', 'Increments that found no label set, in all databases.')
	) AS m (name, kind, labels, help)
$$;
COMMENT ON FUNCTION acme_outbox.metric_catalog() IS 'every metric that metrics() can show';

/*
 * metric_samples() returns setof (name, labels, value): what metrics() shows, without the
 * prefix and the catalogue's columns.  Absent values are NULL.
 */
CREATE FUNCTION acme_outbox.metric_samples()
RETURNS TABLE (name text, labels jsonb, value double precision)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
	WITH backlog AS MATERIALIZED (
		SELECT b.*, jsonb_build_object('origin', b.origin) AS labels
		FROM acme_outbox.backlog() b
	), about AS MATERIALIZED (
		SELECT a.* FROM acme_outbox.counters_about() a
	)
	SELECT s.name, b.labels, s.value
	FROM backlog b, LATERAL (VALUES
		('pending_entries', b.pending::float8),
		('oldest_entry_age_seconds', coalesce(extract(epoch FROM b.oldest_age)::float8, 0)),
		('publishing_entries', b.publishing::float8),
		('oldest_claim_age_seconds', coalesce((
			SELECT extract(epoch FROM clock_timestamp() - min(c.claimed_at))::float8
			FROM acme_outbox.outbox_claim c WHERE c.origin = b.origin), 0)),
		('failed_entries', b.failed::float8),
		('skipped_entries', b.skipped::float8),
		('relay_active', b.relay_active::int::float8),
		('relay_seen_age_seconds', extract(epoch FROM clock_timestamp() - b.relay_seen_at)::float8),
		('blocking_transaction_age_seconds', coalesce(extract(epoch FROM b.blocking_age)::float8, 0))
	) AS s (name, value)
	UNION ALL
	SELECT 'waiting_entries', b.labels || jsonb_build_object('reason', w.reason), w.value
	FROM backlog b, LATERAL (VALUES ('RETRY', b.retry), ('UNROUTABLE', b.unroutable),
		('NACKED', b.nacked), ('KEY', b.key_held), ('SCHEDULED', b.scheduled),
		('PAUSED', b.paused)) AS w (reason, value)
	UNION ALL
	SELECT 'parked_open_messages', jsonb_build_object('consumer', p.consumer,
			'event_type', coalesce(p.event_type, ''), 'reason', p.reason), count(*)
	FROM acme_outbox.parked_rows() p
	GROUP BY p.consumer, p.event_type, p.reason
	UNION ALL
	SELECT 'worker_up', '{}', count(*)
	FROM acme_outbox.worker_slots() w, pg_database d
	WHERE d.datname = current_database() AND w.database_oid = d.oid AND w.state = 'running'
	UNION ALL
	SELECT 'duty_age_seconds', jsonb_build_object('duty', r.duty),
		   extract(epoch FROM clock_timestamp() - r.started_at)
	FROM acme_outbox.duty_run r
	WHERE isfinite(r.started_at)
	UNION ALL
	SELECT s.name, '{}', s.value
	FROM about a, LATERAL (VALUES
		('counters_enabled', (a.since IS NOT NULL)::int::float8),
		('counters_start_time_seconds', extract(epoch FROM a.since)::float8),
		('counter_sets', a.used::float8),
		('counter_sets_limit', a.size::float8),
		('counter_overflow_total', a.overflow::float8)
	) AS s (name, value)
	UNION ALL
	SELECT substr(c.name, length('acme_outbox_') + 1), c.labels, c.value
	FROM acme_outbox.counters() c
$$;
COMMENT ON FUNCTION acme_outbox.metric_samples() IS 'values of metrics()';

/*
 * metrics() returns setof (name, labels, value, kind, help)
 *
 *	 Gauges from the tables, read cheaply, and counters since the server started.  For
 *	 grant_monitor.  kind  gauge or counter
 *	 Safe to repeat, at any time.
 */
CREATE FUNCTION acme_outbox.metrics()
RETURNS TABLE (name text, labels jsonb, value double precision, kind text, help text)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
	SELECT c.name, s.labels, s.value, c.kind, c.help
	FROM acme_outbox.metric_samples() s
	JOIN acme_outbox.metric_catalog() WITH ORDINALITY c (name, kind, label_names, help, n)
		ON c.name = 'acme_outbox_' || s.name
	WHERE s.value IS NOT NULL
	ORDER BY c.n, s.labels
$$;
COMMENT ON FUNCTION acme_outbox.metrics() IS
	'gauges and counters for an exporter; no payload, keys, tenants or error text';

/*
 * metrics_text() returns text
 *
 *	 The same in Prometheus's text format, for psql -At -c and a textfile collector.
 *	 The last line's end is psql's.
 */
CREATE FUNCTION acme_outbox.metrics_text() RETURNS text
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
	SELECT string_agg(format(E'# HELP %1$s %2$s\n# TYPE %1$s %3$s\n%4$s', f.name, f.help, f.kind, f.lines),
					  E'\n' ORDER BY f.first)
	FROM (
		SELECT m.name, m.help, m.kind, min(m.n) AS first,
			   string_agg(m.name || l.text || ' ' || m.value, E'\n' ORDER BY m.n) AS lines
		FROM acme_outbox.metrics() WITH ORDINALITY m (name, labels, value, kind, help, n),
			LATERAL (
				SELECT coalesce('{' || string_agg(p.key || '="'
						|| replace(replace(replace(p.value, '\', '\\'), '"', '\"'), E'\n', '\n')
						|| '"', ',' ORDER BY p.key) || '}', '')
				FROM jsonb_each_text(m.labels) p) AS l (text)
		GROUP BY m.name, m.help, m.kind) f
$$;
COMMENT ON FUNCTION acme_outbox.metrics_text() IS 'metrics() in Prometheus''s text format';
