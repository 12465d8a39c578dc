# Inventory and trading end in the same state whatever the broker does: events twice, three
# times, in any order, replayed as a whole, with two legal orders of applying and recording,
# interrupted between any two steps, in several sessions at once. And no service reaches what
# is another's.
use strict;
use warnings;

use AcmeOutbox::Cluster;
use AcmeOutbox::Trading;
use List::Util qw(shuffle);
use PostgreSQL::Test::Utils;
use Test::More;

use constant DEALS => 12;

my $seed = $ENV{FAULT_SEED} // time();
srand $seed;
note "FAULT_SEED=$seed";

my $node = AcmeOutbox::Cluster->create_empty('main', "acme_outbox.autocommit_publish = 'error'");
my $trading = AcmeOutbox::Trading->create($node, 'platform');

# A history: purchases of three lines, sales of two, all invoiced in the end.

$trading->stock(0, 100, 100, 100);
for my $n (1 .. DEALS)
{
	my $other = $n % 3 + 1;
	$trading->as('trading_app', <<"SQL");
SELECT trading.create_deal(
	'{"id": "d$n", "traderId": "t-1", "customerId": "c-1", "currency": "EUR"}');
SELECT trading.create_purchase('{"id": "buy$n", "dealId": "d$n", "supplierId": "s-1", "lines": [
	{"id": "x$n", "product": "tin", "quantity": 2, "unitPrice": 1},
	{"id": "y$n", "product": "lead", "quantity": 3, "unitPrice": 1},
	{"id": "z$n", "product": "zinc", "quantity": 4, "unitPrice": 1}]}');
SELECT trading.create_sale('{"id": "sell$n", "dealId": "d$n", "lines": [
	{"lineItemId": "pli-$other", "quantity": 0.5, "unitPrice": 2},
	{"lineItemId": "z$n", "quantity": 1.5, "unitPrice": 2}]}');
