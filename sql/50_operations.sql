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
 * tell_unchanged(event_id) returns void
 *
 *	 For the calls below: a NOTICE for each entry of the id, what it is and what would
 *	 change it, or that there is none.
 */
CREATE FUNCTION acme_outbox.tell_unchanged(event_id uuid) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	entry record;
	found_any boolean := false;
BEGIN
	FOR entry IN
		SELECT e.origin, e.status, e.next_attempt_at IS NOT NULL AS waits, e.redacted
		FROM acme_outbox.outbox_entry e WHERE e.event_id = tell_unchanged.event_id
		ORDER BY e.origin
	LOOP
		found_any := true;
		RAISE NOTICE 'entry % of origin "%" is %', event_id, entry.origin,
			CASE WHEN entry.status <> 'PENDING' THEN entry.status::text
				WHEN entry.waits THEN 'PENDING, and waits' ELSE 'PENDING' END
			USING HINT = CASE
				WHEN entry.redacted THEN 'It was redacted; its service has to publish it again.'
				WHEN entry.status = 'FAILED' OR entry.waits AND entry.status = 'PENDING'
				THEN 'SELECT acme_outbox.retry(event_id) sends it now, cancel(event_id, why) never.'
				WHEN entry.status = 'PENDING'
				THEN 'It is sent in its turn; see relay_active in acme_outbox.outbox_backlog.'
				WHEN entry.status = 'PUBLISHING'
				THEN 'A relay is sending it; see acme_outbox.outbox_stuck if that takes long.'
				ELSE 'SELECT acme_outbox.republish(event_id) sends it again.' END;
	END LOOP;
	IF NOT found_any THEN
		RAISE NOTICE 'no entry has the event id %', event_id
			USING HINT = 'Published entries are deleted after acme_outbox.retention_published; what is unsent is in acme_outbox.outbox_stuck and outbox_failed.';
	END IF;
END
$$;
COMMENT ON FUNCTION acme_outbox.tell_unchanged(uuid) IS
	'a notice that says why an operator''s call changed nothing';

/*
 * tell_none_failed(origin, topic, event_name) returns void: the same for calls that look
 * for failed entries.
 */
