# "check" says what would keep a relay from working, one line each, with a status for
# scripts; it changes nothing, takes no lease and sends nothing. Among what it finds is
# a pooler in transaction mode (pgbouncer).
use strict;
use warnings;

use AcmeOutbox::Bridge;
use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use AcmeOutbox::Pooler;
use AcmeOutbox::Tls;
use IO::Socket::INET;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

use constant { USAGE => 64, CHECK_FAILED => 78 };

tls_authority($_) for 'ca', 'other';
tls_certificate('server', san => 'IP:127.0.0.1', days => 5);

my $node = AcmeOutbox::Cluster->create('main', "listen_addresses = '127.0.0.1'");
my $broker = tls_broker();
$broker->standard_topology('x-queue-type' => 'classic');

# Run it: verdict and text by name of the check.
sub check
{
	my (%opt) = @_;
	my $status = delete $opt{status};
	my $what = delete $opt{what};
	my $at = exists $opt{node} ? delete $opt{node} : $node;
	my $bridge = AcmeOutbox::Bridge->start($at, $broker, command => 'check', %opt);

	is($bridge->wait_exit(40), $status, "$what: exit status $status");
	my $text = $bridge->stdout_text;
	note $text;
	unlike($text . $bridge->log_text, qr/bridge-secret|hunter2/, "$what: no secret");
	is(scalar(grep { !/^(OK|SKIP|WARN|FAIL) +[a-z]+ +\S| {18}-> \S|^$|^\d+ ok, / } split /\n/, $text),
		0, "$what: every line has its form");
	return $text;
}

# Everything that a call could have changed.
sub state
{
	return $node->sql(<<'SQL');
SELECT (SELECT count(*) FROM acme_outbox.relay_lease), (SELECT count(*) FROM acme_outbox.outbox_origin),
	(SELECT count(*) FROM acme_outbox.outbox_cursor), (SELECT count(*) FROM acme_outbox.outbox_claim),
	(SELECT string_agg(status::text || attempts, ' ' ORDER BY id) FROM acme_outbox.outbox_entry)
SQL
}

$node->publish(2);
my $before = state();
my $text = check(what => 'all well', status => 0, args => [ '--topic', 'events' ]);
like($text, qr/^OK +$_ /m, "all well: $_")
  for 'settings', 'postgresql', 'encoding', 'primary', 'pooler', 'extension', 'contract',
  'privileges', 'origin', 'adopted', 'worker', 'broker', 'tls', 'login', 'vhost', 'blocking', 'topic';
like($text, qr/^SKIP +topics .*\n +-> .*--topic/m, 'all well: the role may not read the topics');
unlike(slurp_file($node->logfile), qr/permission denied for table/, 'all well: and asked before it tried');
like($text, qr/^WARN +lease .*nobody/m, 'all well: nobody sends what waits');
like($text, qr/^OK +backlog +2 waiting/m, 'all well: the backlog is counted');
like($text, qr/RabbitMQ 3\.\d+/, 'all well: the broker\'s version');
is(state(), $before, 'nothing is changed');
is($broker->count, 0, 'nothing is sent');

$text = check(what => 'topics', status => CHECK_FAILED, user => 'postgres',
	args => [ '--topic', 'nowhere,events', '--topic=amq.topic', '--topic', 'elsewhere' ]);
like($text, qr/^OK +topic +"$_" exists/m, "topics: $_") for 'events', 'amq.topic';
like($text, qr/^FAIL +topic +"$_" does not exist/m, "topics: $_") for 'nowhere', 'elsewhere';
my @named = $text =~ /"events" exists/g;
is(scalar @named, 1, 'topics: each once, the waiting entries\' too');
$broker->declare_exchange('other');
$node->publish(1, exchange => 'from.entries');
like(check(what => 'waiting entries', status => CHECK_FAILED, user => 'postgres'),
	qr/^FAIL +topic +"from.entries" does not exist/m, 'the exchanges of waiting entries are asked about');

# The other lanes' exchanges, and the right to write.
$broker->declare_exchange('feed', 'fanout');
$broker->declare_exchange('forbidden');
$broker->bind('all', 'feed');
$broker->api('PUT', "permissions/$broker->{vhost}/$broker->{user}",
	{ configure => '', write => '^(?!forbidden$).*', read => '' });
$text = check(what => 'lanes', status => CHECK_FAILED,
	args => [ '--audit-exchange', 'feed', '--dead-letter-exchange', 'dlx', '--topic', 'events,forbidden' ]);
like($text, qr/^OK +audit +"feed" exists and may be written to; bindings cannot be asked/m, 'lanes: the audit exchange');
like($text, qr/^FAIL +deadletter +"dlx" does not exist\n +-> declare/m, 'lanes: the dead-letter exchange is missing');
like($text, qr/^OK +topic +"events" exists and may be written to/m, 'lanes: a topic');
like($text, qr/^FAIL +topic +"forbidden": ACCESS_REFUSED.*\n +-> .*set_permissions/m, 'lanes: one that must not be written to');
like(check(what => 'dead letters', status => 0, args => [ '--dead-letter-exchange', 'feed' ]),
	qr/^OK +deadletter .*whether a queue is bound for the key "dead-letter" cannot be asked/m,
	'lanes: what was not asked');
$broker->permit($broker->{user});
is($broker->count, 0, 'lanes: nothing is sent, though a queue is bound');

