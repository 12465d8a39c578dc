-- Who may do what: a publisher publishes, a relay relays its own origin, nobody else
-- does anything.
SET client_min_messages = warning;
\pset format unaligned
\pset tuples_only on
\set database :DBNAME
\set me :USER
CREATE ROLE outbox_test_pub LOGIN;
CREATE ROLE outbox_test_relay_a LOGIN;
CREATE ROLE outbox_test_relay_b LOGIN;
CREATE ROLE outbox_test_nobody LOGIN;
CREATE ROLE outbox_test_group NOLOGIN;
CREATE ROLE outbox_test_member LOGIN IN ROLE outbox_test_group;
CREATE ROLE outbox_test_noinherit LOGIN NOINHERIT IN ROLE outbox_test_group;
ALTER ROLE outbox_test_pub SET acme_outbox.origin = 'priv-a';
SELECT acme_outbox.grant_publisher('outbox_test_pub');
SELECT acme_outbox.grant_relay('outbox_test_relay_a', 'priv-a');
SELECT acme_outbox.grant_relay('outbox_test_relay_b', 'priv-b');
SELECT acme_outbox.grant_relay('outbox_test_group', 'priv-a');
-- twice is the same as once
SELECT acme_outbox.grant_relay('outbox_test_relay_a', 'priv-a');
SELECT count(*) FROM acme_outbox.relay_grant WHERE role_name = 'outbox_test_relay_a';
SELECT t.error($$SELECT acme_outbox.grant_publisher('outbox_test_none')$$);
SELECT t.error($$SELECT acme_outbox.grant_relay('outbox_test_none', 'priv-a')$$);

-- one's rights: each function that can be executed, each table and its privileges
CREATE FUNCTION t.rights(of_role name) RETURNS text LANGUAGE sql AS $$
	SELECT coalesce(string_agg(right_, ', ' ORDER BY right_), 'nothing') FROM (
		SELECT DISTINCT p.proname::text AS right_ FROM pg_proc p
			WHERE p.pronamespace = 'acme_outbox'::regnamespace AND has_function_privilege(of_role, p.oid, 'EXECUTE')
		UNION ALL
		SELECT privilege || ' ' || c.relname FROM pg_class c, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) privilege
			WHERE c.relnamespace = 'acme_outbox'::regnamespace AND c.relkind IN ('r', 'v', 'm')
			  AND has_table_privilege(of_role, c.oid, privilege)
		UNION ALL
		SELECT privilege || ' ' || c.relname FROM pg_class c, unnest(ARRAY['USAGE', 'SELECT', 'UPDATE']) privilege
			WHERE c.relnamespace = 'acme_outbox'::regnamespace AND c.relkind = 'S'
			  AND has_sequence_privilege(of_role, c.oid, privilege)
		UNION ALL
		SELECT privilege || ' schema' FROM unnest(ARRAY['USAGE', 'CREATE']) privilege
			WHERE has_schema_privilege(of_role, 'acme_outbox', privilege)) x
$$;
SELECT t.rights('outbox_test_pub');
SELECT t.rights('outbox_test_relay_a');
SELECT t.rights('outbox_test_nobody');
GRANT USAGE ON SCHEMA t TO outbox_test_pub, outbox_test_relay_a, outbox_test_relay_b, outbox_test_nobody, outbox_test_member, outbox_test_noinherit;

