# The connection to the broker misbehaves: half-open, reset, half-closed, cut in the
# middle of a frame, slow, one byte at a time, not read from. A proxy does that.
use strict;
use warnings;

use AcmeOutbox::Bridge;
use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use AcmeOutbox::Fault;
use AcmeOutbox::FaultProxy;
use JSON::PP qw(decode_json);
use PostgreSQL::Test::Utils;
use Test::More;

my $node = AcmeOutbox::Cluster->create('main', 'acme_outbox.lease_duration = 5s');
my $broker = AcmeOutbox::Broker->new->standard_topology('x-queue-type' => 'classic');
my $proxy = AcmeOutbox::FaultProxy->start($broker->{port});
my ($bridge, $before);

sub begin
{
	my (@args) = @_;
	$before = last_id($node);
	$bridge = AcmeOutbox::Bridge->start($node, $broker,
		uri => $broker->uri(port => $proxy->port),
		args => [ '--stop-timeout', '4s', '--connect-timeout', '2s', '--reconnect-max', '2s', @args ]);
	$bridge->wait_for_log('lease acquired') && $bridge->wait_for_log('broker ready')
	  or die "the relay does not start\n";
	return;
}

sub burst
{
	my ($count) = @_;
	my $queued = $broker->count;
	$node->publish($count, keys => 40);
	wait_until(sub { $broker->count > $queued + 50 }) or die "nothing flows\n";
	return;
}

# Sent in the end, by the same process, in order, uncharged.
sub recovered
{
	my ($what) = @_;
	ok($node->wait_drained, "$what: everything is sent in the end");
	my @entries = entries_after($node, $before);
	my @messages = $broker->drain('all', timeout => 2);
	survived_ok($node, $bridge, \@entries, \@messages, $what);
	note "$what: ", duplicates(@messages), ' duplicates';
	return @messages;
}

sub finish
{
	my ($what) = @_;
	my @messages = recovered($what);
	is(stop_within_ok($bridge, 4, $what), 0, "$what: the relay stops cleanly");
	return @messages;
}

# Half-open: nothing comes through, and nobody says so.
begin('--confirm-timeout', '3s');
burst(4000);
$proxy->tell('blackhole');
my $mark = log_mark($bridge);
ok($bridge->wait_for_log('confirm timeout'), 'half-open: the wait is bounded');
ok($bridge->wait_for_log('(?s)broker not reachable.*broker not reachable'),
	'half-open: connecting is bounded as well');
cmp_ok($proxy->counter('swallowed'), '>', 0, 'half-open: the stress happened: bytes were swallowed');
log_rate_ok($mark, 'half-open');
$node->verify_ok('half-open');
$proxy->tell('pass');
recovered('half-open');

# Half-open, and no confirm is awaited: the heartbeat must find out.
is(stop_within_ok($bridge, 4, 'after half-open'), 0, 'after half-open: it stops cleanly');
begin('--heartbeat', '2s', '--confirm-timeout', '10min');
$proxy->tell('blackhole');
ok($bridge->wait_for_log('no heartbeat from the broker'), 'half-open and idle: it is noticed');
$proxy->tell('pass');
burst(500);
recovered('half-open and idle');
$before = last_id($node);

# SIGTERM while half-open.
burst(4000);
$proxy->tell('blackhole');
isnt($node->sql('SELECT count(*) FROM acme_outbox.outbox_claim'), 0,
	'stopped while half-open: the stress happened: a claim is open');
is(stop_within_ok($bridge, 4, 'stopped while half-open'), 0, 'stopped while half-open: cleanly');
is($node->in_status('PUBLISHING'), 0, 'stopped while half-open: nothing is left in flight');
$node->verify_ok('stopped while half-open');
$proxy->tell('pass');
my $first = $before;

# Nor does the database take the outcomes: the bound ends it.
begin();
burst(2000);
$proxy->tell('blackhole');
my $locker = $node->background_psql('postgres');
$locker->query_safe('BEGIN; LOCK TABLE acme_outbox.outbox_claim IN ACCESS EXCLUSIVE MODE');
is(stop_within_ok($bridge, 4, 'stopped without database or broker'), 75,
	'stopped without database or broker: it says that something is left');
$locker->quit;
$proxy->tell('pass');
begin();
$before = $first;
finish('started after it');

