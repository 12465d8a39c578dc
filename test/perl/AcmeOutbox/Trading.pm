# The trading platform of examples/trading in a database of its own: its services' sessions,
# its deliveries, its stock.
package AcmeOutbox::Trading;

use strict;
use warnings;

use IPC::Run ();
use JSON::PP qw(decode_json);
use POSIX qw(WNOHANG);
use PostgreSQL::Test::Utils qw(slurp_file);
use Test::More;
use Time::HiRes qw(sleep time);

my $stage = $ENV{ACME_STAGE} // '.';

use constant TENANT => 'acme';

# Who consumes whose events with what: EVENTS.md.
my %consumers = (
	'trading.accounting' => { handler => 'trading.on_invoice_processed', app => 'trading_app' },
	'trading.inventory'  => { handler => 'trading.on_stock_answer', app => 'trading_app' },
	'inventory.trading'  => { handler => 'inventory.on_trading_event', app => 'inventory_app' });

# AcmeOutbox::Trading->create($node, 'database'): trading and inventory, empty.
sub create
{
	my ($class, $node, $database) = @_;
	my $self = $class->attach($node, $database);

	$node->safe_psql('postgres', "CREATE DATABASE $database");
	for my $part (qw(00_roles 10_trading 12_trading_saga 20_inventory))
	{
		my ($out, $err);
		IPC::Run::run(
			[   'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr($database),
				'-f', "$stage/examples/trading/sql/$part.sql"
			],
			'<', \undef, '>', \$out, '2>', \$err) or die "$part.sql: $err\n";
	}
	return $self;
}

# The same in a database that has them.
sub attach
{
	my ($class, $node, $database) = @_;
	return bless { node => $node, database => $database }, $class;
}

# As a superuser, who sees all.
sub sql
{
	my ($self, $query) = @_;
	return $self->{node}->safe_psql($self->{database}, $query);
}

sub connstr
{
	my ($self, $role) = @_;
	return $self->{node}->connstr($self->{database}) . " user=$role";
}

# As a service, in one transaction of a tenant: (status, stdout, stderr).
sub try_as
{
	my ($self, $role, $query, %opt) = @_;
	my $tenant = $opt{tenant} // TENANT;
	my ($out, $err) = ('', '');
	my $script = "BEGIN;\n"
	  . (length $tenant ? "SELECT acme_outbox.context('$tenant') \\g /dev/null\n" : '')
	  . "$query;\nCOMMIT;\n";

	IPC::Run::run(
		[   'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-v', 'VERBOSITY=verbose', '-d',
			$self->connstr($role)
		],
		'<', \$script, '>', \$out, '2>', \$err);
	chomp $out;
	return ($? >> 8, $out, $err);
}

sub as
{
	my ($self, $role, $query, %opt) = @_;
	my ($status, $out, $err) = $self->try_as($role, $query, %opt);
	die "$role: $query\n$err\n" if $status != 0;
	return $out;
}

# A session that stays: PostgreSQL::Test::BackgroundPsql.
sub session
{
	my ($self, $role) = @_;
	local $ENV{PGUSER} = $role;
	return $self->{node}->background_psql($self->{database});
}

# A script in a session of its own, in the background.
sub start
{
	my ($self, $role, $script) = @_;
	my $base = PostgreSQL::Test::Utils::tempdir() . '/session';
	my $run = { out => "$base.out", err => "$base.err" };

	PostgreSQL::Test::Utils::append_to_file("$base.sql", $script);
	$run->{pid} = fork() // die "could not fork: $!\n";
	if ($run->{pid} == 0)
	{
		open(STDOUT, '>', $run->{out});
		open(STDERR, '>', $run->{err});
		exec('psql', '-XqAt', '-v', 'VERBOSITY=verbose', '-d', $self->connstr($role),
			'-f', "$base.sql") or POSIX::_exit(127);
	}
	return $run;
}

sub running
{
	my ($run) = @_;
	return 0 if $run->{ended};
	return 1 if waitpid($run->{pid}, WNOHANG) != $run->{pid};
	$run->{ended} = 1;
	return 0;
}

# Wait for all of them; their outputs, one string each.
sub finish
{
	my (@runs) = @_;
	for my $run (grep { !$_->{ended} } @runs)
	{
		waitpid $run->{pid}, 0;
		$run->{ended} = 1;
	}
	return map { slurp_file($_->{out}) } @runs;
}

