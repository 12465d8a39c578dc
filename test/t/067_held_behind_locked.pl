# An entry that a claim passed over because an operator held it locked, and that has to
# wait for an earlier one of its key when the lock is gone, is not overtaken by one that
# was already waiting.
use strict;
use warnings;

use AcmeOutbox::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = AcmeOutbox::Cluster->create('main');
my $epoch = $node->sql("SELECT epoch FROM acme_outbox.relay_acquire('shop', 'test:1:a')");
my $claim_id;

sub claim
{
	my @rows = map { [ split /\|/ ] } split /\n/,
	  $node->sql("SELECT claim_id, id, event_name FROM acme_outbox.claim('shop', $epoch, 100, 1000000)");
	$claim_id = $rows[0][0] if @rows;
	return join ' ', map { $_->[2] } @rows;
}

sub settle
{
	my ($outcome) = @_;
	return $node->sql(<<"SQL");
SELECT s.* FROM acme_outbox.outbox_claim c, LATERAL acme_outbox.settle($epoch, claim_id, ids,
	array_fill('$outcome'::acme_outbox.settle_outcome, ARRAY[cardinality(ids)]),
	array_fill(NULL::smallint, ARRAY[cardinality(ids)]), array_fill(NULL::text, ARRAY[cardinality(ids)])) s
 WHERE claim_id = $claim_id
SQL
}

$node->publish_one('a', 'First');
is(claim(), 'First', 'the first is claimed');
my $operator = $node->background_psql('postgres');
$node->publish_one('a', 'Second');
$operator->query_safe("BEGIN; SELECT id FROM acme_outbox.outbox_entry WHERE event_name = 'Second' FOR UPDATE");
$node->publish_one('a', 'Third');
is(claim(), '', 'the second is locked, the third waits for it');
is($node->sql("SELECT hold_reason FROM acme_outbox.outbox_entry WHERE event_name = 'Third'"),
	'KEY', 'the stress happened: the third waits');
is(settle('RELEASED'), '', 'the first is released');
$operator->query_safe('COMMIT');
$operator->quit;

my @order;
for (1 .. 5)
{
	my $claimed = claim() or last;
	push @order, split / /, $claimed;
	is(settle('PUBLISHED'), '', "$claimed: published");
	$node->verify_ok($claimed);
}
is("@order", 'First Second Third', 'they are handed out in their order');
$node->verify_ok('in the end');
done_testing();
