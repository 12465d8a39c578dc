# Indexes are built, rebuilt and dropped without a lock while entries are published, claimed
# and settled past the executor: nobody is refused, no index of the table misses a row
# afterwards, and every event is sent once.
use strict;
use warnings;

use AcmeOutbox::Cluster;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = AcmeOutbox::Cluster->create('main');

$node->sql(<<'SQL');
CREATE EXTENSION amcheck;
CREATE TABLE stop (now boolean);
CREATE TABLE sent (id bigint);

-- transactions of a few entries, some of them rolled back to a savepoint, some for later
CREATE PROCEDURE publish_on() LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. 1000000 LOOP
		PERFORM acme_outbox.publish('events', 'k', 'a' || i % 50, 'Happened', to_json(repeat('x', i % 700)),
			tenant_id => CASE WHEN i % 3 = 0 THEN 'tenant' END,
			not_before => CASE WHEN i % 20 = 0 THEN clock_timestamp() + interval '50 ms' END);
		BEGIN
			PERFORM acme_outbox.publish('events', 'k', 'a' || i % 50, 'Happened', '{}'::text);
			IF i % 4 = 0 THEN RAISE division_by_zero; END IF;
		EXCEPTION WHEN division_by_zero THEN NULL;
		END;
		COMMIT;
		EXIT WHEN EXISTS (SELECT FROM stop);
	END LOOP;
END $$;

-- a relay: every tenth entry has to come again
CREATE PROCEDURE relay_on() LANGUAGE plpgsql AS $$
DECLARE
	lease bigint := (SELECT epoch FROM acme_outbox.relay_acquire('shop', 'relay'));
	claim bigint;
	ids bigint[];
	outcomes acme_outbox.settle_outcome[];
	idle integer := 0;
BEGIN
	COMMIT;
	LOOP
		SELECT min(claim_id), array_agg(id), array_agg(CASE WHEN id % 10 = 0 AND random() < 0.5 THEN 'RELEASED' ELSE 'PUBLISHED' END)
			INTO claim, ids, outcomes FROM acme_outbox.claim('shop', lease, 100, 1000000);
		COMMIT;
		IF claim IS NULL THEN
			EXIT WHEN EXISTS (SELECT FROM stop) AND (idle > 500 OR NOT EXISTS
				(SELECT FROM acme_outbox.outbox_entry WHERE status IN ('PENDING', 'PUBLISHING')));
			idle := idle + 1;
			PERFORM pg_sleep(0.01);
			CONTINUE;
		END IF;
		idle := 0;
		PERFORM acme_outbox.settle(lease, claim, ids, outcomes,
			array_fill(NULL::smallint, ARRAY[cardinality(ids)]), array_fill(NULL::text, ARRAY[cardinality(ids)]));
		INSERT INTO sent SELECT u.id FROM unnest(ids, outcomes) u (id, outcome) WHERE u.outcome = 'PUBLISHED';
		PERFORM acme_outbox.relay_renew('shop', lease);
		COMMIT;
	END LOOP;
END $$;
SQL

my %errors;

sub go_on
{
	my ($what) = @_;
	return IPC::Run::start([ 'psql', '-XqAt', '-d', $node->connstr('postgres'), '-c', "CALL $what()" ],
		'<', \undef, '2>', \$errors{$what});
}

sub sent
{
	return $node->sql('SELECT count(*) FROM sent');
}

my @at_work = map { go_on($_) } qw(publish_on relay_on);
$node->wait_sql('SELECT count(*) > 100 FROM sent');
my $before = sent();
for my $index (qw(pkey xid event_id due waiting_key scheduled failed))
{
	$node->sql("REINDEX INDEX CONCURRENTLY acme_outbox.outbox_entry_$index");
}
$node->sql('CREATE INDEX CONCURRENTLY mine_status ON acme_outbox.outbox_entry (status)');
$node->sql('CREATE INDEX CONCURRENTLY mine_tenant ON acme_outbox.outbox_entry (upper(topic), published_at) WHERE tenant_id IS NOT NULL');
$node->sql('REINDEX TABLE CONCURRENTLY acme_outbox.outbox_entry');
$node->sql('DROP INDEX CONCURRENTLY acme_outbox.mine_status');
cmp_ok(sent() - $before, '>', 100, 'the stress happened: entries were sent meanwhile');
$node->sql('INSERT INTO stop VALUES (true)');
$_->finish for @at_work;

is($errors{publish_on} // '', '', 'nobody who published met an error');
is($errors{relay_on} // '', '', 'nor did the relay');
is($node->sql(<<'SQL'), 't|t|0', 'every event is sent, and once');
SELECT (SELECT count(*) FROM sent) = count(*), (SELECT count(DISTINCT id) FROM sent) = count(*),
       count(*) FILTER (WHERE status <> 'PUBLISHED')
  FROM acme_outbox.outbox_entry
SQL
is($node->sql(<<'SQL'), 8, 'no index misses a row');
SELECT count(bt_index_parent_check(indexrelid, true)) FROM pg_index
 WHERE indrelid = 'acme_outbox.outbox_entry'::regclass AND indisvalid
SQL
is($node->sql(q{SELECT count(*) FROM verify_heapam('acme_outbox.outbox_entry')}), 0, 'the table is sound');
$node->verify_ok('indexes rebuilt');

done_testing();
