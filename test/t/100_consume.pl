# A queue's messages become changes, each once: what the handler is told, which
# messages are parked, retried and given up, what a dead letter carries, and bodies
# of every kind: none, no text, with NUL, no JSON, of several MiB.
use strict;
use warnings;

use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use AcmeOutbox::Consumer;
use JSON::PP qw(decode_json);
use PostgreSQL::Test::Utils;
use Test::More;

my $node = AcmeOutbox::Cluster->create('main');
my $broker = AcmeOutbox::Broker->new->standard_topology;
my $consumer = AcmeOutbox::Consumer->new($node, $broker);

# From publish to the handler, through relay and exchange.

$broker->bind('work', 'events', 'order.*');
$node->publish(300);
my $relay = AcmeOutbox::Bridge->start($node, $broker);
my $eater = $consumer->start('--dead-letter-exchange', 'dlx');
ok($node->wait_sql('SELECT count(*) = 300 FROM done'), 'every published event was handled');
is($node->sql('SELECT count(DISTINCT event_id) FROM done'), 300, 'each once');
is( $node->sql("SELECT count(*) FROM done WHERE message ->> 'routing_key' = 'order.placed' AND message ->> 'exchange' = 'events' AND message ->> 'queue' = 'work' AND message ->> 'attempt' = '1' AND message ->> 'redelivered' = 'false' AND message ->> 'consumer' = 'eat' AND message -> 'headers' ? 'traceparent'"),
	300, 'the handler was told what the transport knew');
is($relay->stop, 0, 'the relay stops');

# The same event again; one that is parked; one that fails at first.

$broker->fill('work', envelope('a'), envelope('a'), envelope('p', 'park'),
	envelope('f', 'fail until', until => 3));
ok($consumer->wait_once('a', 'f', 'p'), 'a duplicate, a parked and a retried one make one change each');
is($node->sql("SELECT event_id, reason FROM acme_outbox.parked_open"), 'p|INVALID_STATE', 'one is parked');
is($node->sql("SELECT attempts FROM acme_outbox.consumer_attempt WHERE event_id = 'f'"),
	2, 'two failures were counted');
is(scalar(() = $eater->log_text =~ /msg="the handler failed, the message is tried again" .*routing_key=work sqlstate=P0001 attempts=1 more=0/g),
	1, 'the first is logged, with its SQLSTATE');
unlike($eater->log_text, qr/attempts=2 more/, 'and the second is not');

# Headers of every kind.

ok( $broker->post('amq.default', 'work', envelope('h'),
		headers => { text => "a\"\\\n\x{e9}", number => 7, float => 1.5, yes => \1,
			list => [ 1, { x => 'y' } ] }),
	'a message with headers');
ok($node->wait_sql("SELECT count(*) = 1 FROM done WHERE event_id = 'h'"), 'was handled');
is_deeply(decode_json($node->sql("SELECT message -> 'headers' FROM done WHERE event_id = 'h'")),
	{ text => "a\"\\\n\x{e9}", number => 7, float => 1.5, yes => JSON::PP::true,
		list => [ 1, { x => 'y' } ] }, 'and its headers arrived as JSON');

# What is no envelope is given up at once; its bytes and properties stay.

my %odd = (
	empty     => '',
	text      => 'no JSON',
	nul       => "{\"header\": {\"eventId\": \"n\0\"}}",
	latin     => "{\"header\": {\"eventId\": \"\xe9\"}}",
	escape    => '{"header": {"eventId": "\u0000"}}',
	'no id'   => '{"header": {}, "body": {}}',
	'long id' => envelope('x' x 256),
	array     => '[1, 2]',
	deep      => ('[' x 20_000) . (']' x 20_000));
$broker->post('amq.default', 'work', $odd{$_}, message_id => $_, expiration => '3600000') for sort keys %odd;
$broker->fill('work', envelope('after'));
ok($node->wait_sql("SELECT count(*) = 1 FROM done WHERE event_id = 'after'"), 'what follows is handled');
ok($broker->wait_count('dead', scalar keys %odd), 'the others are dead letters');
my %dead = map { $_->{message_id} => $_ } $broker->take('dead', scalar keys %odd);
is(join(' ', sort keys %dead), join(' ', sort keys %odd), 'all of them');
is(scalar(grep { $dead{$_}{body} ne $odd{$_} } keys %odd), 0, 'their bytes are the same');
is(scalar(grep { $_->{headers}{'x-error-sqlstate'} ne 'OX203' || $_->{headers}{'x-error-attempts'} != 0 } values %dead),
	0, 'not one was tried');
