-- Helpers of the tests that follow.  Entries are told apart by their routing key,
-- called label here; a test works in an origin of its own.
CREATE SCHEMA t;

-- what a statement fails with: SQLSTATE, message, detail, hint
CREATE FUNCTION t.error(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	message text; detail text; hint text;
BEGIN
	EXECUTE statement;
	RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
		hint = PG_EXCEPTION_HINT;
	RETURN concat_ws(' | ', SQLSTATE, message, nullif(detail, ''), nullif(hint, ''));
END $$;

CREATE FUNCTION t.sqlstate(statement text) RETURNS text LANGUAGE sql AS
$$ SELECT split_part(t.error(statement), ' | ', 1) $$;

-- publish an event of a key under a label; its id stays within the function
CREATE FUNCTION t.pub(key text, label text, topic text DEFAULT 'orders',
	not_before timestamptz DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM acme_outbox.publish(topic, label, key, 'OrderPlaced',
		jsonb_build_object('label', label), not_before => not_before);
END $$;

-- the epoch of the origin's lease, and taking it: true is active, false stand by
CREATE FUNCTION t.epoch(o text) RETURNS bigint LANGUAGE sql AS
$$ SELECT epoch FROM acme_outbox.relay_lease WHERE origin = o $$;

CREATE FUNCTION t.acquire(o text, relay text DEFAULT 'relay-1') RETURNS boolean LANGUAGE sql AS
$$ SELECT count(*) = 1 FROM acme_outbox.relay_acquire(o, relay) $$;

-- the labels claimed, in the order they came; - is none
CREATE FUNCTION t.claim(o text, max_rows integer DEFAULT 100,
	max_bytes bigint DEFAULT 8388608) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	row acme_outbox.claimed_entry;
	labels text[] := '{}';
BEGIN
	FOR row IN SELECT * FROM acme_outbox.claim(o, t.epoch(o), max_rows, max_bytes) LOOP
		labels := labels || row.routing_key;
	END LOOP;
	RETURN coalesce(nullif(array_to_string(labels, ' '), ''), '-');
END $$;

-- settle labels (separated by spaces; * is all that the current relay has in flight); what was not settled, or ok
CREATE FUNCTION t.settle(o text, labels text, outcome acme_outbox.settle_outcome,
	error text DEFAULT NULL, lanes integer DEFAULT NULL) RETURNS text LANGUAGE plpgsql SET client_min_messages = error AS $$
DECLARE
	batch record;
	difference record;
	report text[] := '{}';
BEGIN
	FOR batch IN
		SELECT c.claim_id, c.epoch, array_agg(e.id ORDER BY e.id) AS ids
		FROM acme_outbox.outbox_claim c, unnest(c.ids) AS i (id), acme_outbox.outbox_entry e
		WHERE c.origin = o AND c.epoch = t.epoch(o) AND e.origin = o AND e.id = i.id
		  AND (labels = '*' OR e.routing_key = ANY (string_to_array(labels, ' ')))
		GROUP BY c.claim_id, c.epoch ORDER BY min(e.id)
	LOOP
		FOR difference IN
			SELECT e.routing_key, s.*
			FROM acme_outbox.settle(batch.epoch, batch.claim_id, batch.ids,
				array_fill(outcome, ARRAY[cardinality(batch.ids)]),
				array_fill(lanes::smallint, ARRAY[cardinality(batch.ids)]),
				array_fill(error, ARRAY[cardinality(batch.ids)])) s
			LEFT JOIN acme_outbox.outbox_entry e ON e.origin = o AND e.id = s.id
			ORDER BY s.id
		LOOP
			report := report || format('%s: expected %s, found %s', difference.routing_key,
									   difference.expected, difference.found);
		END LOOP;
	END LOOP;
	RETURN coalesce(nullif(array_to_string(report, '; '), ''), 'ok');
END $$;

-- label, status, reason, and when it goes on: due, later, never
CREATE FUNCTION t.state(o text) RETURNS TABLE (label text, status acme_outbox.entry_status,
	hold_reason acme_outbox.hold_reason, attempts smallint, holds smallint, goes_on text)
LANGUAGE sql AS $$
	SELECT e.routing_key, e.status, e.hold_reason, e.attempts, e.holds,
		   CASE WHEN e.next_attempt_at = 'infinity' THEN 'never'
				WHEN e.next_attempt_at > clock_timestamp() THEN 'later'
				WHEN e.next_attempt_at IS NOT NULL THEN 'due' END
	FROM acme_outbox.outbox_entry e WHERE e.origin = o ORDER BY e.id
$$;

-- time passes: what waits for later is due now
CREATE FUNCTION t.make_due(o text, labels text DEFAULT '*') RETURNS void LANGUAGE sql AS $$
	UPDATE acme_outbox.outbox_entry SET next_attempt_at = clock_timestamp()
	WHERE origin = o AND next_attempt_at < 'infinity' AND status = 'PENDING'
	  AND (labels = '*' OR routing_key = ANY (string_to_array(labels, ' ')))
$$;

-- the relay process dies: its lease runs out
CREATE FUNCTION t.expire(o text) RETURNS void LANGUAGE sql AS
$$ UPDATE acme_outbox.relay_lease SET expires_at = clock_timestamp() WHERE origin = o $$;

CREATE FUNCTION t.verify(o text) RETURNS text LANGUAGE sql AS $$
	SELECT coalesce(string_agg(problem || ': ' || entries, '; '), 'clean')
	FROM acme_outbox.verify() WHERE origin = o
$$;

-- drain an origin: claim, confirm, until nothing comes; the order they went out in
CREATE FUNCTION t.drain(o text, max_rows integer DEFAULT 100) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	batch text;
	sent text[] := '{}';
BEGIN
	LOOP
		batch := t.claim(o, max_rows);
		EXIT WHEN batch = '-';
		sent := sent || batch;
		PERFORM t.settle(o, '*', 'PUBLISHED');
	END LOOP;
	RETURN coalesce(nullif(array_to_string(sent, ' '), ''), '-');
END $$;