# Purchase line items "pli-1", ... of that many quantities, in a deal of their own, and
# deals "d1" ... to sell them in.
sub stock
{
	my ($self, $deals, @quantities) = @_;
	my $n = 0;
	my $lines = join ',',
	  map { $n++; qq({"id": "pli-$n", "product": "copper", "quantity": $_, "unitPrice": 8}) }
	  @quantities;

	$self->as('trading_app', <<"SQL");
SELECT trading.create_deal('{"id": "stock", "traderId": "t-1", "customerId": "c-1", "currency": "EUR"}');
SELECT trading.create_purchase('{"id": "p-1", "dealId": "stock", "supplierId": "s-1", "lines": [$lines]}');
SELECT count(trading.create_deal(jsonb_build_object('id', 'd' || n, 'traderId', 't-1',
	'customerId', 'c-1', 'currency', 'EUR'))) FROM generate_series(1, $deals) n
SQL
	return;
}

# The request for a sale, as a literal: sale_request('d1', 'pli-1' => 0.3, ...).
sub sale_request
{
	my ($deal, @lines) = @_;
	my @json;
	while (my ($item, $quantity) = splice @lines, 0, 2)
	{
		push @json, qq({"lineItemId": "$item", "quantity": $quantity, "unitPrice": 9});
	}
	return qq('{"dealId": "$deal", "lines": [) . join(', ', @json) . q(]}');
}

# Wait until that many sessions wait for locks.
sub wait_blocked
{
	my ($self, $count) = @_;
	return $self->{node}->poll_query_until($self->{database}, <<"SQL");
SELECT count(*) = $count FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock'
SQL
}

# What was published and not yet delivered, in the order of publishing: taken.
sub take
{
	my ($self) = @_;
	return map { decode_json($_) } split /\n/, $self->sql(<<'SQL');
WITH taken AS (
	UPDATE acme_outbox.outbox_entry SET status = 'PUBLISHED' WHERE status = 'PENDING'
	RETURNING id, routing_key, payload)
SELECT json_build_object('id', id, 'key', routing_key, 'envelope', payload) FROM taken ORDER BY id
SQL
}

# The consumer that a routing key leads to.
sub consumer_of
{
	my ($key) = @_;
	return 'trading.accounting' if $key eq 'accounting.invoice.processed';
	return 'trading.inventory'  if $key =~ /^inventory\.reply\./;
	return 'inventory.trading'
	  if $key =~ /^(?:inventory\.command\.|trading\.(?:purchase|sale)\.created$)/;
	return;
}

# Deliver envelopes to a consumer as the bridge does: one batch, one transaction. The
# outcomes, in the order given.
sub deliver
{
	my ($self, $consumer, @envelopes) = @_;
	my $session = $self->{sessions}{$consumer} //= $self->session($consumers{$consumer}{app});
	my $list = join ', ', map { "\$env\$$_\$env\$" } @envelopes;

	return split /\n/, $session->query_safe(<<"SQL");
SELECT outcome || coalesce(' ' || sqlstate || ' ' || message, '')
FROM acme_outbox.inbox_try_process_batch('$consumer', ARRAY[$list], '$consumers{$consumer}{handler}')
SQL
}

# One round of relay and consumers for all of it: how many messages there were. Dies where
# one was neither applied nor a duplicate.
sub pump
{
	my ($self) = @_;
	my @taken = $self->take;
	my %batch;

	for my $message (@taken)
	{
		my $consumer = consumer_of($message->{key});
		push @{ $batch{$consumer} }, $message->{envelope} if $consumer;
	}
	for my $consumer (sort keys %batch)
	{
		my @outcomes = $self->deliver($consumer, @{ $batch{$consumer} });
		my ($bad) = grep { !/^(?:applied|duplicate)$/ } @outcomes;
		die "$consumer: $bad\n" if defined $bad;
	}
	return scalar @taken;
}

# Until nothing is left to deliver.
sub pump_dry
{
	my ($self) = @_;
	1 while $self->pump;
	return;
}

# Pump until these have ended.
sub pump_while
{
	my ($self, @runs) = @_;
	my $deadline = time() + $PostgreSQL::Test::Utils::timeout_default;

	while (grep { running($_) } @runs)
	{
		die "sessions do not end\n" if time() > $deadline;
		$self->pump or sleep 0.01;
	}
	$self->pump_dry;
	return finish(@runs);
}

# Nothing oversold, every position the sum of what made it.
sub stock_ok
{
	my ($self, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($self->sql('SELECT * FROM trading.oversold'), '', "$what: nothing is oversold");
	is($self->sql('SELECT * FROM inventory.inconsistent'), '', "$what: positions add up");
	return;
}

sub quit
{
	my ($self) = @_;
	$_->quit for values %{ $self->{sessions} // {} };
	$self->{sessions} = {};
	return;
}

1;
