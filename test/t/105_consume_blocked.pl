# The broker's memory alarm, and consumers that publish dead letters: those wait, and all
# else goes on. They have a connection of their own, so acknowledgements are read; what
# waits is bounded by the prefetch, told by log, metrics and readiness, and leaves when
# the alarm ends. That connection may be closed by hand. SIGTERM is obeyed at once. A
# reprocessing, which publishes all it does, waits as long as the alarm lasts.
# Slow: begins before the others.
use strict;
use warnings;

use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use AcmeOutbox::Consumer;
use AcmeOutbox::Fault;
use HTTP::Tiny;
use JSON::PP qw(decode_json);
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

use constant { PREFETCH => 20, TEMPORARY => 75 };

my $node = AcmeOutbox::Cluster->create('main', 'fsync = off');
my $broker = AcmeOutbox::Broker->new(private => 1);
my $consumer = AcmeOutbox::Consumer->new($node, $broker, 'x-queue-type' => 'classic');
$broker->declare_queue($_) for 'back', 'back.dead';
my @args = ('--dead-letter-exchange', 'dlx', '--max-attempts', 1, '--confirm-timeout', '1s',
	'--reconnect-min', '50ms', '--reconnect-max', '200ms', '--connect-timeout', '2s');
my $n = 0;

sub alarm_on
{
	$broker->ctl('set_vm_memory_high_watermark', 'absolute', '1MiB');
	return ok(wait_until(sub { $broker->has_alarm }), 'the broker has a memory alarm');
}

sub alarm_off { return $broker->ctl('set_vm_memory_high_watermark', 'absolute', '1GiB'); }

sub good { my ($count) = @_; return map { 'good-' . ++$n } 1 .. $count; }
sub bad { my ($count) = @_; return map { 'bad-' . ++$n } 1 .. $count; }
sub bad_body { return map { envelope($_, 'fail', secret => 's') } @_; }

# While the broker is blocked nobody can fill its queues: the consumer is held meanwhile.
sub queue_up
{
	my ($bridge, $bad, $good) = @_;
	$bridge->signal('STOP') if $bridge;
	return $broker->fill('work', bad_body(@$bad), map { envelope($_) } @$good);
}

sub page
{
	my ($bridge, $path) = @_;
	$bridge->wait_for_log('http listening') or die "no port\n";
	my ($port) = $bridge->log_text =~ /http listening".*port=(\d+)/;
	my $answer = HTTP::Tiny->new(timeout => 10)->get("http://127.0.0.1:$port/$path");
	return "$answer->{status} $answer->{content}";
}

sub metric
{
	my ($bridge, $name) = @_;
	return page($bridge, 'metrics') =~ /^acme_outbox_bridge_$name (\S+)$/m ? $1 : 'none';
}

sub reprocess
{
	my ($stop_at, @more) = @_;
	my $run = AcmeOutbox::Bridge->start(undef, $broker, command => 'reprocess',
		env => { ACME_OUTBOX_STOP_AT => $stop_at },
		args => [ '--dlq', 'back.dead', '--queue', 'back', '--confirm-timeout', '1s', @more ]);
	$run->wait_for_log('stop point .* hit') or die "the run is not held\n" if $stop_at;
	return $run;
}

# ---- dead letters wait, the others do not ----

# held when the dead letter after the first is confirmed
my $eater = $consumer->start(@args, '--prefetch', PREFETCH, '--http', '127.0.0.1:0',
	{ env => { ACME_OUTBOX_STOP_AT => 'copy-confirmed:2' } });