\echo -- the publisher, logged in
\c :database outbox_test_pub
SET acme_outbox.autocommit_publish = off;
\set VERBOSITY terse
SELECT acme_outbox.publish('orders', 'p1', 'A', 'OrderPlaced', '{}') IS NOT NULL; -- ok
SELECT acme_outbox.enqueue_job('jobs', 'p2', 'SendMail', '{}') IS NOT NULL; -- ok
SELECT acme_outbox.envelope('A', 'OrderPlaced', '{}') IS NOT NULL; -- ok
CREATE TEMP TABLE mine (id int);
CREATE TRIGGER p AFTER INSERT ON mine FOR EACH ROW EXECUTE FUNCTION acme_outbox.publish_row('orders', 'p3', 'OrderPlaced', 'id'); -- ok
INSERT INTO mine VALUES (1); -- ok
SELECT * FROM acme_outbox.outbox_entry; -- fail
INSERT INTO acme_outbox.outbox_entry DEFAULT VALUES; -- fail
UPDATE acme_outbox.outbox_entry SET status = 'PUBLISHED'; -- fail
DELETE FROM acme_outbox.outbox_entry; -- fail
SELECT nextval('acme_outbox.outbox_entry_id_seq'); -- fail
SELECT * FROM acme_outbox.topic_policy; -- fail
SELECT * FROM acme_outbox.relay_acquire('priv-a', 'x'); -- fail
SELECT * FROM acme_outbox.claim('priv-a', 1, 1, 1); -- fail
SELECT * FROM acme_outbox.peek(); -- fail
SELECT acme_outbox.retry('0190a5d0-0000-7000-8000-000000000001'); -- fail
SELECT * FROM acme_outbox.retry_failed(); -- fail
SELECT acme_outbox.adopt(); -- fail
SELECT * FROM acme_outbox.verify(); -- fail
SELECT acme_outbox.record_action('x', '{}', 1); -- fail
SELECT acme_outbox.grant_relay('outbox_test_pub', 'priv-a'); -- fail
SELECT acme_outbox.apply_privileges('outbox_test_pub', 'relay', true); -- fail
SELECT * FROM acme_outbox.reap(); -- fail
SELECT * FROM acme_outbox.purge(); -- fail

\echo -- the relay of priv-a, logged in
\c :database outbox_test_relay_a
\set VERBOSITY terse
SELECT acme_outbox.contract_version() > 0; -- ok
SELECT epoch AS epoch_a FROM acme_outbox.relay_acquire('priv-a', 'relay-a') \gset
SELECT claim_id AS claim_a, count(*) AS n, array_agg(id) AS ids FROM acme_outbox.claim('priv-a', :epoch_a, 10, 100000) GROUP BY claim_id \gset
\echo :n
SELECT acme_outbox.relay_renew('priv-a', :epoch_a); -- ok
SELECT count(*) FROM acme_outbox.claim_failed('priv-a', :epoch_a, 10); -- ok
SELECT count(*) >= 0 FROM acme_outbox.run_due_duties(); -- ok
SELECT count(*) > 0 FROM acme_outbox.outbox_backlog; -- ok
SELECT * FROM acme_outbox.relay_acquire('priv-b', 'relay-a'); -- fail
SELECT acme_outbox.publish('orders', 'p1', 'A', 'OrderPlaced', '{}'); -- fail
SELECT * FROM acme_outbox.outbox_entry; -- fail
SELECT * FROM acme_outbox.outbox_claim; -- fail
SELECT * FROM acme_outbox.relay_lease; -- fail
UPDATE acme_outbox.relay_lease SET relay = 'x'; -- fail
INSERT INTO acme_outbox.relay_grant VALUES ('outbox_test_relay_a', 'priv-b'); -- fail
SELECT acme_outbox.adopt(); -- fail

\echo -- the relay of priv-b, logged in: nothing of priv-a
\c :database outbox_test_relay_b
\set VERBOSITY default
\set SHOW_CONTEXT never
SELECT * FROM acme_outbox.relay_acquire('priv-a', 'relay-b'); -- fail
\set VERBOSITY terse
SELECT * FROM acme_outbox.claim('priv-a', :epoch_a, 1, 1); -- fail
SELECT * FROM acme_outbox.claim_failed('priv-a', :epoch_a, 1); -- fail
SELECT acme_outbox.relay_renew('priv-a', :epoch_a); -- fail
SELECT acme_outbox.relay_release('priv-a', :epoch_a); -- fail
SELECT * FROM acme_outbox.settle(:epoch_a, :claim_a, :'ids', array_fill('PUBLISHED'::acme_outbox.settle_outcome, ARRAY[:n]), array_fill(NULL::smallint, ARRAY[:n]), array_fill(NULL::text, ARRAY[:n])); -- fail
SELECT count(*) FROM acme_outbox.relay_acquire('priv-b', 'relay-b'); -- ok
SELECT acme_outbox.relay_release('nobody', 1); -- fail

\echo -- nobody, logged in
\c :database outbox_test_nobody
\set VERBOSITY terse
SELECT acme_outbox.publish('orders', 'p1', 'A', 'OrderPlaced', '{}'); -- fail
SELECT acme_outbox.contract_version(); -- fail
SELECT * FROM acme_outbox.relay_acquire('priv-a', 'x'); -- fail
SELECT * FROM acme_outbox.outbox_backlog; -- fail
SELECT * FROM acme_outbox.worker_status; -- fail

