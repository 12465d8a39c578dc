# Sessions that commit with synchronous_commit = off can lose their last commits in
# a crash. An event of a lost commit must not be at the broker: the claim hardens
# the publisher's commit before the event leaves.
#
# The stress is real only if commits were lost: the test fails if none was.
use strict;
use warnings;

use AcmeOutbox::Bridge;
use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;

use constant ROUNDS => 6;

my $node = AcmeOutbox::Cluster->create('main', 'wal_writer_delay = 10s',
	'acme_outbox.lease_duration = 2s', 'wal_writer_flush_after = 1GB');
# A classic queue counts its messages exactly.
my $broker = AcmeOutbox::Broker->new->standard_topology('x-queue-type' => 'classic');

$node->sql('CREATE TABLE orders (event_id uuid)');
my $script = PostgreSQL::Test::Utils::tempdir() . '/order.sql';
append_to_file($script, <<'SQL');
\set n random(1, 1000000000)
INSERT INTO orders SELECT acme_outbox.publish('events', 'order.placed', 'o-:n', 'OrderPlaced', '{}'::text);
SQL

my ($lost, $arrived, $committed) = (0, 0, 0);
my $bridge = AcmeOutbox::Bridge->start($node, $broker);

for my $round (1 .. ROUNDS)
{
	my $before = $node->sql('SELECT count(*) FROM orders');
	my $already = $broker->count;
	my ($out, $err) = ('', '');
	my $writers = do
	{
		local $ENV{PGOPTIONS} = '-c synchronous_commit=off';
		local $ENV{PGHOST} = $node->host;
		local $ENV{PGPORT} = $node->port;
		IPC::Run::start(
			[ 'pgbench', '-n', '-c', '4', '-R', '3000', '-T', '60', '-f', $script, 'postgres' ],
			'<', \undef, '>', \$out, '2>', \$err);
	};

	# Right after a confirm: the queue has just grown.
	wait_until(sub { $broker->count > $already + 50 * $round }) or die "nothing flows\n";
	$node->stop('immediate');
	$writers->finish;
	$node->start;

	my ($acknowledged) = $out =~ /transactions actually processed: (\d+)/;
	my $kept = $node->sql('SELECT count(*) FROM orders') - $before;
	$committed += $acknowledged;
	$lost += $acknowledged - $kept if $acknowledged > $kept;

	# Before anything else is written.
	my %kept = map { $_ => 1 } split /\n/, $node->sql('SELECT event_id FROM orders');
	my @messages = $broker->drain;
	my @orphans = grep { !$kept{ $_->{message_id} } } @messages;
	$arrived += @messages;
	is(scalar @orphans, 0, "round $round: no event without its business row")
	  or diag "of @{[scalar @messages]}: $orphans[0]{message_id} ...";
	note "round $round: $acknowledged acknowledged, $kept kept, @{[scalar @messages]} arrived";
}

ok($node->wait_drained, 'the relay sends what is left');
is($node->sql(<<'SQL'), 0, 'every order that was kept has its event PUBLISHED');
SELECT count(*) FROM orders LEFT JOIN acme_outbox.outbox_entry e USING (event_id)
 WHERE e.status IS DISTINCT FROM 'PUBLISHED'
SQL
cmp_ok($lost, '>', 0, "the stress happened: $lost of $committed commits were lost in the crashes");
cmp_ok($arrived, '>', 0, "and $arrived messages had arrived");
$node->verify_ok('in the end');
is($bridge->stop, 0, 'the relay stops cleanly');
done_testing();
