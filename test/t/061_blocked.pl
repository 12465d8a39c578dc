# The broker's memory alarm blocks publishing. The relay stops claiming, keeps its
# lease and its connection however long that takes, obeys SIGTERM, and goes on at once
# when the alarm is over.
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

use constant EVENTS => 5000;

# A short lease and a short confirm timeout: both would show within the test.
my $node = AcmeOutbox::Cluster->create('main', 'acme_outbox.lease_duration = 3s');
my $broker =
  AcmeOutbox::Broker->new(private => 1)->standard_topology('x-queue-type' => 'classic');
my @settings = ('--confirm-timeout', '8s', '--stop-timeout', '4s', '--renew-interval', '500ms');

sub alarm_on { $broker->ctl('set_vm_memory_high_watermark', 'absolute', '1MiB'); return; }
sub alarm_off { $broker->ctl('set_vm_memory_high_watermark', 'absolute', '1GiB'); return; }
sub epoch { return $node->sql('SELECT epoch FROM acme_outbox.relay_lease'); }
sub claims { return $node->sql('SELECT max(position) FROM acme_outbox.outbox_cursor'); }

# Until the lease was renewed so many times more.
sub wait_renewals
{
	my ($count) = @_;
	for (1 .. $count)
	{
		my $at = $node->sql('SELECT renewed_at FROM acme_outbox.relay_lease');
		$node->wait_sql("SELECT renewed_at > '$at' FROM acme_outbox.relay_lease")
		  or return 0;
	}
	return 1;
}

sub broker_blocks
{
	my $alarms = $broker->api('GET', 'nodes')->[0]{mem_alarm};
	return $alarms ? 1 : 0;
}

my $bridge = AcmeOutbox::Bridge->start($node, $broker, args => \@settings);
$node->publish(10);
ok($node->wait_drained, 'events flow');
my $epoch = epoch();

# Blocked.
alarm_on();
$node->publish(EVENTS, keys => 50);
ok($bridge->wait_for_log('broker blocked publishing'), 'the broker blocks the relay');
ok(wait_until(sub { broker_blocks() }), 'the stress happened: the broker has a memory alarm');
my $mark = log_mark($bridge);
# the claim that may have been under way
ok(wait_renewals(2), 'blocked: the lease is renewed');
my $claims = claims();
my $left = $node->sql("SELECT count(*) FROM acme_outbox.outbox_entry WHERE status = 'PENDING'");
cmp_ok($left, '>', 0, "blocked: $left events are not even claimed");
ok(wait_renewals(20), 'blocked: and again');
is(claims(), $claims, 'blocked: nothing is claimed');
is(epoch(), $epoch, 'blocked: under the same epoch');
is($node->in_status('PENDING'), $left, 'blocked: the backlog stays where it is');
unlike($bridge->log_text, qr/connection lost|confirm timeout/, 'blocked: the connection stays');
$node->verify_ok('blocked');
log_rate_ok($mark, 'blocked');

# Unblocked.
alarm_off();
ok($bridge->wait_for_log('broker unblocked publishing'), 'the alarm ends');
my ($blocked_ms) = $bridge->log_text =~ /blocked_ms=(\d+)/;
cmp_ok($blocked_ms, '>', 8000, 'the stress happened: it lasted longer than the confirm timeout');
ok($node->wait_drained, 'unblocked: everything is sent');
is(epoch(), $epoch, 'unblocked: under the same epoch');
my @entries = $node->entries;
my @messages = $broker->drain;
survived_ok($node, $bridge, \@entries, \@messages, 'unblocked');
cmp_ok(duplicates(@messages), '<=', 1000, 'unblocked: no more than a window came twice');

# SIGTERM while blocked.
my $before = last_id($node);
alarm_on();
$node->publish(EVENTS, keys => 50);
ok($bridge->wait_for_log('broker blocked publishing', since => 1), 'blocked again');
my $status = stop_within_ok($bridge, 4, 'blocked');
is($status, 0, 'blocked: the relay stops cleanly');
is($node->in_status('PUBLISHING'), 0, 'blocked: nothing is left in flight');
is($node->sql('SELECT count(*) FROM acme_outbox.outbox_claim'), 0, 'blocked: no open claim');
is($node->sql('SELECT count(*) FROM acme_outbox.relay_lease WHERE expires_at > clock_timestamp()'),
	0, 'blocked: the lease is handed over');
cmp_ok($node->in_status('PENDING'), '>', 0, 'blocked: events are left');
$node->verify_ok('stopped while blocked');

# Started while blocked: the broker tells only who publishes.
$bridge = AcmeOutbox::Bridge->start($node, $broker, args => \@settings);
ok($bridge->wait_for_log('broker blocked publishing'), 'a relay started meanwhile is blocked');
$mark = log_mark($bridge);
ok(wait_renewals(5), 'started while blocked: it holds its lease');
log_rate_ok($mark, 'started while blocked');
alarm_off();
ok($node->wait_drained, 'and sends everything when the alarm ends');
@entries = entries_after($node, $before);
@messages = $broker->drain;
survived_ok($node, $bridge, \@entries, \@messages, 'in the end');
is(stop_within_ok($bridge, 4, 'in the end'), 0, 'the relay stops cleanly');

done_testing();
