# The consumer is killed at each point where its state and the broker's differ; the
# server right after an acknowledgement, with a role that commits asynchronously; two
# consumers share a queue while one of them is killed again and again. Each change is
# made exactly once, and nothing is left in the queue.
use strict;
use warnings;

use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use AcmeOutbox::Consumer;
use PostgreSQL::Test::Utils;
use Test::More;

# what commits asynchronously is not on disk for long
my $node = AcmeOutbox::Cluster->create('main', 'wal_writer_delay = 10s', 'wal_writer_flush_after = 0');
my $broker = AcmeOutbox::Broker->new;
my $consumer = AcmeOutbox::Consumer->new($node, $broker);
my @args = ('--dead-letter-exchange', 'dlx', '--max-attempts', 2, '--reconnect-min', '50ms', '--batch', 20);
my $n = 0;

sub some { my ($count) = @_; return map { 'e' . ++$n } 1 .. $count; }

sub dies_at
{
	my ($point, @more) = @_;
	my $victim = $consumer->start(@args, { env => { ACME_OUTBOX_CRASH_AT => $point } });
	is($victim->wait_exit, 'signal 9', "$point: the consumer died");
	like($victim->log_text, qr/^crash point \Q@{[$point =~ s{:.*}{}r]}\E hit/m, "$point: where it should");
	return;
}

for my $point (qw(batch-committed:1 batch-committed:3 acknowledged:1 acknowledged:2))
{
	my @ids = some(100);
	$broker->fill('work', map { envelope($_) } @ids);
	dies_at($point);
	cmp_ok($node->sql('SELECT count(*) FROM done'), '>', 0, "$point: changes were made");
	my $heir = $consumer->start(@args, '--once');
	is($heir->wait_exit, 0, "$point: another one does the rest");
	is($consumer->not_once(@ids), '', "$point: each change once");
	is($broker->count('work'), 0, "$point: nothing is left");
	like($heir->log_text, qr/ duplicate=[1-9]/, "$point: one batch came again") if $point =~ /batch-committed/;
	$node->sql('TRUNCATE done');
}

# A dead letter that was confirmed, and its message not acknowledged: a second copy,
# never none.

$broker->fill('work', envelope('dead', 'fail', secret => 's'));
dies_at('copy-confirmed');
is($consumer->start(@args, '--once')->wait_exit, 0, 'another one goes on');
is($broker->count('work'), 0, 'nothing is left');
is($broker->count('dead'), 2, 'the dead letter is there, twice');
$broker->drain('dead', count => 2);

# The server is killed after an acknowledgement.

$node->sql('ALTER ROLE eater SET synchronous_commit = off');
my @ids = some(60);
$broker->fill('work', map { envelope($_) } @ids);
my $frozen = $consumer->start(@args, { env => { ACME_OUTBOX_STOP_AT => 'acknowledged:2' } });
ok($frozen->wait_for_log(qr/stop point acknowledged hit/), 'acknowledged');
my $made = $node->sql('SELECT count(*) FROM done');
$node->stop('immediate');
$node->start;
cmp_ok($made, '>=', 40, 'changes were made');
cmp_ok($node->sql('SELECT count(*) FROM done'), '>=', $made, 'and survived');
$frozen->signal('CONT');
ok($consumer->wait_once(@ids), 'each change is made once');
$consumer->stop_empty($frozen, 'a server killed');
$node->sql('ALTER ROLE eater RESET synchronous_commit');

# Two at once, one of them killed now and then.

@ids = ();
my $steady = $consumer->start(@args, '--prefetch', 50);
my @both = ($consumer->start(@args, '--prefetch', 50));
for my $round (1 .. 3)
{
	# held while the queue is filled, or they would be done before it is
	my @more = some(3000);
	push @ids, @more;
	$_->signal('STOP') for $steady, @both;
	my $before = $node->sql('SELECT count(*) FROM done');
	$broker->fill('work', map { envelope($_) } @more);
	$_->signal('CONT') for $steady, @both;
	ok(wait_until(sub { $node->sql('SELECT count(*) FROM done') > $before }), 'they are at work');
	is((pop @both)->kill9, 'signal 9', 'one of two consumers was killed');
	cmp_ok($node->sql('SELECT count(*) FROM done'), '<', $before + @more, 'in the middle of it');
	push @both, $consumer->start(@args, '--prefetch', 50);
}
ok($consumer->wait_once(@ids), 'two consumers: each change once');
is($steady->stop, 0, 'one stops');
$consumer->stop_empty($both[0], 'the other one');
like($steady->log_text, qr/msg="consumer stopped" applied=[1-9]/, 'both had a part');

$node->stop;
done_testing();
