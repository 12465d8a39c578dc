# A transaction that published and stays open, and one that holds only an xid,
# stop nobody else; the open one's event arrives within a poll of its commit.
use strict;
use warnings;

use AcmeOutbox::Bridge;
use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = AcmeOutbox::Cluster->create('main');
my $broker = AcmeOutbox::Broker->new->standard_topology;
my $bridge = AcmeOutbox::Bridge->start($node, $broker);

my $publisher = $node->background_psql('postgres');
$publisher->query_safe('BEGIN');
my $open_id = $publisher->query_safe(
	"SELECT acme_outbox.publish('events', 'k', 'open', 'OpenEvent', '{}'::text)");
my $idler = $node->background_psql('postgres');
$idler->query_safe('BEGIN; SELECT pg_current_xact_id()');
my $reader = $node->background_psql('postgres');
$reader->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class');

for my $round (1 .. 3)
{
	$node->publish(1000, keys => 50);
	ok($node->wait_sql(
			"SELECT count(*) = @{[$round * 1000]} FROM acme_outbox.outbox_entry WHERE status = 'PUBLISHED'"),
		"round $round: everything else flows");
}
my @messages = $broker->drain;
is(distinct(@messages), 3000, 'and arrived');
is(scalar(grep { $_->{message_id} eq $open_id } @messages), 0, 'the open event did not');
$node->verify_ok('while transactions are open');

my $at = time();
$publisher->query_safe('COMMIT');
ok(wait_until(sub { $broker->count >= 1 }, 10), 'it arrives after its commit');
my $took = time() - $at;
cmp_ok($took, '<', 2.5, sprintf 'within a poll (%.2f s)', $took);
@messages = $broker->drain;
is_deeply([ map { $_->{message_id} } @messages ], [$open_id], 'alone, once');

$idler->query_safe('ROLLBACK');
$reader->query_safe('COMMIT');
$_->quit for $publisher, $idler, $reader;
ok($node->wait_drained, 'nothing is left');
$node->verify_ok('in the end');
is($bridge->stop, 0, 'the relay stops cleanly');
done_testing();
