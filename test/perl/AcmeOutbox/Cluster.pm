# A private PostgreSQL for one test: PostgreSQL::Test::Cluster with the
# extension preloaded and created, an origin "shop", and a role "relay" that may
# relay it.
package AcmeOutbox::Cluster;

use strict;
use warnings;

use parent -norequire, 'PostgreSQL::Test::Cluster';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils ();
use Test::More ();
use Time::HiRes qw(sleep time);

use constant ORIGIN => 'shop';

# AcmeOutbox::Cluster->create('main', 'setting = value', ...): started, ready.
sub create
{
	my ($class, $name, @settings) = @_;
	my $self = $class->create_empty($name, @settings);

	$self->set_up('postgres');
	return $self;
}

# The same without the extension.
sub create_empty
{
	my ($class, $name, @settings) = @_;
	my $self = $class->new($name);

	$self->init(extra => [ '-U', 'postgres', '-E', 'UTF8', '--no-locale' ],
		auth_extra => [ '--user', 'postgres' ]);
	$self->append_conf('postgresql.conf', $_)
	  for 'shared_preload_libraries = acme_outbox',
	  'restart_after_crash = on', 'log_statement = none',
	  'max_connections = 60', 'max_prepared_transactions = 20',
	  'autovacuum_naptime = 5s', "acme_outbox.autocommit_publish = 'off'",
	  @settings;
	$ENV{PGUSER} = 'postgres';
	$self->start;
	return $self;
}

# The extension, the origin and the relay's role in a database.
sub set_up
{
	my ($self, $database) = @_;

	$self->safe_psql($database, <<"SQL");
CREATE EXTENSION acme_outbox;
ALTER DATABASE "$database" SET acme_outbox.origin = '@{[ORIGIN]}';
DO \$\$ BEGIN
  CREATE ROLE relay LOGIN;
EXCEPTION WHEN duplicate_object THEN NULL;
END \$\$;
SELECT acme_outbox.grant_relay('relay', '@{[ORIGIN]}');
SQL
	return;
}

# One value or row as text.
sub sql
{
	my ($self, $query) = @_;
	return $self->safe_psql('postgres', $query);
}

# Wait until a query yields a value ("t" when none is given).
sub wait_sql
{
	my ($self, $query, $expected) = @_;
	return $self->poll_query_until('postgres', $query, $expected // 't');
}

# Publish N events to the exchange "events", key "order.placed", spread over
# K aggregates ("a1" ...), each in a transaction of its own when EACH is set.
sub publish
{
	my ($self, $count, %opt) = @_;
	my $keys = $opt{keys} // 10;
	my $exchange = $opt{exchange} // 'events';
	my $first = $opt{first} // 1;
	my $last = $first + $count - 1;

	return $self->sql(<<"SQL");
SELECT count(acme_outbox.publish('$exchange', 'order.placed',
		'a' || (n % $keys), 'OrderPlaced', jsonb_build_object('n', n)))
  FROM generate_series($first, $last) AS n
SQL
}

sub publish_one
{
	my ($self, $aggregate, $event_name) = @_;
	return $self->sql(
		"SELECT acme_outbox.publish('events', 'k', '$aggregate', '$event_name', '{}'::text)");
}

# How many entries are in a state.
sub in_status
{
	my ($self, $status) = @_;
	return $self->sql(
		"SELECT count(*) FROM acme_outbox.outbox_entry WHERE status = '$status'");
}

# Wait until nothing is left to be sent.
sub wait_drained
{
	my ($self) = @_;
	return $self->wait_sql(<<'SQL');
SELECT NOT EXISTS (SELECT FROM acme_outbox.outbox_entry
                    WHERE status IN ('PENDING', 'PUBLISHING'))
SQL
}

# The invariants hold: nothing unreachable, nothing stranded.
sub verify_ok
{
	my ($self, $what) = @_;
	my $found = $self->sql('SELECT * FROM acme_outbox.verify()');

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return Test::More::is($found, '', "$what: verify() finds no violation");
}

# Event ids in the order of publication, one line each: id|event_id|key|attempts.
sub entries
{
	my ($self) = @_;
	my $rows = $self->sql(<<'SQL');
SELECT id, event_id, message_key, attempts, status
  FROM acme_outbox.outbox_entry ORDER BY id
SQL
	return map {
		my ($id, $event_id, $key, $attempts, $status) = split /\|/, $_;
		{   id       => $id,
			event_id => $event_id,
			key      => $key,
			attempts => $attempts,
			status   => $status
		}
	} split /\n/, $rows;
}

# What libpq needs to reach this server as a role.
sub libpq_env
{
	my ($self, $user) = @_;
	return (
		PGHOST     => $self->host,
		PGPORT     => $self->port,
		PGUSER     => $user // 'relay',
		PGDATABASE => 'postgres');
}

1;
