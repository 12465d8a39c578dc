-- Leases: one active relay per origin, fenced by its epoch; copies stay silent.
SET client_min_messages = warning;
SET acme_outbox.autocommit_publish = off;
SET acme_outbox.origin = 'lease';
\pset format unaligned
\pset tuples_only on

\echo a lease is taken once, under an epoch that only rises
SELECT lease_ms, epoch = t.epoch('lease') FROM acme_outbox.relay_acquire('lease', 'relay-1');
SELECT t.epoch('lease') AS epoch_1 \gset
SELECT t.acquire('lease', 'relay-2');
SELECT relay, epoch = :epoch_1, expires_at - renewed_at BETWEEN '29.9s' AND '30.1s' FROM acme_outbox.relay_lease WHERE origin = 'lease';
SELECT acme_outbox.relay_renew('lease', :epoch_1);
-- the same name again: a new epoch, and the old one is fenced
SELECT t.acquire('lease', 'relay-1');
SELECT t.epoch('lease') AS epoch_2 \gset
SELECT :epoch_2 > :epoch_1;
SELECT t.error(format('SELECT * FROM acme_outbox.claim(''lease'', %s, 1, 1)', :epoch_1)) = format('OX101 | epoch %s is not the current one | Another relay has taken over, or this one acquired again or released it. | Forget what was claimed under it and call relay_acquire.', :epoch_1);
SELECT t.sqlstate(format('SELECT * FROM acme_outbox.claim_failed(''lease'', %s, 1)', :epoch_1));
SELECT t.sqlstate(format('SELECT * FROM acme_outbox.settle(%s, 1, ''{}'', ''{}'', ''{}'', ''{}'')', :epoch_1));
SELECT acme_outbox.relay_renew('lease', :epoch_1), acme_outbox.relay_release('lease', :epoch_1);
SELECT acme_outbox.relay_renew('lease', :epoch_2);
-- an epoch of another origin, or of none
SELECT t.acquire('lease2', 'relay-1');
SELECT acme_outbox.relay_renew('lease', t.epoch('lease2')), acme_outbox.relay_release('lease', t.epoch('lease2')), acme_outbox.relay_renew('nobody', 1);

\echo names
SELECT t.sqlstate(format('SELECT * FROM acme_outbox.relay_acquire(%L, %L)', origin, relay)) FROM (VALUES
	('', 'r'), ('o', ''), (repeat('x', 256), 'r'), ('o', repeat('x', 256))) v (origin, relay);
SELECT t.acquire(repeat('é', 127), repeat('x', 255));

\echo it runs out: then another takes over, and the entries in flight go out again
SELECT t.pub('A', 'x1'), t.pub('B', 'x2');
SELECT t.claim('lease');
SET acme_outbox.lease_duration = '1s';
SELECT lease_ms FROM acme_outbox.relay_acquire('lease', 'relay-1');
SELECT t.epoch('lease') AS epoch_3 \gset
SELECT t.acquire('lease', 'relay-2');
SELECT pg_sleep(1.1);
-- late, but nobody took it: renewing still works
SELECT acme_outbox.relay_renew('lease', :epoch_3);
SELECT t.acquire('lease', 'relay-2');
SELECT pg_sleep(1.1);
SELECT t.acquire('lease', 'relay-2');
RESET acme_outbox.lease_duration;
SELECT acme_outbox.relay_renew('lease', :epoch_3);
SELECT label, status FROM t.state('lease');
SELECT t.verify('lease');
SELECT t.claim('lease');
SELECT label, status, attempts FROM t.state('lease');
SELECT count(*), bool_and(epoch = t.epoch('lease')), bool_and(claimed_by = 'relay-2') FROM acme_outbox.outbox_claim WHERE origin = 'lease';
SELECT t.verify('lease');
SELECT t.settle('lease', '*', 'PUBLISHED');

\echo release hands over at once, and for good: not renewed, nothing claimed, only settled what is known
SELECT t.pub('A', 'r1'), t.pub('A', 'r2'), t.claim('lease', 1);
SELECT acme_outbox.relay_release('lease', t.epoch('lease'));
SELECT acme_outbox.relay_renew('lease', t.epoch('lease')), acme_outbox.relay_release('lease', t.epoch('lease'));
SELECT t.sqlstate(format('SELECT * FROM acme_outbox.claim(%L, %s, 1, 1)', 'lease', t.epoch('lease')));
SELECT t.settle('lease', 'r1', 'PUBLISHED');
SELECT t.acquire('lease', 'relay-3'), acme_outbox.relay_renew('lease', t.epoch('lease')), t.drain('lease');
SELECT acme_outbox.relay_release('lease', t.epoch('lease'));
SELECT t.acquire('lease', 'relay-3');
SELECT relay FROM acme_outbox.relay_lease WHERE origin = 'lease';

