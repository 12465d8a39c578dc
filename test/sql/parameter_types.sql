-- Every call of an application resolves without casts from what drivers send: literals,
-- parameters without a type (node-postgres, psycopg's str), varchar (JDBC's setString), text,
-- json, jsonb, uuid; in a prepared statement and in a simple query; and does the same.
SET client_min_messages = warning;
SET acme_outbox.autocommit_publish = off;
\pset format unaligned
\pset tuples_only on
CREATE SCHEMA kinds;
CREATE TABLE kinds.deal (id int PRIMARY KEY, n int, last_event_at timestamptz, last_event_id uuid);
CREATE FUNCTION kinds.on_message(message jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF acme_outbox.message() ->> 'queue' <> 'q' THEN
		RAISE 'message() is another: %', acme_outbox.message();
	END IF;
END $$;
CREATE FUNCTION kinds.parks(message jsonb) RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM acme_outbox.park('INVALID_STATE', 'deal', '1'); END $$;

-- What a parameter may be.  Those of one kind in one call have one type.
CREATE TABLE kinds.kind (kind text, types text[]);
INSERT INTO kinds.kind VALUES
	('T', '{unknown,text,varchar}'),							-- names, keys, ids of the application's
	('J', '{unknown,text,varchar,json,jsonb}'),					-- JSON
	('B', '{unknown,text,varchar,json,jsonb,bytea}'),			-- a request's body
	('I', '{unknown,text,varchar,uuid}'),						-- an event's id
	('A', '{unknown,text,varchar,text[],varchar[],json[],jsonb[]}'),	-- envelopes
	('M', '{unknown,jsonb[]}'),									-- messages
	('O', '{unknown,jsonb}'),									-- optional JSON
	('U', '{unknown,uuid}'),									-- optional uuid
	('N', '{unknown,int2,int4}'),
	('W', '{unknown,timestamptz}'),
	('D', '{unknown,interval}');

-- A call, kinds of its parameters, their values, what comes out.
CREATE TABLE kinds.call (call text, kinds text[], val text[], result text);
INSERT INTO kinds.call VALUES
	('publish($1, $2, $3, $4, $5) IS NOT NULL', '{T,T,T,T,J}', ARRAY['e', 'k', '1', 'OrderPaid', '{}'], 'true'),
	('publish($1, $2, $3, $4, $5, headers => $6, event_id => $7, not_before => $8, traceparent => $9, tenant_id => $10) IS NOT NULL',
		'{T,T,T,T,J,O,U,W,T,T}', ARRAY['e', 'k', '1', 'OrderPaid', '{}', '{"a": 1}', '018f0000-0000-7000-8000-00000000aaaa', '2030-01-01', '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01', 't'], 'true'),
	('enqueue_job($1, $2, $3, $4) IS NOT NULL', '{T,T,T,J}', ARRAY['e', 'k', 'SendMail', '{}'], 'true'),
	('envelope($1, $2, $3)::jsonb #>> ''{body,payload,a}''', '{T,T,J}', ARRAY['1', 'OrderPaid', '{"a": 1}'], '1'),
	('context($1, $2, $3)', '{T,T,T}', ARRAY['t', '', 'es'], ''),
	('context($1, $2, $3, $4)', '{T,T,T,T}', ARRAY['t', '', 'es', 'order-17'], ''),
	('inbox_accept($1, $2)', '{T,I}', ARRAY['c', '018f0000-0000-7000-8000-00000000aaaa'], 'true'),
	('inbox_record($1, $2)', '{T,I}', ARRAY['c', '018f0000-0000-7000-8000-00000000aaaa'], ''),
	('inbox_attempt($1, $2)', '{T,I}', ARRAY['c', '018f0000-0000-7000-8000-00000000aaaa'], '(1,t)'),
	('inbox_attempt($1, $2, $3)', '{T,I,N}', ARRAY['c', '018f0000-0000-7000-8000-00000000aaaa', '1'], '(1,t)'),
	('inbox_process($1, $2, $3)', '{T,J,T}', ARRAY['c', '{"header": {"eventId": "e1"}}', 'kinds.parks'], 'parked'),
	('inbox_process($1, $2, $3, $4)', '{T,J,T,J}', ARRAY['c', '{"header": {"eventId": "e1"}}', 'kinds.on_message', '{"queue": "q"}'], 'applied'),
	('inbox_process($1, $2, $3, $4)', '{T,J,T,O}', ARRAY['c', '{"header": {"eventId": "e1"}}', 'kinds.on_message', '{"queue": "q"}'], 'applied'),
	('inbox_process($1, $2, $3, NULL)', '{T,J,T}', ARRAY['c', '{"header": {"eventId": "e1"}}', 'kinds.parks'], 'parked'),
	('inbox_try_process($1, $2, $3)', '{T,J,T}', ARRAY['c', '{"header": {"eventId": "e1"}}', 'kinds.parks'], '(parked,,,)'),
	('inbox_try_process($1, $2, $3, $4)', '{T,J,T,J}', ARRAY['c', '{"header": {"eventId": "e1"}}', 'kinds.on_message', '{"queue": "q"}'], '(applied,,,)'),
	('inbox_try_process($1, $2, $3, $4)', '{T,J,T,O}', ARRAY['c', '{"header": {"eventId": "e1"}}', 'kinds.on_message', '{"queue": "q"}'], '(applied,,,)'),
	('inbox_try_process_batch($1, $2, $3)', '{T,A,T}', ARRAY['c', '{"{\"header\": {\"eventId\": \"e1\"}}"}', 'kinds.parks'], '(1,parked,,,)'),
	('inbox_try_process_batch($1, $2, $3, $4)', '{T,A,T,M}', ARRAY['c', '{"{\"header\": {\"eventId\": \"e1\"}}"}', 'kinds.on_message', '{"{\"queue\": \"q\"}"}'], '(1,applied,,,)'),
	('inbox_try_process_batch($1, $2, $3, NULL)', '{T,A,T}', ARRAY['c', '{"{\"header\": {\"eventId\": \"e1\"}}"}', 'kinds.parks'], '(1,parked,,,)'),
	('park_message($1, $2, $3) IS NOT NULL', '{T,J,T}', ARRAY['c', '{"header": {"eventId": "e1"}}', 'INVALID_STATE'], 'true'),
	('park_message($1, $2, $3, $4, $5) IS NOT NULL', '{T,J,T,T,T}', ARRAY['c', '{"header": {"eventId": "e1"}}', 'INVALID_STATE', 'deal', '1'], 'true'),
	('park($1, $2, $3)', '{T,T,T}', ARRAY['INVALID_STATE', 'deal', '1'], 'OX205'),
	('idempotency_begin($1, $2, $3)::text ~ ''^\(execute''', '{T,T,B}', ARRAY['POST /x', 'k', '{}'], 'true'),
	('idempotency_begin($1, $2, $3, $4, $5, $6)::text ~ ''^\(execute''', '{T,T,B,D,D,T}', ARRAY['POST /x', 'k', '{}', '1 hour', '1 minute', 't'], 'true'),
	('idempotency_complete($1, $2, $3, $4)', '{T,T,N,J}', ARRAY['POST /x', 'begun', '201', '{}'], ''),
	('idempotency_complete($1, $2, $3)', '{T,T,N}', ARRAY['POST /x', 'begun', '201'], ''),
	('idempotency_complete($1, $2, $3, $4, execution => $5)', '{T,T,N,J,U}', ARRAY['POST /x', 'begun', '201', '{}', 'NULL'], ''),
	('idempotency_abandon($1, $2)', '{T,T}', ARRAY['POST /x', 'begun'], 'true'),
	('idempotency_abandon($1, $2, execution => $3)', '{T,T,U}', ARRAY['POST /x', 'begun', 'NULL'], 'true'),
	('project($1, $2, $3, $4)', '{T,J,J,W}', ARRAY['kinds.deal', '{"id": 1}', '{"n": 2}', '2026-01-01'], 'true'),
	('project($1, $2, $3, $4, $5)', '{T,J,J,W,I}', ARRAY['kinds.deal', '{"id": 1}', '{"n": 2}', '2026-01-01', '018f0000-0000-7000-8000-00000000aaaa'], 'true'),
	('project_delete($1, $2, $3)', '{T,J,W}', ARRAY['kinds.deal', '{"id": 1}', '2026-01-01'], 'true'),
	('project_delete($1, $2, $3, $4)', '{T,J,W,I}', ARRAY['kinds.deal', '{"id": 1}', '2026-01-01', '018f0000-0000-7000-8000-00000000aaaa'], 'true');

-- Runs a call, undoes it, returns its result or SQLSTATE.
CREATE FUNCTION kinds.outcome(call text, types text[], val text[]) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	result text;
	listed text := (SELECT string_agg(CASE v WHEN 'NULL' THEN v ELSE quote_literal(v) END, ', ' ORDER BY i) FROM unnest(val) WITH ORDINALITY AS u (v, i));
BEGIN
	BEGIN
		EXECUTE format('SELECT decision FROM acme_outbox.idempotency_begin(%L, %L, %L)', 'POST /x', 'begun', '');
		IF types IS NOT NULL THEN
			EXECUTE format('PREPARE kinds_call (%s) AS SELECT acme_outbox.%s', array_to_string(types, ', '), call);
			EXECUTE 'EXECUTE kinds_call (' || listed || ')' INTO result;
		ELSE
			EXECUTE 'SELECT acme_outbox.' || call INTO result;
		END IF;
		RAISE SQLSTATE 'UNDO0';
	EXCEPTION
		WHEN SQLSTATE 'UNDO0' THEN
			NULL;
		WHEN OTHERS THEN
			result := SQLSTATE;
	END;
	IF EXISTS (SELECT FROM pg_prepared_statements WHERE name = 'kinds_call') THEN
		DEALLOCATE kinds_call;
	END IF;
	RETURN result;
END $$;

-- The call with typed literals in place of its parameters, as a simple query has them.
CREATE FUNCTION kinds.as_literals(call text, types text[], val text[]) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN REVERSE cardinality(val) .. 1 LOOP
		call := replace(call, '$' || i, CASE WHEN val[i] = 'NULL' THEN 'NULL' ELSE quote_literal(val[i]) END
			|| CASE WHEN types[i] = 'unknown' THEN '' ELSE '::' || types[i] END);
	END LOOP;
	RETURN call;
END $$;

-- All combinations of types of the kinds in a call.
CREATE FUNCTION kinds.combinations(kinds text[]) RETURNS SETOF text[] LANGUAGE sql AS $$
	WITH RECURSIVE used AS (SELECT DISTINCT k.kind, k.types, dense_rank() OVER (ORDER BY k.kind) AS n FROM kinds.kind k WHERE k.kind = ANY (combinations.kinds)),
	chosen (n, pick) AS (
		SELECT 0::bigint, '{}'::jsonb
		UNION ALL
		SELECT u.n, c.pick || jsonb_build_object(u.kind, t) FROM chosen c JOIN used u ON u.n = c.n + 1, unnest(u.types) t)
	SELECT (SELECT array_agg(c.pick ->> k ORDER BY i) FROM unnest(combinations.kinds) WITH ORDINALITY AS o (k, i))
	FROM chosen c WHERE c.n = (SELECT max(n) FROM used)
$$;
CREATE TABLE kinds.tried AS
SELECT c.call, c.result AS expected, t.types,
	kinds.outcome(c.call, t.types, c.val) AS prepared,
	kinds.outcome(kinds.as_literals(c.call, t.types, c.val), NULL, NULL) AS simple
FROM kinds.call c, kinds.combinations(c.kinds) AS t (types);

\echo -- what does not resolve, or does something else: nothing
SELECT call, types, prepared, simple, expected FROM kinds.tried
	WHERE prepared IS DISTINCT FROM expected OR simple IS DISTINCT FROM expected ORDER BY 1, 2;
SELECT call, count(*) FROM kinds.tried GROUP BY call ORDER BY call;

\echo -- functions of an application that are not in the list: those without such parameters
SELECT DISTINCT p.proname FROM acme_outbox.privilege_matrix() m
	JOIN pg_proc p ON m.object = 'FUNCTION ' || p.oid::regprocedure
	WHERE m.kind IN ('publisher', 'consumer') AND NOT EXISTS (SELECT FROM kinds.call c WHERE c.call LIKE p.proname || '(%')
	ORDER BY 1;

\echo -- text that is no JSON is told apart, and not shown
SELECT t.error($$SELECT acme_outbox.inbox_process('c', '{"header": {"eventId": "e1"}}', 'kinds.on_message', '{secret')$$);
SELECT t.error($$SELECT acme_outbox.inbox_try_process_batch('c', '{"secret', 'kinds.on_message')$$);
SELECT t.error($$SELECT acme_outbox.inbox_try_process_batch('c', 'secret', 'kinds.on_message')$$);
SELECT t.error($$SELECT acme_outbox.idempotency_complete('POST /x', 'begun', 201, 'secret')$$);
SELECT t.error($$SELECT acme_outbox.idempotency_begin('POST /x', 'k', '"secret\u0000"'::json)$$);
SELECT t.error($$SELECT acme_outbox.project('kinds.deal', 'secret', '{}', now())$$);
SELECT t.error($$SELECT acme_outbox.project('kinds.deal', '{"id": 1}', '{"n": "secret}', now())$$);
SELECT t.error($$SELECT acme_outbox.project_delete('kinds.deal', 'secret', now())$$);
\echo -- the literal of an array is read as an array
SELECT ordinal, outcome, sqlstate FROM acme_outbox.inbox_try_process_batch('kinds', '{"{\"header\": {\"eventId\": \"a\"}}",NULL,"{\"header\": {\"eventId\": \"a\"}}"}', 'kinds.parks');
SELECT count(*) FROM acme_outbox.inbox_try_process_batch('kinds', '{}', 'kinds.parks');
SELECT t.sqlstate($$SELECT acme_outbox.inbox_try_process_batch('kinds', NULL, 'kinds.parks')$$);

DELETE FROM acme_outbox.processed_event WHERE consumer = 'kinds';
DELETE FROM acme_outbox.parked_message WHERE consumer = 'kinds';
DROP SCHEMA kinds CASCADE;