SELECT trading.lock_deal('d$n');
SQL
}
my @stream = map { $_->{envelope} }
  grep { (AcmeOutbox::Trading::consumer_of($_->{key}) // '') eq 'inventory.trading' } $trading->take;
is(scalar @stream, 2 * DEALS + 1, 'purchases and sales were published');
my @invoices = map {
	my ($type, $prefix) = $_ % 2 ? ('sale', 'sell') : ('purchase', 'buy');
	my $id = $prefix . int(($_ + 1) / 2);
	qq({"header": {"eventId": "invoice-$_", "timestamp": "2026-01-31T12:00:00Z"}, "body": {"eventName":
	"accounting.invoice.processed", "payload": {"tenantId": "acme", "invoiceId": "i-$_",
	"sourceType": "$type", "sourceId": "$id"}}})
} 1 .. 2 * DEALS;

# All rows of both schemas, but for times.
my @tables = split /\n/, $trading->sql(<<'SQL');
SELECT oid::regclass FROM pg_class WHERE relkind = 'r'
	AND relnamespace IN ('trading'::regnamespace, 'inventory'::regnamespace) ORDER BY 1
SQL

sub state_of_all
{
	return $trading->sql(join(' UNION ALL ',
		map { "SELECT '$_ ' || (to_jsonb(t) - '{changed_at,processed_at}'::text[])::text AS row FROM $_ t" } @tables)
	  . ' ORDER BY row');
}

# What was published, but for ids, times and the positions on the way.
sub published
{
	return $trading->sql(<<'SQL');
SELECT event_name, count(*), string_agg(p, ' ' ORDER BY p)
FROM (SELECT event_name, CASE WHEN event_name <> 'inventory.stock.updated'
		THEN payload::jsonb #>> '{body,payload}' END AS p
	FROM acme_outbox.outbox_entry WHERE id > (SELECT v FROM test_mark)) e
GROUP BY 1 ORDER BY 1
SQL
}

# Before any event was delivered.
sub reset_all
{
	$trading->quit;
	$trading->sql(<<'SQL');
SET session_replication_role = replica;
UPDATE trading.sale SET status = 'FINALISED', invoice_id = NULL;
UPDATE trading.purchase SET status = 'FINALISED', invoice_id = NULL WHERE id <> 'p-1';
UPDATE trading.deal SET status = 'LOCKED' WHERE id <> 'stock';
TRUNCATE trading.deal_activity, trading.processed_event, inventory.processed_event,
	inventory.stock_position, inventory.stock_movement, inventory.stock_reservation;
TRUNCATE test_mark;
INSERT INTO test_mark SELECT max(id) FROM acme_outbox.outbox_entry;
SQL
	return;
}

sub deliver_all
{
	my ($consumer, @envelopes) = @_;
	my %outcome;
	while (my @batch = splice @envelopes, 0, 1 + int rand 9)
	{
		$outcome{$_}++ for $trading->deliver($consumer, @batch);
	}
	return \%outcome;
}

# The reference: each event once, in order.

$trading->sql('CREATE TABLE test_mark (v bigint)');
reset_all();
my $nothing = state_of_all();
is_deeply(deliver_all('inventory.trading', @stream), { applied => scalar @stream }, 'each once');
is_deeply(deliver_all('trading.accounting', @invoices), { applied => scalar @invoices },
	'and each invoice');
my $once = state_of_all();
my $published = published();
isnt($once, $nothing, 'they change something');
$trading->stock_ok('each once');
is( $trading->sql(<<'SQL'), '4.000|1.500|2.500', 'a position');
SELECT on_hand, reserved, available FROM inventory.stock_position WHERE line_item_id = 'z1'
SQL
is($trading->sql("SELECT count(*) FROM trading.deal WHERE status = 'INVOICED'"), DEALS,
	'all deals are invoiced');

is_deeply(deliver_all('inventory.trading', @stream), { duplicate => scalar @stream },
	'the whole stream again: duplicates');
is_deeply(deliver_all('trading.accounting', @invoices), { duplicate => scalar @invoices },
	'and the invoices');
is(state_of_all(), $once, 'nothing changed');

$trading->sql('DELETE FROM inventory.processed_event');
deliver_all('inventory.trading', @stream);
is(state_of_all(), $once, 'nor when the inbox had forgotten them');
is(published(), $published, 'and nothing is published twice');

# Three times each, in random order.

reset_all();
my $outcomes = deliver_all('inventory.trading', shuffle(@stream, @stream, @stream));
is_deeply($outcomes, { applied => scalar @stream, duplicate => 2 * @stream }, 'three times each, shuffled');
deliver_all('trading.accounting', shuffle(@invoices, @invoices, @invoices));
is(state_of_all(), $once, 'the same state');
is(published(), $published, 'the same events');
is( $trading->sql(<<'SQL'), '', 'the last inventory.stock.updated of each is its position');
SELECT p.line_item_id FROM inventory.stock_position p JOIN LATERAL (
	SELECT e.payload::jsonb #> '{body,payload}' AS said FROM acme_outbox.outbox_entry e
	WHERE e.event_name = 'inventory.stock.updated' AND e.message_key = p.line_item_id
	ORDER BY e.id DESC LIMIT 1) e ON true
WHERE (said ->> 'onHand')::numeric <> p.on_hand OR (said ->> 'reserved')::numeric <> p.reserved
SQL

# Apply, then record, each step a transaction: sessions die in a step, and between the last one
# and the record.

reset_all();
deliver_all('trading.accounting', @invoices);
$trading->sql(<<'SQL');
CREATE SEQUENCE passage;
GRANT USAGE ON SEQUENCE passage TO inventory_app;
CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF nextval('public.passage') % 5 = 0 THEN
		PERFORM pg_terminate_backend(pg_backend_pid());
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER die AFTER INSERT ON inventory.stock_movement FOR EACH ROW EXECUTE FUNCTION die();
CREATE TRIGGER die AFTER INSERT ON inventory.processed_event FOR EACH ROW EXECUTE FUNCTION die();
SQL

my $half_done = <<'SQL';
SELECT count(DISTINCT split_part(m.event_id, ':', 1)) FROM inventory.stock_movement m
WHERE NOT EXISTS (SELECT FROM inventory.processed_event e
	WHERE e.event_id = split_part(m.event_id, ':', 1))
SQL

# A consumer that is redelivered what it did not finish: crashes, and how many of them left a
# message half done.
sub apply_then_record
{
	my (@envelopes) = @_;
	my ($crashes, $halves) = (0, 0);
	for my $envelope (@envelopes)
	{
		my $call = "CALL inventory.with_inbox('inventory.trading', \$env\$$envelope\$env\$)";
		while ($node->psql('platform', $call, connstr => $trading->connstr('inventory_app')))
		{
			$halves += $trading->sql($half_done);
			die "it never ends\n" if ++$crashes > 1000;
		}
	}
	return ($crashes, $halves);
}

my ($crashes, $halves) = apply_then_record(shuffle @stream);
cmp_ok($crashes, '>', 5, "$crashes sessions died");
cmp_ok($halves, '>', 3, "$halves of them in the middle of a message");
is(state_of_all(), $once, 'apply, then record, with crashes: the same state');
is(published(), $published, 'the same events');
is((apply_then_record(@stream))[0], 0, 'the whole stream again: nothing is left to die in');
is(state_of_all(), $once, 'changes nothing');
$trading->sql('DROP TRIGGER die ON inventory.stock_movement; DROP TRIGGER die ON inventory.processed_event');

# The same in three sessions at once, each with all of it in an order of its own.

reset_all();
deliver_all('trading.accounting', @invoices);
my $gate = $trading->session('postgres');
$gate->query_safe('BEGIN; LOCK TABLE inventory.stock_movement');
my @sessions = map {
	$trading->start('inventory_app', join '',
		map { "CALL inventory.with_inbox('inventory.trading', \$env\$$_\$env\$);\n" } shuffle(@stream))
} 1 .. 3;
ok($trading->wait_blocked(3), 'three sessions begin at once');
$gate->query_safe('COMMIT');
$gate->quit;
my @said = map { [ split /\n/ ] } AcmeOutbox::Trading::finish(@sessions);
is(join(' ', map { scalar @$_ } @said), join(' ', (scalar @stream) x 3), 'all ended well');
is(state_of_all(), $once, 'the same state');
is(published(), $published, 'the same events');

# A message that nobody knows is parked, in both orders; one without a tenant fails.

my $strange = '{"header": {"eventId": "%s"}, "body": {"eventName": "trading.deal.forgotten",
	"payload": {"tenantId": "acme"}}}';
