# Several hosts: the bridge finds the broker that answers and the PostgreSQL that
# is the primary, now and after a failover; looking names up never holds it up; names
# are verified though it connects by address.
use strict;
use warnings;

use AcmeOutbox::Bridge;
use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use AcmeOutbox::Tls;
use IO::Socket::INET;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

use constant { DATABASE => 69 };

tls_authority('ca');
tls_certificate('server', san => 'DNS:localhost');
tls_certificate('misnamed', san => 'DNS:db.example');

my $node = AcmeOutbox::Cluster->create('main', 'wal_level = replica', 'max_wal_senders = 5',
	"listen_addresses = '127.0.0.1'", 'ssl = on',
	"ssl_cert_file = '" . tls_file('server.pem') . "'",
	"ssl_key_file = '" . tls_file('server.key') . "'");
my $broker = AcmeOutbox::Broker->new->standard_topology('x-queue-type' => 'classic');
my @quick = ('--connect-timeout', '1s', '--reconnect-min', '100ms', '--reconnect-max', '300ms');

# A host that takes connections and says nothing.
my $mute = IO::Socket::INET->new(
	Listen => 50, Proto => 'tcp', LocalAddr => '127.0.0.1', LocalPort => 0);
my ($dead, $dead2) = (free_port(), free_port());

sub broker_hosts
{
	my (@hosts) = @_;
	return "amqp://$broker->{user}:$broker->{password}\@" . join(',', @hosts) . "/$broker->{vhost}";
}

sub lines
{
	my ($bridge, $pattern) = @_;
	my @found = $bridge->log_text =~ /^(.*$pattern.*)$/mg;
	return scalar @found;
}

# All dead: each is tried once before the bridge waits.
my $bridge = AcmeOutbox::Bridge->start($node, undef, args => \@quick,
	uri => broker_hosts("127.0.0.1:$dead", "127.0.0.1:$dead2", "[::1]:$dead"));
ok(wait_until(sub { lines($bridge, 'broker not reachable.*retry_ms.* next_step="check host and port') >= 3 }),
	'all dead: it waits, tries again, and says what to look at');
is($bridge->stop(10), 0, 'all dead: it stops');
my $rounds = lines($bridge, 'broker not reachable.*retry_ms');
my $next = lines($bridge, 'trying the next address');
cmp_ok(abs($next - 2 * $rounds), '<=', 2, "all dead: two more hosts per round ($next in $rounds)");
my %tried = map { $_ => 1 } $bridge->log_text =~ /host=(\S+ port=\d+)/g;
is(scalar keys %tried, 3, 'all dead: all three are tried');

# A dead one, one that says nothing, and the right one.
$node->publish(20);
$bridge = AcmeOutbox::Bridge->start($node, undef, args => \@quick,
	uri => broker_hosts("127.0.0.1:$dead", '127.0.0.1:' . $mute->sockport, "localhost:$broker->{port}"));
ok($bridge->wait_for_log('broker ready.* host=localhost'), 'the one that answers is found');
ok($node->wait_drained, 'messages go there');
my $before = lines($bridge, 'trying the next address.*host=127.0.0.1');
ok(wait_until(sub { $broker->close_connections > 0 }), 'the broker closes the connection');
ok($bridge->wait_for_log('broker connection lost.*broker ready|(?s)broker connection lost.*broker ready'), 'it comes back');
is(lines($bridge, 'trying the next address.*host=127.0.0.1'), $before, 'at once to the last good host');
is($bridge->stop(10), 0, 'it stops');

# --once waits until each host has had its turn.
$node->publish(5);
my $silent = '127.0.0.1:' . $mute->sockport;
$bridge = AcmeOutbox::Bridge->start($node, undef, args => [ '--once', '--connect-timeout', '1s' ],
	uri => broker_hosts($silent, $silent, $silent, "127.0.0.1:$broker->{port}"));
is($bridge->wait_exit(20), 0, '--once: the right one is found behind those that say nothing');
is($node->in_status('PUBLISHED'), 25, '--once: messages go there');

# A name whose look-up never ends. SIGTERM does not wait for it, and the next host
# has its turn.
my %hang = (ACME_OUTBOX_HANG_RESOLVING => 'hanging.example');
$bridge = AcmeOutbox::Bridge->start($node, undef, env => \%hang, args => [ '--connect-timeout', '2min' ],
	uri => broker_hosts("hanging.example:$dead"));
ok($bridge->wait_for_log('lease acquired'), 'hanging look-up of the broker: the relay is active');
my $at = time();
is($bridge->stop(10), 0, 'hanging look-up of the broker: it stops');
cmp_ok(time() - $at, '<', 3, 'hanging look-up of the broker: at once');
my %hang_db = (%hang, PGHOST => 'hanging.example');
$bridge = AcmeOutbox::Bridge->start($node, $broker, env => \%hang_db, args => [ '--connect-timeout', '2min' ]);
ok($bridge->wait_for_log('broker ready'), 'hanging look-up of the database: the broker is connected');
$at = time();
is($bridge->stop(10), 0, 'hanging look-up of the database: it stops');
cmp_ok(time() - $at, '<', 3, 'hanging look-up of the database: at once');