# Cut off in several ways, in bursts.
for my $way ('reset', 'halfclose down', 'halfclose up')
{
	begin();
	burst(4000);
	my $connections = $proxy->counter('connections');
	$mark = log_mark($bridge);
	$proxy->tell($way);
	ok(wait_until(sub { $proxy->counter('connections') > $connections }),
		"$way: the stress happened: the relay had to connect again");
	finish_in_burst($way);
}

sub finish_in_burst
{
	my ($what) = @_;
	log_rate_ok($mark, $what);
	finish($what);
	return;
}

# In the middle of a frame: of the handshake, of a message, of a confirm.
for my $cut ('up 20', 'up 300', 'up 5000', 'up 100000', 'down 5', 'down 600', 'down 660')
{
	my $cuts = $proxy->counter('cuts');
	$before = last_id($node);
	$proxy->tell("cut $cut");
	$bridge = AcmeOutbox::Bridge->start($node, $broker,
		uri => $broker->uri(port => $proxy->port),
		args => [ '--stop-timeout', '4s', '--connect-timeout', '5s' ]);
	$node->publish(2000, keys => 40);
	ok(wait_until(sub { $proxy->counter('cuts') == $cuts + 1 }),
		"cut $cut: the stress happened: the connection was cut within a frame");
	finish("cut $cut");
}

# One byte at a time, both ways: slow, and right.
$proxy->tell('split');
my $writes = $proxy->counter('writes');
begin('--confirm-timeout', '60s');
$node->sql(<<'SQL');
SELECT count(acme_outbox.publish('events', 'order.' || n, 'a' || n % 7, 'OrderPlaced',
		jsonb_build_object('n', n, 'text', repeat('ä"\', n % 50)),
		headers => jsonb_build_object('number', n, 'nested', jsonb_build_object('list', '[1, null, "x"]'::jsonb))))
  FROM generate_series(1, 300) AS n
SQL
my @messages = finish('single bytes');
cmp_ok($proxy->counter('writes') - $writes, '>', 100_000,
	'single bytes: the stress happened: so many were forwarded');
is(duplicates(@messages), 0, 'single bytes: no event came twice');
my %payload = map { split /\|/, $_, 2 } split /\n/,
  $node->sql("SELECT event_id, payload FROM acme_outbox.outbox_entry WHERE id > $before");
my %body = map { $_->{message_id} => $_->{body} } @messages;
utf8::encode($_) for values %body;
is(scalar(grep { $body{$_} ne $payload{$_} } keys %payload), 0,
	'single bytes: each message is what was stored, byte for byte');
is(scalar(grep { my $n = decode_json($body{ $_->{message_id} })->{body}{payload}{n};
			$_->{routing_key} ne "order.$n" || $_->{headers}{number} != $n
			  || $_->{headers}{nested}{list}[2] ne 'x' } @messages),
	0, 'single bytes: with its own routing key and headers');

# Slow answers.
$proxy->tell('delay 300');
begin();
$node->publish(2000, keys => 40);
@messages = finish('slow');
is(duplicates(@messages), 0, 'slow: no event came twice');

# Nobody reads what the relay sends: its buffers are full.
$proxy->tell('pass');
begin('--confirm-timeout', '5s');
$proxy->tell('stall');
my $up = $proxy->counter('up');
$mark = log_mark($bridge);
$node->sql(<<'SQL');
SELECT count(acme_outbox.publish('events', 'k', 'a' || n % 7, 'Large', to_jsonb(repeat('x', 100000))))
  FROM generate_series(1, 200) AS n
SQL
ok($bridge->wait_for_log('confirm timeout'), 'not read from: the wait is bounded');
cmp_ok($proxy->counter('up') - $up, '<', 100_000, 'not read from: the stress happened: little was read');
ok($bridge->wait_for_log('broker not reachable'), 'not read from: connecting is bounded as well');
is($node->sql('SELECT count(*) FROM acme_outbox.relay_lease WHERE expires_at > clock_timestamp()'),
	1, 'not read from: the lease is held all the time');
log_rate_ok($mark, 'not read from');
$node->verify_ok('not read from');
$proxy->tell('pass');
recovered('not read from');
$before = last_id($node);
$proxy->tell('stall');
$node->publish(2000, keys => 40);
ok($node->wait_sql('SELECT count(*) > 0 FROM acme_outbox.outbox_claim'), 'not read from: a claim is open');
is(stop_within_ok($bridge, 4, 'stopped while not read from'), 0, 'stopped while not read from: cleanly');
$node->verify_ok('stopped while not read from');
$proxy->tell('pass');
$first = $before;
begin();
$before = $first;
finish('in the end');

done_testing();
