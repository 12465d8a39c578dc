/*
 * More of what operators call: keep from being sent, hold up, send again, close.
 */

/*
 * cancel(event_id, why) returns bigint
 *
 *	 An entry that is PENDING or FAILED is not sent any more: it becomes ARCHIVED, with
 *	 the reason, and its key goes on.
 *	 why  for those who ask later; not empty
 *	 Result: 1, or 0 if there is no such entry, or it is with a relay or was sent; a
 *	 NOTICE says which.
 *	 Errors: OX009 why is missing.  Safe to repeat.
 */
CREATE FUNCTION acme_outbox.cancel(event_id uuid, why text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	cancelled bigint;
BEGIN
	IF coalesce(why, '') = '' THEN
		RAISE EXCEPTION 'why is %', CASE WHEN why IS NULL THEN 'null' ELSE 'empty' END
			USING ERRCODE = 'OX009', HINT = 'Say why the event shall not be sent: it is kept with it.';
	END IF;
	UPDATE acme_outbox.outbox_entry e
	SET status = 'ARCHIVED', next_attempt_at = NULL, hold_reason = NULL, failed_at = NULL,
		last_error = left('cancelled: ' || why, 1000)
	WHERE e.event_id = cancel.event_id AND e.status IN ('PENDING', 'FAILED');
	GET DIAGNOSTICS cancelled = ROW_COUNT;
	IF cancelled = 0 THEN
		PERFORM acme_outbox.tell_unchanged(event_id);
	END IF;
	RETURN acme_outbox.record_action('cancel',
		jsonb_build_object('event_id', event_id, 'why', why), cancelled);
END
$$;
COMMENT ON FUNCTION acme_outbox.cancel(uuid, text) IS
	'have an unsent event never be sent; returns the number of entries changed';

/*
 * pause(origin, topic, why) returns bigint
 *
 *	 Nothing of the origin, or of one topic of it, is sent until resume().  Publishing
 *	 goes on.  What a relay has in flight is finished.  Entries of a paused topic hold
 *	 back later ones of their key; other keys and topics go on.
 *	 topic  NULL: all
 *	 Result: 1; a NOTICE if nothing was published by that origin so far.
 *	 Errors: OX009 origin is missing.  Safe to repeat.
 */
CREATE FUNCTION acme_outbox.pause(origin text, topic text DEFAULT NULL, why text DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF coalesce(origin, '') = '' OR topic = '' THEN
		RAISE EXCEPTION '% is %', CASE WHEN topic = '' THEN 'topic' ELSE 'origin' END,
				CASE WHEN origin IS NULL THEN 'null' ELSE 'empty' END
			USING ERRCODE = 'OX009',
				  HINT = 'SELECT origin, pending FROM acme_outbox.outbox_backlog; a topic of NULL is all of them.';
	END IF;
	INSERT INTO acme_outbox.outbox_pause AS p (origin, topic, why)
		VALUES (pause.origin, pause.topic, pause.why)
		ON CONFLICT ON CONSTRAINT outbox_pause_key DO UPDATE SET paused_at = excluded.paused_at,
			paused_by = excluded.paused_by, why = excluded.why, resumed = false;
	IF NOT EXISTS (SELECT FROM acme_outbox.origin_position p WHERE p.origin = pause.origin) THEN
		RAISE NOTICE 'nothing was published by origin "%" so far', origin
			USING HINT = 'It is paused all the same; if the name is wrong: SELECT acme_outbox.resume(origin, topic)';
	END IF;
	RETURN acme_outbox.record_action('pause',
		jsonb_build_object('origin', origin, 'topic', topic, 'why', why), 1);
END
$$;
COMMENT ON FUNCTION acme_outbox.pause(text, text, text) IS
	'send nothing of an origin or topic until resume()';

/*
 * resume(origin, topic) returns bigint
 *
 *	 Ends a pause; the next claims send what it held up, in order.
 *	 topic  NULL: all that is paused of the origin
 *	 Result: pauses ended; 0: a NOTICE says what is paused.
 *	 Safe to repeat.
 */
CREATE FUNCTION acme_outbox.resume(origin text, topic text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	whole  bigint := 0;
	topics bigint;
BEGIN
	IF topic IS NULL THEN
		DELETE FROM acme_outbox.outbox_pause p WHERE p.origin = resume.origin AND p.topic IS NULL;
		GET DIAGNOSTICS whole = ROW_COUNT;
	END IF;
	UPDATE acme_outbox.outbox_pause p SET resumed = true
		WHERE p.origin = resume.origin AND NOT p.resumed
		  AND (p.topic = resume.topic OR resume.topic IS NULL AND p.topic IS NOT NULL);
	GET DIAGNOSTICS topics = ROW_COUNT;
	IF whole + topics = 0 THEN
		RAISE NOTICE 'nothing of that is paused: origin "%"%', origin, coalesce(', topic "' || topic || '"', '')
			USING HINT = coalesce('Paused are: ' || (
				SELECT string_agg(p.origin || coalesce(', topic ' || p.topic, ''), '; ' ORDER BY p.origin, p.topic)
				FROM acme_outbox.outbox_pause p WHERE NOT p.resumed), 'Nothing is paused at all.');
	ELSE
		PERFORM pg_notify('acme_outbox', origin);
	END IF;
	RETURN acme_outbox.record_action('resume',
		jsonb_build_object('origin', origin, 'topic', topic), whole + topics);
END
$$;
COMMENT ON FUNCTION acme_outbox.resume(text, text) IS
	'end a pause; returns the number of pauses ended';

/*
 * republish(event_id, origin, topic, event_name, since, until, max_rows, dry_run)
 *		returns bigint
 *
 *	 Sends PUBLISHED or ARCHIVED entries again, under their event ids, oldest first: for
 *	 consumers that lost them or did not exist yet.  Those that deduplicate ignore what
 *	 they have.  Within a key they keep their order, and what is published later waits for
 *	 them.
 *	 Filters: NULL matches all, one at least is given; since, until  when it was created
 *	 max_rows  entries at most, NULL: all; dry_run  count only, change nothing; so does NULL
 *	 Result: their number; 0 or some left out because they were redacted: a NOTICE.
 *	 Errors: OX009 no filter; 22023 max_rows below 1; OX107 that event_id was redacted.
 *	 Repeating it sends once more.  Entries locked by someone are left out.
 */
CREATE FUNCTION acme_outbox.republish(event_id uuid DEFAULT NULL, origin text DEFAULT NULL,
	topic text DEFAULT NULL, event_name text DEFAULT NULL, since timestamptz DEFAULT NULL,
	until timestamptz DEFAULT NULL, max_rows integer DEFAULT 1000, dry_run boolean DEFAULT false)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	chosen   record;
	affected bigint;
BEGIN
	IF num_nonnulls(event_id, origin, topic, event_name, since, until) = 0 THEN
		RAISE EXCEPTION 'republish needs a filter'
			USING ERRCODE = 'OX009',
				  HINT = 'For example: SELECT acme_outbox.republish(origin => ''shop'', since => now() - interval ''1 hour'', dry_run => true)';
	END IF;
	WITH matching AS (
		SELECT e.origin, e.id, e.redacted
		FROM acme_outbox.outbox_entry e
		WHERE e.status IN ('PUBLISHED', 'ARCHIVED')
		  AND (republish.event_id IS NULL OR e.event_id = republish.event_id)
		  AND (republish.origin IS NULL OR e.origin = republish.origin)
		  AND (republish.topic IS NULL OR e.topic = republish.topic)
		  AND (republish.event_name IS NULL OR e.event_name = republish.event_name)
		  AND (since IS NULL OR e.created_at >= since)
		  AND (until IS NULL OR e.created_at < until)
		ORDER BY e.origin, e.id
		LIMIT acme_outbox.checked_max_rows(max_rows)
		FOR NO KEY UPDATE SKIP LOCKED
	), sent AS (
		UPDATE acme_outbox.outbox_entry e
		SET status = 'PENDING', next_attempt_at = clock_timestamp(), hold_reason = 'RETRY',
			attempts = 0, holds = 0, failed_at = NULL, published_at = NULL, lanes_done = 0,
			claim_id = NULL
		FROM matching m
		WHERE e.origin = m.origin AND e.id = m.id AND NOT m.redacted AND NOT dry_run
		RETURNING 1
	)
	SELECT (SELECT count(*) FROM sent) AS sent,
		   (SELECT count(*) FROM matching WHERE NOT redacted) AS whole,
		   (SELECT count(*) FROM matching WHERE redacted) AS redacted
	INTO chosen;
	affected := CASE WHEN dry_run IS NOT FALSE THEN chosen.whole ELSE chosen.sent END;
	IF chosen.redacted > 0 AND event_id IS NOT NULL AND affected = 0 THEN
		RAISE EXCEPTION 'event % was redacted and cannot be sent again', event_id
			USING ERRCODE = 'OX107',
				  DETAIL = 'What its redaction rule names was removed when it was published.',
				  HINT = 'Have its service publish it again.';
	ELSIF chosen.redacted > 0 THEN
		RAISE NOTICE 'left out because they were redacted: %', chosen.redacted
			USING HINT = 'Have their services publish them again.';
	ELSIF affected = 0 AND event_id IS NOT NULL THEN
		PERFORM acme_outbox.tell_unchanged(event_id);
	ELSIF affected = 0 THEN
		RAISE NOTICE 'no published or archived entry matches'
			USING HINT = 'Published entries are deleted after acme_outbox.retention_published.';
	END IF;
	IF dry_run IS NOT FALSE THEN
		RETURN affected;
	END IF;
	RETURN acme_outbox.record_action('republish',
		jsonb_build_object('event_id', event_id, 'origin', origin, 'topic', topic,
			'event_name', event_name, 'since', since, 'until', until, 'max_rows', max_rows), affected);
END
$$;
COMMENT ON FUNCTION acme_outbox.republish(uuid, text, text, text, timestamptz, timestamptz, integer, boolean) IS
	'send published entries again under their event ids; returns their number';

/*
 * archive(origin, topic, event_name, max_rows, dry_run) returns bigint
 *
 *	 Closes FAILED entries, oldest failure first: they are not sent, and no dead letter of
 *	 them either.  NULL filters match all.
 *	 max_rows  entries at most, NULL: all; dry_run  count only, change nothing; so does NULL
 *	 Result: their number; 0: a NOTICE says why.
 *	 Errors: 22023 max_rows below 1.  Safe to repeat.  Entries locked by someone are left out.
 */
CREATE FUNCTION acme_outbox.archive(origin text DEFAULT NULL, topic text DEFAULT NULL,
	event_name text DEFAULT NULL, max_rows integer DEFAULT 1000, dry_run boolean DEFAULT false)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	archived bigint;
BEGIN
	IF dry_run IS NOT FALSE THEN
		SELECT count(*) INTO archived
			FROM acme_outbox.failed_entries(origin, topic, event_name, max_rows);
	ELSE
		UPDATE acme_outbox.outbox_entry e
		SET status = 'ARCHIVED', next_attempt_at = NULL, hold_reason = NULL, failed_at = NULL
		FROM acme_outbox.failed_entries(archive.origin, archive.topic, archive.event_name, max_rows) f
		WHERE e.origin = f.entry_origin AND e.id = f.entry_id;
		GET DIAGNOSTICS archived = ROW_COUNT;
	END IF;
	IF archived = 0 THEN
		PERFORM acme_outbox.tell_none_failed(origin, topic, event_name);
	END IF;
	IF dry_run IS NOT FALSE THEN
		RETURN archived;
	END IF;
	RETURN acme_outbox.record_action('archive',
		jsonb_build_object('origin', origin, 'topic', topic, 'event_name', event_name,
						   'max_rows', max_rows), archived);
END
$$;
COMMENT ON FUNCTION acme_outbox.archive(text, text, text, integer, boolean) IS
	'close failed entries without sending them; returns their number';
