# "reprocess" puts dead letters back into their queue: copied, confirmed, then
# deleted. Killed ten times at random points it loses nothing and leaves one duplicate
# a kill at most; what comes back looks fresh and is the same in all else. It does with
# the rights that a service has, and stops with a reason when the queue does not take
# a message.
use strict;
use warnings;

use AcmeOutbox::Bridge;
use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use JSON::PP qw(decode_json);
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

use constant { NO_QUEUE => 66, BUSY => 73, REFUSED => 74, TEMPORARY => 75, USAGE => 64, CHECK_FAILED => 78 };
use constant { LETTERS => 1000, KILLS => 10 };
use constant { QUEUE => 'trading.sales', DLQ => 'trading.dlq', TEMPORARY_EXCHANGE => 'trading.sales.reprocess' };

my $broker = AcmeOutbox::Broker->new;
my $vhost = $broker->{vhost};

# A service of the platform: its queue's dead letters go to its DLQ, and its user may do
# what it likes with its own names, and nothing else.
$broker->declare_exchange('acme.sales');
$broker->declare_exchange('trading.dlx', 'direct');
$broker->declare_queue(DLQ, 'x-queue-type' => 'quorum');
$broker->bind(DLQ, 'trading.dlx', 'dead-letter');
declare_work(QUEUE);
$broker->api('PUT', "users/trading-$$", { password => 'trading-secret', tags => '' });
$broker->api('PUT', "permissions/$vhost/trading-$$",
	{ map { $_ => '^trading\..*' } qw(configure write read) });

sub declare_work
{
	my ($queue, %arguments) = @_;
	$broker->declare_queue($queue, 'x-dead-letter-exchange' => 'trading.dlx',
		'x-dead-letter-routing-key' => 'dead-letter', %arguments);
	return $broker->bind($queue, 'acme.sales');
}

sub start
{
	my (%opt) = @_;
	my $args = delete $opt{args} // [];
	return AcmeOutbox::Bridge->start(undef, $broker, command => 'reprocess',
		uri => $broker->uri(user => "trading-$$", password => 'trading-secret'),
		args => [ '--dlq', DLQ, '--queue', QUEUE, @$args ], %opt);
}

# Run it to its end; its output.
sub reprocess
{
	my ($what, $status, @args) = @_;
	my $run = start(args => \@args);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($run->wait_exit(60), $status, "$what: exit status $status")
	  or diag $run->stdout_text, $run->log_text;
	return $run->stdout_text . $run->log_text;
}

# Messages that died for real: their consumer rejected them.
sub die_all
{
	my ($count) = @_;
	my $before = $broker->count(DLQ);

	$broker->probe('drain', '--queue', QUEUE, '--count', $count, '--reject');
	return wait_until(sub { $broker->count(DLQ) == $before + $count })
	  || die "the messages do not die\n";
}

sub dead_letters
{
	my ($count, @args) = @_;
	$broker->probe('publish', '--exchange', 'acme.sales', '--key', 'sale.created',
		'--message-id', 'event', '--numbered', '--count', $count, @args);
	return die_all($count);
}

# One with these properties, over the management API.
sub publish
{
	my ($key, $body, %properties) = @_;
	my $answer = $broker->api('POST', "exchanges/$vhost/acme.sales/publish",
		{ routing_key => $key, payload => $body, payload_encoding => 'string', properties => \%properties });
	return $answer->{routed} || die "not routed\n";
}

sub headers_of { return $_[0]{headers} // {}; }

# Everything but the messages.
sub topology
{
	return join "\n", sort +(map { "exchange $_->{name}" } @{ $broker->api('GET', "exchanges/$vhost") }),
	  (map { "queue $_->{name}" } @{ $broker->api('GET', "queues/$vhost") }),
	  (map { "binding $_->{source} $_->{destination} $_->{routing_key}" }
		  @{ $broker->api('GET', "bindings/$vhost") });
}

my $topology = topology();

sub nothing_left_ok
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is(topology(), $topology, "$what: no exchange, binding or lock is left");
}

# ---- what comes back ----

$broker->probe('publish', '--exchange', 'acme.sales', '--key', 'sale.created', '--message-id',
	'typed', '--typed');
