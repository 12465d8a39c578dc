# A sale as a saga with inventory (ADR-0012): fifty at once for one line item get exactly what
# is there; whatever goes wrong on the way, no answer, a refusal in the end, a session that
# dies, commands late, twice or in the wrong order, all stock comes back; and both designs sell
# from the same line item side by side. Messages are delivered by the test, so that it decides
# when; 123_trading_bridge.pl has the bridge do it.
use strict;
use warnings;

use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use AcmeOutbox::Trading;
use Test::More;

use constant SALES => 50;

my $node = AcmeOutbox::Cluster->create_empty('main', 'max_connections = 80',
	"acme_outbox.autocommit_publish = 'error'");
my $trading = AcmeOutbox::Trading->create($node, 'saga');
my $app = 'trading_app';

$trading->stock(SALES, 10, 10, 10);
$trading->pump_dry;

# A saga in a session of its own.
sub start_saga
{
	my ($deal, $lines, %opt) = @_;
	my $key = $opt{key} ? "'$opt{key}'" : 'NULL';
	my $patience = $opt{patience} // '1 minute';
	my $request = AcmeOutbox::Trading::sale_request($deal, @$lines);
	return $trading->start($app,
		"CALL trading.create_sale_saga('acme', $key, $request, patience => '$patience');\n");
}

sub sagas
{
	my ($state) = @_;
	return $trading->sql("SELECT count(*) FROM trading.sale_saga WHERE state = '$state'");
}

sub wait_requested
{
	my ($count) = @_;
	return wait_until(sub { sagas('REQUESTED') == $count });
}

sub position
{
	my ($item) = @_;
	return $trading->sql(
		"SELECT on_hand, reserved FROM inventory.stock_position WHERE line_item_id = '$item'");
}

# What a saga answered: status and code.
sub answers
{
	return map { /^(\d+)\|(?:.*"code": "(\w+)")?/ ? join(' ', grep { defined } $1, $2) : $_ } @_;
}

sub count_of { my ($wanted, @all) = @_; return scalar grep { $_ eq $wanted } @all; }

# Deliver some of what was published, and keep the rest for later.
my @undelivered;

sub deliver_only
{
	my ($pattern) = @_;
	push @undelivered, $trading->take;
	my @now = grep { $_->{envelope} =~ $pattern } @undelivered;
	@undelivered = grep { $_->{envelope} !~ $pattern } @undelivered;
	return map { $trading->deliver(AcmeOutbox::Trading::consumer_of($_->{key}), $_->{envelope}) }
	  grep { AcmeOutbox::Trading::consumer_of($_->{key}) } @now;
}

# Fifty at once: all commands are out before the first is handled; two consumers handle them,
# and both wait for the same position.

my @runs = map { start_saga("d$_", [ 'pli-1' => 0.3 ]) } 1 .. SALES;
ok(wait_requested(SALES), 'fifty sagas wait for inventory');
my @commands = map { $_->{envelope} } $trading->take;
my $gate = $trading->session('inventory_app');
$gate->query_safe("BEGIN; SELECT acme_outbox.context('acme');"
	  . " SELECT * FROM inventory.find_positions_for_update('{pli-1}')");
my @consumers = map {
	my @half = splice @commands, 0, SALES / 2;
	$trading->start('inventory_app', "SELECT outcome FROM acme_outbox.inbox_try_process_batch("
		  . "'inventory.trading', ARRAY[" . join(', ', map { "\$env\$$_\$env\$" } @half)
		  . "], 'inventory.on_trading_event');\n")
} 1, 2;
ok($trading->wait_blocked(2), 'two consumers want the same stock at once');
$gate->query_safe('COMMIT');
is(join('', AcmeOutbox::Trading::finish(@consumers)), "applied\n" x SALES, 'and handle all commands');
my @answers = answers($trading->pump_while(@runs));
is(count_of('201', @answers), 33, 'as many sales as there is stock for');
is(count_of('409 INSUFFICIENT_STOCK', @answers), SALES - 33, 'all others are refused');
is(position('pli-1'), '10.000|9.900', 'inventory keeps what was sold, and nothing else');
is($trading->sql('SELECT state, count(*) FROM inventory.stock_reservation GROUP BY 1'), 'ACTIVE|33',
	'each sale has its reservation');
