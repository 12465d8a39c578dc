/*
 * Views for operators and monitoring (docs/design.md 3, 4).
 *
 * All of them but "outbox" are cheap on a table with millions of published entries:
 * what is not delivered yet lies ahead of the cursor, or in a partial index, or
 * committed late, or is remembered in the cursor.  None scans the table.
 *
 * Behind two of them is a function, for its settings: the planner is left nothing
 * but the indexes, and does not compile for seconds what runs for milliseconds.
 * OFFSET 0 keeps a subquery from being joined the other way round.  Whoever may read such
 * a view needs EXECUTE on its function, too.
 */

CREATE VIEW acme_outbox.outbox AS
SELECT e.origin, e.id, e.event_id, e.status, e.hold_reason, e.entry_type, e.event_name,
	   e.topic, e.routing_key, e.message_key, e.tenant_id, e.trace_id, e.traceparent,
	   e.created_at, e.next_attempt_at, e.published_at, e.failed_at,
	   e.attempts, e.holds, e.lanes_done, e.redacted, e.claim_id, c.claimed_by, c.claimed_at,
	   e.last_error, e.headers, e.payload
FROM acme_outbox.outbox_entry e
LEFT JOIN acme_outbox.outbox_claim c ON c.claim_id = e.claim_id;

COMMENT ON VIEW acme_outbox.outbox IS
	'all entries, with the relay that has them in flight';
COMMENT ON COLUMN acme_outbox.outbox.claimed_by IS 'relay that has the entry in flight';

/*
 * origin_position: per origin its newest cursor and its lease; an origin that was
 * never relayed has neither.  The origins are skipped through on the primary key.
 */
CREATE VIEW acme_outbox.origin_position AS
WITH RECURSIVE published (origin) AS (
	(SELECT e.origin FROM acme_outbox.outbox_entry e ORDER BY e.origin LIMIT 1)
	UNION ALL
	SELECT (SELECT e.origin FROM acme_outbox.outbox_entry e
			WHERE e.origin > p.origin ORDER BY e.origin LIMIT 1)
	FROM published p
	WHERE p.origin IS NOT NULL
), known (origin) AS (
	SELECT p.origin FROM published p WHERE p.origin IS NOT NULL
	UNION
	SELECT o.origin FROM acme_outbox.outbox_origin o
)
SELECT k.origin, c.last_id, c.seen, coalesce(c.skipped, '{}') AS skipped, c.moved_at,
	   l.relay, l.epoch, l.renewed_at, l.expires_at,
	   coalesce(l.expires_at > clock_timestamp(), false) AS lease_alive
FROM known k
LEFT JOIN acme_outbox.relay_lease l ON l.origin = k.origin
LEFT JOIN LATERAL (
	SELECT u.last_id, u.seen, u.skipped, u.moved_at
	FROM acme_outbox.outbox_cursor u
	WHERE u.origin = k.origin
	ORDER BY u.position DESC
	LIMIT 1) c ON true;

COMMENT ON VIEW acme_outbox.origin_position IS
	'per origin: newest cursor and lease; NULL where it was never relayed';

/*
 * backlog()
 *		Per origin: what is not delivered yet; see the view outbox_backlog.
 *
 * Entries not claimed yet are ahead of the cursor, or committed after it passed
 * their id (their transaction is not in "seen"), or were locked when it passed.
 */
CREATE FUNCTION acme_outbox.backlog()
RETURNS TABLE (
	origin text, pending bigint, oldest_age interval, retry bigint, unroutable bigint,
	nacked bigint, key_held bigint, scheduled bigint, paused bigint, audit_only bigint,
	publishing bigint, failed bigint, next_due timestamptz, relay text, relay_active boolean,
	relay_seen_at timestamptz, lease_expires_at timestamptz, skipped integer,
	blocking_pid integer, blocking_age interval)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
SELECT o.origin,
	   u.entries + w.waiting AS pending,
	   clock_timestamp() - least(u.oldest, w.oldest, f.oldest) AS oldest_age,
	   w.retry, w.unroutable, w.nacked, w.key_held, w.scheduled, w.paused, w.audit_only,
	   f.publishing, d.failed, w.next_due,
	   o.relay, o.lease_alive AS relay_active, o.renewed_at AS relay_seen_at,
	   o.expires_at AS lease_expires_at,
	   cardinality(o.skipped) AS skipped,
	   b.pid AS blocking_pid, clock_timestamp() - b.since AS blocking_age
