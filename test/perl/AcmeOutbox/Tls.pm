# Certificates for one test, made by the openssl command, and a private RabbitMQ
# that listens with TLS.
#
# A certificate "x" is the files x.pem and x.key of the test's folder; "ca" and
# "other" are the authorities.
package AcmeOutbox::Tls;

use strict;
use warnings;

use Exporter 'import';
use IO::Socket::INET;
use PostgreSQL::Test::Utils ();
use Test::More;
use Time::HiRes qw(sleep);

our @EXPORT = qw(tls_file tls_authority tls_certificate tls_broker tls_reconfigure
  tls_uri tls_endpoint free_port);

my $dir;
my @endpoints;

sub tls_file
{
	my ($name) = @_;
	if (!$dir)
	{
		$dir = PostgreSQL::Test::Utils::tempdir_short();
		chmod 0755, $dir;
	}
	return "$dir/$name";
}

sub openssl
{
	my (@arguments) = @_;
	my ($out, $err) = ('', '');
	IPC::Run::run([ 'openssl', @arguments ], '<', \undef, '>', \$out, '2>', \$err)
	  or die "openssl @arguments: $err\n";
	return;
}

my @key = ('-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes');

sub tls_authority
{
	my ($name) = @_;
	openssl('req', '-x509', @key, '-days', 30, '-subj', "/CN=$name",
		'-keyout', tls_file("$name.key"), '-out', tls_file("$name.pem"),
		'-addext', 'basicConstraints=critical,CA:TRUE', '-addext', 'keyUsage=keyCertSign');
	return;
}

# tls_certificate('server', san => 'DNS:localhost', by => 'ca', days => 20,
# expired => 1, common_name => ...)
sub tls_certificate
{
	my ($name, %opt) = @_;
	my $by = $opt{by} // 'ca';
	my $extensions = tls_file("$name.ext");

	PostgreSQL::Test::Utils::append_to_file($extensions,
		$opt{san} ? "subjectAltName = $opt{san}\n" : "basicConstraints = CA:FALSE\n");
	openssl('req', @key, '-subj', '/CN=' . ($opt{common_name} // $name),
		'-keyout', tls_file("$name.key"), '-out', tls_file("$name.csr"));
	my @signed = (
		'-in', tls_file("$name.csr"), '-out', tls_file("$name.pem"), '-extfile', $extensions);
	if ($opt{expired})
	{
		# Only "openssl ca" takes dates.
		my $config = tls_file("$name.cnf");
		PostgreSQL::Test::Utils::append_to_file($config,
			"[ca]\ndefault_ca = d\n[d]\ndatabase = $config.index\nnew_certs_dir = $dir\n"
			  . "rand_serial = yes\ndefault_md = sha256\npolicy = p\n[p]\ncommonName = supplied\n");
		PostgreSQL::Test::Utils::append_to_file("$config.index", '');
		openssl('ca', '-batch', '-notext', '-config', $config, '-cert', tls_file("$by.pem"),
			'-keyfile', tls_file("$by.key"), '-startdate', '20200101000000Z',
			'-enddate', '20200201000000Z', @signed);
	}
	else
	{
		openssl('x509', '-req', '-CA', tls_file("$by.pem"), '-CAkey', tls_file("$by.key"),
			'-CAcreateserial', '-days', $opt{days} // 30, @signed);
	}
	return;
}

sub free_port
{
	my $socket = IO::Socket::INET->new(
		Listen => 1, Proto => 'tcp', LocalAddr => '127.0.0.1', LocalPort => 0)
	  or die "no free port: $!\n";
	return $socket->sockport;
}

# A private node whose TLS listener shows the certificate "server" of "ca".
sub tls_broker
{
	my (@settings) = @_;
	my $broker = AcmeOutbox::Broker->new(private => 1);

	$broker->{tls_port} = free_port();
	$broker->stop;
	PostgreSQL::Test::Utils::append_to_file("$broker->{dir}/node.conf", join("\n",
		"listeners.ssl.1 = 127.0.0.1:$broker->{tls_port}",
		'ssl_options.cacertfile = ' . tls_file('ca.pem'),
		'ssl_options.certfile = ' . tls_file('server.pem'),
		'ssl_options.keyfile = ' . tls_file('server.key'),
		'ssl_options.verify = verify_peer', @settings, ''));
	$broker->start;
	return $broker;
}

# More settings and plugins; the node is stopped by the caller.
sub tls_reconfigure
{
	my ($broker, $settings, @plugins) = @_;

	PostgreSQL::Test::Utils::append_to_file("$broker->{dir}/node.conf",
		join('', map { "$_\n" } @$settings));
	open(my $out, '>', "$broker->{dir}/enabled_plugins") or die "enabled_plugins: $!\n";
	print $out '[' . join(',', 'rabbitmq_management', @plugins) . "].\n";
	close($out) or die "enabled_plugins: $!\n";
	return;
}

# tls_uri($broker, login => '' or 'user:password@', host => ...)
sub tls_uri
{
	my ($broker, %opt) = @_;
	return sprintf 'amqps://%s%s:%d/%s%s',
	  $opt{login} // "$broker->{user}:$broker->{password}\@", $opt{host} // '127.0.0.1',
	  $opt{port} // $broker->{tls_port}, $broker->{vhost}, $opt{query} // '';
}

# A TLS server that speaks no AMQP, for handshakes that must fail: its port.
sub tls_endpoint
{
	my ($name) = @_;
	my $port = free_port();
	my $pid = fork() // die "could not fork: $!\n";

	if ($pid == 0)
	{
		open(STDIN, '<', '/dev/null');
		open(STDOUT, '>', tls_file("$name.server.log"));
		open(STDERR, '>&', \*STDOUT);
		exec('openssl', 's_server', '-accept', "127.0.0.1:$port", '-cert', tls_file("$name.pem"),
			'-key', tls_file("$name.key"), '-quiet') or POSIX::_exit(127);
	}
	push @endpoints, $pid;
	for (1 .. 100)
	{
		return $port if IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port);
		sleep 0.05;
	}
	die "openssl s_server did not start\n";
}

END
{
	my $status = $?;
	for my $pid (@endpoints)
	{
		kill 'KILL', $pid;
		waitpid $pid, 0;
	}
	$? = $status;
}

1;