is(scalar(grep { ($_->{delivery_mode} // 0) != 2 } values %dead), 0, 'they are persistent');

# Headers that are nested deeper than is read: any publisher can send them.

my $nested = {};
$nested = { a => $nested } for 1 .. 40;
$broker->post('amq.default', 'work', envelope('nested'), headers => $nested);
$broker->fill('work', envelope('after nested'));
ok($node->wait_sql("SELECT count(*) = 1 FROM done WHERE event_id = 'after nested'"), 'headers nested too deep hold up nobody');
my ($nested_letter) = $broker->drain('dead', count => 1, timeout => 30);
is("$nested_letter->{body} $nested_letter->{headers}{'x-error-sqlstate'} $nested_letter->{headers}{'x-original-routing-key'}",
	envelope('nested') . ' OX203 work', 'they are a dead letter with the body');

# One that fails for good: what its dead letter says, and what nobody may see.

$broker->post('events', 'order.bad', envelope('bad', 'fail', secret => 'hunter2'),
	message_id => 'bad', timestamp => 1_700_000_000, user_id => 'guest', type => 'ThingDone', headers => { mine => 'stays', 'x-error-message' => 'old', CC => ['elsewhere'] });
my ($letter) = $broker->drain('dead', count => 1, timeout => 30);
my $headers = $letter->{headers};
is($letter->{body}, envelope('bad', 'fail', secret => 'hunter2'), 'a dead letter has the original body');
is("$letter->{routing_key} $letter->{exchange} $letter->{type}", 'dead-letter dlx ThingDone', 'its key, exchange and properties');
is("$headers->{'x-original-exchange'} $headers->{'x-original-routing-key'} $headers->{mine}", 'events order.bad stays', 'where it came from');
is("$headers->{'x-error-service'} $headers->{'x-error-sqlstate'} $headers->{'x-error-attempts'} $headers->{'x-error-original-time'}",
	'eat P0123 5 1700000000', 'who gave it up, and why');
is($headers->{'x-error-message'}, 'no, not hunter2', 'the error message');
like($headers->{'x-error-context'}, qr/^PL\/pgSQL function .*handle\(jsonb\) line/, 'and its context');
ok(!exists $headers->{CC}, 'but no further addresses');
unlike($letter->{body} . join(' ', values %$headers), qr/detail of/, 'no DETAIL');
is($node->sql("SELECT attempts FROM acme_outbox.consumer_attempt WHERE event_id = 'bad'"), 5, 'its attempts are in the inbox');
unlike($eater->log_text, qr/hunter2/, 'and nothing of the payload in the log');

$broker->fill('work', envelope('warns', 'warn', secret => 'hunter2'));
ok($node->wait_sql("SELECT count(*) = 1 FROM done WHERE event_id = 'warns'"), 'a handler that warns has done its work');

# An event with a redaction rule: SQLSTATE and function alone.

$node->sql(q{SELECT acme_outbox.redact_event('ThingDone', 'payload.secret')});
$broker->fill('work', envelope('ruled', 'fail', secret => 'hunter2'));
($letter) = $broker->drain('dead', count => 1, timeout => 30);
is($letter->{headers}{'x-error-sqlstate'} . ' ' . $letter->{headers}{'x-error-context'}, 'P0123 public.handle',
	'a ruled event: SQLSTATE and function');
ok(!exists $letter->{headers}{'x-error-message'}, 'and no message');
$node->sql(q{SELECT acme_outbox.unredact_event('ThingDone', 'payload.secret')});

# Large ones, spread over many frames, and headers that leave no room for ours.

my $large = envelope('large', undef, text => 'x' x (16 * 1024 * 1024));
$broker->fill('work', $large, envelope('after large'));
ok($node->wait_sql("SELECT count(*) = 2 FROM done WHERE event_id IN ('large', 'after large')"), 'a message of 16 MiB is handled');
$broker->post('amq.default', 'work', envelope('wide', 'fail', secret => 'e' x 900), headers => { filler => 'f' x 129_000 });
($letter) = $broker->drain('dead', count => 1, timeout => 30);
is($letter->{headers}{'x-error-sqlstate'}, 'P0123', 'headers that fill a frame: the error is there');
is($letter->{body}, envelope('wide', 'fail', secret => 'e' x 900), 'and the body');

# In the end.

$consumer->stop_empty($eater, 'in the end');
unlike($eater->log_text, qr/hunter2/, 'nothing that a handler raised or warned of is in the log');
like($eater->log_text, qr/msg="consumer stopped" applied=\d+ duplicate=1 parked=1 /, 'and says what it did');

# Without an exchange of ours: the queue's own.

$broker->delete_queue('work');
$broker->declare_queue('work', 'x-queue-type' => 'quorum', 'x-dead-letter-exchange' => 'dlx', 'x-dead-letter-routing-key' => 'dead-letter');
$broker->fill('work', map { envelope("own $_", $_ % 3 == 0 ? 'fail' : undef, secret => 's') } 1 .. 9);
my $once = $consumer->start('--once', '--max-attempts', 2);
is($once->wait_exit, 0, '--once handles what is there and exits');
is($broker->count('work'), 0, 'the queue is empty');
my @own = $broker->drain('dead', count => 3, timeout => 30);
is(join(' ', sort map { decode_json($_->{body})->{header}{eventId} } @own), 'own 3 own 6 own 9', 'what failed was refused');
is($own[0]{headers}{'x-death'}[0]{reason}, 'rejected', 'so that the queue dead-letters it');
is($consumer->not_once(map { "own $_" } 1, 2, 4, 5, 7, 8), '', 'the others are done');

# --once ends where nobody mends what is wrong.

$broker->fill('work', envelope('nobody', 'fail', secret => 's'));
$once = $consumer->start('--once', '--max-attempts', 1, '--dead-letter-exchange', 'nowhere');
is($once->wait_exit(30), 75, '--once: dead letters that nobody takes');
like($once->log_text, qr/--once cannot go on" reason="dead letters are not taken"/, 'are the reason it gives');
is($broker->count('work'), 1, 'and stay in the queue');
$broker->delete_queue('work');
$broker->declare_queue('work', 'x-queue-type' => 'quorum');
$broker->fill('work', envelope('locked', 'deadlock'));
$once = $consumer->start('--once', '--connect-timeout', '1s');
is($once->wait_exit(30), 75, '--once: a batch that always meets a deadlock');
like($once->log_text, qr/--once cannot go on" reason="the database takes no batch"/, 'is the reason it gives');
is($broker->count('work'), 1, 'and its message stays in the queue');

$node->stop;
done_testing();