\echo -- the operator, logged in: sees and calls, without payloads, and changes no table
\c :database :me
CREATE ROLE outbox_test_operator LOGIN;
GRANT USAGE ON SCHEMA t TO outbox_test_operator;
SELECT acme_outbox.grant_operator('outbox_test_operator');
\c :database outbox_test_operator
\set VERBOSITY terse
SET client_min_messages = error;
SELECT count(*) > 0 FROM acme_outbox.outbox_backlog; -- ok
SELECT count(*) >= 0 FROM acme_outbox.outbox_stuck; -- ok
SELECT count(last_error) >= 0 FROM acme_outbox.outbox_failed; -- ok
SELECT count(*) >= 0 FROM acme_outbox.parked_open; -- ok
SELECT event_name, status, claimed_by, last_error FROM acme_outbox.outbox WHERE origin = 'priv-a' LIMIT 1; -- ok
SELECT payload FROM acme_outbox.outbox; -- fail
SELECT headers FROM acme_outbox.outbox; -- fail
SELECT * FROM acme_outbox.outbox; -- fail
SELECT count(*) FROM acme_outbox.verify() WHERE origin LIKE 'priv-%'; -- ok
SELECT acme_outbox.retry('0190a5d0-0000-7000-8000-0000000000ff'); -- ok
SELECT acme_outbox.retry_failed('priv-a'); -- ok
SELECT acme_outbox.cancel('0190a5d0-0000-7000-8000-0000000000ff', 'test'); -- ok
SELECT acme_outbox.pause('priv-a', 'orders'), acme_outbox.resume('priv-a'); -- ok
SELECT acme_outbox.republish('0190a5d0-0000-7000-8000-0000000000ff'); -- ok
SELECT acme_outbox.archive('priv-a'); -- ok
SELECT count(*) FROM acme_outbox.replay_parked_where('acme_outbox', 'nobody'); -- ok
SELECT action FROM acme_outbox.operator_action WHERE actor = 'outbox_test_operator' ORDER BY id; -- ok
SELECT payload FROM acme_outbox.outbox_entry; -- fail
UPDATE acme_outbox.outbox_entry SET status = 'PENDING'; -- fail
DELETE FROM acme_outbox.outbox_pause; -- fail
INSERT INTO acme_outbox.operator_action (action, detail, affected) VALUES ('x', '{}', 1); -- fail
SELECT acme_outbox.record_action('x', '{}', 1); -- fail
SELECT * FROM acme_outbox.peek(); -- fail
SELECT acme_outbox.redact_event('UserInvited', 'payload.token'); -- fail
SELECT acme_outbox.adopt(); -- fail
SELECT * FROM acme_outbox.claim('priv-a', 1, 1, 1); -- fail
SELECT acme_outbox.publish('orders', 'p1', 'A', 'OrderPlaced', '{}'); -- fail
\c :database :me
SELECT acme_outbox.grant_monitor('outbox_test_operator'), acme_outbox.revoke_operator('outbox_test_operator');
SELECT acme_outbox.held_kinds('outbox_test_operator'), t.rights('outbox_test_operator') LIKE '%SELECT outbox_backlog%', t.rights('outbox_test_operator') LIKE '%retry%';
SELECT acme_outbox.revoke_monitor('outbox_test_operator'), t.rights('outbox_test_operator');
REVOKE USAGE ON SCHEMA t FROM outbox_test_operator;
DROP ROLE outbox_test_operator;

\echo -- a member of a group that relays priv-a: by inheritance; without it, by SET ROLE
\c :database outbox_test_member
\set VERBOSITY terse
SELECT count(*) FROM acme_outbox.claim('priv-a', :epoch_a, 1, 1); -- ok
\c :database outbox_test_noinherit
\set VERBOSITY terse
SELECT count(*) FROM acme_outbox.claim('priv-a', :epoch_a, 1, 1); -- fail
SET ROLE outbox_test_group;
SELECT count(*) FROM acme_outbox.claim('priv-a', :epoch_a, 1, 1); -- ok
SELECT count(*) FROM acme_outbox.relay_acquire('priv-b', 'x'); -- fail