my @bad = bad(1);
my @good = good(5);
$broker->fill('work', map { envelope($_) } @good);
ok($consumer->wait_once(@good), 'messages flow');
unlike($eater->log_text, qr/dead letters"/, 'without a dead letter there is one connection');
$broker->fill('work', bad_body(@bad));
ok($broker->wait_count('dead', 1), 'a dead letter leaves');
ok($eater->wait_for_log(qr/broker ready.* connection="eat:\S* dead letters"/), 'by a second connection');

$broker->fill('back.dead', map { qq("letter-$_") } 1 .. 5);
my $run = reprocess('dead-letter-taken:3');
my @held = bad(3);
my @drained = good(10 * PREFETCH);
queue_up($eater, \@held, \@drained);
alarm_on();
$_->signal('CONT') for $eater, $run;
ok($consumer->wait_once(@drained), 'blocked: all other messages are handled');
ok(wait_until(sub { metric($eater, 'in_flight_messages') == 3 }), 'blocked: and acknowledged, but for three');
is(metric($eater, 'uncopied_messages'), 3, 'blocked: which wait for their dead letters');
is(metric($eater, 'dead_letters_taken'), 0, 'blocked: the metrics tell');
is(page($eater, 'readyz'), "200 ok\n", 'blocked: it does its work, so it is ready');
like($eater->log_text, qr/broker blocked publishing.* connection="eat:\S* dead letters"/, 'blocked: the log tells');
is($broker->count('dead'), 1, 'the stress happened: no dead letter has left');
ok($run->wait_for_log('broker blocked publishing'), 'blocked: a reprocessing says so');

# Its connection is closed by hand: another one is made, and the consumer's own stays.
ok(wait_until(sub { $broker->close_connections('bridge', qr/^eat:.* dead letters$/) }),
	'the stress happened: its connection is closed');
ok($eater->wait_for_log(qr/broker connection lost.* dead letters"/), 'closed: the log tells which one');
ok($eater->wait_for_log(qr/broker ready.* dead letters"/, since => 1), 'closed: it is made again');
unlike($eater->log_text, qr/messages forgotten/, 'closed: the consumer\'s own is not');
my $blocked_at = time();
ok($run->running && wait_until(sub { time() > $blocked_at + 1.1 }), 'the reprocessing waits');

alarm_off();
ok($eater->wait_for_log('stop point copy-confirmed hit'), 'unblocked: dead letters leave');
ok(wait_until(sub { $broker->close_connections('bridge', qr/^eat:.* dead letters$/) }),
	'the stress happened: a connection is closed on which they are confirmed');
$eater->signal('CONT');
ok($broker->wait_count('dead', 4), 'all of them leave');
ok(wait_until(sub { metric($eater, 'in_flight_messages') == 0 }), 'unblocked: and their messages are acknowledged');
ok(wait_until(sub { metric($eater, 'dead_letters_taken') . metric($eater, 'uncopied_messages') eq '10' }),
	'unblocked: the metrics tell');
my %dead = map { decode_json($_->{body})->{header}{eventId} => 1 } $broker->drain('dead', count => $broker->count('dead'));
is(join(' ', sort keys %dead), join(' ', sort @bad, @held), 'unblocked: none is lost');
is($consumer->not_once(@good, @drained), '', 'each change was made once');
is($run->wait_exit(30), 0, 'unblocked: the reprocessing ends well');
like($run->stdout_text, qr/^republished 5 of 5 .*^left in "back.dead": 0$/ms, 'unblocked: and put back all');
my ($blocked_ms) = $run->log_text =~ /broker unblocked publishing.* blocked_ms=(\d+)/;
cmp_ok($blocked_ms, '>', 1000, 'the stress happened: that took longer than a confirm may');

# ---- SIGTERM, --once, and dead letters as many as may be held ----

$broker->fill('back.dead', '"letter-6"');
$run = reprocess('dead-letter-taken', '--stop-timeout', '1s');
@held = bad(3);
@drained = good(30);
queue_up($eater, \@held, \@drained);
alarm_on();
$_->signal('CONT') for $eater, $run;
ok($consumer->wait_once(@drained), 'blocked again: the others are handled');
ok(wait_until(sub { metric($eater, 'in_flight_messages') == 3 }), 'blocked again: three wait');
is(stop_within_ok($eater, 2, 'blocked'), 0, 'blocked: it stops cleanly');
is($broker->count('work'), 3, 'blocked: what waited is in the queue');
ok($run->wait_for_log('broker blocked publishing'), 'the reprocessing is blocked');
is(stop_within_ok($run, 1, 'reprocess'), TEMPORARY, 'the reprocessing stops, unfinished');
like($run->stdout_text, qr/^stopped: the connection was lost: .*one message may now be in both queues\n +-> run it again/m,
	'it says what is in doubt');

$eater = $consumer->start(@args, '--prefetch', 3, '--http', '127.0.0.1:0');
ok(wait_until(sub { page($eater, 'readyz') =~ /^503 dead letters are not taken/ }),
	'as many as may be held: it is not ready, and says why')
  or diag page($eater, 'readyz');
is(stop_within_ok($eater, 2, 'full'), 0, 'full: it stops cleanly');
my $once = $consumer->start(@args, '--once');
is($once->wait_exit(30), TEMPORARY, '--once: it gives up');
like($once->log_text, qr/--once cannot go on" reason="dead letters are not taken"/, '--once: and says why');

alarm_off();
is($consumer->start(@args, '--once')->wait_exit(30), 0, 'unblocked: --once does it');
is($broker->count('work'), 0, 'unblocked: the queue is empty');
%dead = map { decode_json($_->{body})->{header}{eventId} => 1 } $broker->drain('dead', count => $broker->count('dead'));
is(join(' ', sort keys %dead), join(' ', sort @held), 'unblocked: their dead letters have left');
is(reprocess('')->wait_exit(30), 0, 'unblocked: the reprocessing ends well');
is($broker->count('back.dead'), 0, 'unblocked: its dead-letter queue is empty');
cmp_ok(distinct(map { { message_id => $_->{body} } } $broker->drain('back', count => $broker->count('back'))), '==', 6,
	'unblocked: none of its messages is lost');

$node->stop;
done_testing();
