/*
 * What operators call (docs/operations.md).  Each returns a count and leaves a row in
 * operator_action.
 */

/* Also the way for an administrator's own scripts to leave a trace. */
CREATE FUNCTION acme_outbox.record_action(action text, detail jsonb, affected bigint)
RETURNS bigint
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
	INSERT INTO acme_outbox.operator_action (action, detail, affected)
	VALUES (action, detail, affected) RETURNING affected
$$;
COMMENT ON FUNCTION acme_outbox.record_action(text, jsonb, bigint) IS
	'leave a row in operator_action; returns affected';

/*
 * retry(event_id) returns bigint
 *
 *	 Sends a FAILED or waiting entry again now, its attempts reset.
 *	 Result: 1, or 0 if there is no such entry or it neither failed nor waits.
 *	 Safe to repeat.  An entry held by its key is due, and still goes in its turn.
 */
CREATE FUNCTION acme_outbox.retry(event_id uuid) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
	WITH retried AS (
		UPDATE acme_outbox.outbox_entry e
		SET status = 'PENDING', next_attempt_at = clock_timestamp(), hold_reason = 'RETRY',
			attempts = 0, holds = 0, failed_at = NULL
		WHERE e.event_id = retry.event_id
		  AND (e.status = 'FAILED' OR (e.status = 'PENDING' AND e.next_attempt_at IS NOT NULL))
		RETURNING 1
	)
	SELECT acme_outbox.record_action('retry', jsonb_build_object('event_id', event_id),
									 (SELECT count(*) FROM retried))
$$;
COMMENT ON FUNCTION acme_outbox.retry(uuid) IS
	'send a failed or waiting entry again now; returns the number of entries changed';

/*
 * retry_failed(origin, topic, event_name, max_rows, dry_run) returns bigint
 *
 *	 Sends FAILED entries again, oldest failure first.  NULL filters match all.
 *	 max_rows  entries at most; dry_run  count only, change nothing
 *	 Safe to repeat.  Entries locked by someone are left out.
 */
CREATE FUNCTION acme_outbox.retry_failed(origin text DEFAULT NULL, topic text DEFAULT NULL,
	event_name text DEFAULT NULL, max_rows integer DEFAULT 1000, dry_run boolean DEFAULT false)
RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
	WITH failed AS (
		SELECT e.origin, e.id
		FROM acme_outbox.outbox_entry e
		WHERE e.failed_at IS NOT NULL AND e.status = 'FAILED'
		  AND (retry_failed.origin IS NULL OR e.origin = retry_failed.origin)
		  AND (retry_failed.topic IS NULL OR e.topic = retry_failed.topic)
		  AND (retry_failed.event_name IS NULL OR e.event_name = retry_failed.event_name)
		ORDER BY e.failed_at
		LIMIT max_rows
		FOR NO KEY UPDATE SKIP LOCKED
	), retried AS (
		UPDATE acme_outbox.outbox_entry e
		SET status = 'PENDING', next_attempt_at = clock_timestamp(), hold_reason = 'RETRY',
			attempts = 0, holds = 0, failed_at = NULL
		FROM failed f
		WHERE e.origin = f.origin AND e.id = f.id AND NOT dry_run
		RETURNING 1
	)
	SELECT CASE WHEN dry_run THEN (SELECT count(*) FROM failed)
		ELSE acme_outbox.record_action('retry_failed',
			jsonb_build_object('origin', origin, 'topic', topic, 'event_name', event_name,
							   'max_rows', max_rows),
			(SELECT count(*) FROM retried)) END
$$;
COMMENT ON FUNCTION acme_outbox.retry_failed(text, text, text, integer, boolean) IS
	'send failed entries again; returns their number';

/*
 * adopt() returns bigint
 *
 *	 Lets this database send the entries it holds.  Needed once in a restored dump,
 *	 a database made from a template, and after pg_upgrade: relay_acquire refuses
 *	 until then, so that a copy made for tests stays silent.  Forgets positions,
 *	 leases and claims of the source: the next relay starts with a recovery scan.
 *	 Result: entries that are not final.  Safe to repeat.
 */
