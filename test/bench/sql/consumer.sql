/*
 * The consumer's side: messages to handle, tables to project into, and the same work written by
 * hand, as functions too, so that neither has more round trips.
 */
CREATE TABLE bench.message (n integer PRIMARY KEY, envelope text NOT NULL);

/* An order's event, some 700 bytes. */
CREATE FUNCTION bench.fill_messages(messages integer) RETURNS void LANGUAGE sql AS $$
	INSERT INTO bench.message
	SELECT n, acme_outbox.envelope('order-' || n % 10000, 'OrderPlaced', bench.payload(n))
	FROM generate_series(1, messages) AS n
$$;

CREATE FUNCTION bench.envelopes(first integer, last integer) RETURNS text[] LANGUAGE sql STABLE AS $$
	SELECT array_agg(envelope ORDER BY n) FROM bench.message WHERE n BETWEEN first AND last
$$;

CREATE TABLE bench.item (id integer PRIMARY KEY, messages integer NOT NULL)
	WITH (fillfactor = 50);
INSERT INTO bench.item SELECT n, 0 FROM generate_series(0, 9999) AS n;

CREATE FUNCTION bench.upsert(message jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO bench.item AS i VALUES ((message #>> '{body,payload,order}')::integer % 10000, 1)
		ON CONFLICT (id) DO UPDATE SET messages = i.messages + 1;
END
$$;

CREATE TABLE bench.processed (consumer text, event_id text,
	processed_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (consumer, event_id));
CREATE INDEX ON bench.processed (processed_at);

CREATE FUNCTION bench.handle_by_hand(envelopes text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	envelope text;
	message  jsonb;
BEGIN
	FOREACH envelope IN ARRAY envelopes LOOP
		message := envelope;
		INSERT INTO bench.processed VALUES ('bench', message #>> '{header,eventId}')
			ON CONFLICT DO NOTHING;
		IF FOUND THEN
			PERFORM bench.upsert(message);
		END IF;
	END LOOP;
END
$$;

CREATE TABLE bench.deal (id bigint PRIMARY KEY, customer text, amount numeric, state text,
	last_event_at timestamptz, last_event_id uuid) WITH (fillfactor = 50);
INSERT INTO bench.deal SELECT n, 'customer', 1, 'DRAFT', '2026-01-01' FROM generate_series(1, 10000) AS n;

CREATE TABLE bench.key (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), tenant_id text NOT NULL,
	endpoint text NOT NULL, key text NOT NULL, payload_hash text NOT NULL, stored_response jsonb,
	completed_at timestamptz, expires_at timestamptz, created_at timestamptz,
	UNIQUE (tenant_id, endpoint, key)) WITH (fillfactor = 70);
CREATE INDEX ON bench.key (expires_at);

CREATE FUNCTION bench.fill_keys(keys integer) RETURNS void LANGUAGE sql AS $$
	SELECT count(*) FROM generate_series(1, keys) AS n,
		LATERAL acme_outbox.idempotency_begin('GET /old', 'key-' || n, 'request');
	INSERT INTO bench.key (tenant_id, endpoint, key, payload_hash, created_at, expires_at)
	SELECT '', 'GET /old', 'key-' || n, encode(sha256('request'), 'hex'), now(), now() + interval '1 day'
	FROM generate_series(1, keys) AS n;
$$;

CREATE PROCEDURE bench.make_targets(tables integer) LANGUAGE plpgsql AS $$
BEGIN
	FOR n IN 1 .. tables LOOP
		EXECUTE format('CREATE TABLE bench.target_%s (LIKE bench.deal INCLUDING ALL)', n);
	END LOOP;
END
$$;

VACUUM ANALYZE bench.item, bench.deal;