my $mute_port = $mute->sockport;
$bridge = AcmeOutbox::Bridge->start(undef, undef,
	env => {
		%hang,
		RABBITMQ_URI => broker_hosts("hanging.example:$dead", "127.0.0.1:$broker->{port}"),
		$node->libpq_env,
		PGHOST => 'hanging.example,nowhere.invalid,127.0.0.1,' . $node->host,
		PGPORT => "$dead,$dead,$mute_port," . $node->port },
	args => \@quick);
ok($bridge->wait_for_log('cannot resolve a database host.*hanging.example.*timeout'), 'a name that hangs is passed over');
ok($bridge->wait_for_log('cannot resolve a database host.*nowhere.invalid'), 'a name that does not exist, too');
ok($bridge->wait_for_log('does not answer, trying the next address.*127.0.0.1'), 'a host that says nothing, too');
ok($bridge->wait_for_log('lease acquired'), 'the fourth host is the one');
ok($bridge->wait_for_log('broker ready.*127.0.0.1'), 'and the second broker');
is($bridge->stop(10), 0, 'it stops');

# verify-full by name, though libpq is given the address.
my %tls = (
	$node->libpq_env, PGHOST => 'localhost', PGSSLMODE => 'verify-full',
	PGSSLROOTCERT => tls_file('ca.pem'), RABBITMQ_URI => $broker->uri);
$bridge = AcmeOutbox::Bridge->start(undef, undef, env => \%tls);
ok($bridge->wait_for_log('lease acquired'), 'verify-full: it connects');
is($node->sql(<<'SQL'), 't', 'verify-full: with TLS');
SELECT bool_and(ssl) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) WHERE usename = 'relay'
SQL
is($bridge->stop(10), 0, 'verify-full: it stops');
$node->append_conf('postgresql.conf', "ssl_cert_file = '" . tls_file('misnamed.pem') . "'");
$node->append_conf('postgresql.conf', "ssl_key_file = '" . tls_file('misnamed.key') . "'");
$node->reload;
ok(wait_until(sub {
	$bridge = AcmeOutbox::Bridge->start(undef, undef, env => { %tls, ACME_OUTBOX_ONCE => 1 });
	return $bridge->wait_exit(10) == DATABASE }), 'wrong name: exit status 69');
like($bridge->log_text, qr/level=error.*db\.example.*does not match host name.*localhost/,
	'wrong name: one line says why');

# A standby alone, then both, then a failover.
$node->backup('copy');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'copy', has_streaming => 1);
$standby->append_conf('postgresql.conf', "ssl = off");
$standby->start;
$bridge = AcmeOutbox::Bridge->start(undef, undef,
	env => { $node->libpq_env, PGHOST => $standby->host, PGPORT => $standby->port, RABBITMQ_URI => $broker->uri });
is($bridge->wait_exit(10), DATABASE, 'standby: exit status 69');
like($bridge->log_text, qr/level=error.*standby.*target_session_attrs=read-write/, 'standby: what to do');
$bridge = AcmeOutbox::Bridge->start(undef, undef, args => \@quick,
	env => {
		$node->libpq_env,
		PGHOST => $standby->host . ',' . $node->host,
		PGPORT => $standby->port . ',' . $node->port,
		PGTARGETSESSIONATTRS => 'read-write', RABBITMQ_URI => $broker->uri });
ok($bridge->wait_for_log('lease acquired'), 'read-write: the primary is found');
is($node->sql("SELECT count(*) FROM pg_stat_activity WHERE usename = 'relay'"), 1, 'read-write: it is there');
$node->wait_for_catchup($standby);
$node->stop('immediate');
ok($bridge->wait_for_log('database connection lost'), 'failover: the primary is gone');
$standby->promote;
$standby->safe_psql('postgres', <<'SQL');
SELECT acme_outbox.publish('events', 'after', 'a', 'OrderPlaced', '{}'::text)
SQL
ok($standby->poll_query_until('postgres', <<'SQL'), 'failover: the new primary is served');
SELECT status = 'PUBLISHED' FROM acme_outbox.outbox_entry WHERE routing_key = 'after'
SQL
is($bridge->wait_exit(0), undef, 'failover: by the same bridge');
is($bridge->stop(10), 0, 'it stops');

# --once with an origin that is misspelt names the others before it ends.
$standby->safe_psql('postgres', <<'SQL');
SELECT acme_outbox.publish('events', 'after', 'a', 'OrderPlaced', '{}'::text);
SELECT acme_outbox.grant_relay('relay', 'shopp')
SQL
$bridge = AcmeOutbox::Bridge->start(undef, undef, origin => 'shopp', args => ['--once'],
	env => { $node->libpq_env, PGHOST => $standby->host, PGPORT => $standby->port, RABBITMQ_URI => $broker->uri });
is($bridge->wait_exit(20), 0, 'misspelt origin: --once ends');
like($bridge->log_text, qr/own origin is empty, others are not.*shop \(1\)/, 'misspelt origin: the others are named');
done_testing();
