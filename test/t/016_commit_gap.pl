# Ids are given out before transactions commit, so ids become visible out of
# order. Writers that hold their transaction open around publish, savepoints,
# prepared transactions and bulk inserts make many such gaps while a relay drains:
# none is lost, none stranded.
#
# The stress is real only if gaps happened: first copies that arrived behind a
# higher id. Fewer than GAPS of those fail the test.
use strict;
use warnings;

use AcmeOutbox::Bridge;
use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use constant EVENTS => 10_000;
use constant GAPS => 100;

my $node = AcmeOutbox::Cluster->create('main');
my $broker = AcmeOutbox::Broker->new->standard_topology;
my $bridge = AcmeOutbox::Bridge->start($node, $broker);

# Each client has aggregates of its own: publish order is commit order there.
# The xid is taken first, some milliseconds before the id.
my %scripts = (
	'slow' => [ 5, <<'SQL' ],
BEGIN;
SELECT pg_current_xact_id(), pg_sleep(random() * 0.006);
SELECT acme_outbox.publish('events', 'slow', 'slow-:client_id', 'SlowEvent', '{}'::text);
SELECT pg_sleep(random() * 0.012);
SELECT acme_outbox.publish('events', 'slow', 'slow-:client_id', 'SlowEvent', '{}'::text);
COMMIT;
SQL
	'savepoints' => [ 3, <<'SQL' ],
BEGIN;
SAVEPOINT a;
SELECT acme_outbox.publish('events', 'sp', 'sp-:client_id', 'KeptEvent', '{}'::text), pg_sleep(random() * 0.004);
RELEASE a;
SAVEPOINT b;
SELECT acme_outbox.publish('events', 'sp', 'sp-:client_id', 'UndoneEvent', '{}'::text);
ROLLBACK TO b;
SELECT acme_outbox.publish('events', 'sp', 'sp-:client_id', 'KeptEvent', '{}'::text), pg_sleep(random() * 0.004);
COMMIT;
SQL
	'prepared' => [ 2, <<'SQL' ],
BEGIN;
SELECT acme_outbox.publish('events', 'pre', 'pre-:client_id', 'PreparedEvent', '{}'::text);
PREPARE TRANSACTION 'pre-:client_id';
SELECT acme_outbox.publish('events', 'fast', 'fast-:client_id', 'FastEvent', '{}'::text), pg_sleep(random() * 0.01);
COMMIT PREPARED 'pre-:client_id';
SQL
	'bulk' => [ 2, <<'SQL' ],
BEGIN;
SELECT count(acme_outbox.publish('events', 'bulk', 'bulk-:client_id', 'BulkEvent', '{}'::text))
  FROM generate_series(1, 60);
SELECT pg_sleep(random() * 0.01);
COMMIT;
SQL
	'single' => [ 3, <<'SQL' ],
SELECT acme_outbox.publish('events', 'one', 'one-:client_id', 'SingleEvent', '{}'::text);
SQL
	'rollback' => [ 1, <<'SQL' ],
BEGIN;
SELECT acme_outbox.publish('events', 'no', 'no-:client_id', 'UndoneEvent', '{}'::text), pg_sleep(random() * 0.004);
ROLLBACK;
SQL
);

my @files;
for my $name (sort keys %scripts)
{
	my ($weight, $sql) = @{ $scripts{$name} };
	my $file = PostgreSQL::Test::Utils::tempdir() . "/$name.sql";
	append_to_file($file, $sql);
	push @files, '-f', "$file\@$weight";
}

my $rounds = 0;
my $stored = 0;
while ($stored < EVENTS && $rounds++ < 10)
{
	$node->command_ok(
		[ 'pgbench', '-n', '-c', '6', '-j', '2', '-T', '6', '-M', 'simple', @files, 'postgres' ],
		"writers, round $rounds");
	$stored = $node->sql('SELECT count(*) FROM acme_outbox.outbox_entry');
}
cmp_ok($stored, '>=', EVENTS, "enough events: $stored");
is($node->sql('SELECT count(*) FROM pg_prepared_xacts'), 0, 'no prepared transaction is left');

ok($node->wait_drained, 'the relay drains all');
my @entries = $node->entries;
my @messages = $broker->drain;
delivered_ok(\@entries, \@messages, 'commit gaps');
order_ok(\@entries, \@messages, 'commit gaps');
is(scalar @messages, scalar @entries, 'each once');
is(scalar(grep { $_->{type} eq 'UndoneEvent' } @messages), 0,
	'nothing that was rolled back arrived');
is(scalar(grep { $_->{status} ne 'PUBLISHED' || $_->{attempts} > 0 } @entries), 0,
	'all PUBLISHED, no attempt charged');
$node->verify_ok('in the end');

# How many arrived behind a higher id.
my %id = map { $_->{event_id} => $_->{id} } @entries;
my ($highest, $gaps) = (0, 0);
for my $message (@messages)
{
	my $id = $id{ $message->{message_id} } // next;
	$gaps++ if $id < $highest;
	$highest = $id if $id > $highest;
}
cmp_ok($gaps, '>=', GAPS, "the stress happened: $gaps of $stored came behind a higher id");

is($bridge->stop, 0, 'the relay stops cleanly');
done_testing();
