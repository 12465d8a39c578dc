# RabbitMQ for one test.
#
# AcmeOutbox::Broker->new gives a virtual host of its own on the node that the
# suite runner started; AcmeOutbox::Broker->new(private => 1) a node of its own,
# which the test may stop, kill and freeze. Topology is declared over the
# management API; messages are read with amqp_probe.
package AcmeOutbox::Broker;

use strict;
use warnings;

use File::Basename qw(basename);
use HTTP::Tiny;
use JSON::PP qw(decode_json encode_json);
use MIME::Base64 qw(decode_base64 encode_base64);
use PostgreSQL::Test::Utils ();
use Test::More;
use Time::HiRes qw(sleep time);

my @brokers;
my $stage = $ENV{ACME_STAGE} // '.';

sub new
{
	my ($class, %opt) = @_;
	my $self = bless { user => 'bridge', password => 'bridge-secret' }, $class;

	if ($opt{private} || !$ENV{RABBITMQ_PORT})
	{
		$self->{private} = 1;
		$self->{dir} = PostgreSQL::Test::Utils::tempdir_short();
		chmod 0755, $self->{dir};
		push @brokers, $self;
		$self->start;
		my $env = PostgreSQL::Test::Utils::slurp_file("$self->{dir}/env");
		($self->{port}) = $env =~ /RABBITMQ_PORT=(\d+)/;
		($self->{http_port}) = $env =~ /RABBITMQ_HTTP_PORT=(\d+)/;
	}
	else
	{
		$self->{port} = $ENV{RABBITMQ_PORT};
		$self->{http_port} = $ENV{RABBITMQ_HTTP_PORT};
		push @brokers, $self;
	}
	$self->{vhost} = basename($0, '.pl') . "-$$-" . scalar @brokers;
	$self->api('PUT', "vhosts/$self->{vhost}", {});
	# two tests may create it at the same time: the second call finds it there
	my @user = ('PUT', "users/$self->{user}", { password => $self->{password}, tags => '' });
	eval { $self->api(@user) } or $self->api(@user);
	$self->permit($_) for 'guest', $self->{user};
	return $self;
}

sub permit
{
	my ($self, $user) = @_;
	return $self->api('PUT', "permissions/$self->{vhost}/$user",
		{ configure => '.*', write => '.*', read => '.*' });
}

sub uri
{
	my ($self, %opt) = @_;
	return sprintf 'amqp://%s:%s@127.0.0.1:%d/%s', $opt{user} // $self->{user},
	  $opt{password} // $self->{password}, $opt{port} // $self->{port},
	  $self->{vhost};
}

