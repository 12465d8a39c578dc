# The trading platform's broker and schemas: names as P gives them; no service reads or
# writes another's queue, writes where another publishes or to the default exchange, or
# sees another's schema; a dead letter goes to the queue of the consumer it failed at.
use strict;
use warnings;

use AcmeOutbox::Platform;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $stage = $ENV{ACME_STAGE} // '.';
my $platform = AcmeOutbox::Platform->create('topology');
my $broker = $platform->{broker};
my $topology = AcmeOutbox::Platform->definitions;

my %permission = map { $_->{user} => $_ } @{ $topology->{permissions} };
my @services = grep { $_ ne 'admin' } sort keys %permission;
my @queues = map { $_->{name} } @{ $topology->{queues} };
my %exchange = map { $_->{name} => $_->{type} } @{ $topology->{exchanges} };
my @contexts = grep { $exchange{"acme.$_"} } @services;

# The file.

is("@services", 'accounting audit commission inventory notification platform reporting trading',
	'a user for each service');
is(scalar(grep { $exchange{"acme.$_"} eq 'topic' && $exchange{"acme.$_.dlx"} } @contexts),
	6, 'acme.<bc> and acme.<bc>.dlx for each of the six that publish');
is($exchange{'acme.audit-feed'}, 'fanout', 'acme.audit-feed is a fanout');
is(join(' ', grep { $_->{arguments}{'x-queue-type'} ne 'quorum' } @{ $topology->{queues} }),
	'', 'all queues are quorum queues');
for my $queue (@{ $topology->{queues} })
{
	my ($consumer) = $queue->{name} =~ /^(\w+\.\w+)\.(?:events|jobs)$/ or next;
	my ($dead) = grep { $_->{destination} eq "$consumer.dlq" } @{ $topology->{bindings} };
	is_deeply(
		[ $queue->{arguments}{'x-dead-letter-exchange'}, @{$dead}{qw(routing_key)} ],
		[ $dead->{source}, 'dead-letter' ],
		"$queue->{name} dies to $consumer.dlq by the key dead-letter");
}

# Who may do what, by the expressions: every user, every name.

sub may
{
	my ($service, $kind, $name) = @_;
	return $name =~ /$permission{$service}{$kind}/;
}

my @wrong;
for my $service (@services)
{
	for my $queue (@queues)
	{
		my $own = $queue =~ /^\Q$service\E\./ || 0;
		push @wrong, "$service $_ $queue"
		  for grep { !!may($service, $_, $queue) ne !!$own } qw(configure write read);
	}
	my %writes = map { $_ => 1 } grep { may($service, 'write', $_) } keys %exchange;
	my %dead = map { +"$_->{source}" => 1 }
	  grep { $_->{source} =~ /\.dlx$/ && $_->{destination} =~ /^\Q$service\E\./ }
	  @{ $topology->{bindings} };
	my %due = ($exchange{"acme.$service"} ? map { $_ => 1 } "acme.$service", 'acme.audit-feed' : ());
	is(join(' ', sort keys %writes), join(' ', sort keys %{ { %due, %dead } }),
		"$service writes to its own exchange, the audit lane and where its dead letters go");
	push @wrong, "$service: amq.default"
	  if grep { may($service, $_, 'amq.default') } qw(configure write read);
	push @wrong, map { "$service may read or declare $_" }
	  grep { may($service, 'read', $_) || may($service, 'configure', $_) } keys %exchange;
}
is(join(', ', @wrong), '', 'and nothing else of the broker is any other service\'s');

# The broker agrees.

sub probe
{
	my ($service, $what, @args) = @_;
	my ($out, $err) = ('', '');
	IPC::Run::run([ "$stage/test/tools/amqp_probe", $what, '--uri', $platform->uri($service), @args ],
		'<', \undef, '>', \$out, '2>', \$err);
	return $err =~ /\b403 ACCESS_REFUSED/ ? 'refused' : $? == 0 ? 'allowed' : "failed: $err";
}

