# Sales as sagas through RabbitMQ: relays, broker and consumers are killed while fifty callers
# wait for their answers. Each has one answer in the end, exactly as much is sold as there was,
# and nothing stays held. Whoever is told 503 asks again with its key.
# Slow: begins before the others.
use strict;
use warnings;

use AcmeOutbox::Bridge;
use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use AcmeOutbox::Platform;
use AcmeOutbox::Trading;
use Test::More;

use constant CALLERS => 50;

my $platform = AcmeOutbox::Platform->create('main', 'max_connections = 120',
	"acme_outbox.lease_duration = '1s'", "acme_outbox.hold_backoff_cap = '1s'");
my $broker = $platform->{broker} = AcmeOutbox::Broker->new(private => 1);
$platform->import_topology;
my $trading = AcmeOutbox::Trading->attach($platform->{node}, AcmeOutbox::Platform::DATABASE);
my @relay = ('--renew-interval', '300ms', '--reconnect-max', '1s');

# One that asks until it is told yes or no.
sub caller_of
{
	my ($n, $item) = @_;
	my $request = AcmeOutbox::Trading::sale_request("d$n", $item => 0.3);
	return $trading->start('trading_app', <<"SQL");
DO \$\$
DECLARE
	status   integer := 503;
	response jsonb;
BEGIN
	WHILE status = 503 LOOP
		CALL trading.create_sale_saga('acme', '$item-$n', $request, status, response, '30 seconds');
	END LOOP;
	PERFORM set_config('test.status', status::text, false);
END \$\$;
SELECT current_setting('test.status');
SQL
}

# A relay of trading's that dies once the broker has confirmed, before it has noted that.
sub doomed_relay
{
	return AcmeOutbox::Bridge->start($platform->{node}, undef,
		origin => 'trading',
		user   => 'trading_relay',
		uri    => $platform->uri('trading'),
		env    => {
			PGDATABASE           => AcmeOutbox::Platform::DATABASE,
			ACME_OUTBOX_CRASH_AT => 'confirmed-before-settle'
		},
		args => \@relay);
}

sub consume
{
	my ($consumer) = @_;
	return $platform->consume($consumer, '--reconnect-max', '1s', '--summary-interval', '1s');
}

# All of them; the sub is what happens while they wait.
sub fifty_callers
{
	my ($item, $what, $meanwhile) = @_;
	my $before = $trading->sql('SELECT count(*) FROM trading.sale');

	# Inventory cannot answer before it has happened.
	my $gate = $trading->session('inventory_app');
	$gate->query_safe("BEGIN; SELECT acme_outbox.context('acme');"
		  . " SELECT * FROM inventory.find_positions_for_update('{$item}')");
	my @callers = map { caller_of($_, $item) } 1 .. CALLERS;
	ok($platform->wait_sql('SELECT count(*) >= ' . CALLERS
			  . " FROM trading.sale_saga WHERE state = 'REQUESTED'"), "$what: fifty wait");
	$meanwhile->($gate);
	$gate->quit;

	my %answer = (201 => 0, 409 => 0);
	$answer{ s/\s+//gr }++ for AcmeOutbox::Trading::finish(@callers);
	is($answer{201} + $answer{409}, CALLERS, "$what: each has an answer, yes or no");
	is($trading->sql('SELECT count(*) FROM trading.sale') - $before, $answer{201},
		"$what: and each yes a sale");
	# Where one gave up, others may have been refused what was held for it.
	my $gave_up = $trading->sql(q{SELECT count(*) FROM trading.sale_saga WHERE state = 'RELEASED'});
	note "$what: $gave_up were not answered in time";
	cmp_ok($answer{201}, $gave_up ? '<=' : '==', 33, "$what: yes as often as there is stock");
	return;
}

# Nothing on its way: what is sold is what is reserved.
sub settled_ok
{
	my ($what) = @_;
	ok($platform->wait_sql(<<"SQL"), "$what: all messages arrived");
SELECT NOT EXISTS (SELECT FROM acme_outbox.outbox_entry WHERE status IN ('PENDING', 'PUBLISHING'))
	AND (SELECT count(*) FROM inventory.stock_reservation WHERE state = 'HELD') = 0
	AND (SELECT count(*) FROM inventory.stock_reservation WHERE state = 'ACTIVE')
		= (SELECT count(*) FROM trading.sale_line)
SQL
	is( $trading->sql('SELECT sum(reserved) FROM inventory.stock_position'),
		$trading->sql('SELECT sum(quantity) FROM trading.sale_line'), "$what: what was sold is reserved");
	$trading->stock_ok($what);
	is($trading->sql('SELECT * FROM acme_outbox.parked_open'), '', "$what: nothing is parked");
	return;
}

# The fault did what it was to do.
sub seen_twice_ok
{
	my ($what) = @_;
	return ok($platform->bridge('consume inventory.trading')->wait_for_log(qr/duplicate=[1-9]/),
		"$what: commands came twice");
}

$trading->stock(CALLERS, 10, 10, 10);
$platform->relay($_, @relay) for qw(trading inventory);
consume($_) for qw(inventory.trading trading.inventory);
ok($platform->wait_sql('SELECT count(*) = 3 FROM inventory.stock_position'), 'inventory knows the stock');

# The relay dies after the broker has the commands; its successor sends them again.

is($platform->bridge('relay trading')->stop, 0, 'trading has no relay');
my $doomed = doomed_relay();
fifty_callers('pli-1', 'relay killed', sub {
	is($doomed->wait_exit(60), 'signal 9', 'a relay dies with commands that were confirmed');
	$platform->relay('trading', @relay);
	$trading->wait_blocked(1);
});
settled_ok('relay killed');
seen_twice_ok('relay killed');

# The consumer dies in the middle of its batch.

fifty_callers('pli-2', 'consumer killed', sub {
	ok($trading->wait_blocked(1), 'a consumer is in the middle of a batch');
	$platform->bridge('consume inventory.trading')->kill9;
	consume('inventory.trading');
});
settled_ok('consumer killed');

# The broker dies with commands handled and not acknowledged, and answers not sent.

fifty_callers('pli-3', 'broker killed', sub {
	my ($gate) = @_;
	ok($trading->wait_blocked(1), 'a consumer is in the middle of a batch');
	$broker->kill9;
	$gate->query_safe('COMMIT');
	$broker->start;
});
settled_ok('broker killed');
seen_twice_ok('broker killed');

$platform->stop_bridges;
$platform->{node}->stop;
done_testing();