FROM acme_outbox.origin_position o
CROSS JOIN LATERAL (
	SELECT count(*) AS entries, min(r.created_at) AS oldest
	FROM (
		SELECT e.created_at
		FROM acme_outbox.outbox_entry e
		WHERE e.origin = o.origin
		  AND e.id > coalesce(o.last_id, -9223372036854775808)
		  AND e.status = 'PENDING' AND e.next_attempt_at IS NULL
		UNION ALL
		SELECT e.created_at
		FROM acme_outbox.outbox_entry e
		WHERE e.origin = o.origin
		  AND e.xid >= pg_snapshot_xmax(o.seen)
		  AND e.xid < pg_snapshot_xmax(pg_current_snapshot())
		  AND e.id <= o.last_id AND e.id <> ALL (o.skipped)
		  AND e.status = 'PENDING' AND e.next_attempt_at IS NULL
		UNION ALL
		SELECT e.created_at
		FROM acme_outbox.outbox_entry e
		WHERE e.origin = o.origin
		  AND e.xid = ANY (ARRAY(SELECT pg_snapshot_xip(o.seen)))
		  AND e.id <= o.last_id AND e.id <> ALL (o.skipped)
		  AND e.status = 'PENDING' AND e.next_attempt_at IS NULL
		UNION ALL
		SELECT e.created_at
		FROM acme_outbox.outbox_entry e
		WHERE e.origin = o.origin AND e.id = ANY (o.skipped)
		  AND e.id <= o.last_id
		  AND e.status = 'PENDING' AND e.next_attempt_at IS NULL) r) u
CROSS JOIN LATERAL (
	SELECT count(*) AS waiting,
		   count(*) FILTER (WHERE e.hold_reason = 'RETRY') AS retry,
		   count(*) FILTER (WHERE e.hold_reason = 'UNROUTABLE') AS unroutable,
		   count(*) FILTER (WHERE e.hold_reason = 'NACKED') AS nacked,
		   count(*) FILTER (WHERE e.hold_reason = 'KEY') AS key_held,
		   count(*) FILTER (WHERE e.hold_reason IN ('SCHEDULED', 'DUE')) AS scheduled,
		   count(*) FILTER (WHERE e.hold_reason = 'PAUSED') AS paused,
		   count(*) FILTER (WHERE e.lanes_done & 1 = 1) AS audit_only,
		   min(e.next_attempt_at) FILTER (WHERE e.next_attempt_at < 'infinity') AS next_due,
		   min(e.created_at) FILTER (WHERE e.hold_reason IS DISTINCT FROM 'SCHEDULED'
			   OR e.next_attempt_at <= clock_timestamp()) AS oldest
	FROM (
		SELECT r.*
		FROM acme_outbox.outbox_entry r
		WHERE r.origin = o.origin AND r.next_attempt_at IS NOT NULL
		  AND r.hold_reason IS DISTINCT FROM 'SCHEDULED'
		UNION ALL
		SELECT r.*
		FROM acme_outbox.outbox_entry r
		WHERE r.origin = o.origin AND r.hold_reason = 'SCHEDULED') e
	WHERE e.status = 'PENDING') w
CROSS JOIN LATERAL (
	SELECT coalesce(sum(cardinality(c.ids)), 0)::bigint AS publishing,
		   min(c.claimed_at) AS oldest
	FROM acme_outbox.outbox_claim c
	WHERE c.origin = o.origin) f
CROSS JOIN LATERAL (
	SELECT count(*) AS failed
	FROM acme_outbox.outbox_entry e
	WHERE e.origin = o.origin AND e.failed_at IS NOT NULL AND e.status = 'FAILED') d
LEFT JOIN LATERAL (
	SELECT w.pid, w.since
	FROM (
		SELECT a.pid, a.xact_start AS since
		FROM pg_stat_activity a
		WHERE a.datname = current_database() AND a.backend_xid IS NOT NULL
		  AND a.backend_type <> 'autovacuum worker' AND a.pid <> pg_backend_pid()
		UNION ALL
		SELECT NULL, p.prepared
		FROM pg_prepared_xacts p
		WHERE p.database = current_database()) w
	WHERE o.seen IS NOT NULL
	ORDER BY w.since
	LIMIT 1) b ON true
$$;
COMMENT ON FUNCTION acme_outbox.backlog() IS 'what the view outbox_backlog shows';

CREATE VIEW acme_outbox.outbox_backlog AS SELECT * FROM acme_outbox.backlog();

COMMENT ON VIEW acme_outbox.outbox_backlog IS
	'per origin: what is not delivered yet, who relays it, and what may hold it up';
COMMENT ON COLUMN acme_outbox.outbox_backlog.pending IS
	'entries not delivered and not in flight, waiting ones included';
