# The database side dies under the relay: its backend is terminated, its backend
# is killed (which restarts the server), the server is stopped at once. The relay
# stays, reconnects, and nothing is lost.
use strict;
use warnings;

use AcmeOutbox::Bridge;
use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use constant EVENTS => 4000;

my $node = AcmeOutbox::Cluster->create('main', 'acme_outbox.lease_duration = 2s');
# A classic queue counts its messages exactly.
my $broker = AcmeOutbox::Broker->new->standard_topology('x-queue-type' => 'classic');
my $bridge = AcmeOutbox::Bridge->start($node, $broker);

sub relay_backend
{
	return $node->sql(
		"SELECT pid FROM pg_stat_activity WHERE usename = 'relay' ORDER BY backend_start DESC LIMIT 1");
}

# Interrupt in a burst: some published, not all.
sub in_burst
{
	my ($what, $interrupt) = @_;
	my $before = $node->sql('SELECT coalesce(max(id), 0) FROM acme_outbox.outbox_entry');
	my $hit = 0;

	$node->publish(EVENTS, keys => 5);
	wait_until(sub { $broker->count > 100 }) or die "nothing flows\n";
	$interrupt->();
	ok($node->wait_drained, "$what: the relay recovers and sends the rest");
	is($bridge->running, 1, "$what: it is the same process");

	my @entries = grep { $_->{id} > $before } $node->entries;
	my @messages = $broker->drain;
	delivered_ok(\@entries, \@messages, $what);
	order_ok(\@entries, \@messages, $what);
	note "$what: ", duplicates(@messages), ' duplicates';
	is(scalar(grep { $_->{attempts} > 0 } @entries), 0, "$what: no attempt charged");
	$node->verify_ok($what);
	return;
}

in_burst('pg_terminate_backend', sub {
	my $pid = relay_backend();
	is($node->sql("SELECT pg_terminate_backend($pid)"), 't', 'the backend was terminated');
});

in_burst('kill -9 of the backend', sub {
	my $pid = relay_backend();
	is(kill('KILL', $pid), 1, 'the backend was killed');
	$node->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()')
	  or die "no recovery\n";
	ok($node->log_contains('terminated by signal 9'), 'the server noticed and restarted');
});

in_burst('pg_ctl stop -m immediate', sub {
	$node->stop('immediate');
	$node->start;
});

is($bridge->stop, 0, 'the relay stops cleanly');
done_testing();