CREATE FUNCTION acme_outbox.adopt() RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	unsent bigint;
BEGIN
	LOCK TABLE acme_outbox.installation, acme_outbox.outbox_cursor, acme_outbox.relay_lease,
		acme_outbox.outbox_claim IN SHARE ROW EXCLUSIVE MODE;
	DELETE FROM acme_outbox.outbox_cursor;
	DELETE FROM acme_outbox.relay_lease;
	DELETE FROM acme_outbox.outbox_claim;
	DELETE FROM acme_outbox.installation;
	INSERT INTO acme_outbox.installation (system_identifier, database_oid)
		SELECT s.system_identifier, d.oid
		FROM pg_control_system() s, pg_database d
		WHERE d.datname = current_database();
	SELECT count(*) INTO unsent FROM acme_outbox.outbox_entry
		WHERE status IN ('PENDING', 'PUBLISHING');
	RETURN acme_outbox.record_action('adopt', '{}', unsent);
END
$$;
COMMENT ON FUNCTION acme_outbox.adopt() IS
	'let this copied database send its entries; returns how many are unsent';

/*
 * verify() returns setof (origin, problem, entries, sample)
 *
 *	 Proves that no entry is lost from sight (invariant 4): a row per kind of problem
 *	 and origin, no rows when all is well.  Reads every unsent entry; safe at any time.
 *	 sample  up to ten ids
 */
CREATE FUNCTION acme_outbox.verify()
RETURNS TABLE (origin text, problem text, entries bigint, sample bigint[])
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
	WITH position AS (
		SELECT DISTINCT ON (c.origin) c.*
		FROM acme_outbox.outbox_cursor c ORDER BY c.origin, c.position DESC
	), open_entry AS (
		SELECT c.origin, u.id FROM acme_outbox.outbox_claim c, unnest(c.ids) AS u(id)
	), key_holder AS (
		-- what keeps a key's entries waiting; an untouched entry, those after it
		SELECT b.origin, b.message_key,
			coalesce(bool_or(b.status = 'PUBLISHING'
				OR (b.status = 'FAILED' AND b.next_attempt_at = 'infinity' AND b.failed_at IS NOT NULL)
				OR (b.status = 'PENDING' AND b.next_attempt_at < 'infinity'
					AND (b.hold_reason IS DISTINCT FROM 'SCHEDULED'
						 OR b.next_attempt_at <= clock_timestamp()))), false) AS all_wait,
			min(b.id) FILTER (WHERE b.status = 'PENDING' AND b.next_attempt_at IS NULL) AS untouched
		FROM acme_outbox.outbox_entry b
		WHERE b.status IN ('PENDING', 'PUBLISHING', 'FAILED') AND b.message_key IS NOT NULL
		  AND b.lanes_done & 1 = 0
		GROUP BY b.origin, b.message_key
	), found AS (
		SELECT e.origin, e.id,
			CASE
			WHEN e.status = 'PENDING' AND e.next_attempt_at IS NULL
				 AND e.id <= p.last_id AND e.id <> ALL (p.skipped)
				 AND (pg_visible_in_snapshot(e.xid, p.seen)
					  OR (e.id <= p.pass_id AND pg_visible_in_snapshot(e.xid, p.pass)))
			THEN 'PENDING, and the cursor has passed it'
			WHEN e.status = 'PENDING' AND e.next_attempt_at = 'infinity'
				 AND (e.hold_reason IS DISTINCT FROM 'KEY' OR e.message_key IS NULL)
			THEN 'waiting for ever, and not for its key'
			WHEN e.status = 'PENDING' AND e.hold_reason = 'KEY' AND e.next_attempt_at = 'infinity'
				 AND NOT (h.all_wait OR coalesce(h.untouched < e.id, false))
			THEN 'held by its key, which nothing else holds'
			WHEN e.status = 'PUBLISHING' AND NOT EXISTS (
					SELECT FROM open_entry o WHERE o.origin = e.origin AND o.id = e.id)
			THEN 'PUBLISHING without an open claim'
			END AS problem
		FROM acme_outbox.outbox_entry e
		LEFT JOIN position p ON p.origin = e.origin
		LEFT JOIN key_holder h ON h.origin = e.origin AND h.message_key = e.message_key
		WHERE e.status IN ('PENDING', 'PUBLISHING')
	)
	SELECT f.origin, f.problem, count(*), (array_agg(f.id ORDER BY f.id))[1:10]
	FROM found f WHERE f.problem IS NOT NULL
	GROUP BY f.origin, f.problem
	ORDER BY f.origin, f.problem
$$;
COMMENT ON FUNCTION acme_outbox.verify() IS
	'prove that no entry is lost from sight; no rows when all is well';