is(sagas('COMPLETED') . ' ' . sagas('REFUSED'), '33 17', 'all sagas have ended');
$trading->stock_ok('fifty sagas');

# Several line items, in opposite orders.

@runs = map { start_saga("d$_", [ $_ % 2 ? ('pli-2' => 1, 'pli-3' => 1) : ('pli-3' => 1, 'pli-2' => 1) ]) }
  1 .. 14;
ok(wait_requested(14), 'fourteen more, of two line items');
@answers = answers($trading->pump_while(@runs));
is(count_of('201', @answers) . ' ' . count_of('409 INSUFFICIENT_STOCK', @answers), '10 4',
	'all or nothing of both');
is(position('pli-2') . ' ' . position('pli-3'), '10.000|10.000 10.000|10.000', 'nothing is held in part');

# All that was published, replayed; with the inbox, and without it.

sub inventory_state
{
	return join "\n", map { $trading->sql("SELECT * FROM inventory.$_ ORDER BY 1, 2") }
	  qw(stock_position stock_movement stock_reservation stock_hold);
}

my $state = inventory_state();
my $events = $trading->sql('SELECT count(*) FROM acme_outbox.outbox');
for my $inbox ('known', 'forgotten')
{
	$trading->sql('DELETE FROM inventory.processed_event; DELETE FROM trading.processed_event')
	  if $inbox eq 'forgotten';
	$trading->sql(q{UPDATE acme_outbox.outbox_entry SET status = 'PENDING'});
	cmp_ok($trading->pump, '>=', $events, "$inbox: everything again");
	is(inventory_state(), $state, "$inbox: the same stock");
	is($trading->sql('SELECT count(*) FROM acme_outbox.outbox'), $events, "$inbox: nothing published");
	is(sagas('COMPLETED') . ' ' . sagas('REFUSED'), '43 21', "$inbox: sagas stay as they ended");
}

# No answer: the caller is told so in time, and may try again under its key.

$trading->as($app, <<'SQL');
SELECT trading.create_purchase('{"id": "p-2", "dealId": "stock", "supplierId": "s-1", "lines": [
	{"id": "a", "product": "tin", "quantity": 5, "unitPrice": 1},
	{"id": "b", "product": "tin", "quantity": 5, "unitPrice": 1}]}')
SQL
$trading->pump_dry;
my $hasty = start_saga('d1', [ 'a' => 2 ], key => 'again', patience => '200 ms');
is(join('', answers(AcmeOutbox::Trading::finish($hasty))), '503 STOCK_UNAVAILABLE', 'no answer: 503');
is(sagas('RELEASED'), 1, 'and the stock is given up');
like(join(' ', deliver_only(qr/ReserveStock/)), qr/^applied$/, 'inventory answers, too late');
is(position('a'), '5.000|2.000', 'and holds');
is(join(' ', deliver_only(qr/StockReserved/)), 'applied', 'nobody wants the answer');
is(sagas('RELEASED'), 1, 'it changes nothing');
deliver_only(qr/./);
is(position('a'), '5.000|0.000', 'what was held is released');
is(join('', answers($trading->pump_while(start_saga('d1', [ 'a' => 2 ], key => 'again')))), '201',
	'the same key, again: granted');
my ($replay) = AcmeOutbox::Trading::finish(start_saga('d1', [ 'a' => 2 ], key => 'again'));
like($replay, qr/^201\|/, 'and once more: answered');
is($trading->sql(q{SELECT count(*) FROM trading.sale_line WHERE line_item_id = 'a'}), 1, 'from one sale');
is(position('a'), '5.000|2.000', 'one reservation');

# While the first request under a key waits, a second one is told so, and then has its answer.

my $waiting = start_saga('d2', [ 'a' => 0.1 ], key => 'twice');
ok(wait_requested(1), 'a saga waits');
is(join('', answers(AcmeOutbox::Trading::finish(start_saga('d2', [ 'a' => 0.1 ], key => 'twice')))),
	'409 IDEMPOTENCY_KEY_IN_FLIGHT', 'its key is in flight');
