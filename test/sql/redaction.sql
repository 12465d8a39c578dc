-- What a redaction rule names reaches those who need it, and nobody else: not the audit
-- lane, not a dead letter, not the entry once it is over.
SET client_min_messages = warning;
SET acme_outbox.autocommit_publish = off;
SET acme_outbox.origin = 'redact';
\pset format unaligned
\pset tuples_only on
SELECT t.acquire('redact');
-- a payload after the rules of an event, which are taken away again
CREATE FUNCTION t.cut(payload text, VARIADIC paths text[]) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	sent text := acme_outbox.envelope('A', 'Ruled', payload);
	kept text;
BEGIN
	PERFORM acme_outbox.redact_event('Ruled', VARIADIC paths);
	kept := acme_outbox.redacted('Ruled', sent);
	PERFORM acme_outbox.unredact_event('Ruled', VARIADIC paths);
	PERFORM kept::json;
	IF left(kept, strpos(sent, '"eventType"')) <> left(sent, strpos(sent, '"eventType"')) THEN
		RETURN 'header changed';
	END IF;
	RETURN regexp_replace(kept, '^.*"eventType":"EVENT"', '');
END $$;

\echo first, last, middle, all; nested; what is not there
SELECT t.cut('{"token":"s","a":1,"b":2}', 'payload.token');
SELECT t.cut('{"a":1,"b":2,"token":"s"}', 'payload.token');
SELECT t.cut('{"a":1,"token":"s","b":2}', 'payload.token');
SELECT t.cut('{"token":"s","secret":"s","a":1,"pin":2,"b":2}', 'payload.token', 'payload.secret', 'payload.pin');
SELECT t.cut('{"token":{"s":[1,{"x":"}"}]}}', 'payload.token');
SELECT t.cut('{"user":{"token":"s","name":"n"},"token":"kept"}', 'payload.user.token');
SELECT t.cut('{"a":1}', 'payload.token', 'payload.a.b', 'payload.a.0', 'payload.x.y.z');
SELECT t.cut('"a string"', 'payload.token'), t.cut('null', 'payload.token'), t.cut('[]', 'payload.0'), t.cut('{}', 'payload.*');
SELECT t.cut('{"a":1}', 'payload');
\echo all else keeps its bytes: order, duplicate keys, numbers, space, escapes
SELECT t.cut(E'{ "z" : 1.0e+2 ,\n "token" :  "s" , "a":"\\u00e9\\/", "z":-0.10 }', 'payload.token');
SELECT t.cut(E'[ 1 ,\t2\n, 3 ]', 'payload.0'), t.cut('[ 1 , 2 , 3 ]', 'payload.1'), t.cut('[ 1 , 2 , 3 ]', 'payload.2');
\echo every one of a duplicate key goes
SELECT t.cut('{"token":1,"a":{"token":2},"token":{"token":3},"token":4}', 'payload.token');
\echo arrays: by index, all, the members of each; indexes are those of the message
SELECT t.cut('{"a":[0,1,2,3]}', 'payload.a.0', 'payload.a.2'), t.cut('{"a":[0,1]}', 'payload.a.*'), t.cut('{"a":[0,1]}', 'payload.a.9');
SELECT t.cut('{"cards":[{"number":"1","n":1},{"number":"2"},7,[{"number":"kept"}]]}', 'payload.cards.*.number');
SELECT t.cut('[{"t":1},{"t":2}]', 'payload.1.t'), t.cut('[{"t":1},[{"t":2,"u":3}]]', 'payload.*.*.t');
-- * is also any member, a number also a member of that name; quoted they are but names
SELECT t.cut('{"by":{"ann":{"t":1,"u":1},"bob":{"t":2}}}', 'payload.by.*.t'), t.cut('{"a":{"0":1,"1":2}}', 'payload.a.0');
SELECT t.cut('{"a":{"*":1,"b":2}}', 'payload.a."*"'), t.cut('{"a":[5,6]}', 'payload.a."0"'), t.cut('{"a":{"0":5,"00":6}}', 'payload.a."0"');
\echo names: escaped, outside the letters, with dots, quotes and nothing in them
SELECT t.cut('{"t\u006fken":1,"\u0074\u006F\u006b\u0065\u006E":2,"a":3}', 'payload.token');
SELECT t.cut('{"clé":1,"cl\u00e9":2,"cle":3}', 'payload.clé'), t.cut('{"\ud83d\udd11":1,"🔑":2,"a":3}', 'payload.🔑');
SELECT t.cut('{"a.b":1,"a":{"b":2}}', 'payload."a.b"'), t.cut('{"a\"b":1,"c":2}', 'payload."a""b"'), t.cut('{"":1,"c":2}', 'payload.""');
SELECT t.cut('{"a\/b\\c\t":1,"c":2}', E'payload."a/b\\c\t"');
-- what no text can hold is no name, and no error: it could be published
SELECT t.cut('{"\u0000":1,"tok\u0000en":2,"\ud800":3,"\ud800\u0041":4,"token":5}', 'payload.token');
\echo a path that goes deeper and one that takes the whole
SELECT t.cut('{"a":{"b":1,"c":2},"d":3}', 'payload.a.b', 'payload.a');
\echo deeper than a stack, a megabyte wide
SELECT t.cut(repeat('[', 3000) || repeat(']', 3000), 'payload.*.token') = ',"payload":' || repeat('[', 3000) || repeat(']', 3000) || '}}';
SELECT acme_outbox.redact_event('Ruled', 'payload.rows.*.token');
SELECT acme_outbox.redacted('Ruled', '{"body":{"payload":{"deep":' || repeat('[', 500000) || repeat(']', 500000) || ',"rows":[{"token":1}]}}}') LIKE '%]],"rows":[{}]}}}';
WITH wide AS (SELECT string_agg('{"id":' || n || ',"token":"s3cret"}', ',') AS v FROM generate_series(1, 40000) n)
SELECT octet_length(v) > 900000 AS large, acme_outbox.redacted('Ruled', '{"body":{"payload":{"rows":[' || v || ']}}}')
	= '{"body":{"payload":{"rows":[' || replace(v, ',"token":"s3cret"', '') || ']}}}' AS exact FROM wide;
