# The audit lane: every entry goes to the audit exchange as well, and is PUBLISHED when
# both lanes have confirmed. While the audit exchange is missing, unbound or full, the
# business lane has each event once and its keys go on; the audit copies follow. They
# are the business lane's bytes, or redacted where a rule says so. Relays killed at any
# point lose nothing on either lane; one started without the lane finishes what waits.
use strict;
use warnings;

use AcmeOutbox::Bridge;
use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use constant SECRET => 'tok-5ecret';

my $node = AcmeOutbox::Cluster->create('main', 'acme_outbox.lease_duration = 1s',
	'acme_outbox.hold_backoff_base = 100ms', 'acme_outbox.hold_backoff_cap = 300ms');
my $broker = AcmeOutbox::Broker->new->standard_topology('x-queue-type' => 'classic');
my @lane = ('--audit-exchange', 'feed');
my @bridges;

sub start
{
	my (%opt) = @_;
	push @bridges, AcmeOutbox::Bridge->start($node, $broker, args => \@lane, %opt);
	return $bridges[-1];
}

sub waiting_for_audit
{
	return $node->sql(<<'SQL');
SELECT count(*) FROM acme_outbox.outbox_entry
 WHERE lanes_done = 1 AND status IN ('PENDING', 'PUBLISHING') AND published_at IS NULL
SQL
}

sub wait_for_audit
{
	my ($count, $error, $what) = @_;
	ok( $node->wait_sql(
			"SELECT count(*) = $count FROM acme_outbox.outbox_entry WHERE lanes_done = 1 AND status <> 'PUBLISHED' AND last_error LIKE '$error (audit lane)'"),
		"$what: $count entries wait for their audit copy alone");
	return;
}

sub by_id
{
	return map { $_->{message_id} => $_ } @_;
}

# The same message but for the exchange.
sub same_messages
{
	my ($business, $audit, $what) = @_;
	my %business = by_id(@$business);
	my %audit = by_id(@$audit);

	for my $message (values %business, values %audit)
	{
		delete @$message{qw(exchange redelivered)};
	}
	is_deeply(\%audit, \%business, "$what: audit copies are the business lane's, byte for byte");
	return;
}

# ---- missing, unbound, full ----

my $bridge = start();
$node->publish(40, keys => 5);
wait_for_audit(40, 'exchange "feed" does not exist', 'missing');
$node->publish(10, keys => 5, first => 41);
wait_for_audit(50, 'exchange "feed" does not exist', 'missing, later events of the same keys');
is($broker->count, 50, 'missing: the business lane has each event');
is($node->sql('SELECT audit_only FROM acme_outbox.outbox_backlog'), 50, 'missing: outbox_backlog counts them');
$node->verify_ok('missing');

$broker->declare_exchange('feed', 'fanout');
wait_for_audit(50, 'NO_ROUTE exchange=feed routing key=order.placed', 'unbound');
ok($bridge->wait_for_log('came back.* exchange=feed routing_key=order.placed code=312 text=NO_ROUTE lane=audit'),
	'unbound: the log names exchange, routing key and cause');

$broker->declare_queue('audit', 'x-queue-type' => 'classic', 'x-max-length' => 20,
	'x-overflow' => 'reject-publish');
$broker->bind('audit', 'feed');
ok($broker->wait_count('audit', 20), 'full: the queue is full');
ok($node->wait_sql(<<'SQL'), 'full: the others are refused');
SELECT count(*) > 0 FROM acme_outbox.outbox_entry WHERE hold_reason = 'NACKED'
SQL
ok( $node->wait_sql("SELECT count(*) = 20 FROM acme_outbox.outbox_entry WHERE status = 'PUBLISHED'"),
	'full: PUBLISHED are those that both lanes have');
my @audit;
ok( wait_until(
		sub {
			my $none_left = waiting_for_audit() == 0;
			push @audit, $broker->drain('audit', timeout => 0.3);
			return $none_left;
		}),
	'full: as the queue is emptied, the rest gets there');
