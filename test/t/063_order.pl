# 100 keys of 100 events each, through relays killed at random points, restarts and
# takeovers: first copies of a key arrive in order. With --strict-order also through
# refusals: exchanges that lose their binding, a queue that is full.
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

use constant KEYS => 100;
use constant EVENTS => 100;
use constant KILLS => 15;

my $node = AcmeOutbox::Cluster->create('main', 'acme_outbox.lease_duration = 1s',
	'acme_outbox.hold_backoff_base = 50ms', 'acme_outbox.hold_backoff_cap = 200ms');
my $broker = AcmeOutbox::Broker->new->standard_topology('x-queue-type' => 'classic');

# Every key's next event, key by key, some rounds in one transaction.
sub publish_rounds
{
	my ($keys, $from, $to, $exchange) = @_;
	return $node->sql(<<"SQL");
SELECT count(acme_outbox.publish($exchange, 'k', 'key-' || k, 'Event', jsonb_build_object('n', n)))
  FROM (SELECT n, k FROM generate_series($from, $to) n, generate_series(1, $keys) k
         ORDER BY n, k) AS s
SQL
}

sub unpublished
{
	return $node->sql(
		"SELECT count(*) FROM acme_outbox.outbox_entry WHERE status IN ('PENDING', 'PUBLISHING')");
}

# Kills.
my $seed = $ENV{FAULT_SEED} // int time();
srand($seed);
note "random seed $seed (FAULT_SEED sets it)";
my @points = map { ("claim-committed:$_", "mid-window:$_", "confirmed-before-settle:$_", "settled:$_") } 1 .. 3;

sub start_relay
{
	my ($doomed) = @_;
	return AcmeOutbox::Bridge->start($node, $broker,
		args => [ '--claim-rows', 100 + int rand 300 ],
		env  => $doomed ? { ACME_OUTBOX_CRASH_AT => $points[ rand @points ] } : {});
}

my @relays = map { start_relay($_ % 2) } 1, 2;
my ($kills, $round) = (0, 0);
while ($kills < KILLS)
{
	if ($round < EVENTS)
	{
		my $to = $round + 5;
		publish_rounds(KEYS, $round + 1, $to, q{'events'});
		$round = $to;
	}
	# One dies by itself at a point, or the active one is shot after some progress.
	my $left = unpublished();
	last if $left == 0 && $round >= EVENTS;
	my $wanted = $left - int rand 400;
	wait_until(sub { unpublished() <= ($wanted > 0 ? $wanted : 0) || grep { !$_->running } @relays });
	my ($victim) = grep { !$_->running } @relays;
	if (!$victim)
	{
		my $holder = $node->sql('SELECT relay FROM acme_outbox.relay_lease');
		($victim) = grep { my $pid = $_->pid; $holder =~ /:$pid:/ } @relays;
		next unless $victim;
		eval { $victim->kill9 };
	}
	$kills++;
	@relays = grep { $_->running } @relays;
	push @relays, start_relay($kills % 3 > 0) while @relays < 2;
}
publish_rounds(KEYS, $round + 1, EVENTS, q{'events'}) if $round < EVENTS;
$_->running && $_->kill9 for @relays;
my $heir = AcmeOutbox::Bridge->start($node, $broker);
ok($node->wait_drained, 'kills: everything is sent in the end');
cmp_ok($kills, '>=', KILLS, "kills: the stress happened: $kills relays died");
my $epochs = $node->sql('SELECT last_value FROM acme_outbox.relay_epoch_seq');
cmp_ok($epochs, '>=', KILLS / 2, "kills: the stress happened: $epochs epochs");
my @entries = $node->entries;
my @messages = $broker->drain('all', timeout => 3);
is(scalar @entries, KEYS * EVENTS, 'kills: all were published');
survived_ok($node, $heir, \@entries, \@messages, 'kills');
cmp_ok(duplicates(@messages), '>', 0, 'kills: the stress happened: ' . duplicates(@messages) . ' came twice');
is(stop_within_ok($heir, 25, 'kills'), 0, 'kills: the relay stops cleanly');

# Refusals, in strict order. Every second event of a key goes to an exchange that has
# no binding half of the time; the queue takes no more than 300 messages.
use constant STRICT_KEYS => 40;
my $before = last_id($node);
$broker->declare_exchange('flaky');
$broker->declare_exchange('firm');
$broker->declare_queue('strict', 'x-queue-type' => 'classic', 'x-max-length' => 300,
	'x-overflow' => 'reject-publish');
$broker->bind('strict', 'firm');
my $strict = AcmeOutbox::Bridge->start($node, $broker, args => ['--strict-order']);
@messages = ();
my ($toggles, %seen) = (0);
for my $part (1 .. 10)
{
	publish_rounds(STRICT_KEYS, $part * 10 - 9, $part * 10,
		q{CASE WHEN (n + k) % 2 = 0 THEN 'flaky' ELSE 'firm' END});
	ok( $node->wait_sql(
			"SELECT count(*) > 0 FROM acme_outbox.outbox_entry WHERE hold_reason IN ('UNROUTABLE', 'NACKED')"),
		"strict $part: the broker refuses");
	$seen{$_}++ for split /\n/, $node->sql(
		"SELECT DISTINCT hold_reason FROM acme_outbox.outbox_entry WHERE hold_reason IS NOT NULL");
	push @messages, $broker->drain('strict', timeout => 0.3);
	$broker->bind('strict', 'flaky');
	# Unbound again while the burst goes on.
	my $left = unpublished();
	wait_until(sub {
		my $now = unpublished();
		$seen{NACKED}++ if $node->sql(
			"SELECT EXISTS (SELECT FROM acme_outbox.outbox_entry WHERE hold_reason = 'NACKED')") eq 't';
		return $now < $left / 2 + 20 || $broker->count('strict') >= 300;
	}, 20);
	$broker->unbind('strict', 'flaky');
	$toggles++;
}
ok( $node->wait_sql(
		"SELECT count(*) > 0 FROM acme_outbox.outbox_entry WHERE id > $before AND hold_reason = 'NACKED'")
	  || $seen{NACKED}, 'strict: the stress happened: the full queue refused');
$broker->bind('strict', 'flaky');
ok( wait_until(sub {
		push @messages, $broker->drain('strict', timeout => 0.3);
		return unpublished() == 0;
	}),
	'strict: everything is sent in the end');
push @messages, $broker->drain('strict');
@entries = entries_after($node, $before);
is(scalar @entries, STRICT_KEYS * 100, 'strict: all were published');
survived_ok($node, $strict, \@entries, \@messages, 'strict');
ok($seen{UNROUTABLE}, 'strict: the stress happened: rows were unroutable');
ok($seen{KEY}, 'strict: the stress happened: rows waited for their key');
is(stop_within_ok($strict, 25, 'strict'), 0, 'strict: the relay stops cleanly');
my ($returned, $nacked) = $strict->log_text =~ /msg="relay stopped".* returned=(\d+) nacked=(\d+)/;
cmp_ok($returned, '>', 10, "strict: the stress happened: $returned were returned");
cmp_ok($nacked, '>', 10, "strict: the stress happened: $nacked were nacked");

done_testing();