my ($granted) = $trading->pump_while($waiting);
like($granted, qr/^201\|/, 'it is granted');
is((AcmeOutbox::Trading::finish(start_saga('d2', [ 'a' => 0.1 ], key => 'twice')))[0], $granted,
	'and so is whoever asks again: the same sale');

# Refused at once, without inventory.

my @hopeless = (start_saga('nowhere', [ 'a' => 1 ]), start_saga('d1', [ 'a' => 0 ]));
is(join(' ', answers(AcmeOutbox::Trading::finish(@hopeless))),
	'404 DEAL_NOT_FOUND 422 INVALID_LINES', 'what cannot be granted is not asked for');

my (undef, undef, $err) = $trading->try_as($app, q{CALL trading.create_sale_saga('acme', NULL, }
	  . AcmeOutbox::Trading::sale_request('d1', 'a' => 1) . ')');
like($err, qr/ERROR:  2D000/, 'it cannot be called in a transaction');
is(sagas('REQUESTED'), 0, 'which leaves nothing');

# Refused in the end: the deal was locked meanwhile, so the stock goes back.

my $run = start_saga('d1', [ 'a' => 1, 'b' => 1 ]);
ok(wait_requested(1), 'a saga waits');
$trading->as($app, q{SELECT trading.lock_deal('d1')});
is(join('', answers($trading->pump_while($run))), '409 DEAL_NOT_OPEN', 'its deal is locked: refused');
is(position('a') . ' ' . position('b'), '5.000|2.100 5.000|0.000', 'and its stock is back');

# Beside it, the other design takes the stock that inventory holds for a saga.

$run = start_saga('d2', [ 'b' => 4 ]);
ok(wait_requested(1), 'a saga waits');
is(join(' ', deliver_only(qr/ReserveStock/)), 'applied', 'inventory holds its stock');
is($trading->as($app, 'SELECT status FROM trading.create_sale_request(NULL, '
		  . AcmeOutbox::Trading::sale_request('d3', 'b' => 3) . ')'), 201, 'a sale under row locks is faster');
deliver_only(qr/StockReserved/);
is(join('', answers(AcmeOutbox::Trading::finish($run))), '409 INSUFFICIENT_STOCK', 'the saga is refused in the end');
deliver_only(qr/./);
is(position('b'), '5.000|3.000', 'its stock is back, and the sale is known');
$trading->stock_ok('side by side');

sub start_sale
{
	my ($deal, @lines) = @_;
	my $request = AcmeOutbox::Trading::sale_request($deal, @lines);
	return $trading->start($app, "BEGIN;\nSELECT acme_outbox.context('acme') \\g /dev/null\n"
		  . "SELECT * FROM trading.create_sale_request(NULL, $request);\nCOMMIT;\n");
}

@runs = map { $_ % 2 ? start_saga("d$_", [ 'a' => 0.2 ]) : start_sale("d$_", 'a' => 0.2) } 11 .. 40;
@answers = answers($trading->pump_while(@runs));
is(count_of('201', @answers) + count_of('409 INSUFFICIENT_STOCK', @answers), 30, 'thirty of both kinds are answered');
cmp_ok(count_of('201', @answers), '<=', 14, 'and not more than there is for are granted');
$trading->stock_ok('thirty of both kinds');
is($trading->sql(q{SELECT count(*) FROM inventory.stock_reservation WHERE state = 'HELD'}), 0, 'nothing stays held');

# The session dies while it waits: its saga and its hold end by themselves, in any order.

sub killed_saga
{
	my ($deal, @lines) = @_;
	my $victim = start_saga($deal, \@lines);
	ok(wait_requested(1), 'a saga waits');
	$trading->sql(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE usename = 'trading_app' AND query LIKE 'CALL trading.create_sale_saga%'});
	AcmeOutbox::Trading::finish($victim);
	$trading->pump_dry;
	is(sagas('RESERVED'), 1, 'its session died; inventory holds its stock');
	$trading->sql(q{UPDATE trading.sale_saga SET expires_at = now() WHERE state = 'RESERVED';
		UPDATE inventory.stock_hold SET expires_at = now() WHERE state = 'HELD'
		AND sale_id IN (SELECT sale_id FROM trading.sale_saga WHERE state = 'RESERVED')});
	return;
}