COMMENT ON COLUMN acme_outbox.outbox_backlog.oldest_age IS
	'since the oldest of them was published; entries scheduled for later do not count';
COMMENT ON COLUMN acme_outbox.outbox_backlog.retry IS
	'wait after a refusal for their own fault';
COMMENT ON COLUMN acme_outbox.outbox_backlog.unroutable IS
	'wait for their exchange, a binding, or the right to write; see last_error in outbox_stuck';
COMMENT ON COLUMN acme_outbox.outbox_backlog.nacked IS
	'wait because the broker did not take them: a queue is full, or lost nodes';
COMMENT ON COLUMN acme_outbox.outbox_backlog.scheduled IS
	'wait for their not_before';
COMMENT ON COLUMN acme_outbox.outbox_backlog.paused IS
	'wait because their topic is paused; see outbox_pause';
COMMENT ON COLUMN acme_outbox.outbox_backlog.failed IS
	'given up; see outbox_failed';
COMMENT ON COLUMN acme_outbox.outbox_backlog.key_held IS
	'wait for an earlier entry of their key';
COMMENT ON COLUMN acme_outbox.outbox_backlog.audit_only IS
	'of those that wait: have arrived, and only their audit copy is missing';
COMMENT ON COLUMN acme_outbox.outbox_backlog.publishing IS
	'handed to a relay and not settled yet';
COMMENT ON COLUMN acme_outbox.outbox_backlog.next_due IS
	'when the next waiting entry is tried; in the past: now';
COMMENT ON COLUMN acme_outbox.outbox_backlog.relay_active IS
	'the relay''s lease has not expired; false: nobody sends these entries';
COMMENT ON COLUMN acme_outbox.outbox_backlog.skipped IS
	'entries that were locked by other sessions when a claim passed them';
COMMENT ON COLUMN acme_outbox.outbox_backlog.blocking_pid IS
	'session of the oldest open writing transaction, whose entries nobody can see yet; NULL with an age: a prepared transaction';

/*
 * stuck()
 *		For an operator at 3 a.m.: a row per entry that does not go on by itself, and
 *		one without an id per origin that nobody relays; see the view outbox_stuck.
 */
CREATE FUNCTION acme_outbox.stuck()
RETURNS TABLE (
	origin text, event_id uuid, id bigint, topic text, routing_key text,
	message_key text, status acme_outbox.entry_status,
	hold_reason acme_outbox.hold_reason, why text, since timestamptz,
	next_attempt_at timestamptz, attempts smallint, holds smallint, claimed_by text,
	last_error text, hint text)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
SET intervalstyle = 'postgres'
AS $$
WITH in_flight AS (
	SELECT e.*, c.claimed_by, c.claimed_at,
		   coalesce(l.epoch = c.epoch AND l.expires_at > clock_timestamp(), false) AS alive
	FROM acme_outbox.outbox_claim c
	LEFT JOIN acme_outbox.relay_lease l ON l.origin = c.origin
	CROSS JOIN LATERAL (
		SELECT r.*
		FROM acme_outbox.outbox_entry r
		WHERE r.origin = c.origin AND r.id = ANY (c.ids)
		OFFSET 0) e
	WHERE c.claimed_at <= clock_timestamp() - coalesce(
			nullif(current_setting('acme_outbox.reaper_warn_after', true), ''),
			'15min')::interval
	  AND e.status = 'PUBLISHING' AND e.claim_id = c.claim_id
), waiting AS (
	SELECT e.*
	FROM acme_outbox.origin_position o
	CROSS JOIN LATERAL (
		SELECT r.*
		FROM acme_outbox.outbox_entry r
		WHERE r.origin = o.origin AND r.next_attempt_at IS NOT NULL
		  AND r.hold_reason IS DISTINCT FROM 'SCHEDULED'
		UNION ALL
		SELECT r.*
		FROM acme_outbox.outbox_entry r
		WHERE r.origin = o.origin AND r.hold_reason = 'SCHEDULED'
		  AND r.next_attempt_at <= clock_timestamp() - interval '1 minute'
		OFFSET 0) e
	WHERE e.status = 'PENDING'
	  AND CASE WHEN e.hold_reason IN ('SCHEDULED', 'DUE')
			   THEN e.next_attempt_at <= clock_timestamp() - interval '1 minute'
			   ELSE e.attempts > 0 OR e.holds > 0
					OR e.created_at <= clock_timestamp() - interval '1 minute' END
), locked AS (
	SELECT e.*
	FROM acme_outbox.origin_position o
	CROSS JOIN LATERAL (
		SELECT r.*
		FROM acme_outbox.outbox_entry r
		WHERE r.origin = o.origin AND r.id = ANY (o.skipped)
		OFFSET 0) e
	WHERE e.status = 'PENDING' AND e.next_attempt_at IS NULL
), given_up AS (
	SELECT e.*
	FROM acme_outbox.origin_position o
	CROSS JOIN LATERAL (
		SELECT r.*
		FROM acme_outbox.outbox_entry r
		WHERE r.origin = o.origin AND r.failed_at IS NOT NULL
		OFFSET 0) e
	WHERE e.status = 'FAILED'
)
SELECT f.origin, f.event_id, f.id, f.topic, f.routing_key, f.message_key,
	   f.status, f.hold_reason,
	   CASE WHEN f.alive
			THEN 'In flight for ' || date_trunc('second', clock_timestamp() - f.claimed_at)
				 || '; its relay is alive and has not settled it.'
			ELSE 'In flight for ' || date_trunc('second', clock_timestamp() - f.claimed_at)
				 || '; its relay has lost the lease.' END AS why,
	   f.claimed_at AS since, f.next_attempt_at, f.attempts, f.holds, f.claimed_by,
	   f.last_error,
	   CASE WHEN f.alive THEN 'See the relay''s log; restart it.'
			WHEN current_setting('acme_outbox.stale_claim_policy', true) = 'strand'
			THEN 'Find out whether it arrived; the reaper will end it as FAILED.'
			ELSE 'Start a relay for the origin: it sends the entry again.' END AS hint
