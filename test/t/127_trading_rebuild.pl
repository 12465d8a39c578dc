# Reports of the trading platform: rebuilt again and again while events come in, through
# two consumers a queue, each projection ends equal to its source and to one that was never
# rebuilt, made of the same events in another order. A wrong row is mended, a row that has
# no source goes.
use strict;
use warnings;

use AcmeOutbox::Check;
use AcmeOutbox::Platform;
use PostgreSQL::Test::Utils;
use Test::More;

my $stage = $ENV{ACME_STAGE} // '.';
my @projections = qw(deal_summary line_item_summary invoice_summary accounting_period
  commission_summary stock_position customer_summary trader_summary);
my @groups = qw(trading accounting commission inventory);

my $platform = AcmeOutbox::Platform->create('main', 'deadlock_timeout = 50ms');
$platform->open_shop;
$platform->start_all;
$platform->consume("reporting.$_") for @groups;    # a second one each

# Traffic, and rebuilds of all tables meanwhile.

my @traffic = ($platform->traffic('trading', 5, 40, 'deal.sql@2', 'shelf.sql@3'),
	$platform->traffic('accounting', 5, 4, 'invoice.sql'));
my %rebuilt;
while (grep { $_->pumpable } @traffic)
{
	for my $projection (@projections)
	{
		$platform->sql("SELECT * FROM reporting.rebuild('$projection')");
		$rebuilt{$projection}++;
	}
	$_->pumpable && eval { $_->pump_nb } for @traffic;
}
for my $run (@traffic)
{
	ok($run->finish, 'the traffic did not break') or diag ${ $run->{output} // \'' };
}
cmp_ok($rebuilt{$_} // 0, '>=', 3, "rpt_$_ was rebuilt during traffic") for @projections;
$platform->app('accounting', q{SELECT accounting.close_period('2026-01')});
$platform->settle_down;

is($platform->sql('SELECT bool_and(on_target) FROM reporting.projection_lag'), 't',
	'projected within five seconds');
is($platform->sql("SELECT operation.differs('$_')"), 0, "rpt_$_ is what its source says")
  for @projections;
is($platform->sql('SELECT * FROM operation.books WHERE NOT balanced'), '', 'the books balance');

# Never rebuilt: the same events, shuffled, into empty tables.

$platform->sql("CREATE TABLE was_$_ AS TABLE reporting.rpt_$_") for @projections;
$platform->sql('TRUNCATE ' . join(', ', map { "reporting.rpt_$_" } @projections));
$platform->sql('DELETE FROM reporting.processed_event');
my $handled = 0;
for my $group (@groups)
{
	my $outcomes = $platform->sql(<<"SQL");
SET acme_outbox.inbox_schema = 'reporting';
SELECT outcome, count(*) FROM acme_outbox.inbox_try_process_batch('reporting.$group',
	ARRAY(SELECT payload FROM acme_outbox.outbox_entry WHERE topic = 'acme.$group'
		ORDER BY md5(event_id::text)), 'reporting.on_${group}_event') GROUP BY 1
SQL
	like($outcomes, qr/\Aapplied\|\d+\z/, "all events of $group, in another order");
	$handled += $outcomes =~ s/\D//gr;
}
cmp_ok($handled, '>', 500, 'there was something to handle');
my $guards = q('{last_event_at,last_event_id}'::text[]);
for my $projection (@projections)
{
	is($platform->sql(<<"SQL"), 0, "rpt_$projection: rebuilt and never rebuilt are equal");
WITH was AS (SELECT to_jsonb(w) - $guards FROM was_$projection w),
	never AS (SELECT to_jsonb(r) - $guards FROM reporting.rpt_$projection r)
SELECT count(*) FROM ((TABLE was EXCEPT TABLE never) UNION ALL (TABLE never EXCEPT TABLE was)) d
SQL
}

# What is wrong is mended, what has no source goes.

$platform->sql(<<'SQL');
UPDATE reporting.rpt_deal_summary SET amount = -1;
INSERT INTO reporting.rpt_invoice_summary SELECT tenant_id, 'nobody', deal_id, source_type,
	source_id, period, amount, currency, status, last_event_at, last_event_id
	FROM reporting.rpt_invoice_summary LIMIT 1;
UPDATE reporting.rpt_stock_position SET available = 12345;
UPDATE reporting.rpt_trader_summary SET amount = -1;
DELETE FROM reporting.rpt_commission_summary;
SQL
cmp_ok($platform->sql("SELECT operation.differs('$_')"), '>', 0, "rpt_$_ was damaged")
  for qw(deal_summary invoice_summary stock_position trader_summary commission_summary);
$platform->sql('CALL reporting.rebuild_all()');
is($platform->sql("SELECT operation.differs('$_')"), 0, "rpt_$_ is mended") for @projections;

# The view of the lag would say so if a report were late.

$platform->sql(<<'SQL');
INSERT INTO reporting.processed_event (consumer, event_id, processed_at)
	SELECT 'reporting.late', e.event_id, now() + interval '6 s' FROM acme_outbox.outbox_entry e
	ORDER BY id DESC LIMIT 1
SQL
is($platform->sql(q{SELECT on_target FROM reporting.projection_lag WHERE consumer = 'reporting.late'}),
	'f', 'a late one is off target');

$platform->stop_bridges;
done_testing();
