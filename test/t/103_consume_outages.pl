# What a consumer lives through: the queue missing, deleted, its connection closed, the
# dead-letter exchange missing for a while, the database and the broker gone in either
# order. Each change is made once, nothing is charged, and the queue is empty in the end.
# SIGTERM ends it orderly within its bound; what a person must mend ends it at its start.
# Slow: begins before the others.
use strict;
use warnings;

use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use AcmeOutbox::Consumer;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = AcmeOutbox::Cluster->create('main');
my $broker = AcmeOutbox::Broker->new(private => 1);
my $consumer = AcmeOutbox::Consumer->new($node, $broker);
my @args = ('--dead-letter-exchange', 'dlx', '--max-attempts', 2, '--reconnect-min', '50ms',
	'--reconnect-max', '500ms');
my $n = 0;

sub some { my ($count) = @_; return map { 'e' . ++$n } 1 .. $count; }

sub flows
{
	my ($what) = @_;
	my @ids = some(20);
	$broker->fill('work', map { envelope($_) } @ids);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok($consumer->wait_once(@ids), "$what: messages are handled, each once");
}

# At the start: what must be mended by a person.

sub refuses
{
	my ($what, $status, $pattern, @more) = @_;
	my $bridge = $consumer->start(@more);
	is($bridge->wait_exit(20), $status, "$what: exit status $status");
	like($bridge->log_text, $pattern, "$what: the log says why");
	is(scalar(() = $bridge->log_text =~ /level=(warn|error)|^acme-outbox-bridge:/mg), 1, "$what: in one line");
	return;
}
refuses('no handler', 76, qr/sqlstate=OX202 .*next_step="name the handler schema.function/, '--handler', 'public.nobody');
refuses('no right', 77, qr/sqlstate=42501 .*grant_consumer/, { user => 'relay' });
refuses('no database', 69, qr/cannot start: the database is not usable/, { env => { PGPORT => 1 } });
refuses('wrong password', 74, qr/refused the login/, { uri => $broker->uri(password => 'wrong') });
refuses('no queue setting', 64, qr/setting "consumer"/, '--consumer', '');
$broker->api('PUT', "permissions/$broker->{vhost}/bridge", { configure => '', write => '.*', read => '^other$' });
refuses('no read', 77, qr/the queue may not be read/);
$broker->permit('bridge');

# A queue that comes later, goes, and comes again.

$broker->delete_queue('work');
my $eater = $consumer->start(@args);
ok($eater->wait_for_log(qr/gives no messages, retrying" queue=work code=404.* next_step="declare the queue/),
	'no queue: it waits, and says what for');
$broker->declare_queue('work', 'x-queue-type' => 'quorum');
ok($eater->wait_for_log(qr/msg=consuming/), 'and finds it');
flows('a late queue');
$broker->delete_queue('work');
ok($eater->wait_for_log(qr/cancelled by the broker/), 'the queue is deleted: noticed');
$broker->declare_queue('work', 'x-queue-type' => 'quorum');
flows('a new queue');
my $lines = () = $eater->log_text =~ /gives no messages/g;
is($lines, 2, 'one line each time');
ok(wait_until(sub { $broker->close_connections }), 'its connection was closed by hand');
flows('a closed connection');

# Dead letters that nobody takes: no exchange, no binding. All else goes on.

for my $way ('no exchange', 'no binding')
{
	$way eq 'no exchange' ? $broker->delete_exchange('dlx') : $broker->unbind('dead', 'dlx', 'dead-letter');
	$broker->fill('work', map { envelope("$way $_", 'fail', secret => 's') } 1 .. 3);
	my $step = $way eq 'no exchange' ? 'declare the exchange' : 'bind a queue to the exchange';
	ok($eater->wait_for_log(qr/dead letters are not taken.* next_step="$step/, since => 1),
		"$way: one line says so, and what to do");
	flows($way);
	is($broker->count('dead'), 0, "$way: no dead letter arrived");
	$broker->declare_exchange('dlx', 'direct');
	$broker->bind('dead', 'dlx', 'dead-letter');
	ok($broker->wait_count('dead', 3), "$way: they arrive once it is mended");
	ok($eater->wait_for_log(qr/dead letters are taken again/, since => 1), "$way: and that is logged");
	is(scalar(() = $broker->drain('dead', count => 3)), 3, "$way: each once");
}
$consumer->stop_empty($eater, 'after that');

# The servers go while messages flow, in either order.

$eater = $consumer->start(@args, '--batch', 10);
for my $order ([ 'database', 'broker' ], [ 'broker', 'database' ])
{
	my @ids = some(400);
	my ($first, $second) = @$order;
	my %stop = (database => sub { $node->stop('immediate') }, broker => sub { $broker->stop });
	my %start = (database => sub { $node->start }, broker => sub { $broker->start });

	$broker->fill('work', map { envelope($_, 'sleep', seconds => 0.002) } @ids);
	ok($node->wait_sql("SELECT count(*) > 20 FROM done WHERE event_id = ANY ('{" . join(',', @ids) . "}')"), "$first, then $second: messages flow");
	$stop{$first}->();
	$stop{$second}->();
	ok($eater->running, 'it lives on without either');
	$start{$first}->();
	$start{$second}->();
	ok($consumer->wait_once(@ids), "$first, then $second: each change once");
}
is($broker->count('dead'), 0, 'nobody was given up for it');

# SIGTERM finishes the batch under way, and gives back the rest.

my @ids = some(60);
$broker->fill('work', map { envelope($_, 'sleep', seconds => 0.03) } @ids);
ok($eater->wait_for_log(qr/msg=consuming/), 'it consumes');
ok($node->wait_sql("SELECT count(*) > 0 FROM done WHERE event_id = ANY ('{" . join(',', @ids) . "}')"), 'a batch was done');
is($eater->stop, 0, 'SIGTERM: it stops');
my $done = $node->sql("SELECT count(*) FROM done WHERE event_id = ANY ('{" . join(',', @ids) . "}')");
cmp_ok($done, '<', 60, 'before all was done');
is($broker->count('work'), 60 - $done, 'what was not done is in the queue');
is($consumer->start(@args, '--once')->wait_exit, 0, 'another one does it');
is($consumer->not_once(@ids), '', 'each once');

# A batch that takes longer than a stop may: it exits in time, nothing is lost.

$broker->fill('work', envelope('slow', 'sleep', seconds => 4));
$eater = $consumer->start(@args, '--stop-timeout', '1s');
$node->wait_sql("SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'");
my $begun = time();
is($eater->stop, 75, 'a batch that is too slow: exit status 75');
cmp_ok(time() - $begun, '<', 3.5, 'within the bound');
is($consumer->start(@args, '--once')->wait_exit, 0, 'another one takes it');
is($consumer->not_once('slow'), '', 'it is done once');
is($broker->count('work'), 0, 'and gone from the queue');

$node->stop;
done_testing();
