# No binding or no exchange: the event waits, uncharged and visible with its
# reason, others flow, and it is sent once the topology is there. The log says once what
# came back, and as JSON it is JSON: numbers are numbers.
use strict;
use warnings;

use AcmeOutbox::Bridge;
use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use JSON::PP qw(decode_json);
use PostgreSQL::Test::Utils;
use Test::More;

my $node = AcmeOutbox::Cluster->create('main', "acme_outbox.hold_backoff_base = 200ms",
	"acme_outbox.hold_backoff_cap = 1s");
my $broker = AcmeOutbox::Broker->new->standard_topology;
$broker->declare_exchange('unbound');

my $bridge = AcmeOutbox::Bridge->start($node, $broker,
	args => [ '--log-format', 'json', '--http', '127.0.0.1:0', '--summary-interval', '1s' ]);

# Good and bad in one batch, and a second event of a key that waits.
$node->sql(<<'SQL');
BEGIN;
SELECT acme_outbox.publish('events', 'k', 'good-' || n, 'GoodEvent', '{}'::text)
  FROM generate_series(1, 50) n;
SELECT acme_outbox.publish('unbound', 'k', 'stuck-1', 'UnboundEvent', '{}'::text);
SELECT acme_outbox.publish('missing', 'k', 'stuck-2', 'MissingEvent', '{}'::text);
SELECT acme_outbox.publish('events', 'k', 'good-' || n, 'GoodEvent', '{}'::text)
  FROM generate_series(51, 100) n;
COMMIT;
SQL

$node->wait_sql(<<'SQL') or die "good events are stuck\n";
SELECT count(*) = 100 FROM acme_outbox.outbox_entry
 WHERE event_name = 'GoodEvent' AND status = 'PUBLISHED'
SQL
pass('other keys flow');

for my $name (qw(UnboundEvent MissingEvent))
{
	ok( $node->wait_sql(
			"SELECT hold_reason = 'UNROUTABLE' AND holds >= 2 FROM acme_outbox.outbox_entry WHERE event_name = '$name'"),
		"$name: held as UNROUTABLE, more than once");
}
# A later event of a key that waits. (In the same window the broker would take it, so it
# is published while the first one is not about to be tried.)
$node->wait_sql(<<'SQL') or die "it does not wait\n";
SELECT status = 'PENDING' AND next_attempt_at > clock_timestamp() + interval '500 ms'
  FROM acme_outbox.outbox_entry WHERE event_name = 'UnboundEvent'
SQL
$node->publish_one('stuck-1', 'BehindEvent');
ok($node->wait_sql("SELECT hold_reason = 'KEY' FROM acme_outbox.outbox_entry WHERE event_name = 'BehindEvent'"),
	'an event behind a held one of its key waits');
is( $node->sql(<<'SQL'), "t|t|0\nt|t|0", 'never PUBLISHED, no attempt charged');
SELECT published_at IS NULL, status IN ('PENDING', 'PUBLISHING'), attempts
  FROM acme_outbox.outbox_entry WHERE event_name IN ('UnboundEvent', 'MissingEvent')
SQL
ok( $node->wait_sql(
		"SELECT unroutable = 2 FROM acme_outbox.outbox_backlog WHERE origin = 'shop'"),
	'outbox_backlog counts two unroutable');
my $why = $node->sql(<<'SQL');
SELECT string_agg(to_jsonb(s)::text, ' ') FROM acme_outbox.outbox_stuck s
SQL
like($why, qr/UNROUTABLE/, 'outbox_stuck shows the reason');
like($why, qr/missing/, 'outbox_stuck shows the missing exchange');
$node->verify_ok('while events are held');

# The topology appears.
$broker->declare_queue('late', 'x-queue-type' => 'quorum');
$broker->bind('late', 'unbound');
$broker->declare_exchange('missing');
$broker->bind('late', 'missing');
ok($node->wait_drained, 'sent once the topology is there, without a restart');
is($bridge->running, 1, 'by the same relay');

my @late = $broker->drain('late');
is_deeply([ sort map { $_->{type} } @late ], [ 'MissingEvent', 'UnboundEvent' ],
	'both arrived, once');
my @good = $broker->drain('all');
is(distinct(@good), 101, 'all others arrived');
is((grep { $_->{type} eq 'BehindEvent' } @good), 1, 'among them the one that waited for its key');
is($node->sql('SELECT count(*) FROM acme_outbox.outbox_entry WHERE attempts > 0'), 0,
	'no attempt was charged');
$node->verify_ok('in the end');
is($bridge->stop, 0, 'the relay stops cleanly');

my @lines = split /\n/, $bridge->log_text;
my @events = map { eval { decode_json($_) } // () } @lines;
is(scalar @events, scalar @lines, 'each line of the log is a JSON object');
is(join(' ', grep { !/^"sqlstate"/ } map { /("\w+":"-?\d+")/g } @lines), '', 'numbers are numbers');
cmp_ok(scalar(() = join('', @lines) =~ /"\w+":-?\d+[,}]/g), '>', 20, 'of which there are some');
my @back = grep { $_->{msg} eq 'a message came back, no queue is bound for it' } @events;
cmp_ok(scalar @back, '<=', 1 + (time() - $^T) / 60, 'what came back again and again is a line a minute');
is("@{ $back[0] }{qw(exchange routing_key id)}",
	'unbound k ' . $node->sql("SELECT id FROM acme_outbox.outbox_entry WHERE event_name = 'UnboundEvent'"),
	'with its topic, key and entry');

done_testing();
