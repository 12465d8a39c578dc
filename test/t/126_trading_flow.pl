# The trading platform with all relays and consumers: a service that stands still stops no
# other, reports answer while trading is down, poison ends in its own consumer's dead-letter
# queue and reaches its final state once its cause is mended, killed bridges and repeated
# messages change nothing, and an invitation's token is nowhere but where it is needed. All that
# comes of one request has its trace; a saga whose client dies is compensated by the clocks.
use strict;
use warnings;

use AcmeOutbox::Check;
use AcmeOutbox::Platform;
use PostgreSQL::Test::Utils;
use Test::More;

my $stage = $ENV{ACME_STAGE} // '.';
my $platform = AcmeOutbox::Platform->create('main');
my $broker = $platform->{broker};
my $deals = 0;

# Somebody looks at what platform and notification really send.
$broker->declare_queue('spy');
$broker->bind('spy', "acme.$_") for qw(platform notification);
$platform->open_shop;
$platform->start_all;

# A deal, bought, sold and locked, all three under one id; the event ids of its sale and its locking.
sub trade
{
	my (%opt) = @_;
	my $id = 'deal' . ++$deals;
	my $line = $opt{shelf} // "line-$id";
	my $buy = $opt{shelf} ? '' : qq{SELECT trading.create_purchase('{"id": "$id", "dealId": "$id", "supplierId": "s",
		"lines": [{"id": "$line", "product": "tin", "quantity": 10, "unitPrice": 8}]}');};
	$platform->app('trading', qq{
		SELECT trading.create_deal('{"id": "$id", "traderId": "tom", "customerId": "carla", "currency": "EUR"}');
		$buy
		SELECT trading.create_sale('{"id": "$id", "dealId": "$id",
			"lines": [{"lineItemId": "$line", "quantity": 1, "unitPrice": 9}]}');
		SELECT trading.lock_deal('$id', '2.0.0')});
	return map { $platform->sql("SELECT event_id FROM acme_outbox.outbox_entry
		WHERE message_key = '$id' AND event_name = '$_'") } qw(trading.sale.created trading.deal.locked);
}

sub handled
{
	my ($consumer, $event) = @_;
	my ($service) = split /\./, $consumer;
	return $platform->sql("SELECT count(*) FROM $service.processed_event
		WHERE consumer = '$consumer' AND event_id = '$event'");
}

# One service after the other stands still.

for my $service (qw(trading inventory accounting commission notification reporting audit))
{
	my @mine = grep { /^$service\./ } sort keys %{ $platform->consumers };
	is(join(' ', grep { $platform->bridge("consume $_")->stop != 0 } @mine), '',
		"$service: consumers stopped");
	my ($sold, $locked) = trade();
	$platform->app('platform', qq{SELECT platform.invite_user('$service\@acme.example')});
	my $invited = $platform->sql(q{SELECT event_id FROM acme_outbox.outbox_entry
		WHERE event_name = 'platform.user.invited' ORDER BY id DESC LIMIT 1});
	my %due = ('inventory.trading' => $sold, 'accounting.trading' => $locked,
		'commission.trading' => $locked, 'reporting.trading' => $locked, 'audit.feed' => $locked,
		'notification.platform' => $invited);
	my @others = grep { !/^$service\./ } sort keys %due;
	ok(wait_until(sub { !grep { !handled($_, $due{$_}) } @others }),
		"the others handle what is theirs: @others");
	is(join(' ', grep { handled($_, $due{$_}) } grep { $due{$_} } @mine), '', "$service does not");
	$platform->consume($_) for @mine;
	$platform->wait_ready;
}

# Trading is down altogether: no login, no relay, no consumer.

$platform->settle_down;
$_->stop for map { $platform->bridge($_) }
  'relay trading', 'consume trading.accounting', 'consume trading.inventory';
$platform->sql(q{ALTER ROLE trading_app NOLOGIN; ALTER ROLE trading_relay NOLOGIN;
	REVOKE USAGE ON SCHEMA trading FROM trading_app});
like(($platform->try_as('trading_app', 'SELECT 1'))[2], qr/not permitted to log in/, 'trading is down');
is( $platform->app('reporting', 'SELECT count(*), min(status), max(status) FROM reporting.deals'),
	"8|DRAFT|LOCKED", 'reports answer');
is($platform->app('reporting',
		q{SELECT deals, amount FROM reporting.rpt_trader_summary WHERE trader_id = 'tom'}),
	'7|-497.00', 'with all that was told');
cmp_ok($platform->app('accounting', 'SELECT accounting.process_invoices()'), '==', 14,
	'and accounting works on');
ok(wait_until(sub { $platform->app('reporting',
	q{SELECT count(*) = 14 FROM reporting.rpt_invoice_summary WHERE status = 'PROCESSED'}) eq 't' }),
	'and is reported on');
$platform->sql(q{ALTER ROLE trading_app LOGIN; ALTER ROLE trading_relay LOGIN;
	GRANT USAGE ON SCHEMA trading TO trading_app});
$platform->relay_of('trading');
$platform->consume($_) for qw(trading.accounting trading.inventory);
$platform->settle_down;
is($platform->app('trading', q{SELECT count(*) FROM trading.deal WHERE status = 'INVOICED'}), 7,
	'trading catches up');

# One request, followed by nothing but its trace: a sale through the saga, the deal's lock and an
# invitation, in one page of a browser.

my $trace = '4bf92f3577b34da6a3ce929d0e0e4736';
my $traceparent = "00-$trace-00f067aa0ba902b7-01";
my $saga = q{'{"dealId": "traced", "lines": [{"lineItemId": "shelf-1", "quantity": 2, "unitPrice": 12}]}'};

sub in_trace { my ($service, $query) = @_; return $platform->app($service, "SELECT acme_outbox.context(traceparent => '$traceparent'); $query") =~ s/\A\n//r; }

$platform->app('trading', q{SELECT trading.create_deal('{"id": "traced", "traderId": "tim", "customerId": "carla", "currency": "EUR"}')});
like(($platform->try_as('trading_app', "CALL trading.create_sale_saga('acme', 'traced', $saga, traceparent => '$traceparent')"))[1],
	qr/^201\|/, 'a saga is sold');
in_trace('trading', q{SELECT trading.lock_deal('traced')});
in_trace('platform', q{SELECT platform.invite_user('carla@acme.example')});
ok($platform->wait_sql(q{SELECT count(*) = 1 FROM accounting.invoice WHERE deal_id = 'traced'}), 'and invoiced');
is($platform->app('accounting', 'SELECT accounting.process_invoices()'), 1, 'an accountant processes the invoice, in another request');
my @expected = ('accounting accounting.invoice.issued', 'accounting accounting.invoice.processed',
	'commission commission.commission.calculated', 'inventory StockReserved', 'inventory inventory.stock.reserved',
	'inventory inventory.stock.updated', 'notification notification.mail.send', 'platform platform.user.invited',
	'trading ReserveStock', 'trading trading.deal.invoiced', 'trading trading.deal.locked', 'trading trading.sale.created');
my $history = "SELECT origin || ' ' || event_name FROM audit.history('$trace')";
ok(wait_until(sub { join("\n", sort split /\n/, $platform->sql($history)) eq join("\n", @expected) }),
	'the audit has all that came of it, over all services, and nothing else') or diag $platform->sql($history);
like($platform->sql($history), qr/ReserveStock.*StockReserved.*trading\.sale\.created.*deal\.locked.*invoice\.issued.*invoice\.processed.*deal\.invoiced/s,
	'in its order');
is($platform->sql("SELECT string_agg(DISTINCT traceparent, ' ') FROM acme_outbox.outbox WHERE trace_id = '$trace'"), $traceparent,
	'sampled, as the request was');

# Of a locked deal that names nothing to invoice, nothing would be left if it were taken.

like(($platform->try_as('accounting_app', q{SELECT acme_outbox.inbox_process('accounting.trading',
	'{"header": {"eventId": "empty"}, "body": {"payload": {"tenantId": "acme", "dealId": "empty"}}}',
	'accounting.on_trading_event')}))[2], qr/ERROR:.*the deal has nothing to invoice/, 'a deal without sources is a dead letter');

# A client asks inventory for stock, and dies before it has the answer. Trading's clock gives its
# saga up, and the stock is free.

sub stock { return $platform->sql(q{SELECT reserved FROM inventory.stock_position WHERE line_item_id = 'shelf-2'}); }
my $free = stock();
$platform->sql(q{ALTER ROLE trading_app IN DATABASE acme SET trading.hold_time = '3 seconds'});
is($platform->bridge('consume trading.inventory')->stop, 0, 'trading does not hear inventory');
$platform->app('trading', q{SELECT trading.create_deal('{"id": "left", "traderId": "tim", "customerId": "carla", "currency": "EUR"}')});
my $dying = do
{
	local $ENV{PGOPTIONS} = '-c client_connection_check_interval=50ms';
	my $request = $saga =~ s/traced/left/r =~ s/shelf-1/shelf-2/r;
	IPC::Run::start([ 'psql', '-X', '-d', $platform->{node}->connstr(AcmeOutbox::Platform::DATABASE) . ' user=trading_app', '-c',
			"CALL trading.create_sale_saga('acme', 'left', $request)" ], '<', \undef, '>', \my $said, '2>', \my $err);
};
ok($platform->wait_sql(q{SELECT count(*) = 1 FROM trading.sale_saga s JOIN inventory.stock_hold h USING (sale_id)
	WHERE s.request ->> 'dealId' = 'left' AND s.state = 'REQUESTED' AND h.state = 'HELD'}), 'inventory holds stock for it');
$dying->signal('KILL');
$dying->finish;
isnt(stock(), $free, 'which nobody else can have');
ok($platform->wait_sql(q{SELECT count(*) = 0 FROM pg_stat_activity WHERE query LIKE 'CALL trading.create_sale_saga%' AND backend_type = 'client backend'}),
	'the server noticed that the client is gone');
$platform->consume('trading.inventory');
$platform->clock($_) for qw(trading inventory);
ok(wait_until(sub { $platform->sql(q{SELECT state FROM trading.sale_saga WHERE request ->> 'dealId' = 'left'}) eq 'RELEASED'
	&& stock() eq $free }), 'the saga is given up, its stock is free');
is($platform->sql(q{SELECT string_agg(DISTINCT event_name, ' ' ORDER BY event_name) FROM acme_outbox.outbox WHERE trace_id = (
	SELECT split_part(traceparent, '-', 2) FROM trading.sale_saga WHERE request ->> 'dealId' = 'left')}),
	'ReleaseStock ReserveStock StockReserved inventory.stock.updated', 'all in the trace that the client began');
$platform->wait_ready;

# Poison: last month's release of commission, and a mail host that is down.

sub empty_but
{
	my (%expected) = @_;
	my %count = $broker->counts(map { "$_.dlq" } sort keys %{ $platform->consumers });
	return join ' ', map { "$_ $count{$_}" } grep { $count{$_} != ($expected{$_} // 0) } sort keys %count;
}

$platform->psql_file('faults/bonus.sql');
$platform->sql('UPDATE notification.setting SET mail_host = NULL');
my @poison = map { (trade(shelf => "shelf-$_"))[1] } 1 .. 5;
trade();
$platform->app('platform', q{SELECT platform.invite_user('down@acme.example')});
my %dead = ('commission.trading.dlq' => 5, 'notification.mail.dlq' => 1);
ok(wait_until(sub { empty_but(%dead) eq '' }), 'poison is in the queues for its consumers\' dead letters')
  or diag empty_but(%dead);
ok(wait_until(sub { !grep { !handled('accounting.trading', $_) } @poison }),
	'other consumers of the same events had no trouble');
is(scalar(grep { handled('commission.trading', $_) } @poison), 0, 'commission has recorded none');
ok(wait_until(sub { $platform->sql(q{SELECT count(*) = 9 FROM commission.commission}) eq 't' }),
	'and what came after was handled');
my ($letter) = $broker->drain_keep('commission.trading.dlq');
is($letter->{headers}{'x-error-sqlstate'}, '22012', 'a dead letter says what went wrong')
  or diag explain $letter;
is($letter->{headers}{'x-original-routing-key'}, 'trading.deal.locked.v2', 'and its own key');

$platform->psql_file('sql/41_bonus.sql');
$platform->sql(q{UPDATE notification.setting SET mail_host = 'mail.acme.example'});
my ($status, $out) = $platform->reprocess('commission.trading', '--limit', 2);
is($status, 0, 'reprocessed without the original key');
ok(wait_until(sub { $platform->bridge('consume commission.trading')->log_text =~ /0A000/
	&& $broker->count('commission.trading.dlq') == 5 }),
	'commission cannot tell the version: dead again') or diag $out;
($status, $out) = $platform->reprocess('commission.trading', '--original-key');
is($status, 0, 'reprocessed with it') or diag $out;
($status) = $platform->reprocess('notification.mail');
is($status, 0, 'reprocessed the mail');

# Killed bridges, and messages that come again, and late.

my @before = map { $platform->bridge($_)->kill9 } 'relay trading', 'consume reporting.trading',
  'consume audit.feed';
trade() for 1 .. 3;
$platform->relay_of('trading');
$platform->consume($_) for qw(reporting.trading audit.feed);
$platform->wait_ready;
my $old = $platform->sql(q{SELECT payload FROM acme_outbox.outbox_entry
	WHERE event_name = 'trading.deal.created' AND status = 'PUBLISHED' ORDER BY id LIMIT 1});
my ($old_id) = $old =~ /"eventId":"([^"]+)"/;
my $new_id = '018f0000-0000-7000-8000-000000000001';
for my $id ($old_id, $new_id)
{
	$broker->probe('publish', '--exchange', 'acme.trading', '--key', 'trading.deal.created',
		'--message-id', $id, '--body', $old =~ s/\Q$old_id\E/$id/r);
}
ok(wait_until(sub { handled('reporting.trading', $new_id) }), 'an old message came late, under a new id');

# Everything reaches its final state.

$platform->settle_down;
$platform->app('accounting', q{SELECT accounting.close_period('2026-01')});
$platform->settle_down;
is(empty_but(), '', 'no dead letter is left');
is($platform->sql('SELECT page, line, one, other FROM operation.books WHERE NOT balanced'), '',
	'the books balance');
is($platform->app('trading', q{SELECT status, count(*) FROM trading.deal GROUP BY 1 ORDER BY 1}),
	"DRAFT|2\nINVOICED|17", 'every deal is invoiced but two that were not locked');
is($platform->sql(q{SELECT count(*) FROM acme_outbox.outbox e WHERE e.event_name IN ('commission.commission.calculated',
	'accounting.invoice.issued', 'accounting.invoice.processed') AND NOT EXISTS (SELECT FROM acme_outbox.outbox l
	WHERE l.event_name = 'trading.deal.locked' AND l.trace_id = e.trace_id AND l.traceparent = e.traceparent)}), 0,
	'whatever came of a locked deal has its trace, reprocessed or not');

# The token.

$platform->bridge('consume audit.feed')->stop;
$platform->app('platform', q{SELECT platform.invite_user('last@acme.example')});
ok($broker->wait_count('audit.feed.events', 2), 'the audit copies of an invitation are in its queue');
$platform->settle_down('audit.feed');
my @spied = $broker->drain('spy');
my %token = map { $_ => 1 } map { $_->{body} =~ /(?:"token": ?"|join\?token=)([0-9a-f]{64})"/g } @spied;
my @tokens = sort keys %token;
is(scalar @tokens, 10, 'ten invitations, ten tokens');
my $any = join '|', @tokens;
is($platform->sql(<<"SQL"), '', 'no table has a token');
CREATE FUNCTION pg_temp.tables_with(pattern text) RETURNS SETOF text LANGUAGE plpgsql AS \$\$
DECLARE
	name text;
	found boolean;
BEGIN
	FOR name IN SELECT format('%I.%I', schemaname, tablename) FROM pg_tables
		WHERE schemaname NOT IN ('pg_catalog', 'information_schema') LOOP
		EXECUTE format('SELECT EXISTS (SELECT FROM %s t WHERE to_jsonb(t)::text ~ \$1)', name)
			INTO found USING pattern;
		IF found THEN
			RETURN NEXT name;
		END IF;
	END LOOP;
END \$\$;
SELECT * FROM pg_temp.tables_with('$any');
SQL
is(scalar(grep { $_->{body} =~ /$any/ } $broker->drain('audit.feed.events')), 0,
	'nor has the audit\'s queue');
my @logs = grep { -f } glob("$PostgreSQL::Test::Utils::log_path/126_trading_flow_*.log"),
  $platform->{node}->logfile;
cmp_ok(scalar @logs, '>', 18, 'there are logs');
is(join(' ', grep { slurp_file($_) =~ /$any/ } @logs), '', 'nor has a log');
is($platform->app('platform', qq{SELECT platform.accept_invitation('$tokens[0]') IS NOT NULL}), 't',
	'a token lets somebody in');
is($platform->app('platform', qq{SELECT platform.accept_invitation('$tokens[0]') IS NULL}), 't', 'once');

$platform->stop_bridges;
done_testing();
