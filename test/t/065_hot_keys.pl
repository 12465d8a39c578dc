# 20,000 entries of 4 keys, the relay killed in the middle, so that whatever follows
# has to wait for its key. Draining them does not become slower towards the end, and
# verify() stays quick.
# Slow: begins before the others.
use strict;
use warnings;

use AcmeOutbox::Bridge;
use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use AcmeOutbox::Fault;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

use constant EVENTS => 20_000;

my $node = AcmeOutbox::Cluster->create('main', 'acme_outbox.lease_duration = 1s');
my $broker = AcmeOutbox::Broker->new->standard_topology('x-queue-type' => 'classic');

sub left
{
	return $node->sql("SELECT count(*) FROM acme_outbox.outbox_entry WHERE status IN ('PENDING', 'PUBLISHING')");
}

$node->publish(EVENTS, keys => 4);
# Large claims: what is released is more than the heir takes at once, and all that
# follows has to wait.
my $victim = AcmeOutbox::Bridge->start($node, $broker,
	args => [ '--claim-rows', 5000, '--window', 10000 ],
	env  => { ACME_OUTBOX_CRASH_AT => 'confirmed-before-settle' });
is($victim->wait_exit, 'signal 9', 'the relay is killed in the middle');
my $left = left();
cmp_ok($left, '>', EVENTS / 2, "the stress happened: $left entries are left");

# The heir: when it begins, when half is done, when all is.
my $heir = AcmeOutbox::Bridge->start($node, $broker);
wait_until(sub { left() < $left }) or die "nothing flows\n";
my $begin = time();
my $from = left();
my ($half, $waiting, $slowest) = (undef, 0, 0);
ok( wait_until(sub {
		my ($now, $held) = split /\|/, $node->sql(<<'SQL');
SELECT count(*) FILTER (WHERE status IN ('PENDING', 'PUBLISHING')),
       count(*) FILTER (WHERE hold_reason = 'KEY')
  FROM acme_outbox.outbox_entry
SQL
		$waiting = $held if $held > $waiting;
		if ($now <= $from / 2 && !$half)
		{
			$half = time();
			my $at = time();
			$node->verify_ok('half way');
			$slowest = time() - $at;
			# verify() is ours, not the relay's
			$begin += $slowest;
			$half += $slowest;
		}
		return $now == 0;
	}),
	'everything is sent in the end');
my ($first, $second) = ($half - $begin, time() - $half);
cmp_ok($waiting, '>', 1000, "the stress happened: up to $waiting entries waited for their key");
cmp_ok($second, '<=', 4 * $first + 2,
	sprintf 'the second half takes no longer (%.1f s after %.1f s)', $second, $first);
cmp_ok($slowest, '<', 10, sprintf 'verify() is quick half way (%.2f s)', $slowest);
my @entries = $node->entries;
my @messages = $broker->drain;
survived_ok($node, $heir, \@entries, \@messages, 'hot keys');
cmp_ok(duplicates(@messages), '<=', 10_000, 'hot keys: no more than a window came twice');
is(stop_within_ok($heir, 25, 'hot keys'), 0, 'hot keys: the relay stops cleanly');

done_testing();
