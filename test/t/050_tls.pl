# amqps://: messages go over TLS, the broker's certificate and name are verified,
# and each thing that can be wrong ends the start with one clear line; once it has
# been running, the bridge waits until somebody has mended it. A client certificate
# is a login (SASL EXTERNAL).
# Slow: begins before the others.
use strict;
use warnings;

use AcmeOutbox::Bridge;
use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use AcmeOutbox::Tls;
use PostgreSQL::Test::Utils;
use Test::More;

use constant { USAGE => 64, PUBLISHER => 74 };

tls_authority($_) for 'ca', 'other';
tls_certificate('server', san => 'IP:127.0.0.1,DNS:localhost');
tls_certificate('misnamed', san => 'DNS:broker.example,IP:127.0.0.9');
tls_certificate('expired', san => 'IP:127.0.0.1,DNS:localhost', expired => 1);
tls_certificate('client', common_name => 'shop_bridge');
tls_certificate('foreign', by => 'other');

my $node = AcmeOutbox::Cluster->create('main');
my $broker = tls_broker('ssl_options.fail_if_no_peer_cert = false');
$broker->standard_topology('x-queue-type' => 'classic');
my @ca = ('--tls-ca-file', tls_file('ca.pem'));

sub connections
{
	my ($ssl) = @_;
	return grep { ($_->{user} // '') ne 'guest' && ($_->{ssl} ? 1 : 0) == $ssl }
	  @{ $broker->api('GET', "vhosts/$broker->{vhost}/connections") };
}

# Bytes that the kernel could not deliver to a port.
sub unsent
{
	my ($port) = @_;
	my $bytes = 0;
	my $remote = sprintf ':%04X', $port;

	for my $line (split /\n/, slurp_file('/proc/net/tcp'))
	{
		my (undef, undef, $to, undef, $queues) = split ' ', $line;
		$bytes += hex($1) if $to =~ /\Q$remote\E$/ && $queues =~ /^([0-9A-F]+):/;
	}
	return $bytes;
}

# A burst of small and large messages, more than the sockets hold, over TLS.
my $bridge = AcmeOutbox::Bridge->start(undef, undef, env => {
		$node->libpq_env, RABBITMQ_URI => tls_uri($broker) },
	args => [ @ca, '--log-level', 'debug' ]);
ok($bridge->wait_for_log('broker ready.* tls=TLSv1.3'), 'by address: TLS 1.3');
$node->publish(1);
ok($node->wait_drained, 'it publishes');
$broker->signal('STOP');
$node->publish(500);
$node->sql(<<'SQL');
SELECT count(acme_outbox.publish('events', 'large', 'l' || n % 3, 'LargeOne',
		jsonb_build_object('n', n, 'text', repeat('x', 200000))))
  FROM generate_series(1, 40) AS n
SQL
ok($node->wait_sql('SELECT count(*) > 0 FROM acme_outbox.outbox_claim'),
	'frozen broker: a claim is open');
ok(wait_until(sub { unsent($broker->{tls_port}) > 0 }), 'frozen broker: the socket is full, writes wait');
is($bridge->wait_exit(0), undef, 'frozen broker: the bridge waits');
$broker->signal('CONT');
ok($node->wait_drained, 'a burst goes over TLS');
ok(wait_until(sub { connections(1) == 1 }), 'the broker says that it is TLS');
is(scalar connections(0), 0, 'nothing goes without');
my @messages = $broker->drain;
my @entries = $node->entries;
delivered_ok(\@entries, \@messages, 'TLS');
order_ok(\@entries, \@messages, 'TLS');
is(scalar @messages, 541, 'TLS: no duplicates');
is($bridge->stop(10), 0, 'it stops');
unlike($bridge->log_text, qr/bridge-secret|xxxx/, 'no secret and no payload in the log');
is($broker->count, 0, 'the queue is empty');

# What can be wrong: one line, status, no secret, nothing sent.
sub refuses
{
	my ($what, $status, $pattern, $uri, @args) = @_;
	my $bridge = AcmeOutbox::Bridge->start($node, undef, uri => $uri, args => \@args);
	my $exit = $bridge->wait_exit(20);

	is($exit, $status, "$what: exit status $status");
	my @lines = grep { /level=error|^acme-outbox-bridge:/ } split /\n/, $bridge->log_text;
	is(scalar(grep { /$pattern/ } @lines), 1, "$what: one line says why") or diag $bridge->log_text;
	unlike($bridge->log_text, qr/bridge-secret/, "$what: no secret in the log");
	return;
}

refuses('unknown authority', PUBLISHER,
	'no TLS with the broker.*not trusted: (unable to get|self.signed)',
	tls_uri($broker), '--tls-ca-file', tls_file('other.pem'));
refuses('system authorities', PUBLISHER, 'not trusted', tls_uri($broker));
my $misnamed = tls_endpoint('misnamed');
refuses('wrong name', PUBLISHER, 'not for .*localhost.*hostname mismatch',
	tls_uri($broker, host => 'localhost', port => $misnamed), @ca);
refuses('wrong address', PUBLISHER, 'not for .*127\.0\.0\.1.*IP address mismatch',
	tls_uri($broker, port => $misnamed), @ca);
refuses('expired', PUBLISHER, 'not trusted: certificate has expired',
	tls_uri($broker, port => tls_endpoint('expired')), @ca);
refuses('foreign client certificate', PUBLISHER, 'did not accept this client',
	tls_uri($broker), @ca, '--tls-cert-file', tls_file('foreign.pem'),
	'--tls-key-file', tls_file('foreign.key'));
refuses('TLS to the plain port', PUBLISHER, 'does not speak TLS',
	tls_uri($broker, port => $broker->{port}), @ca);
refuses('plain to the TLS port', PUBLISHER, 'speaks TLS: use amqps',
	$broker->uri(port => $broker->{tls_port}));
refuses('wrong password over TLS', PUBLISHER, 'refused the login.*ACCESS_REFUSED',
	tls_uri($broker, login => 'bridge:wrong@'), @ca);
refuses('EXTERNAL is not offered', PUBLISHER, 'EXTERNAL: enable rabbitmq_auth_mechanism_ssl',
	tls_uri($broker, login => ''), @ca, '--tls-cert-file', tls_file('client.pem'),
	'--tls-key-file', tls_file('client.key'));

my @client = ('--tls-cert-file', tls_file('client.pem'));
refuses('missing CA file', USAGE, 'tls-ca-file.*none.pem.*No such file',
	tls_uri($broker), '--tls-ca-file', tls_file('none.pem'));
refuses('key of another certificate', USAGE, 'tls-key-file.*does not belong',
	tls_uri($broker), @client, '--tls-key-file', tls_file('server.key'));
refuses('key file without a key', USAGE, 'tls-key-file.*ca.pem',
	tls_uri($broker), @client, '--tls-key-file', tls_file('ca.pem'));
refuses('TLS settings without TLS', USAGE, 'tls-ca-file.*amqps', $broker->uri, @ca);
refuses('EXTERNAL without a certificate', USAGE, 'auth_mechanism=external needs',
	tls_uri($broker, query => '?auth_mechanism=external'), @ca);
system_or_bail('openssl', 'ec', '-aes256', '-passout', 'pass:sesame',
	'-in', tls_file('client.key'), '-out', tls_file('locked.key'));
refuses('encrypted key', USAGE, 'tls-key-file.*tls-key-password-file', tls_uri($broker), @client,
	'--tls-key-file', tls_file('locked.key'));

append_to_file(tls_file('wrong'), "open\n");
refuses('wrong passphrase', USAGE, 'tls-key-file.*passphrase.*is wrong', tls_uri($broker), @client,
	'--tls-key-file', tls_file('locked.key'), '--tls-key-password-file', tls_file('wrong'));

# By name, and unverified with a warning.
$bridge = AcmeOutbox::Bridge->start($node, undef,
	uri => tls_uri($broker, host => 'localhost'), args => \@ca);
ok($bridge->wait_for_log('broker ready'), 'by name');
is($bridge->stop(10), 0, 'by name: it stops');
$bridge = AcmeOutbox::Bridge->start($node, undef, uri => tls_uri($broker),
	args => [ '--tls-verify=false' ]);
ok($bridge->wait_for_log('level=warn.*certificate is not verified'), 'not verified: it warns');
ok($bridge->wait_for_log('broker ready'), 'not verified: it connects');

# The broker comes back and wants a certificate: the running bridge goes on trying.
$broker->api('PUT', 'users/shop_bridge', { password => 'unused', tags => '' });
$broker->permit('shop_bridge');
$broker->stop;
tls_reconfigure($broker,
	[ 'ssl_options.fail_if_no_peer_cert = true', 'auth_mechanisms.1 = EXTERNAL',
		'auth_mechanisms.2 = PLAIN', 'ssl_cert_login_from = common_name' ],
	'rabbitmq_auth_mechanism_ssl');
# The last of two lines of one name counts only once: take the first out.
my $conf = slurp_file("$broker->{dir}/node.conf");
$conf =~ s/^ssl_options.fail_if_no_peer_cert = false\n//m or die;
open(my $out, '>', "$broker->{dir}/node.conf") or die;
print $out $conf;
close $out;
$broker->start;
ok($bridge->wait_for_log('no TLS with the broker, retrying.*certificate|connection ended by the peer.*TLS handshake', since => 1),
	'certificate required: it says so and goes on');
is($bridge->wait_exit(1), undef, 'certificate required: it does not end');
is($bridge->stop(10), 0, 'certificate required: it stops');

# EXTERNAL: by the missing user, and asked for; the key behind a passphrase.
append_to_file(tls_file('passphrase'), "sesame\n");
for my $query ('', '?auth_mechanism=external')
{
	my $count = $broker->count;
	$node->publish(10);
	$bridge = AcmeOutbox::Bridge->start($node, undef,
		uri => tls_uri($broker, login => $query ? 'ignored@' : '', query => $query),
		args => [
			@ca, @client, '--tls-key-file', tls_file('locked.key'),
			'--tls-key-password-file', tls_file('passphrase') ]);
	ok($bridge->wait_for_log('broker ready'), "EXTERNAL$query: logged in");
	ok($node->wait_drained, "EXTERNAL$query: messages go");
	ok(wait_until(sub { grep { $_->{user} eq 'shop_bridge' && $_->{auth_mechanism} eq 'EXTERNAL' } connections(1) }),
		"EXTERNAL$query: as the certificate's name");
	is($bridge->stop(10), 0, "EXTERNAL$query: it stops");
	is($broker->count, $count + 10, "EXTERNAL$query: all arrived");
}
# A certificate and a user: the password counts.
$bridge = AcmeOutbox::Bridge->start($node, undef, uri => tls_uri($broker),
	args => [ @ca, @client, '--tls-key-file', tls_file('client.key') ]);
ok($bridge->wait_for_log('broker ready'), 'a certificate and a password');
ok(wait_until(sub { grep { $_->{user} eq 'bridge' } connections(1) }), 'the user is the one of the URI');
is($bridge->stop(10), 0, 'it stops');
$node->verify_ok('in the end');
done_testing();
