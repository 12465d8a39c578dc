# A sale is made under the row locks of what it sells: fifty sales of one line item, all waiting
# for it at once, sell exactly what is there, and sales of several line items in opposite
# orders do not deadlock. The same stress oversells and deadlocks where the lock or its order
# is taken away. Requests are answered once per idempotency key. INVOICED is reached through
# one function.
use strict;
use warnings;

use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use AcmeOutbox::Trading;
use PostgreSQL::Test::Utils;
use Test::More;

use constant SALES => 50;

my $node = AcmeOutbox::Cluster->create_empty('main', 'max_connections = 80',
	"deadlock_timeout = '100ms'", "acme_outbox.autocommit_publish = 'error'");
my $trading = AcmeOutbox::Trading->create($node, 'sales');
my $app = 'trading_app';
my $setup = "SELECT acme_outbox.context('acme') \\g /dev/null\n";

$trading->stock(SALES, 10, 8, 8, 10);

# Sell in a session of its own, through the function that an HTTP layer calls.
sub sell
{
	my ($deal, @lines) = @_;
	my $request = AcmeOutbox::Trading::sale_request($deal, @lines);
	return $trading->start($app,
		"BEGIN;\n${setup}SELECT (trading.create_sale_request(NULL, $request)).status;\nCOMMIT;\n");
}

