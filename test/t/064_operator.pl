# An operator works on entries while the relay does: holds row locks for long, sets
# states by hand, deletes. The relay neither stalls nor overwrites what the operator
# did, and the other entries of a key go on.
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

my $node = AcmeOutbox::Cluster->create('main', 'acme_outbox.lease_duration = 5s');
my $broker = AcmeOutbox::Broker->new->standard_topology('x-queue-type' => 'classic');
my $bridge;

sub begin
{
	$bridge = AcmeOutbox::Bridge->start($node, $broker, args => [ '--stop-timeout', '5s' ], @_);
	return;
}

# How long a burst of other keys takes.
sub timed_burst
{
	my ($what) = @_;
	my $id = last_id($node);
	my $at = time();
	$node->publish(5000, keys => 50);
	ok( $node->wait_sql(
			"SELECT count(*) = 5000 FROM acme_outbox.outbox_entry WHERE id > $id AND status = 'PUBLISHED' AND message_key LIKE 'a%'"),
		"$what: others flow");
	return time() - $at;
}

sub status_of
{
	my ($name) = @_;
	return $node->sql(
		"SELECT string_agg(status::text, ' ' ORDER BY id) FROM acme_outbox.outbox_entry WHERE event_name = '$name'");
}

sub publish_keys
{
	my ($keys, $events, $name) = @_;
	return $node->sql(<<"SQL");
SELECT count(acme_outbox.publish('events', 'k', 'held-' || k, '$name', '{}'::text))
  FROM (SELECT n, k FROM generate_series(1, $events) n, generate_series(1, $keys) k
         ORDER BY n, k) AS s
SQL
}

my $operator = $node->background_psql('postgres');

# Locked before the claim.
begin();
my $alone = timed_burst('without locks');
$bridge->signal('STOP');
publish_keys(3, 10, 'Held');
$operator->query_safe(
	"BEGIN; SELECT id FROM acme_outbox.outbox_entry WHERE event_name = 'Held' AND message_key IN ('held-1', 'held-2') ORDER BY id LIMIT 4 FOR UPDATE");
$bridge->signal('CONT');
ok( $node->wait_sql(
		"SELECT count(*) = 10 FROM acme_outbox.outbox_entry WHERE message_key = 'held-3' AND status = 'PUBLISHED'"),
	'locked: an unlocked key flows');
my $mark = log_mark($bridge);
my $locked = timed_burst('locked');
cmp_ok($locked, '<', 4 * $alone + 3, sprintf 'locked: at speed (%.1f s, %.1f s without locks)', $locked, $alone);
is( $node->sql(
		"SELECT count(*) FROM acme_outbox.outbox_entry WHERE message_key IN ('held-1', 'held-2') AND status = 'PUBLISHED'"),
	0, 'locked: the stress happened: the locked entries and those behind them wait');
log_rate_ok($mark, 'locked');
$node->verify_ok('locked');
$operator->query_safe('COMMIT');
ok($node->wait_drained, 'locked: they are sent when the locks are gone');
my @entries = $node->entries;
my @messages = $broker->drain;
survived_ok($node, $bridge, \@entries, \@messages, 'locked');

# Locked while in flight: sent and confirmed, but not to be settled.
is(stop_within_ok($bridge, 5, 'locked'), 0, 'locked: the relay stops cleanly');
my $before = last_id($node);
begin(env => { ACME_OUTBOX_STOP_AT => 'confirmed-before-settle' });
publish_keys(5, 8, 'Flying');
ok($bridge->wait_for_log('stop point'), 'in flight: the relay is held before its settle');
my %id = map { split /\|/ } split /\n/, $node->sql(
	"SELECT message_key, min(id) FROM acme_outbox.outbox_entry WHERE event_name = 'Flying' AND status = 'PUBLISHING' GROUP BY 1");
is(scalar keys %id, 5, 'in flight: the stress happened: all keys are');
$operator->query_safe('BEGIN; SELECT id FROM acme_outbox.outbox_entry WHERE id IN ('
	  . join(',', values %id) . ') FOR UPDATE');
$bridge->signal('CONT');
ok($bridge->wait_for_log('rows were not settled.*LOCKED'), 'in flight: the relay finds them locked');
$mark = log_mark($bridge);
$locked = timed_burst('in flight');
cmp_ok($locked, '<', 4 * $alone + 3, sprintf 'in flight: at speed (%.1f s)', $locked);
is($node->sql('SELECT count(*) FROM acme_outbox.outbox_entry WHERE status = \'PUBLISHING\' AND id IN ('
	  . join(',', values %id) . ')'), 5, 'in flight: the locked ones are still open');
