# --once drains and ends; --sink stdout writes the envelopes as lines.
use strict;
use warnings;

use AcmeOutbox::Bridge;
use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use JSON::PP ();
use PostgreSQL::Test::Utils;
use Test::More;

my $node = AcmeOutbox::Cluster->create('main');
my $broker = AcmeOutbox::Broker->new->standard_topology;

my $bridge = AcmeOutbox::Bridge->start($node, $broker, args => ['--once']);
is($bridge->wait_exit(20), 0, '--once with nothing to do ends at once');

$node->publish(2500, keys => 30);
$bridge = AcmeOutbox::Bridge->start($node, $broker, args => ['--once']);
is($bridge->wait_exit, 0, '--once ends when the outbox is empty');
is($node->in_status('PUBLISHED'), 2500, 'all PUBLISHED');
is(scalar($broker->drain), 2500, 'all arrived, once');
is($node->sql('SELECT count(*) FROM acme_outbox.relay_lease WHERE expires_at > clock_timestamp()'), 0,
	'the lease is handed over');
$node->verify_ok('--once');

$node->publish(700, keys => 30);
$bridge = AcmeOutbox::Bridge->start($node, undef, args => [ '--once', '--sink', 'stdout' ]);
is($bridge->wait_exit, 0, '--sink stdout needs no broker') or diag $bridge->log_text;
my @lines = split /\n/, $bridge->stdout_text;
is(scalar @lines, 700, 'a line per event');
my @names = map { JSON::PP::decode_json($_) } @lines;
is(scalar(grep { ref $_ eq 'HASH' } @names), 700, 'each of them JSON');
like($lines[0], qr/OrderPlaced/, 'with the event');
is($node->in_status('PUBLISHED'), 3200, 'they are settled');
like($bridge->log_text, qr/confirm/i, 'it says that nothing was confirmed');
is($broker->count, 0, 'nothing went to the broker');
$node->verify_ok('--sink stdout');
done_testing();
