# One row of a full window of 1000 that the broker refuses: too large (406), an
# exchange that must not be written to or is internal (403), properties that make no
# sense to it (406). The broker closes the channel, names no message, and loses what
# was sent behind it. That row alone is charged or held; the others arrive, uncharged,
# and those that were confirmed arrive once.
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

use constant WINDOW => 1000;
use constant BAD_ROW => 500;

# A refused row is tried again only when the test is over.
my $node = AcmeOutbox::Cluster->create('main', 'acme_outbox.backoff_base = 1h',
	'acme_outbox.hold_backoff_base = 1h', 'acme_outbox.hold_backoff_cap = 2h');
my $broker =
  AcmeOutbox::Broker->new(private => 1)->standard_topology('x-queue-type' => 'classic');
$broker->ctl('eval', 'application:set_env(rabbit, max_message_size, 100000).');
$broker->declare_exchange('forbidden');
$broker->bind('all', 'forbidden');
$broker->api('PUT', "exchanges/$broker->{vhost}/inner",
	{ type => 'topic', durable => \1, internal => \1 });
$broker->bind('all', 'inner');
$broker->api('PUT', "permissions/$broker->{vhost}/$broker->{user}",
	{ configure => '.*', write => '^(?!forbidden$).*', read => '.*' });

sub publish
{
	my ($exchange, $headers, $payload) = @_;

	return $node->sql(<<"SQL");
BEGIN;
SELECT count(acme_outbox.publish('events', 'k', 'a' || n % 50, 'GoodEvent', '{}'::text))
  FROM generate_series(1, @{[BAD_ROW - 1]}) n;
SELECT acme_outbox.publish('$exchange', 'k', 'bad', 'BadEvent', $payload, headers => $headers);
SELECT count(acme_outbox.publish('events', 'k', 'a' || n % 50, 'GoodEvent', '{}'::text))
  FROM generate_series(@{[BAD_ROW + 1]}, @{[WINDOW]}) n;
COMMIT;
SQL
}

sub channel_errors
{
	return scalar(() = map { slurp_file($_) =~ /Channel error on connection/g }
		  glob "$broker->{dir}/log/*.log");
}

sub bad_row
{
	my ($what, $code, $exchange, $headers, $payload, $expected) = @_;
	my $before = last_id($node);
	my $bridge = AcmeOutbox::Bridge->start($node, $broker,
		args => [ '--window', WINDOW, '--claim-rows', WINDOW, '--summary-interval', '1s',
			'--confirm-timeout', '10min', '--heartbeat', '10min' ]);

	# The broker is held while the window fills.
	$bridge->wait_for_log('lease acquired') && $bridge->wait_for_log('broker ready')
	  or die "the relay does not start\n";
	wait_until(sub { $broker->channels == 1 }) or die "no channel\n";
	$broker->signal('STOP');
	publish($exchange, $headers, $payload);
	ok(wait_in_flight($bridge, WINDOW), "$what: the window is full");
	my $mark = log_mark($bridge);
	my $errors = channel_errors();
	$broker->signal('CONT');

	ok( $node->wait_sql(
			"SELECT count(*) = @{[WINDOW - 1]} FROM acme_outbox.outbox_entry WHERE id > $before AND status = 'PUBLISHED'"),
		"$what: all others are sent");
	ok( $node->wait_sql(
			"SELECT status NOT IN ('PUBLISHING') AND last_error IS NOT NULL FROM acme_outbox.outbox_entry WHERE id > $before AND event_name = 'BadEvent'"),
		"$what: the bad row is settled");
	log_rate_ok($mark, $what);

	my @closes = $bridge->log_text =~ /msg="broker closed the channel because of one row".* code=$code .*unconfirmed=(\d+)/g;
	cmp_ok($closes[0] // 0, '>=', WINDOW / 2, "$what: the stress happened: the channel was closed with "
		  . ($closes[0] // 'none') . " unconfirmed");
	# the relay's log does not repeat itself for ever; the broker's tells all
	# (it writes its log some time later)
	ok(wait_until(sub { channel_errors() > $errors }, 30), "$what: the broker closed the channel");
	$errors = channel_errors() - $errors;
	cmp_ok($errors, '<=', 22, "$what: the row was found in $errors closes");

	is( $node->sql(
			"SELECT status, attempts, hold_reason FROM acme_outbox.outbox_entry WHERE id > $before AND event_name = 'BadEvent'"),
		$expected, "$what: what became of the bad row");
	like( $node->sql(
			"SELECT last_error FROM acme_outbox.outbox_entry WHERE id > $before AND event_name = 'BadEvent'"),
		qr/^[[:print:]]{5,500}$/, "$what: it says why");
	my @good = grep { $_->{key} ne 'bad' } entries_after($node, $before);
	my @messages = $broker->drain;
	survived_ok($node, $bridge, \@good, \@messages, $what);
	# each close loses at most the window allowed then, and that is halved
	cmp_ok(duplicates(@messages), '<=', 3 * WINDOW,
		"$what: few came twice (" . duplicates(@messages) . ')');
	is(stop_within_ok($bridge, 25, $what), 0, "$what: the relay stops cleanly");
	$node->sql("DELETE FROM acme_outbox.outbox_entry WHERE event_name = 'BadEvent'");
	return;
}

bad_row('too large', 406, 'events', 'NULL',
	q{jsonb_build_object('x', repeat('y', 150000))::text}, 'PENDING|1|RETRY');
bad_row('no right to write', 403, 'forbidden', 'NULL', q{'{}'::text}, 'PENDING|0|UNROUTABLE');
bad_row('internal exchange', 403, 'inner', 'NULL', q{'{}'::text}, 'PENDING|0|UNROUTABLE');
bad_row('bad properties', 406, 'events', q{'{"CC": 5}'}, q{'{}'::text}, 'PENDING|1|RETRY');

done_testing();
