# The dead-letter lane: FAILED entries are published to the dead-letter exchange with
# what they were and why they failed, confirmed, and then ARCHIVED. While that exchange is
# missing they stay FAILED, are tried seldom, and the normal lane flows. What a redaction
# rule names is not in the copy. A relay killed between confirm and settle sends a copy
# twice at most.
use strict;
use warnings;

use AcmeOutbox::Bridge;
use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use AcmeOutbox::Fault;
use PostgreSQL::Test::Utils;
use Test::More;

use constant SECRET => 'tok-5ecret';

my $node = AcmeOutbox::Cluster->create('main', 'acme_outbox.lease_duration = 1s',
	'acme_outbox.max_attempts = 1', 'acme_outbox.hold_backoff_base = 1s',
	'acme_outbox.hold_backoff_cap = 1s');
my $broker = AcmeOutbox::Broker->new->standard_topology('x-queue-type' => 'classic');
my @lane =
  ('--dead-letter-exchange', 'dlx', '--poll-interval', '200ms', '--reconnect-max', '1s');
my @bridges;

sub start
{
	my (%opt) = @_;
	push @bridges,
	  AcmeOutbox::Bridge->start($node, $broker, args => [ @lane, @{ $opt{args} // [] } ],
		env => $opt{env} // {});
	return $bridges[-1];
}

# The broker refuses a message whose CC is no list, for its own fault.
sub publish_bad
{
	my ($count, $name, $payload) = @_;
	return $node->sql(<<"SQL");
SELECT count(acme_outbox.publish('events', 'bad.' || n, 'b' || n, '@{[$name // 'BadEvent']}',
	'@{[$payload // '{"n": 1}']}'::text, headers => '{"CC": 5, "priority": 7}'))
  FROM generate_series(1, $count) n
SQL
}

sub wait_status
{
	my ($name, $status, $count, $what) = @_;
	return ok(
		$node->wait_sql(
			"SELECT count(*) = $count FROM acme_outbox.outbox_entry WHERE event_name = '$name' AND status = '$status'"),
		$what);
}

# ---- the exchange is missing ----

my $bridge = start();
publish_bad(3);
$node->publish(50);
ok( $node->wait_sql("SELECT count(*) = 50 FROM acme_outbox.outbox_entry WHERE status = 'PUBLISHED'"),
	'missing: the normal lane flows');
ok( $node->wait_sql(
		"SELECT count(*) = 3 AND min(holds) >= 2 FROM acme_outbox.outbox_entry WHERE status IN ('FAILED', 'PUBLISHING') AND event_name = 'BadEvent'"),
	'missing: those given up stay FAILED, and are tried again');
my $mark = log_mark($bridge);
$node->publish(50, first => 51);
ok( $node->wait_sql("SELECT count(*) = 100 FROM acme_outbox.outbox_entry WHERE status = 'PUBLISHED'"),
	'missing: and goes on flowing');
is(distinct($broker->drain(undef, timeout => 0.5)), 100, 'missing: the events are there');
cmp_ok($node->sql('SELECT max(holds) FROM acme_outbox.outbox_entry'), '<=', 20,
	'missing: they are not tried in a hot loop');
log_rate_ok($mark, 'missing');
is($node->sql('SELECT max(attempts) FROM acme_outbox.outbox_entry'), 1, 'missing: nothing more is charged');
$node->verify_ok('missing');

# ---- it appears ----

$broker->declare_exchange('dlx');
$broker->declare_queue('dead', 'x-queue-type' => 'classic');
$broker->bind('dead', 'dlx', 'dead-letter');
wait_status('BadEvent', 'ARCHIVED', 3, 'all are ARCHIVED when the exchange is there');
my @dead = $broker->drain('dead', timeout => 0.5);
is(scalar(@dead), 3, 'each arrived once');
for my $message (@dead)
{
	my ($n) = ($message->{headers}{'x-original-routing-key'} // '') =~ /^bad\.(\d)$/;
	ok($n, 'a dead letter knows its routing key');
	my ($id, $time, $payload) = split /\|/, $node->sql(<<"SQL"), 3;
SELECT event_id, floor(extract(epoch FROM created_at)), payload
  FROM acme_outbox.outbox_entry WHERE routing_key = 'bad.$n'
SQL
	like(delete $message->{headers}{'x-error-message'}, qr/^PRECONDITION_FAILED/, "$n: why");
	is_deeply(
		$message->{headers},
		{   priority                 => 7,
			'traceparent'            => $message->{headers}{traceparent},
			'x-original-exchange'    => 'events',
			'x-original-routing-key' => "bad.$n",
			'x-error-service'        => 'shop',
			'x-error-attempts'       => 1,
			'x-error-original-time'  => $time + 0
		},
		"$n: what it was, and no header that routes elsewhere");
	is($message->{routing_key}, 'dead-letter', "$n: its key");
	is($message->{message_id}, $id, "$n: its event id");
	is($message->{type}, 'BadEvent', "$n: its event name");
	is($message->{body}, $payload, "$n: its envelope");
}

# ---- redacted ----

$node->sql(q{SELECT acme_outbox.redact_event('BadInvitation', 'payload.token')});
publish_bad(1, 'BadInvitation', qq({"user": "ann", "token": "@{[SECRET]}"}));
wait_status('BadInvitation', 'ARCHIVED', 1, 'ruled: ARCHIVED');
my ($cut) = $broker->drain('dead', timeout => 0.5);
like($cut->{body}, qr/"user": "ann"/, 'ruled: the dead letter has the rest');
unlike(join('|', $cut->{body}, %{ $cut->{headers} }), qr/@{[SECRET]}/, 'ruled: and not the secret');
is( $node->sql("SELECT count(*) FROM acme_outbox.outbox_entry e WHERE e::text LIKE '%@{[SECRET]}%'"),
	0, 'ruled: nor has the entry, once it is ARCHIVED');

# ---- a key that waits for its FAILED entry ----

$node->sql(q{INSERT INTO acme_outbox.topic_policy (topic, failed_key_policy) VALUES ('events', 'block')});
$broker->delete_queue('dead');
publish_bad(1, 'BlockingEvent');
wait_status('BlockingEvent', 'FAILED', 1, 'block: given up');
$node->publish_one('b1', 'BehindEvent');
ok($node->wait_sql("SELECT hold_reason = 'KEY' FROM acme_outbox.outbox_entry WHERE event_name = 'BehindEvent'"),
	'block: its key waits while the copy cannot be delivered');
$broker->declare_queue('dead', 'x-queue-type' => 'classic');
$broker->bind('dead', 'dlx', 'dead-letter');
wait_status('BlockingEvent', 'ARCHIVED', 1, 'block: ARCHIVED in the end');
wait_status('BehindEvent', 'PUBLISHED', 1, 'block: and then its key goes on');
$broker->drain('dead', timeout => 0.5);
is($bridge->stop, 0, 'the relay stops cleanly');

# ---- killed between confirm and settle; --once ----

publish_bad(2, 'KilledEvent');
# without the lane: both are given up, so that the first settle of the next relay is of copies
my $refuser = AcmeOutbox::Bridge->start($node, $broker);
wait_status('KilledEvent', 'FAILED', 2, 'killed: both were refused');
is($refuser->stop, 0, 'killed: by a relay without the lane');
my $victim = start(env => { ACME_OUTBOX_CRASH_AT => 'confirmed-before-settle' });
is($victim->wait_exit, 'signal 9', 'killed: between the confirm of the copies and their settle');
is($node->in_status('PUBLISHING'), 2, 'killed: the entries are in flight');
wait_until(sub {
	$bridge = start(args => ['--once']);
	return $bridge->wait_exit == 0;
}) or die "no relay took over\n";
wait_status('KilledEvent', 'ARCHIVED', 2, 'killed: another relay sends and archives them, and --once waits for it');
my @killed = $broker->drain('dead', timeout => 0.5);
is(distinct(@killed), 2, 'killed: both arrived');
cmp_ok(scalar(@killed), '<=', 4, 'killed: twice at most');
$node->verify_ok('in the end');

unlike($_->log_text, qr/@{[SECRET]}/, 'no secret in the log of bridge ' . $_->pid) for @bridges;
unlike(slurp_file($node->logfile), qr/@{[SECRET]}/, 'nor in the server log');

done_testing();
