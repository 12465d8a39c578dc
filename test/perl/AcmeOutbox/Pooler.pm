# A pgbouncer for one test, on a free port of 127.0.0.1, in front of the database "postgres" of a
# cluster that listens there. Everybody is let in, and is the given user at the server.
package AcmeOutbox::Pooler;

use strict;
use warnings;

use AcmeOutbox::Check;
use AcmeOutbox::Tls;
use IO::Socket::INET;
use PostgreSQL::Test::Utils qw(slurp_file);
use Test::More;

use constant PROGRAM => '/usr/sbin/pgbouncer';

my @running;

# AcmeOutbox::Pooler->start($node, 'relay', pool_mode => 'transaction', ...)
sub start
{
	my ($class, $node, $user, %setting) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir_short();
	my $self = bless { port => free_port(), dir => $dir, owner => $$ }, $class;
	my $settings = join '', map { "$_ = $setting{$_}\n" } sort keys %setting;

	open(my $ini, '>', "$dir/pgbouncer.ini") or die "$dir/pgbouncer.ini: $!\n";
	print $ini <<"INI";
[databases]
postgres = host=127.0.0.1 port=@{[$node->port]} user=$user
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $self->{port}
unix_socket_dir =
auth_type = any
logfile = $dir/log
$settings
INI
	close $ini;
	$self->{pid} = fork() // die "could not fork: $!\n";
	if ($self->{pid} == 0)
	{
		open(STDOUT, '>', "$dir/out");
		open(STDERR, '>&', \*STDOUT);
		exec(PROGRAM, '-q', "$dir/pgbouncer.ini") or POSIX::_exit(127);
	}
	push @running, $self;
	ok( wait_until(
			sub { IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $self->{port}) }, 20),
		"pgbouncer: $setting{pool_mode} mode")
	  or diag slurp_file("$dir/out");
	return $self;
}

# Major and minor number.
sub version
{
	my $text = qx(@{[PROGRAM]} --version);
	return $text =~ /PgBouncer (\d+)\.(\d+)/ ? ($1, $2) : die "no version in: $text\n";
}

sub libpq_env
{
	my ($self, $user) = @_;
	return (PGHOST => '127.0.0.1', PGPORT => $self->{port}, PGUSER => $user, PGDATABASE => 'postgres');
}

sub stop
{
	my ($self) = @_;
	my $pid = delete $self->{pid} or return;
	kill 'KILL', $pid;
	waitpid $pid, 0;
	return;
}

END
{
	my $status = $?;
	$_->stop for grep { $_->{owner} == $$ } @running;
	$? = $status;
}

1;
