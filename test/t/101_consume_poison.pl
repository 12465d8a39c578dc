# Messages that end their session, crash the server, are cancelled, run out of time or
# memory, fail at COMMIT or in a deferred constraint, among 200 healthy ones: each of
# those changes the data once, the others are dead letters within their attempts, and
# the queue is empty in the end. The same when the bridge and the server die on the way.
# One that always meets a deadlock is never charged, and holds up nobody.
use strict;
use warnings;

use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use AcmeOutbox::Consumer;
use JSON::PP qw(decode_json);
use PostgreSQL::Test::Utils;
use Test::More;

use constant ATTEMPTS => 3;

my $node = AcmeOutbox::Cluster->create('main', 'fsync = off');
my $broker = AcmeOutbox::Broker->new;
my $consumer = AcmeOutbox::Consumer->new($node, $broker);
my @args = ('--dead-letter-exchange', 'dlx', '--max-attempts', ATTEMPTS, '--retry-backoff', '20ms',
	'--reconnect-min', '20ms', '--reconnect-max', '100ms', '--batch-timeout', '1s');

# 200 healthy messages with the poisonous ones in between; their ids.
sub mixed
{
	my ($name, @kinds) = @_;
	my @healthy = map { "$name-$_" } 1 .. 200;
	my @bodies = map { envelope($_) } @healthy;
	my $at = 20;
	for my $kind (@kinds)
	{
		splice @bodies, $at += 23, 0, envelope("$name-$kind", $kind, seconds => 30, secret => 's');
	}
	$broker->fill('work', @bodies);
	return @healthy;
}

sub dead_ids
{
	my ($count) = @_;
	$broker->wait_count('dead', $count);
	return map { decode_json($_->{body})->{header}{eventId} => $_->{headers} }
	  $broker->drain('dead', count => $count, timeout => 5);
}

my @kinds = ('end session', 'cancel', 'sleep', 'no memory', 'late', 'early', 'fail');
my @healthy = mixed('a', @kinds);
my $eater = $consumer->start(@args);
ok($consumer->wait_once(@healthy), 'every healthy message made one change');
my %dead = dead_ids(scalar @kinds);
is(join(', ', sort keys %dead), join(', ', sort map { "a-$_" } @kinds), 'the others are dead letters');
my %state = map { ($_ =~ s/^a-//r) => $dead{$_}{'x-error-sqlstate'} } keys %dead;
is_deeply(\%state, { 'end session' => '08006', cancel => '57014', sleep => '57014', 'no memory' => '53200',
		late => '23514', early => '23505', fail => 'P0123' }, 'each says why');
is($dead{'a-no memory'}{'x-error-message'}, 'the transaction failed at its end, or was ended',
	'the text that a handler gave to an error that ends a batch is not among it');
is($dead{'a-sleep'}{'x-error-message'}, 'canceling statement due to statement timeout', 'the server\'s own text is');
is(scalar(grep { $_->{'x-error-attempts'} != ATTEMPTS } values %dead), 0, 'after as many attempts as allowed');
for my $kind (qw(end cancel late))
{
	my $begun = $node->sql("SELECT last_value FROM begun_$kind");
	cmp_ok($begun, '>=', ATTEMPTS, "$kind: it was run");
	# Once more, among others, before anybody was suspect. One that fails by itself can be
	# repeated within an attempt, for the sake of those that it shares its batch with.
	cmp_ok($begun, '<=', ATTEMPTS + 1, "$kind: but no more often") if $kind ne 'late';
}
is($node->sql(q{SELECT count(*) FROM acme_outbox.consumer_attempt WHERE event_id ~ '^a-[0-9]' AND attempts > 1}),
	0, 'no healthy message was charged for another one');
like($eater->log_text, qr/ended without a result.*statement timeout" next_step="make the handler faster/,
	'the stress happened, and a slow handler is told of');

# A message that always meets a deadlock is tried again and again, uncharged.

$broker->fill('work', envelope('locked', 'deadlock'), map { envelope("beside-$_") } 1 .. 50);
ok($consumer->wait_once(map { "beside-$_" } 1 .. 50), 'beside a deadlock the others go on');
ok($node->wait_sql('SELECT last_value > 5 FROM begun_deadlock'), 'it is tried again and again');
is($node->sql("SELECT count(*) FROM acme_outbox.consumer_attempt WHERE event_id = 'locked'"), 0, 'and not charged');
is($broker->count('dead'), 0, 'nor given up');
$node->sql(q{UPDATE pg_proc SET prosrc = replace(prosrc, '''40P01''', '''P0123''') WHERE proname = 'handle'});
%dead = dead_ids(1);
is(join(' ', keys %dead), 'locked', 'once it fails by itself, it is charged');
$consumer->stop_empty($eater, 'a deadlock');

# The server crashes of a message, and the bridge dies after each count. Whoever comes
# next sees all messages redelivered.

@healthy = mixed('b', 'crash', 'end session');
my $died = 0;
for my $round (1 .. 12)
{
	my $victim = $consumer->start(@args, { env => { ACME_OUTBOX_CRASH_AT => 'attempt-counted:' . 20 * $round } });
	my $exit;
	wait_until(sub {
		return 1 if defined($exit = $victim->wait_exit(0));
		return $broker->count('dead') == 2 && $consumer->not_once(@healthy) eq '';
	}, 20);
	if (!defined $exit)
	{
		$consumer->stop_empty($victim, 'crashes');
		last;
	}
	# at its start it may have met a server in recovery
	$died++ if $exit eq 'signal 9';
}
cmp_ok($died, '>=', 3, "the bridge died $died times");
is($consumer->not_once(@healthy), '', 'every healthy message made one change');
%dead = dead_ids(2);
is(join(', ', sort keys %dead), 'b-crash, b-end session', 'the others are dead letters');
is( $node->sql(q{SELECT count(*) FROM acme_outbox.consumer_attempt WHERE event_id ~ '^b-[0-9]' AND attempts > 2}),
	0, 'no healthy message came near its limit');
my $crashes = () = slurp_file($node->logfile) =~ /was terminated by signal 9/g;
cmp_ok($crashes, '>=', 1, "the server crashed $crashes times");
cmp_ok($crashes, '<=', ATTEMPTS + 1, 'but not more often than the message may be tried');

$node->stop;
done_testing();
