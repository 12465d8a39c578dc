# The relay is killed at each point where its state and the broker's differ.
# Nothing is lost; duplicates stay within one window; order per key holds.
# Slow: begins before the others.
use strict;
use warnings;

use AcmeOutbox::Bridge;
use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use constant WINDOW => 1000;
use constant EVENTS => 3000;

my $node = AcmeOutbox::Cluster->create('main', 'acme_outbox.lease_duration = 1s');
my $broker = AcmeOutbox::Broker->new->standard_topology;

# At the first claim, and in the middle of a burst.
for my $hit (1, 3)
{
	for my $point (qw(claim-committed mid-window confirmed-before-settle settled))
	{
		my $what = "$point:$hit";
		my $before = $node->sql('SELECT coalesce(max(id), 0) FROM acme_outbox.outbox_entry');
		$node->publish(EVENTS, keys => 7);

		my $victim = AcmeOutbox::Bridge->start($node, $broker,
			env => { ACME_OUTBOX_CRASH_AT => $what });
		is($victim->wait_exit, 'signal 9', "$what: the relay died");
		like($victim->log_text, qr/^crash point \Q$point\E hit/m, "$what: where it should");
		isnt($node->sql('SELECT count(*) FROM acme_outbox.outbox_entry WHERE status <> \'PUBLISHED\''),
			0, "$what: with events left to send");
		$node->verify_ok("$what: after the crash");

		my $heir = AcmeOutbox::Bridge->start($node, $broker);
		ok($node->wait_drained, "$what: another relay sends the rest");
		is($heir->stop, 0, "$what: it stops cleanly");

		my @entries = grep { $_->{id} > $before } $node->entries;
		my @messages = $broker->drain;
		delivered_ok(\@entries, \@messages, $what);
		order_ok(\@entries, \@messages, $what);
		cmp_ok(duplicates(@messages), '<=', WINDOW, "$what: duplicates are within one window");
		note "$what: ", duplicates(@messages), ' duplicates';
		is(scalar(grep { $_->{attempts} > 0 || $_->{status} ne 'PUBLISHED' } @entries), 0,
			"$what: all PUBLISHED, no attempt charged");
		$node->verify_ok("$what: in the end");
	}
}

done_testing();