\echo -- an administrator that became the relay has no more rights than it
\c :database :me
\set VERBOSITY terse
SET ROLE outbox_test_relay_b;
SELECT * FROM acme_outbox.claim('priv-a', :epoch_a, 1, 1); -- fail
RESET ROLE;
-- a definer's wrapper does not lend its rights: the caller counts
CREATE FUNCTION t.lent(e bigint) RETURNS bigint LANGUAGE sql SECURITY DEFINER AS $$ SELECT count(*) FROM acme_outbox.claim('priv-a', e, 1, 1) $$;
SET SESSION AUTHORIZATION outbox_test_nobody;
SELECT t.lent(:epoch_a); -- fail
RESET SESSION AUTHORIZATION;
DROP FUNCTION t.lent;

\echo -- taken back
SELECT acme_outbox.grant_publisher('outbox_test_relay_a');
SELECT acme_outbox.grant_relay('outbox_test_relay_a', 'priv-c');
SELECT acme_outbox.revoke_relay('outbox_test_relay_a', 'priv-a');
SET SESSION AUTHORIZATION outbox_test_relay_a;
SELECT * FROM acme_outbox.claim('priv-a', :epoch_a, 1, 1); -- fail
SELECT count(*) FROM acme_outbox.relay_acquire('priv-c', 'x'); -- ok
RESET SESSION AUTHORIZATION;
-- the last of them: still a publisher
SELECT acme_outbox.revoke_relay('outbox_test_relay_a', 'priv-c');
SELECT t.rights('outbox_test_relay_a') = t.rights('outbox_test_pub');
SELECT acme_outbox.grant_relay('outbox_test_relay_a', 'priv-a');
SELECT acme_outbox.revoke_publisher('outbox_test_relay_a');
SELECT t.rights('outbox_test_relay_a') = t.rights('outbox_test_relay_b');
SELECT acme_outbox.revoke_relay('outbox_test_relay_a', 'priv-a');
SELECT acme_outbox.revoke_relay('outbox_test_relay_b', 'priv-b');
SELECT acme_outbox.revoke_relay('outbox_test_group', 'priv-a');
SELECT acme_outbox.revoke_publisher('outbox_test_pub');
SELECT t.rights(r) FROM unnest(ARRAY['outbox_test_relay_a', 'outbox_test_relay_b', 'outbox_test_group', 'outbox_test_pub']) r;
\echo -- what a role has as a member of another is neither taken from it nor given to it
SELECT acme_outbox.grant_publisher('outbox_test_group'), acme_outbox.grant_monitor('outbox_test_group'), acme_outbox.grant_relay('outbox_test_group', 'priv-a');
SELECT acme_outbox.grant_relay('outbox_test_member', 'priv-b');
SELECT acme_outbox.revoke_relay('outbox_test_member', 'priv-b'), acme_outbox.revoke_publisher('outbox_test_member');
SELECT count(*) FROM pg_proc p, aclexplode(p.proacl) a WHERE p.pronamespace = 'acme_outbox'::regnamespace AND a.grantee = 'outbox_test_member'::regrole;
SELECT t.rights('outbox_test_member') = t.rights('outbox_test_group');
SELECT acme_outbox.revoke_publisher('outbox_test_group'), acme_outbox.revoke_monitor('outbox_test_group'), acme_outbox.revoke_relay('outbox_test_group', 'priv-a');
SELECT t.rights('outbox_test_member'), t.rights('outbox_test_group');
\echo -- of a role that was dropped, its name is forgotten
CREATE ROLE outbox_test_gone;
SELECT acme_outbox.grant_relay('outbox_test_gone', 'priv-a');
DROP OWNED BY outbox_test_gone;
DROP ROLE outbox_test_gone;
SELECT acme_outbox.revoke_relay('outbox_test_gone', 'priv-a');
SELECT count(*) FROM acme_outbox.relay_grant WHERE role_name = 'outbox_test_gone';
-- taking back what was not given is fine
SELECT acme_outbox.revoke_relay('outbox_test_nobody', 'priv-a');
SELECT acme_outbox.revoke_publisher('outbox_test_nobody');
-- and nothing is left to keep a role from being dropped
REVOKE USAGE ON SCHEMA t FROM outbox_test_pub, outbox_test_relay_a, outbox_test_relay_b, outbox_test_nobody, outbox_test_member, outbox_test_noinherit;
DROP ROLE outbox_test_pub, outbox_test_relay_a, outbox_test_relay_b, outbox_test_nobody, outbox_test_member, outbox_test_noinherit, outbox_test_group;
DROP FUNCTION t.rights;