# One call of the management API; dies unless it succeeds.
sub api
{
	my ($self, $method, $path, $body) = @_;
	my $deadline = time() + 30;

	while (1)
	{
		my $answer = HTTP::Tiny->new(timeout => 120)->request(
			$method,
			"http://127.0.0.1:$self->{http_port}/api/$path",
			{   headers => {
					'Authorization' => 'Basic ' . encode_base64('guest:guest', ''),
					'Content-Type'  => 'application/json'
				},
				(defined $body ? (content => encode_json($body)) : ())
			});
		if ($answer->{success})
		{
			return ($answer->{content} // q{}) =~ /^[\[{]/
			  ? decode_json($answer->{content})
			  : 1;
		}
		# Not reachable yet, or still starting.
		if ($answer->{status} =~ /^(599|503|500)$/ && time() < $deadline)
		{
			sleep 0.2;
			next;
		}
		die "$method $path: $answer->{status} $answer->{content}\n";
	}
}

sub declare_exchange
{
	my ($self, $name, $type) = @_;
	return $self->api('PUT', "exchanges/$self->{vhost}/$name",
		{ type => $type // 'topic', durable => \1 });
}

sub delete_exchange
{
	my ($self, $name) = @_;
	return $self->api('DELETE', "exchanges/$self->{vhost}/$name");
}

# declare_queue('q', 'x-queue-type' => 'quorum', ...)
sub declare_queue
{
	my ($self, $name, %arguments) = @_;
	return $self->api('PUT', "queues/$self->{vhost}/$name",
		{ durable => \1, arguments => \%arguments });
}

sub delete_queue
{
	my ($self, $name) = @_;
	return $self->api('DELETE', "queues/$self->{vhost}/$name");
}

sub bind
{
	my ($self, $queue, $exchange, $key) = @_;
	return $self->api('POST', "bindings/$self->{vhost}/e/$exchange/q/$queue",
		{ routing_key => $key // '#' });
}

sub unbind
{
	my ($self, $queue, $exchange, $key) = @_;
	$key = '%23' if !defined $key || $key eq '#';
	return $self->api('DELETE',
		"bindings/$self->{vhost}/e/$exchange/q/$queue/$key");
}

# The usual topology: topic exchange "events", every key to the durable queue
# "all". A quorum queue unless told otherwise.
sub standard_topology
{
	my ($self, %arguments) = @_;
	$self->declare_exchange('events');
	$self->declare_queue('all', 'x-queue-type' => 'quorum', %arguments);
	$self->bind('all', 'events');
	return $self;
}

sub probe { my ($self, @args) = @_; return $self->probe_with(undef, @args); }

# The same with an input.
sub probe_with
{
	my ($self, $in, @args) = @_;
	my ($out, $err) = ('', '');
	my @command = (
		"$stage/test/tools/amqp_probe",
		shift @args, '--uri',
		$self->uri(user => 'guest', password => 'guest'), @args);

	IPC::Run::run(\@command, '<', \$in, '>', \$out, '2>', \$err)
	  or die "amqp_probe: $err\n";
	return $out;
}

# Put bodies into a queue, each a line of text.
sub fill
{
	my ($self, $queue, @bodies) = @_;
	return $self->probe_with(join("\n", @bodies) . "\n",
		'publish', '--exchange', '', '--key', $queue, '--lines');
}

# One message of any bytes, with properties: headers => {...}, message_id => ...
sub post
{
	my ($self, $exchange, $key, $body, %properties) = @_;
	my $answer = $self->api('POST', "exchanges/$self->{vhost}/$exchange/publish",
		{   routing_key      => $key,
			payload          => encode_base64($body, ''),
			payload_encoding => 'base64',
			properties       => { delivery_mode => 2, %properties }
		});
	return $answer->{routed};
}

# Take messages whose bodies may be any bytes; as drain() gives them.
sub take
{
	my ($self, $queue, $count) = @_;
	my $messages = $self->api('POST', "queues/$self->{vhost}/$queue/get",
		{ count => $count, ackmode => 'ack_requeue_false', encoding => 'base64' });
	return map {
		{   %{ $_->{properties} },
			body        => decode_base64($_->{payload}),
			exchange    => $_->{exchange},
			routing_key => $_->{routing_key}
		}
	} @$messages;
}


# Messages ready in a queue, by the queue's own count.
sub count
{
	my ($self, $queue) = @_;
	my $out = $self->probe('count', '--queue', $queue // 'all');
	chomp $out;
	return $out;
}

# The same of several queues, as a hash.
sub counts
{
	my ($self, @queues) = @_;
	return split ' ', $self->probe('count', '--queue', join(',', @queues));
}

sub wait_count
{
	my ($self, $queue, $at_least, $seconds) = @_;
	my $deadline = time() + ($seconds // $PostgreSQL::Test::Utils::timeout_default);

	while (time() < $deadline)
	{
		return 1 if $self->count($queue) >= $at_least;
		sleep 0.1;
	}
	return 0;
}

# Take all messages of a queue, as a list of hashes in the order of the queue.
sub drain
{
	my ($self, $queue, %opt) = @_;
	return map { decode_json($_) } split /\n/,
	  $self->probe('drain', '--queue', $queue // 'all', '--timeout',
		$opt{timeout} // 1.5, ($opt{count} ? ('--count', $opt{count}) : ()));
}

# The same, and put them back.
sub drain_keep
{
	my ($self, $queue) = @_;
	return map { decode_json($_) } split /\n/,
	  $self->probe('drain', '--keep', '--queue', $queue, '--timeout', 1);
}

# Close every connection of a user from the broker's side, or those whose clients call
# them so.
sub close_connections
{
	my ($self, $user, $called) = @_;
	my $closed = 0;
	for my $connection (@{ $self->api('GET', "vhosts/$self->{vhost}/connections") })
	{
		next if ($connection->{user} // '') ne ($user // $self->{user});
		next if $called && ($connection->{client_properties}{connection_name} // '') !~ $called;
		(my $name = $connection->{name}) =~
		  s/([^A-Za-z0-9._-])/sprintf('%%%02X', ord $1)/ge;
		$self->api('DELETE', "connections/$name");
		$closed++;
	}
	return $closed;
}

# Channels of a user that the broker knows of.
sub channels
{
	my ($self, $user) = @_;
	return scalar grep { ($_->{user} // '') eq ($user // $self->{user}) }
	  @{ $self->api('GET', "vhosts/$self->{vhost}/channels") };
}

# Is an alarm in effect at this moment? (The node's statistics tell it late.)
sub has_alarm
{
	my ($self) = @_;
	return HTTP::Tiny->new(timeout => 120)->get(
		"http://guest:guest\@127.0.0.1:$self->{http_port}/api/health/checks/local-alarms")->{status} == 503;
}

# A private node's life.

sub control
{
	my ($self, $action) = @_;
	my ($out, $err) = ('', '');

	die "not a private node\n" unless $self->{private};
	# Output to a file: the node keeps what it inherited open.
	my $status = system(
		"'$stage/test/env/rabbitmq' $action '$self->{dir}'"
		  . " >>'$self->{dir}/control.log' 2>&1 </dev/null");
	die "rabbitmq $action failed: "
	  . PostgreSQL::Test::Utils::slurp_file("$self->{dir}/control.log") . "\n"
	  if $status != 0;
	return;
}

sub start { my ($self) = @_; return $self->control('start'); }
sub stop  { my ($self) = @_; return $self->control('stop'); }

# rabbitmqctl for this node; its output.
sub ctl
{
	my ($self, @args) = @_;
	my ($out, $err) = ('', '');

	die "not a private node\n" unless $self->{private};
	IPC::Run::run([ "$stage/test/env/rabbitmq", 'ctl', $self->{dir}, @args ],
		'<', \undef, '>', \$out, '2>', \$err)
	  or die "rabbitmqctl @args: $out$err\n";
	return $out;
}

sub pid
{
	my ($self) = @_;
	my ($file) = glob "$self->{dir}/mnesia/*.pid";
	my $pid = PostgreSQL::Test::Utils::slurp_file($file);
	$pid =~ s/\s+//g;
	return $pid;
}

sub signal
{
	my ($self, $signal) = @_;
	return kill $signal, $self->pid;
}

sub kill9
{
	my ($self) = @_;
	my $pid = $self->pid;
	my $deadline = time() + 30;

	kill 'KILL', $pid;
	# A zombie is gone as well: its ports are free.
	while (time() < $deadline)
	{
		my $state = eval { PostgreSQL::Test::Utils::slurp_file("/proc/$pid/stat") }
		  // '';
		return if $state !~ /\) [^Z]/;
		sleep 0.05;
	}
	die "the node survived SIGKILL\n";
}

END
{
	my $status = $?;
	for my $broker (@brokers)
	{
		eval {
			if ($broker->{private}) { $broker->control('clean'); }
			elsif ($broker->{vhost})
			{
				$broker->api('DELETE', "vhosts/$broker->{vhost}");
			}
			1;
		} or print STDERR "# $@";
	}
	$? = $status;
}

1;