FROM in_flight f
UNION ALL
SELECT w.origin, w.event_id, w.id, w.topic, w.routing_key, w.message_key,
	   w.status, w.hold_reason,
	   CASE WHEN w.lanes_done & 1 = 1 THEN 'It has arrived, only its audit copy is missing.  ' ELSE '' END
	   || CASE w.hold_reason
			WHEN 'UNROUTABLE' THEN 'The exchange is missing, no queue is bound for the routing key, or the broker forbids it.'
			WHEN 'NACKED' THEN 'The broker would not take it; a queue may be full.'
			WHEN 'KEY' THEN 'An earlier entry of its key waits or is in flight.'
			WHEN 'SCHEDULED' THEN 'It was scheduled, is due, and was not claimed.'
			WHEN 'DUE' THEN 'It was scheduled, is due, and was not claimed.'
			WHEN 'PAUSED' THEN 'Its topic is paused.'
			ELSE CASE WHEN w.attempts > 0
				 THEN 'The broker refused it for its own fault.'
				 ELSE 'It was sent, the outcome is unknown, and it was not claimed again.' END
			END,
	   w.created_at, w.next_attempt_at, w.attempts, w.holds, NULL,
	   w.last_error,
	   CASE w.hold_reason
			WHEN 'UNROUTABLE' THEN 'See last_error; declare the exchange, bind a queue or grant write: it is then sent by itself, unless its topic is paused.'
			WHEN 'NACKED' THEN 'Look at the queues'' length limits and at the broker''s alarms.'
			WHEN 'KEY' THEN 'Of the same origin and message_key, look at the lowest id that is PENDING, PUBLISHING or FAILED in acme_outbox.outbox.'
			WHEN 'PAUSED' THEN 'SELECT acme_outbox.resume(origin, topic)'
			ELSE CASE WHEN w.attempts > 0
				 THEN 'See last_error; it is tried again at next_attempt_at until it is FAILED.'
				 ELSE 'See whether a relay is active in acme_outbox.outbox_backlog.' END
			END
FROM waiting w
UNION ALL
SELECT k.origin, k.event_id, k.id, k.topic, k.routing_key, k.message_key,
	   k.status, k.hold_reason,
	   'Another session holds its row locked.',
	   k.created_at, k.next_attempt_at, k.attempts, k.holds, NULL, k.last_error,
	   'Find that session in pg_stat_activity: it is likely idle in transaction.'
FROM locked k
UNION ALL
SELECT g.origin, g.event_id, g.id, g.topic, g.routing_key, g.message_key,
	   g.status, g.hold_reason,
	   CASE WHEN g.lanes_done & 1 = 1 THEN 'It has arrived; its audit copy was given up'
			ELSE 'It was given up' END || CASE WHEN g.attempts > 0
			THEN ' after ' || g.attempts || ' refusals for its own fault' ELSE '' END
	   || CASE WHEN g.next_attempt_at = 'infinity' THEN '; its key waits for it.' ELSE '.' END,
	   g.failed_at, g.next_attempt_at, g.attempts, g.holds, NULL, g.last_error,
	   'Mend the cause, see last_error; then SELECT acme_outbox.retry(event_id) or acme_outbox.retry_failed().'
