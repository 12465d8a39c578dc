# Two relays of one origin: one is active. The other takes over at once after a
# clean stop, within the lease after a crash, and a relay that was frozen and wakes
# up late does no harm.
use strict;
use warnings;

use AcmeOutbox::Bridge;
use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = AcmeOutbox::Cluster->create('main', 'acme_outbox.lease_duration = 3s');
my $broker = AcmeOutbox::Broker->new->standard_topology;

sub holder { return $node->sql("SELECT relay FROM acme_outbox.relay_lease WHERE expires_at > clock_timestamp()"); }
sub holds { my ($bridge) = @_; my $pid = $bridge->pid; return holder() =~ /:$pid:/; }
sub published
{
	my ($count) = @_;
	my $before = $node->in_status('PUBLISHED');
	$node->publish($count);
	return wait_until(sub { $node->in_status('PUBLISHED') >= $before + $count }, 30);
}

my $first = AcmeOutbox::Bridge->start($node, $broker);
ok(wait_until(sub { holds($first) }), 'the first relay is active');
my $second = AcmeOutbox::Bridge->start($node, $broker);
ok(wait_until(sub {
	$node->sql("SELECT count(*) FROM pg_stat_activity WHERE usename = 'relay'") == 2 }),
	'the second is connected');
my $active = holder();
ok($second->wait_for_log(qr/another relay is active, standing by" active=\Q$active\E lease_left_ms=[1-9]\d*$/m),
	'the second says who is active');
my $once = AcmeOutbox::Bridge->start($node, $broker, args => ['--once']);
is($once->wait_exit, 75, '--once ends');
like($once->log_text, qr/nothing to do for --once" active=\Q$active\E /, 'and says so, too');
ok(published(500), 'events flow');
ok(holds($first), 'the first is still the active one');

# Takeover after a crash: not before the lease ends, and soon after.
my $at = time();
$first->kill9;
ok(wait_until(sub { holds($second) }, 30), 'after kill -9 the second takes over');
my $took = time() - $at;
cmp_ok($took, '<', 3 + 4, sprintf 'within the lease and a poll or two (%.1f s)', $took);
ok(published(500), 'events flow again');

# Takeover after a clean stop: at once.
my $third = AcmeOutbox::Bridge->start($node, $broker);
ok(wait_until(sub {
	$node->sql("SELECT count(*) FROM pg_stat_activity WHERE usename = 'relay'") == 2 }),
	'a third is connected');
is($second->stop, 0, 'the second stops');
$at = time();
ok(wait_until(sub { holds($third) }, 30), 'after SIGTERM the third takes over');
$took = time() - $at;
cmp_ok($took, '<', 2.5, sprintf 'without waiting for the lease (%.1f s)', $took);
ok(published(500), 'events flow again');
is($third->stop, 0, 'the third stops');
my @entries = $node->entries;
my @messages = $broker->drain;
delivered_ok(\@entries, \@messages, 'takeovers');
order_ok(\@entries, \@messages, 'takeovers');

# A frozen relay: stopped in the middle of a window, overtaken, woken up.
my $before = $node->sql('SELECT max(id) FROM acme_outbox.outbox_entry');
$node->publish(3000, keys => 5);
my $frozen = AcmeOutbox::Bridge->start($node, $broker,
	env => { ACME_OUTBOX_STOP_AT => 'mid-window:2' });
ok($frozen->wait_for_log('stop point mid-window hit'), 'a relay freezes in the middle of a window');
my $heir = AcmeOutbox::Bridge->start($node, $broker);
ok($node->wait_drained, 'another takes over and sends the rest');
@messages = $broker->drain;
@entries = grep { $_->{id} > $before } $node->entries;
delivered_ok(\@entries, \@messages, 'after the takeover');
order_ok(\@entries, \@messages, 'after the takeover');

my $rows = "SELECT md5(string_agg(e::text, ',' ORDER BY id)) FROM acme_outbox.outbox_entry e WHERE id <= "
  . $entries[-1]{id};
my $state = $node->sql($rows);
$frozen->signal('CONT');
ok($frozen->wait_for_log('lease|lost|fenced|stand', since => 1, timeout => 30),
	'the frozen relay wakes up and finds its lease gone');
ok(published(200), 'events flow on');
my @late = $broker->drain;
is(scalar(grep { my $id = $_->{message_id}; grep { $_->{event_id} eq $id } @entries } @late),
	0, 'it sent nothing more of its window');
is($node->sql($rows), $state, 'it settled nothing more');
$node->verify_ok('in the end');
is($heir->stop, 0, 'the heir stops cleanly');
is($frozen->stop, 0, 'and so does the one that was frozen');

done_testing();
