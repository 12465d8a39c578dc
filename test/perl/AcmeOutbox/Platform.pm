# The trading platform of examples/trading for one test: its database on a PostgreSQL of
# its own, its topology in a virtual host, and as many of its relays and consumers as the
# test starts.
package AcmeOutbox::Platform;

use strict;
use warnings;

use AcmeOutbox::Bridge;
use AcmeOutbox::Broker;
use AcmeOutbox::Check qw(wait_until);
use AcmeOutbox::Cluster;
use JSON::PP qw(decode_json encode_json);
use PostgreSQL::Test::Utils ();
use Test::More;

use constant DATABASE => 'acme';
use constant TENANT   => 'acme';
use constant PASSWORD => 'demo-only';

my $stage = $ENV{ACME_STAGE} // '.';

# The topology as the file says it, and what the tests read out of it.
sub definitions
{
	return decode_json(
		PostgreSQL::Test::Utils::slurp_file("$stage/examples/trading/broker/definitions.json"));
}

# AcmeOutbox::Platform->create('main', "setting = 'value'", ...): nothing runs yet.
sub create
{
	my ($class, $name, @settings) = @_;
	my $self = bless { bridges => {} }, $class;

	$self->{node} = AcmeOutbox::Cluster->create_empty($name, "acme_outbox.lease_duration = '5s'",
		@settings);
	$self->{node}->safe_psql('postgres', 'CREATE DATABASE ' . DATABASE);
	$self->psql_file("sql/$_") for map { m{([^/]+)$} } sort glob "$stage/examples/trading/sql/*.sql";
	my $bindings = `'$stage/examples/trading/queues' bindings`;
	$self->sql("COPY operation.binding FROM stdin;\n$bindings\\.\n");
	$self->{broker} = AcmeOutbox::Broker->new;
	$self->import_topology;
	return $self;
}