my ($typed) = map { decode_json($_) } $broker->probe('drain', '--queue', QUEUE, '--count', 1, '--keep');
publish('sale.closed', 'byte for byte: ' . chr(1) . '{}', message_id => 'rich', type => 'trading.sale.closed',
	app_id => 'trading', correlation_id => 'c-1', content_type => 'text/x', content_encoding => 'odd',
	reply_to => 'somewhere', priority => 3, timestamp => 1700000000, delivery_mode => 2,
	user_id => 'guest', headers => { 'x-error-message' => 'old', 'x-delivery-count' => 7, mine => 'kept' });
publish('plain', '', message_id => 'plain');
die_all(3);
my $text = reprocess('fresh', 0);
like($text, qr/^republished 3 of 3 messages of "trading.dlq" into "trading.sales"/m, 'fresh: the summary');
is($broker->count(DLQ), 0, 'fresh: the dead-letter queue is empty');
my %back = map { $_->{message_id} => $_ } $broker->drain(QUEUE, count => 3);
is(scalar(grep { /^x-(death|first-death|last-death|delivery|error)/ } map { keys %{ headers_of($_) } } values %back),
	0, 'fresh: no header tells of the death');
is_deeply(delete $back{typed}{headers}{$_->[0]}, $_->[1], "fresh: $_->[0] is kept")
  for [ 'x-original-routing-key' => 'sale.created' ], [ 'x-original-exchange' => 'acme.sales' ];
delete @{ $back{typed}{kinds} }{qw(x-original-routing-key x-original-exchange)};
is(scalar keys %{ $typed->{kinds} }, 17, 'fresh: the stress happened: 17 types of headers');
is_deeply([ @{ $back{typed} }{qw(headers kinds)} ], [ @$typed{qw(headers kinds)} ], 'fresh: every type of header');
is($back{typed}{redelivered}, 0, 'fresh: not redelivered');
is_deeply(
	[ map { $back{rich}{$_} } qw(body type app_id correlation_id content_type content_encoding reply_to priority timestamp delivery_mode) ],
	[ "byte for byte: \x01{}", 'trading.sale.closed', 'trading', 'c-1', 'text/x', 'odd', 'somewhere', 3, 1700000000, 2 ],
	'fresh: body and properties');
is_deeply(headers_of($back{rich}), { mine => 'kept', 'x-original-user-id' => 'guest',
	'x-original-routing-key' => 'sale.closed', 'x-original-exchange' => 'acme.sales' }, 'fresh: headers, and another user\'s name');
is($back{rich}{routing_key}, 'reprocess', 'fresh: the routing key is that of the reprocessing');
nothing_left_ok('fresh');

# ---- killed ----

dead_letters(LETTERS);
my @points = map { "$_->[0]:" . (1 + int rand $_->[1]) } [ 'dead-letter-taken', 60 ], [ 'copy-sent', 60 ],
  [ 'copy-confirmed', 60 ], [ 'copy-confirmed', 60 ], [ 'dead-letter-acked', 60 ], [ 'reprocess-bound', 1 ],
  [ 'reprocess-unbound', 1 ];
my ($kills, $left_over) = (0, 0);