my @business = $broker->drain(undef, timeout => 0.5);
is(scalar(@business), 50, 'the business lane had each event exactly once');
is(distinct(@audit), 50, 'the audit copies followed when the exchange was there');
is($audit[0]{exchange}, 'feed', 'sent to the audit exchange');
same_messages(\@business, \@audit, 'no rule');
is($node->sql('SELECT count(*) FROM acme_outbox.outbox_entry WHERE attempts > 0'), 0, 'nothing was charged');
is($node->sql('SELECT count(*) FROM acme_outbox.outbox_entry WHERE lanes_done <> 3'), 0, 'all lanes are done');
unlike($bridge->log_text, qr/broker closed the channel/, 'no channel was closed');
$node->verify_ok('afterwards');
$broker->delete_queue('audit');
$broker->declare_queue('audit', 'x-queue-type' => 'classic');
$broker->bind('audit', 'feed');

# ---- redacted ----

$node->sql(<<"SQL");
SELECT acme_outbox.redact_event('UserInvited', 'payload.token');
SELECT acme_outbox.publish('events', 'user.invited', 'u1', 'UserInvited',
	'{"user": "ann", "token": "@{[SECRET]}"}'::text);
SQL
ok($node->wait_drained, 'ruled: both lanes have it');
my ($whole) = $broker->drain(undef, timeout => 0.5);
my ($cut) = $broker->drain('audit', timeout => 0.5);
like($whole->{body}, qr/"token": "@{[SECRET]}"/, 'ruled: the business lane has the secret');
like($cut->{body}, qr/"user": "ann"/, 'ruled: the audit lane has the rest');
unlike($cut->{body}, qr/@{[SECRET]}|token/, 'ruled: and not the secret');
is($cut->{message_id}, $whole->{message_id}, 'ruled: it is the same event');
is( $node->sql("SELECT count(*) FROM acme_outbox.outbox_entry e WHERE e::text LIKE '%@{[SECRET]}%'"),
	0, 'ruled: nor has the entry, once it is PUBLISHED');
is($bridge->stop, 0, 'the relay stops cleanly');

# ---- killed ----

for my $point (qw(claim-committed mid-window confirmed-before-settle settled))
{
	my $before = $node->sql('SELECT max(id) FROM acme_outbox.outbox_entry');
	$node->publish(300, keys => 7);

	my $victim = start(env => { ACME_OUTBOX_CRASH_AT => $point });
	is($victim->wait_exit, 'signal 9', "$point: the relay died");
	my $heir = start();
	ok($node->wait_drained, "$point: another one sends the rest");
	is($heir->stop, 0, "$point: it stops cleanly");

	my @entries = grep { $_->{id} > $before } $node->entries;
	for my $queue (qw(all audit))
	{
		my @messages = $broker->drain($queue, timeout => 0.5);
		delivered_ok(\@entries, \@messages, "$point, $queue");
		order_ok(\@entries, \@messages, "$point, $queue");
	}
	$node->verify_ok($point);
}

# ---- without the lane ----

$broker->delete_queue('audit');
$bridge = start();
$node->publish(5);
wait_for_audit(5, 'NO_ROUTE%', 'lane given up');
is($bridge->stop, 0, 'lane given up: the relay stops cleanly');
@lane = ();
$bridge = start();
ok($node->wait_drained, 'lane given up: the entries are finished without their audit copy');
ok($bridge->wait_for_log('finished without the audit copy they waited for"? rows=5 '), 'lane given up: the log says so');
is($broker->count, 5, 'lane given up: the business lane got nothing again');
is($bridge->stop, 0, 'lane given up: that relay stops cleanly');

unlike($_->log_text, qr/@{[SECRET]}/, 'no secret in the log of bridge ' . $_->pid) for @bridges;
unlike(slurp_file($node->logfile), qr/@{[SECRET]}/, 'nor in the server log');

done_testing();
