# The database session is lost while messages are unconfirmed. The relay forgets them,
# and the confirms that come late must not be taken for those of what it sends next.
use strict;
use warnings;

use AcmeOutbox::Bridge;
use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use AcmeOutbox::Fault;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = AcmeOutbox::Cluster->create('main', 'acme_outbox.lease_duration = 2s');
my $broker =
  AcmeOutbox::Broker->new(private => 1)->standard_topology('x-queue-type' => 'classic');
my $bridge = AcmeOutbox::Bridge->start($node, $broker, args => [ '--summary-interval', '1s' ]);

$node->publish(10);
ok($node->wait_drained, 'events flow');
$broker->drain;
my $before = last_id($node);

# 500 are sent, and no confirm comes. What the broker's host has received is answered
# later, whatever becomes of the connection.
$broker->signal('STOP');
$node->publish(500, keys => 20);
ok(wait_in_flight($bridge, 500), 'the stress happened: 500 are unconfirmed');
is( $node->sql(
		"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'relay'"),
	1, 'the database session is ended');
ok($bridge->wait_for_log('window dropped'), 'the relay forgets them');
$broker->signal('CONT');
ok($node->wait_drained, 'they are sent again');
my @entries = entries_after($node, $before);
my @messages = $broker->drain;
survived_ok($node, $bridge, \@entries, \@messages, 'in the end');
unlike($bridge->log_text, qr/unknown delivery tag/, 'no confirm met a tag that was not its own');
is(stop_within_ok($bridge, 25, 'in the end'), 0, 'the relay stops cleanly');
done_testing();
