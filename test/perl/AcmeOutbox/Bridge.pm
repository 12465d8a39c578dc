# One bridge process under test: started, watched, signalled, waited for. Its
# log (stderr) goes to a file of the test's log folder.
package AcmeOutbox::Bridge;

use strict;
use warnings;

use File::Basename qw(basename);
use POSIX qw(WNOHANG);
use PostgreSQL::Test::Utils ();
use Test::More;
use Time::HiRes qw(sleep time);

my @bridges;
my $started = 0;
my $stage = $ENV{ACME_STAGE} // '.';

sub binary
{
	return "$stage/bridge/build/test/acme-outbox-bridge";
}

# AcmeOutbox::Bridge->start($node, $broker, args => [...], env => {...},
# uri => ..., user => ..., origin => ..., command => ...); a relay unless told
# otherwise; the origin '' is none.
sub start
{
	my ($class, $node, $broker, %opt) = @_;
	my $name = basename($0, '.pl') . '_bridge' . ++$started;
	my $self = bless {
		log    => "$PostgreSQL::Test::Utils::log_path/$name.log",
		out    => "$PostgreSQL::Test::Utils::log_path/$name.out",
		offset => 0
	}, $class;
	my $command = $opt{command} // 'relay';
	my @command = (binary(), $command,
		($command =~ /^(relay|check)$/ && length($opt{origin} // 'shop')
			? ('--origin', $opt{origin} // 'shop') : ()),
		@{ $opt{args} // [] });
	my %env = (
		($node ? $node->libpq_env($opt{user}) : ()),
		($broker
			|| $opt{uri} ? (RABBITMQ_URI => $opt{uri} // $broker->uri) : ()),
		%{ $opt{env} // {} });

	$self->{pid} = fork() // die "could not fork: $!\n";
	if ($self->{pid} == 0)
	{
		$ENV{$_} = $env{$_} for keys %env;
		open(STDIN, '<', '/dev/null');
		open(STDOUT, '>', $self->{out});
		open(STDERR, '>', $self->{log});
		exec(@command) or POSIX::_exit(127);
	}
	push @bridges, $self;
	note "started bridge $self->{pid}: @command";
	return $self;
}

sub pid { my ($self) = @_; return $self->{pid}; }

sub log_text
{
	my ($self) = @_;
	return -e $self->{log} ? PostgreSQL::Test::Utils::slurp_file($self->{log}) : '';
}

sub stdout_text
{
	my ($self) = @_;
	return PostgreSQL::Test::Utils::slurp_file($self->{out});
}

# Wait until the log has a line that matches; only what came since the last
# match is looked at when "since" is set.
sub wait_for_log
{
	my ($self, $pattern, %opt) = @_;
	my $deadline =
	  time() + ($opt{timeout} // $PostgreSQL::Test::Utils::timeout_default);
	my $from = $opt{since} ? $self->{offset} : 0;

	while (1)
	{
		my $gone = !$self->running;
		my $text = substr($self->log_text, $from);
		if ($text =~ /$pattern/)
		{
			$self->{offset} = $from + $+[0];
			return 1;
		}
		last if $gone || time() > $deadline;
		sleep 0.05;
	}
	diag "no match for $pattern in the log of bridge $self->{pid}:\n",
	  join("\n", (split /\n/, $self->log_text)[ -15 .. -1 ]) // '';
	return 0;
}

# True until the process has ended; its status is kept then.
sub running
{
	my ($self) = @_;

	return 0 if defined $self->{status};
	if (waitpid($self->{pid}, WNOHANG) == $self->{pid})
	{
		$self->{status} = $?;
		return 0;
	}
	return 1;
}

# Wait for the end: the exit code, or "signal N", or undef when it goes on.
sub wait_exit
{
	my ($self, $seconds) = @_;
	my $deadline =
	  time() + ($seconds // $PostgreSQL::Test::Utils::timeout_default);

	while ($self->running)
	{
		return if time() > $deadline;
		sleep 0.02;
	}
	return $self->{status} & 127
	  ? 'signal ' . ($self->{status} & 127)
	  : $self->{status} >> 8;
}

sub signal
{
	my ($self, $signal) = @_;
	die "the bridge is not running\n" unless $self->running;
	return kill $signal, $self->{pid};
}

sub kill9
{
	my ($self) = @_;
	$self->signal('KILL');
	return $self->wait_exit(30);
}

# Ask it to stop, and wait: the exit code.
sub stop
{
	my ($self, $seconds) = @_;
	$self->signal('TERM');
	return $self->wait_exit($seconds // 40);
}

END
{
	my $status = $?;
	for my $bridge (@bridges)
	{
		next unless $bridge->running;
		kill 'CONT', $bridge->{pid};
		kill 'KILL', $bridge->{pid};
		waitpid $bridge->{pid}, 0;
	}
	$? = $status;
}

1;