sub job
{
	my ($role, $procedure) = @_;
	my ($out) = AcmeOutbox::Trading::finish($trading->start($role, "CALL $procedure();\n"));
	chomp $out;
	return $out;
}

my $b = position('b');
killed_saga('d5', 'b' => 1);
isnt(position('b'), $b, 'there is a hold');
is(job($app, 'trading.release_overdue_sagas'), 1, 'trading gives the saga up');
$trading->pump_dry;
is(position('b'), $b, 'and inventory releases');
is(job($app, 'trading.release_overdue_sagas'), 0, 'once');

killed_saga('d6', 'b' => 1);
is($trading->as('inventory_app', <<'SQL'), 'HELD', 'a hold past its time');
SELECT state FROM inventory.stock_hold WHERE expires_at <= now() ORDER BY expires_at DESC LIMIT 1
SQL
cmp_ok(job('inventory_app', 'inventory.expire_holds'), '>=', 1, 'inventory lets it expire');
is(position('b'), $b, 'and has its stock back');
job($app, 'trading.release_overdue_sagas');
$trading->pump_dry;
is(position('b'), $b, 'trading says so later: no change');
is(job('inventory_app', 'inventory.expire_holds'), 0, 'nothing is left to expire');

# Commands that come late, twice, or in the wrong order.

my $command = '{"header": {"eventId": "%s"}, "body": {"eventName": "%s", "payload": {"tenantId": "acme",
	"saleId": "%s", "expiresAt": "%s", "lines": [{"lineItemId": "b", "quantity": 1}]}}}';

sub replies
{
	return $trading->sql(
		q{SELECT count(*) FROM acme_outbox.outbox WHERE routing_key LIKE 'inventory.reply.%'});
}

my $replies = replies();

sub commands
{
	my ($sale, $expires, @names) = @_;
	my $n = 0;
	return join ' ', map {
		$trading->deliver('inventory.trading', sprintf $command, "$sale-" . $n++, $_, $sale, $expires)
	} @names;
}

is(commands('late', '2020-01-01T00:00:00Z', 'ReserveStock'), 'applied', 'too late');
is(position('b'), $b, 'holds nothing');
is(commands('crossed', '2999-01-01T00:00:00Z', 'ReleaseStock', 'ReserveStock'), 'applied applied',
	'released before it was reserved');
is(position('b'), $b, 'holds nothing');
is(replies(), $replies, 'neither is answered: nobody waits');
commands('twice', '2999-01-01T00:00:00Z', 'ReserveStock', 'ReserveStock');
is(replies(), $replies + 1, 'asked twice: answered once');
commands('twice', '2999-01-01T00:00:00Z', map { 'ReleaseStock' } 1 .. 4);
is(position('b'), $b, 'and released once');
my $stray = '{"header": {"eventId": "stray"}, "body": {"eventName": "StockReserved",
	"payload": {"tenantId": "acme", "saleId": "unknown"}}}';
is(($trading->deliver('trading.inventory', $stray))[0], 'parked', 'an answer to no question is parked');

# Sold although its hold had expired: the sale counts.

is(commands('slow', '2999-01-01T00:00:00Z', 'ReserveStock'), 'applied', 'held');
$trading->sql(q{UPDATE inventory.stock_hold SET expires_at = now() WHERE sale_id = 'slow'});
job('inventory_app', 'inventory.expire_holds');
is(position('b'), $b, 'expired');
$trading->deliver('inventory.trading', <<'JSON');
{"header": {"eventId": "slow-sale"}, "body": {"eventName": "trading.sale.created", "payload":
	{"tenantId": "acme", "saleId": "slow", "lines": [{"lineItemId": "b", "quantity": 1, "unitPrice": 1}]}}}
JSON
is($trading->sql(q{SELECT state FROM inventory.stock_reservation WHERE sale_id = 'slow'}),
	'ACTIVE', 'sold nevertheless');
isnt(position('b'), $b, 'and taken from the position');
is($trading->sql('SELECT * FROM inventory.inconsistent'), '', 'positions add up');

$gate->quit;
$trading->quit;
$node->stop;
done_testing();