FROM given_up g
UNION ALL
SELECT b.origin, NULL::uuid, NULL::bigint, NULL, NULL, NULL, 'PENDING', NULL,
	   'Unsent entries: ' || b.pending || ', and no relay is active'
	   || coalesce('; the last one, ' || b.relay || ', was seen '
				   || date_trunc('second', clock_timestamp() - b.relay_seen_at) || ' ago.', '.'),
	   clock_timestamp() - b.oldest_age, b.next_due, NULL, NULL, NULL, NULL,
	   'Start a relay for the origin; if it is a login''s name, acme_outbox.origin is not set for that role.'
FROM acme_outbox.backlog() b
WHERE b.pending > 0 AND NOT b.relay_active
UNION ALL
SELECT b.origin, NULL::uuid, NULL::bigint, NULL, NULL, NULL, 'PENDING', 'PAUSED',
	   'Unsent entries: ' || b.pending || ', and the origin was paused by ' || p.paused_by
	   || coalesce(': ' || p.why, '.'),
	   p.paused_at, b.next_due, NULL, NULL, NULL, NULL,
	   'SELECT acme_outbox.resume(origin)'
FROM acme_outbox.outbox_pause p
JOIN acme_outbox.backlog() b ON b.origin = p.origin
WHERE p.topic IS NULL AND b.pending > 0
$$;
COMMENT ON FUNCTION acme_outbox.stuck() IS 'what the view outbox_stuck shows';

CREATE VIEW acme_outbox.outbox_stuck AS SELECT * FROM acme_outbox.stuck();

COMMENT ON VIEW acme_outbox.outbox_stuck IS
	'what does not go on by itself, why, and what to do about it';
COMMENT ON COLUMN acme_outbox.outbox_stuck.id IS
	'NULL: the row speaks of the whole origin';
COMMENT ON COLUMN acme_outbox.outbox_stuck.since IS
	'claimed at, or published at for an entry that waits';

CREATE VIEW acme_outbox.outbox_failed AS
SELECT e.origin, e.id, e.event_id, e.entry_type, e.event_name, e.topic, e.routing_key,
	   e.message_key, e.tenant_id, e.trace_id, e.created_at, e.failed_at, e.attempts,
	   coalesce(e.next_attempt_at = 'infinity', false) AS blocks_key,
	   e.lanes_done & 1 = 1 AS audit_only, e.last_error
FROM acme_outbox.outbox_entry e
WHERE e.failed_at IS NOT NULL AND e.status = 'FAILED';

COMMENT ON VIEW acme_outbox.outbox_failed IS
	'entries that were given up; they stay until somebody deals with them';
COMMENT ON COLUMN acme_outbox.outbox_failed.blocks_key IS
	'later entries of its key wait for it (failed_key_policy = block)';
COMMENT ON COLUMN acme_outbox.outbox_failed.audit_only IS
	'the event has arrived, its audit copy has not: retry() sends no more than that';

/*
 * worker_status: this database's worker always, and those of other databases.
 */
CREATE VIEW acme_outbox.worker_status AS
SELECT d.datname AS database, s.pid,
	   coalesce(s.state, CASE WHEN acme_outbox.worker_preloaded()
							  THEN 'none' ELSE 'not preloaded' END) AS state,
	   s.started_at, s.last_wake_at, s.wakes, s.notifies, s.last_duty_at,
	   r.started_at AS last_reap_at, r.result AS last_reap_result,
	   p.started_at AS last_purge_at, p.result AS last_purge_result
FROM pg_database d
LEFT JOIN acme_outbox.worker_slots() s ON s.database_oid = d.oid
LEFT JOIN acme_outbox.duty_run r ON r.duty = 'reap' AND d.datname = current_database()
LEFT JOIN acme_outbox.duty_run p ON p.duty = 'purge' AND d.datname = current_database()
WHERE s.database_oid IS NOT NULL OR d.datname = current_database();

COMMENT ON VIEW acme_outbox.worker_status IS
	'workers of all databases; of this one also without a worker, and its duties';
COMMENT ON COLUMN acme_outbox.worker_status.state IS
	'starting, running, ended; none: preloaded, but no worker; not preloaded: shared_preload_libraries lacks acme_outbox';
COMMENT ON COLUMN acme_outbox.worker_status.wakes IS 'wake-ups answered since its start';
COMMENT ON COLUMN acme_outbox.worker_status.notifies IS
	'notifications sent; one per origin and wake-up';
COMMENT ON COLUMN acme_outbox.worker_status.last_reap_at IS
	'last run by anyone, worker or relay; -infinity: never';