# definitions.json, with this test's virtual host for the file's.
sub import_topology
{
	my ($self) = @_;
	my $topology = $self->definitions;
	my $vhost = $self->{broker}{vhost};

	delete $topology->{vhosts};
	for my $rows (values %$topology)
	{
		@$rows = grep { ($_->{user} // $_->{name} // '') ne 'admin' } @$rows;
		$_->{vhost} &&= $vhost for @$rows;
	}
	return $self->{broker}->api('POST', 'definitions', $topology);
}

# ---- SQL

# As a superuser; one value or row as text.
sub sql
{
	my ($self, $query) = @_;
	return $self->{node}->safe_psql(DATABASE, $query);
}

# A file of examples/trading.
sub psql_file
{
	my ($self, $file) = @_;
	my ($out, $err) = ('', '');

	IPC::Run::run(
		[ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', "$stage/examples/trading/$file", '-d',
			$self->{node}->connstr(DATABASE) ],
		'<', \undef, '>', \$out, '2>', \$err)
	  or die "$file: $err\n";
	return;
}

sub wait_sql
{
	my ($self, $query, $expected) = @_;
	return $self->{node}->poll_query_until(DATABASE, $query, $expected // 't');
}

# As a role: (success, output, errors).
sub try_as
{
	my ($self, $role, $query) = @_;
	my ($out, $err) = ('', '');

	my $ok = IPC::Run::run(
		[ 'psql', '-X', '-A', '-t', '-q', '-v', 'ON_ERROR_STOP=1', '-c', $query, '-d',
			$self->{node}->connstr(DATABASE) . " user=$role" ],
		'<', \undef, '>', \$out, '2>', \$err);
	chomp $out;
	return ($ok, $out, $err);
}

# As a service's application, in one transaction of the tenant's; the last output line.
sub app
{
	my ($self, $service, $query) = @_;
	my $tenant = TENANT;
	my ($ok, $out, $err) = $self->try_as("${service}_app",
		"BEGIN;\nSELECT acme_outbox.context('$tenant');\n$query;\nCOMMIT;\n");
	die "as $service: $query: $err\n" unless $ok;
	$out =~ s/\A\n//;		# context() returns nothing
	return $out;
}

# ---- processes

sub uri
{
	my ($self, $user) = @_;
	return $self->{broker}->uri(user => $user, password => PASSWORD);
}

# relay('trading'): the bridge that sends a service's events, as its relay's role.
sub relay
{
	my ($self, $service, @args) = @_;
	return $self->{bridges}{"relay $service"} = AcmeOutbox::Bridge->start(
		$self->{node}, undef,
		origin => $service,
		user   => "${service}_relay",
		uri    => $self->uri($service),
		env    => { PGDATABASE => DATABASE },
		args   => \@args);
}

# Consumer => { queue, handler, dead_letters }: the handlers are known to the database,
# the queues and where their dead letters go to the broker.
sub consumers
{
	my ($self) = @_;
	return $self->{consumers} //= do
	{
		my %handler = map { split /\|/ } split /\n/,
		  $self->sql('SELECT consumer, handler FROM acme_outbox.inbox_handler');
		my %found;
		for my $queue (@{ $self->definitions->{queues} })
		{
			my $exchange = $queue->{arguments}{'x-dead-letter-exchange'} or next;
			my $consumer = $queue->{name} =~ s/\.\w+$//r;
			$found{$consumer} = {
				queue        => $queue->{name},
				handler      => $handler{$consumer} // die("no handler for $consumer\n"),
				dead_letters => $exchange
			};
		}
		\%found;
	};
}

# consume('reporting.trading'): the bridge that feeds a consumer, as its service's role.
sub consume
{
	my ($self, $consumer, @args) = @_;
	my ($service) = split /\./, $consumer;
	my $of = $self->consumers->{$consumer};
	return $self->{bridges}{"consume $consumer"} = AcmeOutbox::Bridge->start(
		$self->{node}, undef,
		command => 'consume',
		user    => "${service}_app",
		uri     => $self->uri($service),
		env     => { PGDATABASE => DATABASE },
		args    => [
			'--consumer', $consumer, '--queue', $of->{queue}, '--handler', $of->{handler},
			'--dead-letter-exchange', $of->{dead_letters}, '--max-attempts', 2,
			'--retry-backoff', '100ms', @args
		]);
}

# The six services that publish.
sub publishers { return qw(trading inventory accounting commission platform notification); }

# Its relay, with both lanes and dead letters.
sub relay_of
{
	my ($self, $service) = @_;
	return $self->relay($service, '--audit-exchange', 'acme.audit-feed',
		'--dead-letter-exchange', "acme.$service.dlx");
}

sub start_all
{
	my ($self) = @_;
	$self->relay_of($_) for $self->publishers;
	$self->consume($_) for sort keys %{ $self->consumers };
	return $self->wait_ready;
}

# Until every bridge has a lease or a queue; before that a signal ends it unasked.
sub wait_ready
{
	my ($self) = @_;
	$_->running && ($_->wait_for_log(qr/lease acquired|msg=consuming/) || die "a bridge is not ready\n")
	  for values %{ $self->{bridges} };
	return;
}

# clock('trading'): the service's jobs, called by a timer.
sub clock
{
	my ($self, $service) = @_;
	return push @{ $self->{clocks} }, IPC::Run::start(
		[ 'psql', '-Xqf', "$stage/examples/trading/clocks/$service.sql", '-d',
			$self->{node}->connstr(DATABASE) . " user=${service}_app" ],
		'<', \undef, '>', \my $out, '2>', \my $err);
}

sub bridge { my ($self, $name) = @_; return $self->{bridges}{$name}; }

# reprocess('commission.trading', ...): its dead letters, as an operator in the service
# does it: (exit status, output).
sub reprocess
{
	my ($self, $consumer, @args) = @_;
	my ($service) = split /\./, $consumer;
	my $out = '';
	local $ENV{RABBITMQ_URI} = $self->uri($service);

	IPC::Run::run(
		[ AcmeOutbox::Bridge::binary(), 'reprocess', '--dlq', "$consumer.dlq", '--queue',
			$self->consumers->{$consumer}{queue}, @args ],
		'<', \undef, '>&', \$out);
	return ($? >> 8, $out);
}

# ---- traffic

# A period, and a shelf that everybody sells from.
sub open_shop
{
	my ($self) = @_;
	$self->app('accounting', q{SELECT accounting.open_period('2026-01')});
	$self->app('trading', <<'SQL');
SELECT trading.create_deal('{"id": "shelf", "traderId": "trader-1", "customerId": "customer-1",
	"currency": "EUR"}');
SELECT trading.create_purchase(jsonb_build_object('dealId', 'shelf', 'supplierId', 'supplier-1',
	'lines', (SELECT jsonb_agg(jsonb_build_object('id', 'shelf-' || n, 'product', 'tin',
		'quantity', 60, 'unitPrice', 9)) FROM generate_series(1, 5) n)))
SQL
	return;
}

# traffic('trading', SECONDS, RATE, 'deal.sql@2', ...): pgbench in the background.
sub traffic
{
	my ($self, $service, $seconds, $rate, @scripts) = @_;
	my $output = '';
	my $run = IPC::Run::start(
		[ 'pgbench', '-n', '-M', 'simple', '-c', 3, '-R', $rate, '-T', $seconds,
			(map { "-f$stage/examples/trading/traffic/$_" } @scripts),
			'-h', $self->{node}->host, '-p', $self->{node}->port, '-U', "${service}_app", DATABASE ],
		'<', \undef, '>&', \$output);
	$run->{output} = \$output;
	return $run;
}

# Until nothing is on its way: the outbox is sent, and each event was recorded by each of
# its consumers but one, EXCEPT, or is among its dead letters.
sub settle_down
{
	my ($self, $except) = @_;
	my @consumers = grep { $_ ne ($except // '') } sort keys %{ $self->consumers };
	my $settled = wait_until(
		sub {
			return 0 if $self->sql(q{SELECT count(*) FROM acme_outbox.outbox_entry
				WHERE status IN ('PENDING', 'PUBLISHING')}) > 0;
			my $missing = $self->sql('SELECT count(*) FROM operation.undelivered WHERE consumer IN ('
				  . join(', ', map { "'$_'" } @consumers) . ')');
			my %ready = $self->{broker}->counts(map { ("$_.dlq", $self->consumers->{$_}{queue}) } @consumers);
			$missing -= $ready{"$_.dlq"} for @consumers;
			return $missing == 0 && !grep { $ready{ $self->consumers->{$_}{queue} } > 0 } @consumers;
		});
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok($settled, 'nothing is on its way any more');
	return $settled;
}

# ---- the end

# Every bridge that runs is stopped; each stops orderly.
sub stop_bridges
{
	my ($self) = @_;
	$_->signal('KILL'), $_->finish for splice @{ $self->{clocks} // [] };
	my %bridges = map { $_ => $self->{bridges}{$_} } keys %{ $self->{bridges} };

	my @running = grep { $bridges{$_}->running } sort keys %bridges;
	$bridges{$_}->signal('TERM') for @running;
	my @bad = grep { ($bridges{$_}->wait_exit(40) // 'never') ne '0' } @running;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is("@bad", '', 'all bridges stop orderly');
	return;
}

1;