\echo stale_claim_policy = strand: what was in flight is never sent again
SELECT t.pub('A', 's1'), t.pub('A', 's2'), t.pub('B', 's3');
SELECT t.claim('lease', 1);
SET acme_outbox.stale_claim_policy = strand;
SELECT t.acquire('lease', 'relay-3');
-- its key waits, others flow
SELECT t.claim('lease');
SELECT label, status, hold_reason, goes_on FROM t.state('lease') WHERE label IN ('s1', 's2', 's3');
SELECT t.settle('lease', 's3', 'PUBLISHED');
SELECT t.verify('lease');
-- found to have arrived: set by hand, its key goes on
UPDATE acme_outbox.outbox_entry SET status = 'PUBLISHED' WHERE routing_key = 's1';
SELECT t.claim('lease');
SELECT t.settle('lease', 's2', 'PUBLISHED');
SELECT t.pub('A', 's4');
SELECT t.drain('lease');
SELECT t.verify('lease');
RESET acme_outbox.stale_claim_policy;
SELECT t.acquire('lease', 'relay-3');
SELECT t.drain('lease');
SELECT count(*) FROM acme_outbox.outbox_claim WHERE origin = 'lease';

\echo a claim of FAILED entries that is taken over leaves them FAILED
SET acme_outbox.max_attempts = 1;
SELECT t.pub('A', 'f1'), t.claim('lease');
SELECT t.settle('lease', 'f1', 'REJECTED');
SELECT routing_key FROM acme_outbox.claim_failed('lease', t.epoch('lease'), 10);
SELECT t.acquire('lease', 'relay-3');
SELECT t.claim('lease');
SELECT label, status FROM t.state('lease') WHERE label = 'f1';
SELECT routing_key FROM acme_outbox.claim_failed('lease', t.epoch('lease'), 10);
SELECT t.settle('lease', 'f1', 'ARCHIVED');
RESET acme_outbox.max_attempts;
SELECT t.verify('lease');

\echo a copy stays silent until it is adopted
SELECT t.pub('A', 'c1'), t.pub('A', 'c2'), t.claim('lease', 1);
CREATE TEMP TABLE own AS SELECT * FROM acme_outbox.installation;
-- a restore brings a second, foreign row
INSERT INTO acme_outbox.installation (system_identifier, database_oid) SELECT system_identifier + 1, database_oid FROM own;
SELECT t.error('SELECT * FROM acme_outbox.relay_acquire(''lease'', ''relay-4'')');
-- a template's copy has the other's only
DELETE FROM acme_outbox.installation WHERE system_identifier = (SELECT system_identifier FROM own);
UPDATE acme_outbox.installation SET system_identifier = (SELECT system_identifier FROM own), database_oid = database_oid::bigint + 1;
SELECT t.sqlstate('SELECT * FROM acme_outbox.relay_acquire(''lease'', ''relay-4'')');
DELETE FROM acme_outbox.installation;
SELECT t.sqlstate('SELECT * FROM acme_outbox.relay_acquire(''lease'', ''relay-4'')');
-- adopting leaves nothing unsent, and no position of the source
SELECT acme_outbox.adopt() = count(*) FROM acme_outbox.outbox_entry WHERE status IN ('PENDING', 'PUBLISHING');
SELECT (i.system_identifier, i.database_oid) = (o.system_identifier, o.database_oid) FROM acme_outbox.installation i, own o;
SELECT action, affected >= 2 FROM acme_outbox.operator_action ORDER BY id DESC LIMIT 1;
SELECT count(*) FROM acme_outbox.relay_lease;
SELECT t.acquire('lease', 'relay-4');
SELECT t.drain('lease');
SELECT t.verify('lease');
-- safe to repeat
SELECT acme_outbox.adopt() >= 0;
SELECT t.acquire('lease', 'relay-4');
SELECT t.drain('lease');