# An active relay.
my $relay = AcmeOutbox::Bridge->start($node, $broker);
ok(wait_until(sub { $node->sql('SELECT count(*) FROM acme_outbox.relay_lease') == 1 }), 'a relay is active');
my $epoch = $node->sql('SELECT epoch FROM acme_outbox.relay_lease');
like(check(what => 'active', status => 0), qr/^OK +lease +held by .*:\d+:/m, 'who is active');
is($node->sql('SELECT epoch FROM acme_outbox.relay_lease'), $epoch, 'its lease is not touched');
is($relay->stop(10), 0, 'it stops');

# What fails in the database.
like(check(what => 'another origin', status => CHECK_FAILED, origin => 'warehouse'),
	qr/^FAIL +origin .*may not relay.*\n +-> .*grant_relay/m, 'another origin: what to do');
$node->sql('CREATE ROLE stranger LOGIN; CREATE DATABASE empty');
$text = check(what => 'no grant', status => CHECK_FAILED, user => 'stranger');
like($text, qr/^FAIL +privileges .*settle.*\n +-> .*grant_relay/m, 'no grant: what to do');
like(check(what => 'no extension', status => CHECK_FAILED, env => { PGDATABASE => 'empty' }),
	qr/^FAIL +extension .*\n +-> CREATE EXTENSION/m, 'no extension: what to do');
like(check(what => 'no database', status => CHECK_FAILED, env => { PGDATABASE => 'nowhere' }),
	qr/^FAIL +postgresql .*does not exist/m, 'no database');
$node->sql('ALTER SYSTEM SET acme_outbox.worker = off');
$node->reload;
ok(wait_until(sub { check(what => 'no worker', status => 0) =~ /^WARN +worker .*polls/m }, 20), 'no worker: it says so');
$node->sql('ALTER SYSTEM RESET acme_outbox.worker');
$node->reload;
ok($node->wait_sql(q{SELECT count(*) = 1 FROM pg_stat_activity
	WHERE backend_type LIKE 'acme_outbox%worker%' AND datname = 'postgres'}), 'the worker is back')
  or diag $node->sql('SELECT backend_type, datname FROM pg_stat_activity');
like(check(what => 'superuser', status => CHECK_FAILED, user => 'postgres'),
	qr/^OK +worker +running/m, 'a superuser sees that the worker runs');
my $mute = IO::Socket::INET->new(Listen => 5, Proto => 'tcp', LocalAddr => '127.0.0.1', LocalPort => 0);
my $at = time();
like(check(what => 'mute database', status => CHECK_FAILED, args => [ '--connect-timeout', '1s' ],
	env => { PGHOST => '127.0.0.1', PGPORT => $mute->sockport }),
	qr/^FAIL +postgresql +timeout/m, 'a server that says nothing');
cmp_ok(time() - $at, '<', 10, 'a server that says nothing: it does not wait for long');

# A copy.
$node->sql('SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = \'postgres\' AND backend_type LIKE \'acme%\'');
ok(wait_until(sub { eval { $node->safe_psql('template1', 'CREATE DATABASE copied TEMPLATE postgres'); 1 } }), 'a copy');
like(check(what => 'copy', status => CHECK_FAILED, env => { PGDATABASE => 'copied' }),
	qr/^FAIL +adopted .*\n +-> .*adopt\(\)/m, 'copy: what to do');

# What fails at the broker, and TLS.
like(check(what => 'no broker', status => CHECK_FAILED,
	uri => 'amqp://bridge:bridge-secret@127.0.0.1:' . free_port() . ',127.0.0.1:' . free_port() . '/x'),
	qr/^FAIL +broker +not reachable: .*refused/m, 'no broker');
like(check(what => 'wrong password', status => CHECK_FAILED, uri => $broker->uri(password => 'hunter2')),
	qr/^FAIL +login .*ACCESS_REFUSED/m, 'wrong password');
(my $uri = $broker->uri) =~ s{/[^/]*$}{/nowhere};
like(check(what => 'wrong vhost', status => CHECK_FAILED, uri => $uri), qr/^FAIL +login .*vhost/m, 'wrong vhost');
my @ca = ('--tls-ca-file', tls_file('ca.pem'));
$text = check(what => 'TLS', status => 0, uri => tls_uri($broker), args => \@ca);
like($text, qr/^OK +tls +TLSv1\.3, .*CN=server, [45] days left/m, 'TLS: what was agreed');
like($text, qr/^WARN +tls .*expires in less than 14 days/m, 'TLS: expires soon');
like(check(what => 'not verified', status => 0, uri => tls_uri($broker), args => ['--tls-verify=false']),
	qr/^WARN +settings .*not verified/m, 'TLS: not verified');
like(check(what => 'unknown authority', status => CHECK_FAILED, uri => tls_uri($broker),
	args => [ '--tls-ca-file', tls_file('other.pem') ]), qr/^FAIL +tls .*not trusted/m, 'TLS: unknown authority');

# Settings.
like(check(what => 'bad setting', status => USAGE, args => ['--window=0']),
	qr/^FAIL +settings .*window.*range/m, 'bad setting');

# Poolers.
for my $mode ('transaction', 'session')
{
	my $pooler = AcmeOutbox::Pooler->start($node, 'relay', pool_mode => $mode);
	$text = check(what => "$mode pooling", status => $mode eq 'session' ? 0 : CHECK_FAILED,
		env => { PGHOST => '127.0.0.1', PGPORT => $pooler->{port} });
	like($text, $mode eq 'session' ? qr/^OK +pooler .*session mode/m : qr/^FAIL +pooler .*transaction mode/m,
		"$mode pooling is told");
	$pooler->stop;
}
$node->verify_ok('in the end');
done_testing();
