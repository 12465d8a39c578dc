# The extension is dropped and made anew under a running relay: it finds the new
# one by itself, sends what is published then, and stops at once when told to.
use strict;
use warnings;

use AcmeOutbox::Bridge;
use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use Test::More;
use Time::HiRes qw(time);

my $node = AcmeOutbox::Cluster->create('main');
my $broker = AcmeOutbox::Broker->new->standard_topology;
my $bridge = AcmeOutbox::Bridge->start($node, $broker);

$node->publish(5, keys => 2);
ok($node->wait_drained, 'the relay works');
my $create = q{CREATE EXTENSION acme_outbox; SELECT acme_outbox.grant_relay('relay', 'shop')};
$node->safe_psql('postgres', "BEGIN; DROP EXTENSION acme_outbox; $create; COMMIT");
$node->publish(7, keys => 2);
ok( $node->wait_sql(
		"SELECT count(*) = 7 FROM acme_outbox.outbox_entry WHERE status = 'PUBLISHED'"),
	'and with the new extension');
is(distinct($broker->drain), 12, 'everything arrived');

$node->safe_psql('postgres', 'DROP EXTENSION acme_outbox');
ok($bridge->wait_for_log(qr/the extension was replaced or dropped/, timeout => 30),
	'it says so when the extension is gone');
$node->safe_psql('postgres', "BEGIN; $create; COMMIT");
$node->publish(3, keys => 1);
ok( $node->wait_sql(
		"SELECT count(*) = 3 FROM acme_outbox.outbox_entry WHERE status = 'PUBLISHED'"),
	'and finds it when it is back');
$node->verify_ok('in the end');
my $at = time();
is($bridge->stop, 0, 'the relay stops cleanly');
cmp_ok(time() - $at, '<', 10, 'and soon');
done_testing();
