# The relay's database session ends while its AMQP channel lives on: delivery tags
# belong to the channel, so what is confirmed afterwards must be matched rightly.
# With tags numbered anew over an old channel, the broker's ack of one message
# settles another one, and an unroutable event becomes PUBLISHED.
use strict;
use warnings;

use AcmeOutbox::Bridge;
use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use Test::More;

my $node = AcmeOutbox::Cluster->create('main');
my $broker = AcmeOutbox::Broker->new->standard_topology;
my $bridge = AcmeOutbox::Bridge->start($node, $broker);
my $total = 0;

sub all_published
{
	return $node->wait_sql(
		"SELECT count(*) = $total FROM acme_outbox.outbox_entry WHERE status = 'PUBLISHED'");
}

for my $round (1 .. 4)
{
	$node->publish(7, keys => 3);
	$total += 7;
	ok(all_published(), "round $round: published");
	ok( $node->wait_sql(
			"SELECT count(pg_terminate_backend(pid)) > 0 FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"),
		'its session was ended between two windows');
	ok($bridge->wait_for_log(qr/lease acquired(?s:.*lease acquired){$round}/, timeout => 30),
		'it came back');
}
unlike($bridge->log_text, qr/unknown delivery tag|confirm timeout/,
	'every confirm named a message of the window');

# one that cannot be routed, in the middle of others: it alone is not PUBLISHED
my $lost = $node->safe_psql('postgres', <<'SQL');
BEGIN;
SELECT acme_outbox.publish('events', 'k', 'a', 'Before', '{}'::text) \gset b_
SELECT acme_outbox.publish('nowhere', 'k', 'b', 'Unroutable', '{}'::text);
SELECT acme_outbox.publish('events', 'k', 'c', 'After', '{}'::text) \gset a_
COMMIT;
SQL
$total += 2;
ok(all_published(), 'the routable ones are published');
ok( $node->wait_sql(
		"SELECT status = 'PENDING' AND hold_reason = 'UNROUTABLE' FROM acme_outbox.outbox_entry WHERE event_id = '$lost'"),
	'the unroutable one is held');
is(distinct($broker->drain), $total, 'everything published is in the queue');
$node->verify_ok('in the end');
is($bridge->stop, 0, 'the relay stops cleanly');
done_testing();
