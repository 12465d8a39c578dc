# SIGTERM in every state ends the relay with status 0, its work settled and its
# lease handed over; a second SIGTERM ends it now.
# Slow: begins before the others.
use strict;
use warnings;

use AcmeOutbox::Bridge;
use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = AcmeOutbox::Cluster->create('main');
my $broker = 
  AcmeOutbox::Broker->new(private => 1)->standard_topology('x-queue-type' => 'classic');

sub clean_ok
{
	my ($what) = @_;
	is($node->in_status('PUBLISHING'), 0, "$what: nothing is left in flight");
	is($node->sql('SELECT count(*) FROM acme_outbox.outbox_claim'), 0, "$what: no open claim");
	is($node->sql('SELECT count(*) FROM acme_outbox.relay_lease WHERE expires_at > clock_timestamp()'),
		0, "$what: the lease is handed over");
	$node->verify_ok($what);
	return;
}

sub active { return $node->sql('SELECT count(*) FROM acme_outbox.relay_lease WHERE expires_at > clock_timestamp()'); }

# Idle.
my $bridge = AcmeOutbox::Bridge->start($node, $broker);
ok(wait_until(sub { active() == 1 }), 'a relay is active');
is($bridge->stop(10), 0, 'idle: it stops');
clean_ok('idle');

# In a burst.
$node->publish(8000, keys => 20);
$bridge = AcmeOutbox::Bridge->start($node, $broker);
wait_until(sub { $broker->count > 100 }) or die "nothing flows\n";
is($bridge->stop(26), 0, 'burst: it stops');
isnt($node->in_status('PENDING'), 0, 'burst: before all was sent');
clean_ok('burst');
is($node->in_status('PUBLISHED'), scalar($broker->drain), 'burst: what arrived is what is PUBLISHED');

# Standing by.
my $active = AcmeOutbox::Bridge->start($node, $broker);
ok($node->wait_drained, 'another relay sends the rest');
my $standby = AcmeOutbox::Bridge->start($node, $broker);
wait_until(sub { $node->sql("SELECT count(*) FROM pg_stat_activity WHERE usename = 'relay'") == 2 });
is($standby->stop(10), 0, 'standby: it stops');
is(active(), 1, 'standby: the other one keeps its lease');
is($active->stop(10), 0, 'the other one stops');
clean_ok('standby');
$broker->drain;

# The broker is frozen: nothing is confirmed.
$bridge = AcmeOutbox::Bridge->start($node, $broker);
$node->publish(1);
ok($node->wait_drained, 'a relay is active and publishes');
$broker->signal('STOP');
$node->publish(50);
ok($node->wait_sql('SELECT count(*) > 0 FROM acme_outbox.outbox_claim'), 'frozen broker: a claim is open');
$bridge->signal('TERM');
ok(!defined $bridge->wait_exit(2), 'frozen broker: it waits for confirms');
my $at = time();
$bridge->signal('TERM');
my $status = $bridge->wait_exit(10);
ok(defined $status, sprintf 'frozen broker: a second SIGTERM ends it now (status %s, %.1f s)',
	$status // 'none', time() - $at);
$broker->signal('CONT');

# The broker is away.
$broker->stop;
$bridge = AcmeOutbox::Bridge->start($node, $broker);
$bridge->wait_for_log('connect|refused');
is($bridge->stop(10), 0, 'broker away: it stops');
$broker->start;

# The database is away.
$bridge = AcmeOutbox::Bridge->start($node, $broker);
ok($node->wait_drained, 'everything is sent in the end');
$node->stop('fast');
$bridge->wait_for_log('postgres|database|connection');
is($bridge->stop(10), 0, 'database away: it stops');
$node->start;
my @entries = $node->entries;
is(scalar(grep { $_->{attempts} > 0 || $_->{status} ne 'PUBLISHED' } @entries), 0,
	'all PUBLISHED, no attempt charged');
$node->verify_ok('in the end');
done_testing();
