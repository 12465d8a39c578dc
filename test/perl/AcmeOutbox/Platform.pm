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
	for my $file (sort glob "$stage/examples/trading/sql/*.sql")
	{
		my ($out, $err) = ('', '');
		IPC::Run::run(
			[ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', $file, '-d',
				$self->{node}->connstr(DATABASE) ],
			'<', \undef, '>', \$out, '2>', \$err)
		  or die "$file: $err\n";
	}
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
		[ 'psql', '-X', '-A', '-t', '-q', '-v', 'ON_ERROR_STOP=1', '-f', '-', '-d',
			$self->{node}->connstr(DATABASE) . " user=$role" ],
		'<', \$query, '>', \$out, '2>', \$err);
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

sub bridge { my ($self, $name) = @_; return $self->{bridges}{$name}; }

# Every bridge that runs is stopped; each stops orderly.
sub stop_bridges
{
	my ($self) = @_;
	my %bridges = map { $_ => $self->{bridges}{$_} } keys %{ $self->{bridges} };

	my @running = grep { $bridges{$_}->running } sort keys %bridges;
	$bridges{$_}->signal('TERM') for @running;
	my @bad = grep { ($bridges{$_}->wait_exit(40) // 'never') ne '0' } @running;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is("@bad", '', 'all bridges stop orderly');
	return;
}

1;