\echo text that is not JSON, which only a change by hand leaves, is not let through
SELECT acme_outbox.redacted('Ruled', e) FROM unnest(ARRAY['s3cret', '', '{', '{"body":{"payload":{"rows":[{"token":"s3cret', '{"body" "s3cret"}', '{"body":{}} s3cret', '{"body":{"payload":{"rows":[1 2]}}}', '{"body":{"payload":{"rows":[{"x":}]}}}', '{"body":"\']) e;
SELECT acme_outbox.unredact_event('Ruled', 'payload.rows.*.token');

\echo against jsonb: random documents, keys a to d, cut alike
CREATE FUNCTION t.random_json(depth int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	parts text[] := '{}';
	kind float := random();
BEGIN
	IF depth = 0 OR kind < 0.2 THEN
		RETURN (ARRAY['1', '"x"', 'null', 'true', '{}', '[]', '"a\"]}"'])[1 + floor(random() * 7)];
	END IF;
	FOR i IN 1 .. floor(random() * 4) LOOP
		parts := parts || (CASE WHEN kind < 0.7 THEN '"' || chr(97 + floor(random() * 4)::int) || '" : ' ELSE '' END || t.random_json(depth - 1));
	END LOOP;
	RETURN CASE WHEN kind < 0.7 THEN '{ ' || array_to_string(parts, ' , ') || '}' ELSE '[' || array_to_string(parts, ',') || ' ]' END;
END $$;
SELECT setseed(0.5) IS NOT NULL;
SELECT acme_outbox.redact_event('Ruled', 'payload.a', 'payload.b.c', 'payload.c.a.b');
SELECT count(*) AS tried, count(*) FILTER (WHERE got <> wanted) AS different, count(*) FILTER (WHERE wanted <> d::jsonb) > 100 AS something_was_cut
FROM (SELECT d, acme_outbox.redacted('Ruled', '{"body":{"payload":' || d || '}}')::jsonb #> '{body,payload}' AS got,
	CASE WHEN jsonb_typeof(d::jsonb) = 'array' THEN d::jsonb ELSE (d::jsonb - 'a')
		#- CASE WHEN jsonb_typeof(d::jsonb #> '{b}') = 'object' THEN '{b,c}' ELSE '{none}' END::text[]
		#- CASE WHEN jsonb_typeof(d::jsonb #> '{c,a}') = 'object' THEN '{c,a,b}' ELSE '{none}' END::text[] END AS wanted
	FROM (SELECT t.random_json(4) AS d FROM generate_series(1, 2000)) r WHERE jsonb_typeof(d::jsonb) IN ('object', 'array')) x;
SELECT acme_outbox.unredact_event('Ruled', 'payload.a', 'payload.b.c', 'payload.c.a.b');
DROP FUNCTION t.random_json;

\echo rules: validated whoever writes them, counted, recorded
SELECT p, t.error(format('SELECT acme_outbox.redact_event(%L, %L)', 'Ruled', p)) FROM unnest(ARRAY['', '.', 'payload.', 'payload..a', 'token', 'body.payload.token', '*', '$.payload',
	'payload.a[0]', 'payload.a b', 'payload."a', 'payload."a"b', 'payload' || repeat('.a', 32), 'payload.' || repeat('x', 1000)]) p \g | sed 's/xxxxx*/xxx/'
SELECT t.error($$SELECT acme_outbox.redact_event('no name', 'payload.token')$$);
SELECT t.sqlstate($$INSERT INTO acme_outbox.redaction_rule VALUES ('Ruled', 'payload.a[0]')$$), t.sqlstate($$SELECT acme_outbox.redact_event('Ruled', NULL)$$);
SELECT acme_outbox.redact_event('UserInvited', 'payload.token', 'payload.pins.*'), acme_outbox.redact_event('UserInvited', 'payload.token');
SELECT t.sqlstate($$UPDATE acme_outbox.redaction_rule SET path = 'token'$$);
SELECT * FROM acme_outbox.redaction_rule ORDER BY 1, 2;
SELECT action, detail, affected FROM acme_outbox.operator_action WHERE action LIKE '%redact_event' AND detail ->> 'event_name' = 'UserInvited' ORDER BY id;

\echo the session notices each change of the rules, and their end when it is rolled back
BEGIN;
INSERT INTO acme_outbox.redaction_rule VALUES ('Ruled', 'payload.a');
SELECT acme_outbox.redacted('Ruled', '{"body":{"payload":{"a":1,"b":2}}}');
SAVEPOINT s;
DELETE FROM acme_outbox.redaction_rule WHERE event_name = 'Ruled';
SELECT acme_outbox.redacted('Ruled', '{"body":{"payload":{"a":1,"b":2}}}');
ROLLBACK TO s;
UPDATE acme_outbox.redaction_rule SET path = 'payload.b' WHERE event_name = 'Ruled';
SELECT acme_outbox.redacted('Ruled', '{"body":{"payload":{"a":1,"b":2}}}');
ROLLBACK;
SELECT acme_outbox.redacted('Ruled', '{"body":{"payload":{"a":1,"b":2}}}');

\echo the business lane gets it whole, the audit lane does not; without a rule there is no other text
CREATE FUNCTION t.secret(label text, key text DEFAULT NULL, id uuid DEFAULT NULL, name text DEFAULT 'UserInvited') RETURNS void LANGUAGE sql AS
$$ SELECT acme_outbox.publish('users', label, key, name, '{"token":"s3cret","label":"' || label || '","pins":[1,2]}', event_id => id) $$;
CREATE FUNCTION t.stored() RETURNS TABLE (label text, status acme_outbox.entry_status, lanes smallint, redacted boolean, payload json, last_error text) LANGUAGE sql AS
$$ SELECT routing_key, status, lanes_done, redacted, payload::json #> '{body,payload}', last_error FROM acme_outbox.outbox_entry WHERE origin = 'redact' ORDER BY id $$;
SELECT t.secret('ruled', 'K', '0190a5d0-0000-7000-8000-0000000000aa'), t.secret('other', name => 'UserRemoved'), t.pub(NULL, 'plain'), t.secret('none-of-it');
UPDATE acme_outbox.outbox_entry SET payload = replace(replace(payload, '"token"', '"t"'), '"pins"', '"p"') WHERE routing_key = 'none-of-it';
SELECT routing_key, payload::json #> '{body,payload}' AS business, audit_payload::json #> '{body,payload}' AS audit
	FROM acme_outbox.claim('redact', t.epoch('redact'), 100, 1000000);
\echo published, what the rule names is gone; the same event again is still a repetition
SELECT t.settle('redact', '*', 'PUBLISHED');
SELECT * FROM t.stored();
SELECT t.secret('ruled', 'K', '0190a5d0-0000-7000-8000-0000000000aa');
SELECT t.sqlstate($$SELECT acme_outbox.publish('users', 'ruled', 'K', 'UserInvited', '{"token":"other"}', event_id => '0190a5d0-0000-7000-8000-0000000000aa')$$);
\echo once redacted it is not sent again, by nobody
SELECT t.error($$UPDATE acme_outbox.outbox_entry SET status = 'PENDING' WHERE routing_key = 'ruled'$$);
-- one that was not goes out as new, to all lanes
UPDATE acme_outbox.outbox_entry SET status = 'PENDING' WHERE routing_key = 'plain';
SELECT routing_key, lanes_done FROM acme_outbox.claim('redact', t.epoch('redact'), 100, 1000000);
SELECT t.settle('redact', '*', 'PUBLISHED');
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'redact';

\echo what is not over stays whole: refused, unroutable, nacked, released, failed; of its error a code
SET acme_outbox.max_attempts = 2;
ALTER TABLE acme_outbox.outbox_entry ALTER COLUMN id RESTART WITH 1000001;
SELECT t.secret(l) FROM unnest(ARRAY['rejected', 'unroutable', 'nacked', 'released']) l;
SELECT t.claim('redact');
SELECT t.settle('redact', 'rejected', 'REJECTED', '406 PRECONDITION_FAILED - {"token":"s3cret"}'), t.settle('redact', 'unroutable', 'UNROUTABLE', 'NO_ROUTE exchange=users token=s3cret'),
	t.settle('redact', 'nacked', 'NACKED', 's3cret'), t.settle('redact', 'released', 'RELEASED', '22P02: "s3cret"');
SELECT * FROM t.stored();
SELECT t.make_due('redact'), t.claim('redact');
\echo nor does the warning that it was given up say more
SELECT s.* FROM acme_outbox.outbox_claim c, acme_outbox.outbox_entry e,
	acme_outbox.settle(c.epoch, c.claim_id, ARRAY[e.id], '{REJECTED}', '{NULL}', '{"s3cret"}') s
	WHERE c.origin = 'redact' AND e.routing_key = 'rejected' AND e.id = ANY (c.ids);
SELECT status, payload LIKE '%s3cret%' AS whole, last_error FROM acme_outbox.outbox_entry WHERE routing_key = 'rejected';
SELECT t.settle('redact', '*', 'PUBLISHED');
\echo the dead-letter copy is redacted, the entry is when that is confirmed; a retry before sends it whole
SELECT routing_key, payload::json #> '{body,payload}' AS business, audit_payload = payload AS same FROM acme_outbox.claim_failed('redact', t.epoch('redact'), 10);
SELECT t.settle('redact', '*', 'NACKED');
SELECT acme_outbox.retry_failed('redact');
SELECT routing_key, payload::json #> '{body,payload}' AS business FROM acme_outbox.claim('redact', t.epoch('redact'), 10, 100000);
SET acme_outbox.max_attempts = 1;
SELECT t.settle('redact', '*', 'REJECTED');
SELECT count(*) FROM acme_outbox.claim_failed('redact', t.epoch('redact'), 10);
SELECT t.settle('redact', '*', 'ARCHIVED');
SELECT label, status, redacted, payload FROM t.stored() WHERE label = 'rejected';
RESET acme_outbox.max_attempts;
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'redact';

\echo by hand: whatever an operator calls over is redacted too
SELECT t.secret('h-fresh'), t.secret('h-flying'), t.secret('h-failed'), t.secret('h-archived'), t.secret('h-waits');
SELECT t.claim('redact', 4);
UPDATE acme_outbox.outbox_entry SET status = 'FAILED' WHERE routing_key IN ('h-failed', 'h-archived');
UPDATE acme_outbox.outbox_entry SET status = 'PUBLISHED' WHERE routing_key IN ('h-fresh', 'h-flying', 'h-failed');
UPDATE acme_outbox.outbox_entry SET status = 'ARCHIVED', last_error = 'known' WHERE routing_key = 'h-archived';
SELECT label, status, redacted, payload FROM t.stored();
\echo a rule that came later: of what is over, with redacted()
SELECT acme_outbox.unredact_event('UserInvited', 'payload.token', 'payload.pins.*');
SELECT t.secret('before'), t.drain('redact');
SELECT acme_outbox.redact_event('UserInvited', 'payload.token');
UPDATE acme_outbox.outbox_entry SET payload = acme_outbox.redacted(event_name, payload), redacted = true
	WHERE event_name = 'UserInvited' AND status IN ('PUBLISHED', 'ARCHIVED') AND NOT redacted;
SELECT count(*) FILTER (WHERE payload LIKE '%s3cret%') AS left_over FROM acme_outbox.outbox_entry WHERE origin = 'redact';
SELECT acme_outbox.unredact_event('UserInvited', 'payload.token');
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'redact';

\echo no rule of its name, no other bytes: stored and handed out as published
SELECT acme_outbox.redact_event('Another', 'payload.token');
SELECT t.secret('as-is');
SELECT md5(payload) AS published FROM acme_outbox.outbox_entry WHERE routing_key = 'as-is' \gset
SELECT md5(payload) = :'published', audit_payload IS NULL FROM acme_outbox.claim('redact', t.epoch('redact'), 1, 1);
SELECT t.settle('redact', '*', 'PUBLISHED');
SELECT md5(payload) = :'published', redacted FROM acme_outbox.outbox_entry WHERE routing_key = 'as-is';
SELECT acme_outbox.unredact_event('Another', 'payload.token');
DELETE FROM acme_outbox.outbox_entry WHERE origin = 'redact';
DROP FUNCTION t.cut, t.secret, t.stored;
SELECT count(*) FROM acme_outbox.redaction_rule;