for my $i (0 .. $#services)
{
	my ($one, $other) = @services[ $i, $i - 1 ];
	my ($queue) = grep { /^\Q$other\E\./ } @queues;
	is(probe($one, 'drain', '--queue', $queue, '--count', 1), 'refused', "$one does not read $queue");
	my $exchange = $exchange{"acme.$other"} ? "acme.$other" : 'acme.trading';
	is(probe($one, 'publish', '--exchange', $exchange, '--key', 'forged', '--body', '{}'),
		$one eq 'trading' && $exchange eq 'acme.trading' ? 'allowed' : 'refused',
		"$one does not write to $exchange");
}
is(probe('commission', 'publish', '--exchange', '', '--key', 'trading.accounting.events', '--body', '{}'),
	'refused', 'nobody writes to a queue through the default exchange');
is(probe('commission', 'drain', '--queue', 'commission.trading.events', '--timeout', '0.1'),
	'allowed', 'a service reads its own queue');

# Dead letters: nacked by a consumer (the broker adds x-first-death-queue).

$broker->api('POST', "exchanges/$broker->{vhost}/acme.trading/publish",
	{ routing_key => 'trading.deal.locked.v2', payload => '{}', payload_encoding => 'string',
		properties => { delivery_mode => 2 } });
for my $queue ('commission.trading.events', 'accounting.trading.events')
{
	ok($broker->wait_count($queue, 1), "$queue got the message");
}
$broker->api('POST', "queues/$broker->{vhost}/commission.trading.events/get",
	{ count => 1, ackmode => 'reject_requeue_false', encoding => 'auto' });
ok($broker->wait_count('commission.trading.dlq', 1),
	'rejected by commission: in its queue for dead letters');
my ($dead) = $broker->drain('commission.trading.dlq', count => 1, timeout => 1);
is($dead->{routing_key}, 'dead-letter', 'under the key dead-letter');
is($dead->{headers}{'x-death'}[0]{'routing-keys'}[0], 'trading.deal.locked.v2',
	'its own key is in x-death');
is(join(' ', grep { $broker->count($_) > 0 } grep { /\.dlq$/ } @queues), '',
	'no other consumer got it');

# What a relay gives up is its own service's, and without secrets.

$platform->app('platform', q{SELECT platform.invite_user('lost@acme.example')});
$platform->sql(q{UPDATE acme_outbox.outbox_entry SET status = 'FAILED', failed_at = now()});
$platform->relay_of('platform');
ok($broker->wait_count('platform.outbox.dlq', 1), 'a failed invitation is in platform.outbox.dlq');
my ($given_up) = $broker->drain('platform.outbox.dlq', count => 1, timeout => 1);
like($given_up->{body}, qr/lost\@acme\.example/, 'with its payload');
unlike($given_up->{body}, qr/token/, 'but the token');
is($broker->count('notification.platform.dlq'), 0, 'and in no consumer\'s queue');
$platform->stop_bridges;

# Schemas.

is($platform->sql(<<'SQL'), '', 'no login has a right in another service\'s schema');
SELECT string_agg(format('%s: %s', r.rolname, n.nspname), ', ')
FROM pg_roles r, pg_namespace n
WHERE r.rolname ~ '_(app|relay)$' AND n.nspname = ANY (ARRAY['accounting', 'audit', 'commission',
		'inventory', 'notification', 'platform', 'reporting', 'trading'])
	AND split_part(r.rolname, '_', 1) <> n.nspname
	AND (has_schema_privilege(r.oid, n.oid, 'USAGE') OR has_schema_privilege(r.oid, n.oid, 'CREATE')
		OR EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'v')
			AND has_table_privilege(r.oid, c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE')))
SQL
is($platform->sql(<<'SQL'), '', 'no login may run a function of another\'s, or own one');
SELECT string_agg(format('%s: %s', r.rolname, p.oid::regprocedure), ', ')
FROM pg_roles r, pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE r.rolname ~ '_(app|relay)$' AND n.nspname = ANY (ARRAY['accounting', 'audit', 'commission',
		'inventory', 'notification', 'platform', 'reporting', 'trading'])
	AND split_part(r.rolname, '_', 1) <> n.nspname AND has_function_privilege(r.oid, p.oid, 'EXECUTE')
SQL
for my $pair ([ 'reporting_app', 'SELECT * FROM trading.deal' ],
	[ 'commission_app', 'UPDATE trading.deal SET amount = 0' ],
	[ 'trading_app', 'INSERT INTO accounting.processed_event VALUES (1, 1)' ],
	[ 'trading_relay', 'SELECT * FROM trading.deal' ],
	[ 'reporting_app', q{SELECT reporting.rebuild('deal_summary')} ],
	[ 'audit_app', 'DELETE FROM audit.audit_entry' ],
	[ 'audit_app', q{UPDATE audit.audit_entry SET new_state = '{}'} ])
{
	my ($role, $query) = @$pair;
	like(($platform->try_as($role, $query))[2], qr/permission denied/, "$role is refused: $query");
}

done_testing();
