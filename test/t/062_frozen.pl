# The broker is frozen (SIGSTOP) past the confirm timeout, sends no heartbeats, closes
# the connection by an operator's hand, refuses for a full queue. The relay bounds its
# wait, obeys SIGTERM, charges nobody, and needs no restart.
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

my $node = AcmeOutbox::Cluster->create('main', 'acme_outbox.lease_duration = 5s',
	'acme_outbox.hold_backoff_base = 200ms', 'acme_outbox.hold_backoff_cap = 1s');
my $broker =
  AcmeOutbox::Broker->new(private => 1)->standard_topology('x-queue-type' => 'classic');

my ($bridge, $before);

sub begin
{
	my (@args) = @_;
	$before = last_id($node);
	$bridge = AcmeOutbox::Bridge->start($node, $broker,
		args => [ '--stop-timeout', '4s', '--connect-timeout', '2s', '--reconnect-max', '2s', @args ]);
	$bridge->wait_for_log('lease acquired') && $bridge->wait_for_log('broker ready')
	  or die "the relay does not start\n";
	return;
}

sub finish
{
	my ($what) = @_;
	ok($node->wait_drained, "$what: everything is sent in the end");
	my @entries = entries_after($node, $before);
	my @messages = $broker->drain('all', timeout => 3);
	survived_ok($node, $bridge, \@entries, \@messages, $what);
	note "$what: ", duplicates(@messages), ' duplicates';
	is(stop_within_ok($bridge, 4, $what), 0, "$what: the relay stops cleanly");
	return;
}

# Frozen in a burst.
begin('--confirm-timeout', '3s');
$node->publish(8000, keys => 40);
wait_until(sub { $broker->count > 100 }) or die "nothing flows\n";
$broker->signal('STOP');
my $left = $node->sql("SELECT count(*) FROM acme_outbox.outbox_entry WHERE status <> 'PUBLISHED'");
cmp_ok($left, '>', 0, "frozen: the stress happened: $left events were not confirmed");
my $mark = log_mark($bridge);
ok($bridge->wait_for_log('confirm timeout'), 'frozen: the wait for confirms is bounded');
ok($bridge->wait_for_log('(?s)broker not reachable.*broker not reachable'),
	'frozen: connecting again is bounded too');
ok( $node->wait_sql("SELECT count(*) = 0 FROM acme_outbox.outbox_claim"),
	'frozen: what was in flight is given back');
is($node->sql('SELECT count(*) FROM acme_outbox.relay_lease WHERE expires_at > clock_timestamp()'),
	1, 'frozen: the lease is held');
log_rate_ok($mark, 'frozen');
$node->verify_ok('frozen');
$broker->signal('CONT');
finish('frozen');

# SIGTERM while frozen.
begin();
$broker->signal('STOP');
$node->publish(2000, keys => 40);
ok($node->wait_sql('SELECT count(*) > 0 FROM acme_outbox.outbox_claim'),
	'stopped while frozen: the stress happened: a claim is open');
is(stop_within_ok($bridge, 4, 'stopped while frozen'), 0, 'stopped while frozen: cleanly');
is($node->in_status('PUBLISHING'), 0, 'stopped while frozen: nothing is left in flight');
$node->verify_ok('stopped while frozen');
$broker->signal('CONT');
my $first = $before;
begin();
$before = $first;
finish('started after it');

# No heartbeats: an idle connection must notice as well.
begin('--heartbeat', '2s', '--confirm-timeout', '10min');
$broker->signal('STOP');
$mark = log_mark($bridge);
ok($bridge->wait_for_log('no heartbeat from the broker'), 'heartbeat: its loss is noticed');
$node->publish(500);
ok($bridge->wait_for_log('broker not reachable'), 'heartbeat: connecting is tried');
log_rate_ok($mark, 'heartbeat');
$broker->signal('CONT');
finish('heartbeat');

# An operator closes the connection, twice, in a burst.
begin();
for my $round (1, 2)
{
	my $published = $node->in_status('PUBLISHED');
	$node->publish(8000, keys => 40);
	$node->wait_sql("SELECT count(*) > $published + 100 FROM acme_outbox.outbox_entry WHERE status = 'PUBLISHED'");
	$mark = log_mark($bridge);
	wait_until(sub { $broker->close_connections > 0 }) or die "no connection to close\n";
	ok($bridge->wait_for_log('closed by the broker.*code=320', since => 1),
		"operator $round: the stress happened: the broker closed the connection");
	ok($node->wait_drained, "operator $round: the rest is sent");
	log_rate_ok($mark, "operator $round");
}
finish('operator');

# A full queue refuses (nacks) until there is space.
$broker->declare_exchange('small');
$broker->declare_queue('full', 'x-queue-type' => 'classic', 'x-max-length' => 50,
	'x-overflow' => 'reject-publish');
$broker->bind('full', 'small');
begin();
$mark = log_mark($bridge);
# keys of their own: the others do not wait for them
$node->sql(<<'SQL');
SELECT count(acme_outbox.publish('small', 'k', 'small-' || n, 'Small', '{}'::text))
  FROM generate_series(1, 300) n
SQL
$node->publish(1000, keys => 50, first => 1000);
ok( $node->wait_sql(
		"SELECT count(*) > 0 FROM acme_outbox.outbox_entry WHERE id > $before AND hold_reason = 'NACKED' AND holds >= 3"),
	'nacked: the stress happened: entries were refused three times');
ok( $node->wait_sql(
		"SELECT count(*) = 1000 FROM acme_outbox.outbox_entry WHERE id > $before AND topic = 'events' AND status = 'PUBLISHED'"),
	'nacked: other entries flow');
is($node->sql("SELECT max(attempts) FROM acme_outbox.outbox_entry WHERE id > $before"),
	0, 'nacked: no attempt is charged');
cmp_ok(
	$node->sql("SELECT count(*) FROM acme_outbox.outbox_entry WHERE topic = 'small' AND status = 'PUBLISHED'"),
	'<=', $broker->count('full'), 'nacked: no refused entry counts as published');
log_rate_ok($mark, 'nacked');
$node->verify_ok('nacked');
is(stop_within_ok($bridge, 4, 'nacked'), 0, 'nacked: the relay stops cleanly');
$first = $before;
begin();
$before = $first;
my @small;
ok( wait_until(sub {
		push @small, $broker->drain('full', timeout => 0.3);
		return $node->sql(
			"SELECT count(*) = 300 FROM acme_outbox.outbox_entry WHERE topic = 'small' AND status = 'PUBLISHED'") eq 't';
	}),
	'nacked: with space in the queue they are sent');
push @small, $broker->drain('full');
ok($node->wait_drained, 'nacked: all are');
my @entries = entries_after($node, $before);
my @messages = ($broker->drain, @small);
survived_ok($node, $bridge, \@entries, \@messages, 'nacked');
is(stop_within_ok($bridge, 4, 'nacked'), 0, 'nacked: it stops cleanly in the end');

done_testing();