# Hold line items, have sessions wait for them, let go: their statuses.
sub all_at_once
{
	my ($held, @sales) = @_;
	my $gate = $trading->session($app);
	$gate->query_safe("BEGIN; SELECT acme_outbox.context('acme');"
		  . " SELECT * FROM trading.find_line_items_for_update('$held')");
	my @runs;
	for my $sale (@sales)
	{
		push @runs, sell(@$sale);
		# one after the other, where the order of arrival counts
		$trading->wait_blocked(scalar @runs) if @sales <= 4;
	}
	ok($trading->wait_blocked(scalar @sales), @sales . " sales wait for $held at once");
	$gate->query_safe('COMMIT');
	my @statuses = map { s/\s+//gr } AcmeOutbox::Trading::finish(@runs);
	$gate->quit;
	return @statuses;
}

sub count_of { my ($wanted, @all) = @_; return scalar grep { $_ eq $wanted } @all; }

sub deadlocks
{
	return $node->safe_psql('sales',
		'SELECT pg_stat_force_next_flush();'
		  . ' SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()') =~ s/\s+//gr;
}

# One line item of ten, fifty sales of 0.3.

my @statuses = all_at_once('{pli-1}', map { [ "d$_", 'pli-1' => 0.3 ] } 1 .. SALES);
is(count_of(201, @statuses), 33, 'as many sales as there is stock for');
is(count_of(409, @statuses), SALES - 33, 'all others are refused');
$trading->stock_ok('one line item');
is( $trading->sql("SELECT sum(quantity) FROM trading.sale_line WHERE line_item_id = 'pli-1'"),
	'9.900', 'what was sold is what was granted');
is( $trading->sql("SELECT count(*) FROM acme_outbox.outbox WHERE event_name = 'trading.sale.created'"),
	33, 'each sale has its event, and no refused one has');

# Two line items, in opposite orders.

@statuses = all_at_once('{pli-2,pli-3}',
	map { [ "d$_", $_ % 2 ? ('pli-2' => 0.2, 'pli-3' => 0.2) : ('pli-3' => 0.2, 'pli-2' => 0.2) ] }
	  1 .. SALES);
is(count_of(201, @statuses), 40, 'two line items: as many sales as there is stock for');
is(count_of(409, @statuses), SALES - 40, 'and the others are refused');
my @opposite = ([ 'd1', 'pli-4' => 1, 'pli-1' => 0.01 ], [ 'd2', 'pli-1' => 0.01, 'pli-4' => 1 ]);
is(join(' ', all_at_once('{pli-4}', @opposite)), '201 201', 'opposite orders, both are served');
is(deadlocks(), 0, 'and nobody was in a deadlock');

# The same without the order, and without the lock: what the tests above would show.

my $find = $trading->sql(
	"SELECT pg_get_functiondef('trading.find_line_items_for_update(text[])'::regprocedure)");
my $unordered = $find =~ s/ORDER BY i\.id FOR UPDATE/ORDER BY array_position(ids, i.id) FOR UPDATE/r;
isnt($unordered, $find, 'line items are locked in the order of their ids');
$trading->sql($unordered);
# the first holds pli-1, the second waits for pli-4 and gets it next
my @in_a_circle = all_at_once('{pli-4}',
	[ 'd3', 'pli-4' => 1, 'pli-1' => 0.01 ], [ 'd4', 'pli-1' => 0.01, 'pli-4' => 1 ]);
is(deadlocks(), 1, 'locked in the order asked for, they deadlock');

$trading->sql($find =~ s/ORDER BY i\.id FOR UPDATE/ORDER BY i.id/r);
my $slow = $trading->sql(
	"SELECT pg_get_functiondef('trading.check_availability(trading.line[])'::regprocedure)");
$trading->sql($slow =~ s/(\tIF short IS NOT NULL)/\tPERFORM pg_advisory_lock_shared(1);\n$1/r);
my $gate = $trading->session('postgres');
$gate->query_safe('SELECT pg_advisory_lock(1)');
my @racing = map { sell("d$_", 'pli-4' => 5) } 5, 6;
$trading->wait_blocked(2);
$gate->query_safe('SELECT pg_advisory_unlock(1)');
is(join(' ', map { s/\s+//gr } AcmeOutbox::Trading::finish(@racing)), '201 201',
	'without the lock both pass the check');
isnt($trading->sql('SELECT * FROM trading.oversold'), '', 'and oversell');
$trading->sql($_) for $find, $slow;
$gate->quit;

# A snapshot that is older than the lock is refused.

my ($status, $out, $err) = $trading->try_as($app,
	"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; ${setup}SELECT trading.create_sale("
	  . AcmeOutbox::Trading::sale_request('d7', 'pli-1' => 0.01) . ')', tenant => '');
like($err, qr/ERROR:  25001: line items are locked at READ COMMITTED only/, 'REPEATABLE READ: refused');

# Idempotency keys.

my $small = AcmeOutbox::Trading::sale_request('d7', 'pli-1' => 0.01);
my $call = "SELECT status, response FROM trading.create_sale_request('key', $small)";
my $sales = $trading->sql('SELECT count(*) FROM trading.sale');
my $first = $trading->as($app, $call);
like($first, qr/^201\|/, 'a request is granted');
is($trading->as($app, $call), $first, 'and answered the same when it comes again');
is($trading->sql('SELECT count(*) FROM trading.sale'), $sales + 1, 'but made once');
is($trading->as($app, $call =~ s/0\.01/0.02/r), '409|{"code": "IDEMPOTENCY_KEY_REUSE"}',
	'another request under its key is refused');
my $session = $trading->session($app);
$session->query_safe("BEGIN; SELECT acme_outbox.context('acme'); "
	  . $call =~ s/'key'/'slow'/r);
is($trading->as($app, $call =~ s/'key'/'slow'/r), '409|{"code": "IDEMPOTENCY_KEY_IN_FLIGHT"}',
	'one that is under way is not waited for');
$session->query_safe('ROLLBACK');
like($trading->as($app, $call =~ s/'key'/'slow'/r), qr/^201\|/, 'and is free when it rolled back');
$session->quit;

# A purchase has its keys as well, apart from those of sales.

my $buy = q{SELECT status, response FROM trading.create_purchase_request('key', '{"dealId": "d7", "supplierId": "s-1",
	"lines": [{"product": "tin", "quantity": 1, "unitPrice": 2}]}')};
my $bought = 'SELECT count(*) FROM trading.purchase';
my $purchases = $trading->sql($bought);
my $purchase = $trading->as($app, $buy);
like($purchase, qr/^201\|\{"purchaseId": "[-0-9a-f]{36}"\}$/, 'a purchase is made');
is($trading->as($app, $buy), $purchase, 'and answered the same when it comes again');
is($trading->as($app, $buy =~ s/"quantity": 1/"quantity": 2/r), '409|{"code": "IDEMPOTENCY_KEY_REUSE"}',
	'another under its key is refused');
for my $bad ('"quantity": 0', '"quantity": "many"', '"quantity": "NaN"', '"quantity": 1e11', '"amount": 1')
{
	like($trading->as($app, $buy =~ s/'key'/NULL/r =~ s/"quantity": 1/$bad/r), qr/^422\|.*INVALID_LINES/, "$bad: refused");
}
for my $bad ('"unitPrice": "NaN"', '"unitPrice": -1', '"price": 2')
{
	like($trading->as($app, $buy =~ s/'key'/NULL/r =~ s/"unitPrice": 2/$bad/r), qr/^422\|.*INVALID_LINES/, "$bad: refused");
}

# An id that is too long for an event's key would be inventory's or accounting's dead letter.
my $long = 'x' x 65;
for my $bad (qq{"id": "$long", "product"}, '"id": "", "product"')
{
	like($trading->as($app, $buy =~ s/'key'/NULL/r =~ s/"product"/$bad/r), qr/^422\|.*INVALID_ID/, "$bad: refused");
}
like($trading->as($app, $buy =~ s/'key'/NULL/r =~ s/"dealId"/"id": "$long", "dealId"/r),
	qr/^422\|.*INVALID_ID/, 'nor a purchase');
for my $bad (qw(id traderId customerId))
{
	(undef, undef, $err) = $trading->try_as($app, 'SELECT trading.create_deal('
		  . qq('{"id": "d-id", "traderId": "t", "customerId": "c", "currency": "EUR"}'::jsonb || '{"$bad": "$long"}') . ')');
	like($err, qr/TR422: INVALID_ID/, "nor a deal by its $bad");
}
is($trading->sql($bought), $purchases + 1, 'one was made');

$trading->as($app, $buy =~ s/'key'/NULL/r =~ s/"quantity": 1, "unitPrice": 2/"quantity": 1000.0004, "unitPrice": 1.004/r);
is($trading->sql('SELECT count(*) FROM trading.purchase p WHERE p.amount <> (SELECT sum(l.quantity * l.unit_price)
	FROM trading.purchase_line_item l WHERE l.purchase_id = p.id)'), 0, 'what it costs is what its lines cost');

# Ten clients, or one that is impatient, with one key.

$session = $trading->session($app);
$session->query_safe("BEGIN; SELECT acme_outbox.context('acme');"
	  . " SELECT * FROM trading.find_line_items_for_update('{pli-1}')");
$sales = $trading->sql('SELECT count(*) FROM trading.sale');
my @ten = map {
	$trading->start($app, "BEGIN;\n$setup" . $call =~ s/'key'/'ten'/r . ";\nCOMMIT;\n")
} 1 .. 10;
ok(wait_until(sub { 1 == grep { AcmeOutbox::Trading::running($_) } @ten }),
	'nine of ten with one key are answered while the first waits');
$session->query_safe('COMMIT');
$session->quit;
my @ten_answers = AcmeOutbox::Trading::finish(@ten);
is(scalar(grep { /^201\|/ } @ten_answers) . ' ' . scalar(grep { /IN_FLIGHT/ } @ten_answers), '1 9',
	'one is granted, nine are told to wait');
is($trading->sql('SELECT count(*) FROM trading.sale'), $sales + 1, 'one sale of them');
is($trading->as($app, $call =~ s/'key'/'ten'/r) . "\n", (grep { /^201/ } @ten_answers)[0],
	'and whoever asks again is told of it');

my $too_much = $call =~ s/'key'/'much'/r =~ s/0\.01/1000/r;
like($trading->as($app, $too_much), qr/^409\|.*INSUFFICIENT_STOCK.*1000\.000 asked for, 0\.0/,
	'a refusal says what is left');
is($trading->as($app, $too_much), $trading->as($app, $too_much), 'and stays the same');

# Refusals are results, and leave nothing.

my %refused = (
	'404 DEAL_NOT_FOUND'      => AcmeOutbox::Trading::sale_request('nowhere', 'pli-1' => 1),
	'404 LINE_ITEM_NOT_FOUND' => AcmeOutbox::Trading::sale_request('d8', 'nothing' => 1, 'pli-1' => 0.01),
	'422 INVALID_LINES'       => q('{"dealId": "d8", "lines": []}'),
	'422 INVALID_LINES '      => AcmeOutbox::Trading::sale_request('d8', 'pli-1' => 0),
	'422 INVALID_LINES  '     => AcmeOutbox::Trading::sale_request('d8', 'pli-1' => 1, 'pli-1' => 1),
	'422 INVALID_LINES   '    => q('{"dealId": "d8", "lines": "none"}'),
	'422 INVALID_ID'          => q('{"id": "", "dealId": "d8", "lines": [{"lineItemId": "pli-1", "quantity": 0.01, "unitPrice": 1}]}'),
	(map { '422 INVALID_LINES' . ' ' x ($_ + 4) => q('{"dealId": "d8", "lines": [{"lineItemId": "pli-1", )
			. ('"quantity": "NaN", "unitPrice": 1', '"quantity": 0.01, "unitPrice": "NaN"',
				'"quantity": 1000, "unitPrice": 999999999999', '"quantity": 0.01')[$_] . q(}]}') } 0 .. 3));
my $before = $trading->sql('SELECT count(*) FROM acme_outbox.outbox');
for my $answer (sort keys %refused)
{
	is( $trading->as($app, "SELECT status || ' ' || (response ->> 'code')"
			  . " FROM trading.create_sale_request(NULL, $refused{$answer})"),
		$answer =~ s/ +$//r, "refused: $refused{$answer}");
}
is($trading->sql('SELECT count(*) FROM acme_outbox.outbox'), $before, 'refusals publish nothing');

(undef, undef, $err) = $trading->try_as($app, "SELECT trading.create_sale($small)" =~ s/0\.01/1000/r);
like($err, qr/ERROR:  TR409: INSUFFICIENT_STOCK\nDETAIL:  line item pli-1: 1000/, 'create_sale raises them');

# Tenants: another's line item is not there; no tenant, no row.

like(
	$trading->as($app, 'SELECT trading.create_deal('
		  . q('{"id": "theirs", "traderId": "t", "customerId": "c", "currency": "EUR"}')
		  . '); SELECT response FROM trading.create_sale_request(NULL, '
		  . AcmeOutbox::Trading::sale_request('theirs', 'pli-1' => 0.01) . ')', tenant => 'other'),
	qr/LINE_ITEM_NOT_FOUND/, 'another tenant cannot sell it');
is($trading->as($app, "SELECT count(*) FROM trading.deal", tenant => 'other'), 1, 'or see its deals');
(undef, undef, $err) = $trading->try_as($app, 'SELECT count(*) FROM trading.deal', tenant => '');
like($err, qr/ERROR:  OX207/, 'a transaction without a tenant fails');

# Invoices: applied once, parked where they cannot be, and the only way to INVOICED.

my $invoiced = 0;

sub invoice
{
	my ($type, $id, %opt) = @_;
	my $event = $opt{event} // 'invoice-' . ++$invoiced;
	my $tenant = $opt{tenant} // 'acme';
	my ($outcome) = $trading->deliver('trading.accounting', <<"JSON");
{"header": {"eventId": "$event", "timestamp": "2026-01-31T12:00:00.000000Z"},
 "body": {"eventName": "accounting.invoice.processed", "payload": {"tenantId": "$tenant",
  "invoiceId": "i-$event", "sourceType": "$type", "sourceId": "$id"}}}
JSON
	return $outcome;
}

$trading->as($app, <<'SQL');
SELECT trading.create_deal('{"id": "deal", "traderId": "t-1", "customerId": "c-1", "currency": "EUR"}');
SELECT trading.create_purchase('{"id": "buy", "dealId": "deal", "supplierId": "s",
	"lines": [{"id": "l", "product": "tin", "quantity": 5, "unitPrice": 1}]}');
SELECT trading.create_sale('{"id": "sell", "dealId": "deal",
	"lines": [{"lineItemId": "l", "quantity": 5, "unitPrice": 2}]}')
SQL
is(invoice('sale', 'sell'), 'parked', 'a sale that is not final is not invoiced');
for my $version (qw(NULL '3.0.0' '2'))
{
	(undef, undef, $err) = $trading->try_as($app, "SELECT trading.lock_deal('deal', $version)");
	like($err, qr/TR422: UNKNOWN_VERSION/, "no deal is locked as $version");
}
$trading->as($app, "SELECT trading.lock_deal('deal')");
is(invoice('sale', 'nothing'), 'parked', 'nor is one that does not exist');
is(invoice('sale', 'sell', tenant => 'other'), 'parked', 'or is another tenant\'s');
like(invoice('sale', 'sell', tenant => ''), qr/^failed OX207/, 'a message without a tenant fails');
is( $trading->sql('SELECT reason, tenant_id FROM trading.parked_message ORDER BY parked_at'),
	"INVALID_STATE|acme\nUNRESOLVABLE_ENTITY|acme\nUNRESOLVABLE_ENTITY|other", 'each with its reason');
is($trading->sql(q{SELECT status FROM trading.deal WHERE id = 'deal'}), 'LOCKED', 'nothing changed');

(undef, undef, $err) = $trading->try_as($app, 'UPDATE trading.purchase_line_item SET quantity = 100');
like($err, qr/ERROR:  42501/, 'a line item never changes');
for my $how (q(UPDATE trading.sale SET status = 'INVOICED' WHERE id = 'sell'),
	q(UPDATE trading.purchase SET status = 'DRAFT' WHERE id = 'buy'),
	q(INSERT INTO trading.sale (deal_id, amount, status) VALUES ('deal', 1, 'INVOICED')))
{
	(undef, undef, $err) = $trading->try_as($app, $how);
	like($err, qr/ERROR:  (?:42501|TR409)/, "refused: $how");
	my ($superuser) = $node->psql('sales', "SELECT acme_outbox.context('acme'); $how");
	isnt($superuser, 0, 'to a superuser as well');
}
(undef, undef, $err) = $trading->try_as($app, q(SELECT trading.mark_invoiced('sale', s.id, 'i')
	FROM trading.sale s WHERE s.status = 'DRAFT' LIMIT 1));
like($err, qr/ERROR:  TR409: INVALID_TRANSITION/, 'mark_invoiced wants a final sale, too');

# Both invoices of a deal at once: the deal sees both.

my $lock = $trading->session($app);
$lock->query_safe("BEGIN; SELECT acme_outbox.context('acme'); SELECT trading.lock_deal_of('sale', 'sell')");
my @both = map {
	my ($type, $id) = @$_;
	$trading->start($app, <<"SQL")
SELECT acme_outbox.inbox_process('trading.accounting', '{"header": {"eventId": "both-$id",
 "timestamp": "2026-01-31T12:00:00Z"}, "body": {"payload": {"tenantId": "acme", "invoiceId": "i",
 "sourceType": "$type", "sourceId": "$id"}}}', 'trading.on_invoice_processed');
SQL
} [ 'sale', 'sell' ], [ 'purchase', 'buy' ];
ok($trading->wait_blocked(2), 'both invoices wait for the deal');
$lock->query_safe('COMMIT');
is(join('', AcmeOutbox::Trading::finish(@both)), "applied\napplied\n", 'and are applied');
$lock->quit;
is($trading->sql(q{SELECT status FROM trading.deal WHERE id = 'deal'}), 'INVOICED',
	'the deal is invoiced when the last of it is');
is( $trading->sql(q{SELECT count(*) FROM acme_outbox.outbox WHERE event_name = 'trading.deal.invoiced'}),
	1, 'and says so once');
is($trading->sql(q{SELECT count(*) FROM trading.deal_activity WHERE deal_id = 'deal'}), 2,
	'with an activity for each');
is(invoice('sale', 'sell', event => 'both-sell'), 'duplicate', 'a redelivery changes nothing');

# The parked one is replayed once its sale is final; then it is a second invoice.

is( $trading->sql(q{SELECT acme_outbox.replay_parked(inbox, id) FROM acme_outbox.parked_open
	WHERE reason = 'INVALID_STATE'}), 'parked', 'a parked invoice can be replayed');

# Everything says what it is for.

for my $schema (qw(trading inventory))
{
	is( $trading->sql(<<"SQL"), '', "$schema: a comment on everything");
SELECT p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace = '$schema'::regnamespace
	AND obj_description(p.oid, 'pg_proc') IS NULL
UNION ALL SELECT c.oid::regclass::text FROM pg_class c WHERE c.relnamespace = '$schema'::regnamespace
	AND c.relkind IN ('r', 'v') AND obj_description(c.oid, 'pg_class') IS NULL
UNION ALL SELECT t.typname FROM pg_type t LEFT JOIN pg_class c ON c.oid = t.typrelid
	WHERE t.typnamespace = '$schema'::regnamespace AND t.typcategory IN ('E', 'C')
	AND coalesce(c.relkind, 'c') = 'c' AND obj_description(t.oid, 'pg_type') IS NULL
SQL
}

$trading->quit;
$node->stop;
done_testing();