is(($trading->deliver('inventory.trading', sprintf $strange, 'n1'))[0], 'parked', 'unknown: parked');
is( $trading->as('inventory_app', '', tenant => '') . $node->safe_psql('platform',
		"CALL inventory.with_inbox('inventory.trading', '" . sprintf($strange, 'n2') . "')",
		connstr => $trading->connstr('inventory_app')),
	'parked', 'in the other order, too');
my $nobodys = $stream[0] =~ s/"tenantId": "acme"/"tenantId": ""/r =~ s/"eventId":"/$&x/r;
like(($trading->deliver('inventory.trading', $nobodys))[0],
	qr/^failed OX207/, 'a message without a tenant fails');

# What is another service's: its rows, its functions, its inbox, its events, its origin.

my %refused = (
	trading_app => [
		'SELECT * FROM inventory.stock_position', 'SELECT * FROM inventory.processed_event',
		'INSERT INTO inventory.stock_hold (sale_id, state) VALUES (1, 2)',
		q{SELECT inventory.close_hold('sell1')}, 'SELECT * FROM acme_outbox.outbox',
		'SELECT * FROM acme_outbox.peek()', q{SET acme_outbox.origin = 'inventory'},
		q{SET acme_outbox.inbox_schema = 'inventory'}, 'SELECT * FROM acme_outbox.parked_open',
		'SET ROLE trading_owner', 'SET ROLE trading_invoicer' ],
	inventory_app => [
		'SELECT * FROM trading.sale', 'UPDATE trading.sale SET amount = 0',
		q{SELECT trading.lock_deal('d1')}, q{SELECT trading.publish('trading.sale.created', 'a', '{}')},
		'DELETE FROM inventory.stock_movement', 'DELETE FROM acme_outbox.outbox_entry' ],
	trading_relay => [
		'SELECT * FROM trading.sale', 'SELECT * FROM acme_outbox.outbox_entry',
		q{SELECT * FROM acme_outbox.relay_acquire('inventory', 'me')},
		q{SELECT acme_outbox.publish('acme.trading', 'k', 'a', 'trading.sale.created', '{}')} ]);
for my $role (sort keys %refused)
{
	for my $query (@{ $refused{$role} })
	{
		my (undef, undef, $err) = $trading->try_as($role, $query, tenant => '');
		like($err, qr/ERROR:  (?:42501|OX102)/, "$role: refused: $query");
	}
}

$trading->quit;
$node->stop;
done_testing();
