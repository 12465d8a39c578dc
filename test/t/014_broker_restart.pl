# The broker is killed, and stopped cleanly, in a burst. The relay keeps what was
# confirmed, sends the rest again, and charges nobody.
# Slow: begins before the others.
use strict;
use warnings;

use AcmeOutbox::Bridge;
use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use constant EVENTS => 10_000;

my $node = AcmeOutbox::Cluster->create('main');
# A classic queue: a quorum queue of a single RabbitMQ 3.10 node can stay without a
# leader after a restart.
my $broker =
  AcmeOutbox::Broker->new(private => 1)->standard_topology('x-queue-type' => 'classic');
# RabbitMQ writes definitions some seconds late: a kill right after them loses a binding.
$broker->ctl('eval', 'mnesia:sync_log().');
my $bridge = AcmeOutbox::Bridge->start($node, $broker);

sub in_burst
{
	my ($what, $stop) = @_;
	my $before = $node->sql('SELECT coalesce(max(id), 0) FROM acme_outbox.outbox_entry');

	$node->publish(EVENTS, keys => 20);
	wait_until(sub { $broker->count > 500 }) or die "nothing flows\n";
	$stop->();
	my $left = $node->sql(
		"SELECT count(*) FROM acme_outbox.outbox_entry WHERE status <> 'PUBLISHED'");
	cmp_ok($left, '>', 0, "$what: it happened in the burst");
	$node->verify_ok("$what: while the broker is down");
	$broker->start;
	ok($node->wait_drained, "$what: the rest is sent after the restart");
	is($bridge->running, 1, "$what: by the same process");

	my @entries = grep { $_->{id} > $before } $node->entries;
	my @messages = $broker->drain('all', timeout => 3);
	delivered_ok(\@entries, \@messages, $what);
	order_ok(\@entries, \@messages, $what);
	note "$what: $left left, ", duplicates(@messages), ' duplicates';
	is(scalar(grep { $_->{attempts} > 0 } @entries), 0, "$what: no attempt charged");
	$node->verify_ok("$what: in the end");
	return;
}

in_burst('kill -9', sub { $broker->kill9 });
in_burst('clean stop', sub { $broker->stop });

is($bridge->stop, 0, 'the relay stops cleanly');
done_testing();
