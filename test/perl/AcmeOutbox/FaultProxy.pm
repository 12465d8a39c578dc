# A proxy between bridge and broker that misbehaves when told to
# (test/tools/fault_proxy.c says how).
package AcmeOutbox::FaultProxy;

use strict;
use warnings;

use IPC::Open2 qw(open2);
use Test::More;

my $stage = $ENV{ACME_STAGE} // '.';
my @proxies;

# AcmeOutbox::FaultProxy->start($port): listening, forwarding to that port.
sub start
{
	my ($class, $port) = @_;
	my $self = bless {}, $class;

	$self->{pid} =
	  open2($self->{out}, $self->{in}, "$stage/test/tools/fault_proxy", $port);
	$self->{in}->autoflush(1);
	$self->{port} = $self->answer;
	push @proxies, $self;
	return $self;
}

sub port { my ($self) = @_; return $self->{port}; }

sub answer
{
	my ($self) = @_;
	my $out = $self->{out};
	my $line = <$out> // die "the fault proxy has ended\n";
	chomp $line;
	return $line;
}

# Give it a command; its mode has changed when this returns.
sub tell
{
	my ($self, $command) = @_;
	my $in = $self->{in};

	print $in "$command\n";
	my $answer = $self->answer;
	die "fault proxy, $command: $answer\n" if $answer eq 'unknown command';
	note "fault proxy: $command";
	return $answer;
}

# One of its counters.
sub counter
{
	my ($self, $name) = @_;
	my $in = $self->{in};

	print $in "stats\n";
	my ($value) = $self->answer =~ /\b\Q$name\E=(\d+)/ or die "no counter $name\n";
	return $value;
}

END
{
	my $status = $?;
	for my $proxy (@proxies)
	{
		close $proxy->{in};
		waitpid $proxy->{pid}, 0;
	}
	$? = $status;
}

1;