CREATE FUNCTION acme_outbox.tell_none_failed(origin text, topic text, event_name text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	failed   bigint;
	matching bigint;
BEGIN
	SELECT count(*), count(*) FILTER (WHERE
		(tell_none_failed.origin IS NULL OR e.origin = tell_none_failed.origin)
		AND (tell_none_failed.topic IS NULL OR e.topic = tell_none_failed.topic)
		AND (tell_none_failed.event_name IS NULL OR e.event_name = tell_none_failed.event_name))
	INTO failed, matching
	FROM acme_outbox.outbox_failed e;
	IF matching > 0 THEN
		RAISE NOTICE 'failed entries that match: %, and other sessions hold them locked', matching
			USING HINT = 'Call it again when those sessions are done; see pg_locks.';
	ELSIF failed > 0 THEN
		RAISE NOTICE 'no failed entry matches; failed entries in all: %', failed
			USING HINT = 'SELECT origin, topic, event_name, count(*) FROM acme_outbox.outbox_failed GROUP BY 1, 2, 3';
	ELSE
		RAISE NOTICE 'no entry is FAILED'
			USING HINT = 'Entries that wait are in acme_outbox.outbox_stuck; retry(event_id) sends one of them now.';
	END IF;
END
$$;
COMMENT ON FUNCTION acme_outbox.tell_none_failed(text, text, text) IS
	'a notice that says why no failed entry was found';

/*
 * retry(event_id) returns bigint
 *
 *	 Sends a FAILED or waiting entry again now, its attempts reset.
 *	 Result: 1, or 0 if there is no such entry or it neither failed nor waits; a NOTICE
 *	 says which.
 *	 Safe to repeat.  An entry held by its key is due, and still goes in its turn.
 */
CREATE FUNCTION acme_outbox.retry(event_id uuid) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	retried bigint;
BEGIN
	UPDATE acme_outbox.outbox_entry e
	SET status = 'PENDING', next_attempt_at = clock_timestamp(), hold_reason = 'RETRY',
		attempts = 0, holds = 0, failed_at = NULL
	WHERE e.event_id = retry.event_id
	  AND (e.status = 'FAILED' OR (e.status = 'PENDING' AND e.next_attempt_at IS NOT NULL));
	GET DIAGNOSTICS retried = ROW_COUNT;
	IF retried = 0 THEN
		PERFORM acme_outbox.tell_unchanged(event_id);
	END IF;
	RETURN acme_outbox.record_action('retry', jsonb_build_object('event_id', event_id), retried);
END
$$;
COMMENT ON FUNCTION acme_outbox.retry(uuid) IS
	'send a failed or waiting entry again now; returns the number of entries changed';

/*
 * failed_entries(origin, topic, event_name, max_rows) returns setof (entry_origin, entry_id)
 *
 *	 FAILED entries, oldest failure first, locked; NULL filters match all, entries locked
 *	 by someone are left out.
 */
CREATE FUNCTION acme_outbox.failed_entries(origin text, topic text, event_name text, max_rows integer)
RETURNS TABLE (entry_origin text, entry_id bigint)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
	SELECT e.origin, e.id
	FROM acme_outbox.outbox_entry e
	WHERE e.failed_at IS NOT NULL AND e.status = 'FAILED'
	  AND (failed_entries.origin IS NULL OR e.origin = failed_entries.origin)
	  AND (failed_entries.topic IS NULL OR e.topic = failed_entries.topic)
	  AND (failed_entries.event_name IS NULL OR e.event_name = failed_entries.event_name)
	ORDER BY e.failed_at
	LIMIT acme_outbox.checked_max_rows(max_rows)
	FOR NO KEY UPDATE SKIP LOCKED
$$;
COMMENT ON FUNCTION acme_outbox.failed_entries(text, text, text, integer) IS
	'failed entries that match, locked';

/*
 * retry_failed(origin, topic, event_name, max_rows, dry_run) returns bigint
 *
 *	 Sends FAILED entries again, oldest failure first.  NULL filters match all.
 *	 max_rows  entries at most, NULL: all; dry_run  count only, change nothing; so does NULL
 *	 Result: their number; 0: a NOTICE says why.
 *	 Errors: 22023 max_rows below 1.  Safe to repeat.  Entries locked by someone are left out.
 */
CREATE FUNCTION acme_outbox.retry_failed(origin text DEFAULT NULL, topic text DEFAULT NULL,
	event_name text DEFAULT NULL, max_rows integer DEFAULT 1000, dry_run boolean DEFAULT false)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	retried bigint;
BEGIN
	IF dry_run IS NOT FALSE THEN
		SELECT count(*) INTO retried
			FROM acme_outbox.failed_entries(origin, topic, event_name, max_rows);
	ELSE
		UPDATE acme_outbox.outbox_entry e
		SET status = 'PENDING', next_attempt_at = clock_timestamp(), hold_reason = 'RETRY',
			attempts = 0, holds = 0, failed_at = NULL
		FROM acme_outbox.failed_entries(retry_failed.origin, retry_failed.topic,
										retry_failed.event_name, max_rows) f
		WHERE e.origin = f.entry_origin AND e.id = f.entry_id;
		GET DIAGNOSTICS retried = ROW_COUNT;
	END IF;
	IF retried = 0 THEN
		PERFORM acme_outbox.tell_none_failed(origin, topic, event_name);
	END IF;
	IF dry_run IS NOT FALSE THEN
		RETURN retried;
	END IF;
	RETURN acme_outbox.record_action('retry_failed',
		jsonb_build_object('origin', origin, 'topic', topic, 'event_name', event_name,
						   'max_rows', max_rows), retried);
END
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
 *	 and origin, no rows when all is well.  Reads every entry, once; safe at any time.
 *	 sample  up to ten ids
 */
CREATE FUNCTION acme_outbox.verify()
RETURNS TABLE (origin text, problem text, entries bigint, sample bigint[])
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_nestloop = off SET enable_mergejoin = off SET jit = off
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
				OR (b.status = 'PENDING' AND b.hold_reason = 'PAUSED')
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
				 AND NOT (e.hold_reason = 'PAUSED' AND EXISTS (
					SELECT FROM acme_outbox.outbox_pause u
					WHERE u.origin = e.origin AND u.topic = e.topic))
			THEN 'waiting for ever, and neither for its key nor paused'
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