log_rate_ok($mark, 'in flight');
$node->verify_ok('in flight');
# Each gets another end.
my $entry = 'acme_outbox.outbox_entry';
$operator->query_safe("UPDATE $entry SET status = 'FAILED' WHERE id = $id{'held-1'}");
$operator->query_safe("UPDATE $entry SET status = 'PENDING' WHERE id = $id{'held-2'}");
$operator->query_safe("UPDATE $entry SET status = 'PUBLISHED' WHERE id = $id{'held-3'}");
$operator->query_safe("DELETE FROM $entry WHERE id = $id{'held-4'}");
$operator->query_safe('COMMIT');
publish_keys(5, 2, 'Follower');
ok( $node->wait_sql(
		"SELECT count(*) = 10 FROM $entry WHERE event_name = 'Follower' AND status = 'PUBLISHED'"),
	'in flight: followers of each key go on');
ok($node->wait_drained, 'in flight: nothing is left open');
is($node->sql("SELECT status FROM $entry WHERE id = $id{'held-1'}"), 'FAILED', 'in flight: FAILED by hand stays');
is($node->sql("SELECT status FROM $entry WHERE id = $id{'held-2'}"), 'PUBLISHED', 'in flight: PENDING by hand is sent again');
is($node->sql("SELECT status FROM $entry WHERE id = $id{'held-3'}"), 'PUBLISHED', 'in flight: PUBLISHED by hand stays');
is($node->sql("SELECT count(*) FROM $entry WHERE id = $id{'held-4'}"), 0, 'in flight: a deleted one is gone');
is($node->sql("SELECT status FROM $entry WHERE id = $id{'held-5'}"), 'PUBLISHED', 'in flight: the untouched one is settled');
is($node->sql('SELECT count(*) FROM acme_outbox.outbox_claim'), 0, 'in flight: no claim stays open');
is($bridge->running, 1, 'in flight: no restart was needed');
$node->verify_ok('in flight, in the end');
$broker->drain;

# By hand under load.
$before = last_id($node);
my %changed;
my $hands = 0;
my $at = time();
for my $part (1 .. 10)
{
	$node->publish(1200, keys => 200, first => $part * 2000);
	for my $change (
		[ FAILED => 'PENDING', "UPDATE $entry SET status = 'FAILED'" ],
		[ PUBLISHED => 'PENDING', "UPDATE $entry SET status = 'PUBLISHED'" ],
		[ PENDING => 'PUBLISHING', "UPDATE $entry SET status = 'PENDING'" ],
		[ FAILED => 'PUBLISHING', "UPDATE $entry SET status = 'FAILED'" ],
		[ PUBLISHED => 'PUBLISHING', "UPDATE $entry SET status = 'PUBLISHED'" ],
		[ GONE => 'PENDING', "DELETE FROM $entry" ],
		[ GONE => 'PUBLISHING', "DELETE FROM $entry" ])
	{
		my ($to, $from, $statement) = @$change;
		my $rows = $operator->query_safe(
			"$statement WHERE status = '$from' AND id IN (SELECT id FROM $entry WHERE id > $before AND status = '$from' ORDER BY random() LIMIT 5) RETURNING id");
		for my $id ($rows =~ /^(\d+)$/mg)
		{
			$changed{$id} = $to;
			$hands++;
			$changed{"$from to $to"}++;
		}
	}
}
$operator->quit;
ok($node->wait_drained, 'by hand: everything else is sent');
cmp_ok($hands, '>', 50, "by hand: the stress happened: $hands changes");
for my $kind ('PENDING to FAILED', 'PUBLISHING to PENDING', 'PUBLISHING to PUBLISHED', 'PUBLISHING to GONE')
{
	ok($changed{$kind}, "by hand: the stress happened: $kind");
}
@entries = entries_after($node, $before);
my %status = map { $_->{id} => $_->{status} } @entries;
my @wrong = grep {
	my $now = $status{$_} // 'GONE';
	my $want = $changed{$_} eq 'PENDING' ? 'PUBLISHED' : $changed{$_};
	$now ne $want
} grep { /^\d+$/ } keys %changed;
is(scalar @wrong, 0, 'by hand: nothing the operator did is overwritten')
  or diag map { "$_: $changed{$_} became " . ($status{$_} // 'GONE') . "\n" } @wrong[ 0 .. ($#wrong > 9 ? 9 : $#wrong) ];
@messages = $broker->drain;
my %arrived = map { $_->{message_id} => 1 } @messages;
my @own = grep { ($changed{ $_->{id} } // 'PENDING') eq 'PENDING' } @entries;
is(scalar(grep { !$arrived{ $_->{event_id} } } @own), 0, 'by hand: no other event is lost');
order_ok(\@own, \@messages, 'by hand');
uncharged_ok(\@own, 'by hand');
is($node->sql('SELECT count(*) FROM acme_outbox.outbox_claim'), 0, 'by hand: no claim stays open');
$node->verify_ok('by hand');
is($bridge->running, 1, 'by hand: no restart was needed');
is(stop_within_ok($bridge, 5, 'by hand'), 0, 'by hand: the relay stops cleanly');

done_testing();