# The broker notices the end of a killed run's connection a little later.
sub start_when_free
{
	my (%opt) = @_;
	my $run;
	wait_until(sub {
		$run = start(%opt);
		wait_until(sub { !$run->running || $run->log_text =~ /broker ready/ });
		return ($run->running || ($run->wait_exit // 0) ne BUSY);
	}) or die "the lock stays\n";
	return $run;
}

for my $kill (1 .. KILLS)
{
	my $point = shift @points;
	my $before = $broker->count(DLQ);
	my $run = start_when_free(
		args => [ ($point // '') =~ /unbound/ ? ('--limit', 5) : () ],
		env => { $point ? (ACME_OUTBOX_CRASH_AT => $point) : () });
	if (!$point)
	{
		my $some = 1 + int rand 50;
		wait_until(sub { !$run->running || $broker->count(DLQ) < $before - $some });
		$run->kill9 if $run->running;
	}
	my $end = $run->wait_exit(30);
	$kills++ if $end eq 'signal 9';
	diag "kill $kill at " . ($point // 'random') . ": $end", $run->log_text if $end ne 'signal 9';
	$left_over++ if topology() =~ /^exchange \Q@{[TEMPORARY_EXCHANGE]}\E$/m;
}
is($kills, KILLS, 'killed: the stress happened: killed ' . KILLS . ' times');
cmp_ok($left_over, '>=', 1, "killed: the stress happened: the exchange was left over $left_over times");
cmp_ok($broker->count(DLQ), '>', 100, 'killed: the stress happened: it was killed amidst its work');
my $last = start_when_free();
is($last->wait_exit(60), 0, 'killed: the last run ends well');
like($last->log_text, qr/using the exchange that a run left/, 'killed: the last run finds the exchange');
# what the broker gave back late
reprocess('killed: once more', 0);
is($broker->count(DLQ), 0, 'killed: the dead-letter queue is empty');
my @messages = $broker->drain(QUEUE, count => $broker->count(QUEUE));
is(distinct(@messages), LETTERS, 'killed: none is lost');
cmp_ok(duplicates(@messages), '<=', KILLS, 'killed: at most one duplicate a kill (' . duplicates(@messages) . ')');
cmp_ok(duplicates(@messages), '>=', 1, 'killed: the stress happened: there are duplicates');
is(scalar(grep { exists headers_of($_)->{'x-death'} } @messages), 0, 'killed: no x-death is left');
nothing_left_ok('killed');

# ---- which, how many, by which key ----

# Four that died, one that a consumer of ours buried, one from nowhere.
sub some_letters
{
	publish($_->[0], $_->[2], message_id => $_->[2], type => $_->[1], app_id => $_->[3],
		headers => { tenant => $_->[4], nested => { tenant => 'x' } })
	  for [ 'sale.created', 'SaleCreated', 'a', 'trading', 7 ], [ 'sale.closed', 'SaleClosed', 'b', 'trading', 7 ],
	  [ 'sale.created', 'SaleCreated', 'c', 'shop', 8 ], [ 'sale.opened', 'SaleOpened', 'd', 'trading', 8 ];
	die_all(4);
	$broker->api('POST', "exchanges/$vhost/trading.dlx/publish",
		{ routing_key => 'dead-letter', payload => $_->[0], payload_encoding => 'string',
			properties => { message_id => $_->[0], headers => $_->[1] } })
	  for [ 'e', { 'x-original-routing-key' => 'stock.moved', 'x-error-service' => 'trading', 'x-error-sqlstate' => '23505',
			'x-error-message' => 'duplicate key' } ], [ 'f', {} ];
	return wait_until(sub { $broker->count(DLQ) == 6 }) || die "there are not six\n";
}

sub ids { return join ' ', map { $_->{message_id} } @_; }

sub queued
{
	my ($queue) = @_;
	my $count = $broker->count($queue // QUEUE);
	return $count ? $broker->drain($queue // QUEUE, count => $count) : ();
}

sub peeked
{
	my ($count) = @_;
	return map { decode_json($_) } split /\n/,
	  $broker->probe('drain', '--queue', DLQ, '--count', $count, '--keep');
}

sub contents { return join "\n", topology(), map { "$_->{message_id} $_->{body}" } @_; }

some_letters();
my $before = contents(peeked(6));
$text = reprocess('dry run', 0, '--dry-run');
like($text, qr/^EVENT ID +EVENT NAME +ORIGINAL KEY +DIED +REASON$/m, 'dry run: a heading');
like($text, qr/^a +SaleCreated +sale\.created +20\d\d-\d\d-\d\dT[\d:]+Z +rejected in trading\.sales$/m,
	'dry run: the broker\'s words');
like($text, qr/^e +- +stock\.moved +- +23505 duplicate key$/m, 'dry run: a consumer\'s words');
like($text, qr/^would republish 6 of 6 messages.*^left in "trading.dlq": 6\n.*x-delivery-count/ms,
	'dry run: the summary, and what it did change');
$text = reprocess('dry run of some', 0, '--dry-run', '--match', 'event-name=SaleCreated');
like($text, qr/^would republish 2 of 6 .*; 4 not matched$/ms, 'dry run of some: the summary');
my @after = peeked(6);
is(contents(@after), $before, 'dry run: messages and topology are as before');
is(scalar(grep { !$_->{redelivered} } @after), 0, 'dry run: they are marked as redelivered, as it says');
is($broker->count(QUEUE), 0, 'dry run: nothing is put back');

$text = reprocess('matched', 0, '--match', 'event-name=SaleCreated', '--match', 'event-name=SaleOpened',
	'--match', 'header:tenant=8');
like($text, qr/^republished 2 of 6 .*^left in "trading.dlq": 4; 4 not matched$/ms, 'matched: the summary');
is(ids(queued()), 'c d', 'matched: one of the names, and the tenant');
is(ids(peeked(4)), 'a b e f', 'matched: the others are left in their order');
reprocess('by sqlstate', 0, '--match', 'sqlstate=23505', '--match', 'service=trading');
is(ids(queued()), 'e', 'by sqlstate: a consumer\'s failure');
reprocess('by key', 0, '--match', 'routing-key=sale.closed', '--match', 'origin=trading', '--match', 'queue=trading.sales');
is(ids(queued()), 'b', 'by key: the original one');
reprocess('by id', 0, '--match', 'event-id=nobody');
is(ids(queued()), '', 'by id: nobody');
is(ids(queued(DLQ)), 'a f', 'by id: the others are there still');

some_letters();
$text = reprocess('limit', 0, '--limit', 4);
like($text, qr/^republished 4 of 6 .*^left in "trading.dlq": 2$/ms, 'limit: the summary');
is(ids(queued()), 'a b c d', 'limit: the oldest');
is(ids(queued(DLQ)), 'e f', 'limit: the others are left');

some_letters();
$text = reprocess('original key', TEMPORARY, '--original-key');
like($text, qr/^republished 5 of 6 .*^left in "trading.dlq": 1; 1 without an original key$/ms, 'original key: the summary');
like($text, qr/^stopped: 1 messages tell no original key\n +-> run it again without --original-key/m, 'original key: what to do');
@messages = queued();
is(ids(@messages), 'a b c d e', 'original key: all that tell one');
is(join(' ', map { $_->{routing_key} } @messages), 'sale.created sale.closed sale.created sale.opened stock.moved',
	'original key: each has its own');
is(scalar(grep { exists headers_of($_)->{BCC} } @messages), 0, 'original key: no header is left that helped');
is(ids(queued(DLQ)), 'f', 'original key: the other is left');
nothing_left_ok('original key');

# One with headers that are nested deeper than is read, and others behind it.
my $nested = {};
$nested = { a => $nested } for 1 .. 40;
publish('sale.created', '"before"', message_id => 'before');
publish('sale.created', '"nested"', message_id => 'nested', headers => $nested);
publish('sale.created', '"behind"', message_id => 'behind');
die_all(3);
$text = reprocess('nested', TEMPORARY);
like($text, qr/^republished 2 of 3 .*^left in "trading.dlq": 1; 1 with headers that cannot be read$/ms, 'nested: the summary');
like($text, qr/^stopped: 1 messages have headers that are malformed or nested too deep\n +-> take them out/m, 'nested: what to do');
is(ids(queued()), 'before behind', 'nested: those behind it are put back');
is(ids(queued(DLQ)), 'nested', 'nested: it is left');
nothing_left_ok('nested');

# Headers of every type, and a body of many frames, come back this way too.
$broker->probe('publish', '--exchange', 'acme.sales', '--key', 'sale.created', '--message-id',
	'typed', '--typed');
my $large = join ' ', 1 .. 90_000;
publish('sale.created', $large, message_id => 'large');
die_all(2);
reprocess('typed and large', 0, '--original-key');
%back = map { $_->{message_id} => $_ } queued();
delete $back{typed}{$_->[0]}{$_->[1]}
  for map { [ 'headers', $_ ], [ 'kinds', $_ ] } qw(x-original-routing-key x-original-exchange);
is_deeply([ @{ $back{typed} }{qw(headers kinds)} ], [ @$typed{qw(headers kinds)} ], 'typed: every type of header');
cmp_ok(length $large, '>', 4 * 131072, 'large: the stress happened: it has several frames');
ok($back{large}{body} eq $large, 'large: byte for byte');

# It dies again and again: the first key is not forgotten.
publish('sale.created', 'again', message_id => 'again');
die_all(1);
for my $death (2 .. 3)
{
	reprocess("death $death", 0);
	die_all(1);
}
reprocess('third death', 0, '--original-key');
my ($again) = queued();
is_deeply([ $again->{routing_key}, $again->{headers}{'x-original-exchange'} ], [ 'sale.created', 'acme.sales' ],
	'third death: the first key and exchange');

# ---- what happens on the way ----

# A run held in the middle of its work: of ten letters, the fifth copy is confirmed.
sub held
{
	my (%opt) = @_;
	dead_letters(10);
	my $run = start(env => { ACME_OUTBOX_STOP_AT => 'copy-confirmed:5' }, %opt);
	$run->wait_for_log('stop point copy-confirmed hit') or die "the run is not held\n";
	return $run;
}

sub ended_ok
{
	my ($what, $run, $status, $reason, $in_queue, $in_dlq) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($run->wait_exit(60), $status, "$what: exit status $status") or diag $run->log_text;
	($in_queue, $in_dlq) = $run->stdout_text =~ /^republished (\d+) .*^left in "trading.dlq": (\d+)/ms
	  unless defined $in_queue;
	like($run->stdout_text, $reason, "$what: it says why, and what to do");
	wait_until(sub { $broker->count(QUEUE) == $in_queue && $broker->count(DLQ) == $in_dlq }, 5);
	my @in_queue = queued();
	my @in_dlq = queued(DLQ);
	is(@in_queue . ' ' . @in_dlq, "$in_queue $in_dlq", "$what: messages put back, and left");
	is(distinct(@in_queue, @in_dlq), 10, "$what: none is lost");
	nothing_left_ok($what);
	return;
}

# "check" says beforehand whether it would work, and changes nothing.
sub check
{
	my ($what, $status, %opt) = @_;
	my $run = AcmeOutbox::Bridge->start(undef, $broker, command => 'check', origin => '',
		uri => $broker->uri(user => "trading-$$", password => 'trading-secret'),
		args => [ '--dlq', $opt{dlq} // DLQ, '--queue', $opt{queue} // QUEUE ]);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($run->wait_exit(30), $status, "check, $what: exit status $status") or diag $run->stdout_text;
	return $run->stdout_text;
}

dead_letters(2);
$before = contents(peeked(2));
$text = check('all well', 0);
like($text, qr/^OK +dlq +"trading.dlq" exists, 2 messages are ready$/m, 'check, all well: the letters are counted');
like($text, qr/^OK +$_ /m, "check, all well: $_") for qw(settings broker login queue run rights);
like($text, qr/^SKIP +$_ /m, "check, all well: says that it did not look at: $_") for qw(database rights chain);
@after = peeked(2);
is(contents(@after), $before, 'check, all well: nothing is changed');
$text = check('missing', CHECK_FAILED, dlq => 'trading.nothing', queue => 'trading.nowhere');
like($text, qr/^FAIL +dlq +"trading.nothing" does not exist\n +-> .*^SKIP +rights/ms, 'check, missing: it says so');
like($text, qr/^FAIL +queue +"trading.nowhere" does not exist$/m, 'check, missing: the queue too');
$broker->declare_queue('foreign');
$text = check('no rights', CHECK_FAILED, queue => 'foreign');
my @refused = $text =~ /^FAIL +rights +ACCESS_REFUSED/mg;
is(scalar @refused, 4, 'check, no rights: each is told');
$broker->delete_queue('foreign');
nothing_left_ok('check, no rights');
$broker->api('PUT', "exchanges/$vhost/" . TEMPORARY_EXCHANGE, { type => 'direct', durable => \0 });
like(check('left over', 0), qr/^WARN +run +exchange "trading.sales.reprocess" was left by a run/m, 'check, left over: it says so');
reprocess('left over', 0);
nothing_left_ok('left over');
is(ids(queued()), 'event-1 event-2', 'left over: put back');

my $held = held();
my $began = time();
like(check('at work', 0), qr/^WARN +run +a reprocessing of this queue is at work$/m, 'check, at work: it says so');
$text = reprocess('a second run', BUSY);
like($text, qr/^stopped: another run is at work on queue "trading.sales"\n +-> /m, 'a second run: it says so');
is($broker->count(QUEUE), 5, 'a second run: it does nothing');
like(topology(), qr/^exchange trading.sales.reprocess$/m, 'a second run: it removes nothing');
like(topology(), qr/^queue trading.sales.reprocess.lock$/m, 'a second run: there is the lock');
wait_until(sub { time() > $began + 1.1 });
$held->signal('CONT');
ended_ok('the first run', $held, 0, qr/^republished 10 of 10/m, 10, 0);
like($held->stdout_text, qr/^[56] republished, \d+\/s, [56] of 10 looked at, \d+ s$/m, 'the first run: it tells its progress');

# One that fails again at once is not met again in the same run.
$held = held();
$broker->probe('drain', '--queue', QUEUE, '--count', 5, '--reject');
# four were there, one more is fetched
ok(wait_until(sub { $broker->count(DLQ) == 9 }), 'failing again: the stress happened: five died again');
$held->signal('CONT');
ended_ok('failing again', $held, 0, qr/^republished 10 of 10 .*^left in "trading.dlq": 5$/ms, 5, 5);

$held = held();
$held->signal('TERM');
$held->signal('CONT');
ended_ok('stopped', $held, TEMPORARY, qr/^republished [56] of 10.*^stopped: stopped by a signal\n +-> run it again/ms);

$held = held();
$broker->unbind(QUEUE, TEMPORARY_EXCHANGE, 'reprocess');
$held->signal('CONT');
ended_ok('unbound', $held, TEMPORARY, qr/^republished 5 of 10.*^stopped: the broker returned a message: .*\n +-> see that/ms, 5, 5);

$held = held();
$broker->delete_exchange(TEMPORARY_EXCHANGE);
$held->signal('CONT');
ended_ok('no exchange', $held, TEMPORARY, qr/^republished 5 of 10.*^stopped: the broker refused .*NOT_FOUND.*\n +-> /ms, 5, 5);

# The acknowledgement of the fifth is lost: that one is in both queues.
$held = held();
ok(wait_until(sub { $broker->close_connections("trading-$$") }), 'disconnected: the stress happened');
$held->signal('CONT');
ended_ok('disconnected', $held, TEMPORARY, qr/^stopped: the connection was lost: .*\n +-> run it again/m, 5, 6);

# A queue that is full refuses; others of its letters stay too.
$broker->delete_queue(QUEUE);
declare_work(QUEUE, 'x-max-length' => 10, 'x-overflow' => 'reject-publish');
dead_letters(10);
$broker->probe('publish', '--exchange', 'acme.sales', '--key', 'x', '--message-id', 'new', '--numbered', '--count', 7);
my $full = start();
is($full->wait_exit(30), TEMPORARY, 'full: exit status 75');
like($full->stdout_text, qr/^republished \d of 10.*^stopped: queue "trading.sales" refused a message.*\n +-> is it full/ms, 'full: it says so');
@messages = (queued(), queued(DLQ));
is(scalar @messages, 17, 'full: neither lost nor twice');
is(distinct(@messages), 17, 'full: all are there');
nothing_left_ok('full');

# ---- what is refused at once ----

like(reprocess('no queue', NO_QUEUE, '--queue', 'trading.nothing'),
	qr/^stopped: queue "trading.nothing" does not exist in virtual host "\Q$vhost\E"\n +-> /m, 'no queue: it says so');
like(reprocess('no DLQ', NO_QUEUE, '--dlq', 'trading.nothing'),
	qr/^stopped: dead-letter queue "trading.nothing" does not exist/m, 'no DLQ: it says so');
$broker->declare_queue('foreign');
like(reprocess('a foreign queue', REFUSED, '--queue', 'foreign'),
	qr/^stopped: the broker refused to make the lock: ACCESS_REFUSED.*\n +-> the user needs configure, write and read/m,
	'a foreign queue: it says which rights are missing');
$broker->delete_queue('foreign');
my $nobody = start(uri => $broker->uri(user => "trading-$$", password => 'wrong'));
is($nobody->wait_exit(30), REFUSED, 'wrong password: exit status 74');
like($nobody->stdout_text, qr/^stopped: the broker refused the login: .*\n +-> check the user/m, 'wrong password: it says so');
my $nowhere = start(uri => 'amqp://a:b@127.0.0.1:1/x');
is($nowhere->wait_exit(30), TEMPORARY, 'no broker: exit status 75');
like($nowhere->stdout_text, qr/^stopped: the broker is not reachable: .*\n +-> check host/m, 'no broker: it says so');
like(reprocess('the same queue', USAGE, '--queue', DLQ), qr/name the same queue/, 'the same queue: it says so');
like(reprocess('a bad match', USAGE, '--match', 'body=x'), qr/there is no field "body"; there are event-name,/, 'a bad match: it says so');
nothing_left_ok('refused');

done_testing();
