# A committed event arrives once, with the right bytes, properties and headers;
# one that was rolled back, wholly or to a savepoint, never arrives.
use strict;
use warnings;

use AcmeOutbox::Bridge;
use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use JSON::PP qw(decode_json);
use PostgreSQL::Test::Utils;
use Test::More;

my $node = AcmeOutbox::Cluster->create('main');
my $broker = AcmeOutbox::Broker->new->standard_topology;

$node->sql(<<'SQL');
CREATE TABLE orders (id integer PRIMARY KEY, total numeric);

BEGIN;
INSERT INTO orders VALUES (1, 12.50);
SELECT acme_outbox.publish('events', 'order.placed', 'order-1', 'OrderPlaced',
	'{"orderId": 1,   "total": 12.50, "note": "büro ☕"}'::text,
	trace_id => '0af7651916cd43dd8448eb211c80319c',
	traceparent => '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01',
	schema_version => '2.1.0', locale => 'de-DE', tenant_id => 'acme',
	headers => '{"priority": 5, "express": true, "tags": ["a", "b"], "ref": "x"}',
	event_id => '01890a5d-ac96-774b-bcce-b302099a8057');
COMMIT;

BEGIN;
INSERT INTO orders VALUES (2, 1);
SELECT acme_outbox.publish('events', 'order.placed', 'order-2', 'OrderPlaced', '{}'::text);
ROLLBACK;

BEGIN;
INSERT INTO orders VALUES (3, 1);
SAVEPOINT s;
SELECT acme_outbox.publish('events', 'order.placed', 'gone', 'OrderPlaced', '{}'::text);
ROLLBACK TO s;
SELECT acme_outbox.publish('events', 'order.cancelled', 'order-3', 'trading.order.cancelled',
	'{"orderId": 3}'::jsonb);
COMMIT;
SQL

my $bridge = AcmeOutbox::Bridge->start($node, $broker);
$node->wait_drained or die "not drained\n";

# One at a time, through a waiting relay: the wake-up path.
$node->sql(<<'SQL');
BEGIN;
INSERT INTO orders VALUES (4, 1);
SELECT acme_outbox.publish('events', 'order.placed', 'order-4', 'OrderPlaced', '{}'::json);
COMMIT;
SQL
$node->wait_drained or die "not drained\n";

my @messages = $broker->drain;
is(scalar @messages, 3, 'three committed events, three messages');
my ($first, $second, $third) = @messages;

is($first->{message_id}, '01890a5d-ac96-774b-bcce-b302099a8057', 'message id is the event id');
is($first->{exchange}, 'events', 'exchange is the topic');
is($first->{routing_key}, 'order.placed', 'routing key');
is($first->{type}, 'OrderPlaced', 'type is the event name');
is($first->{app_id}, 'shop', 'app id is the origin');
is($first->{content_type}, 'application/json', 'content type');
is($first->{content_encoding}, 'UTF-8', 'content encoding');
is($first->{delivery_mode}, 2, 'persistent');
is($first->{timestamp},
	$node->sql("SELECT floor(extract(epoch FROM created_at)) FROM acme_outbox.outbox_entry WHERE message_key = 'order-1'"),
	'timestamp is the time of the event')
  or diag 'rounded?';
is($first->{headers}{traceparent}, '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01',
	'trace context');
is($first->{headers}{priority}, 5, 'integer header');
ok($first->{headers}{express}, 'boolean header');
is_deeply($first->{headers}{tags}, [ 'a', 'b' ], 'array header');
is($first->{headers}{ref}, 'x', 'text header');

my $body = $first->{body};
is($body,
	decode_json($node->sql(<<'SQL'))->[0], 'the body is the stored envelope, byte for byte');
SELECT json_build_array(payload) FROM acme_outbox.outbox_entry WHERE message_key = 'order-1'
SQL
like($body, qr/"payload":\{"orderId": 1,   "total": 12.50, "note": "b\x{fc}ro \x{2615}"\}/,
	'a text payload keeps its bytes');
my $envelope = JSON::PP->new->decode($body);
is($envelope->{header}{eventId}, $first->{message_id}, 'envelope: event id');
is($envelope->{header}{traceId}, '0af7651916cd43dd8448eb211c80319c', 'envelope: trace id');
is($envelope->{header}{schemaVersion}, '2.1.0', 'envelope: schema version');
is($envelope->{header}{origin}, 'shop', 'envelope: origin');
is($envelope->{header}{locale}, 'de-DE', 'envelope: locale');
like($envelope->{header}{timestamp}, qr/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$/,
	'envelope: timestamp');
is($envelope->{body}{aggregate}, 'order-1', 'envelope: aggregate');
is($envelope->{body}{eventName}, 'OrderPlaced', 'envelope: event name');
is($envelope->{body}{eventType}, 'EVENT', 'envelope: event type');

is($second->{type}, 'trading.order.cancelled', 'the event after a savepoint rollback arrived');
is($second->{routing_key}, 'order.cancelled', 'with its routing key');
is(JSON::PP->new->decode($third->{body})->{body}{aggregate}, 'order-4',
	'the event published while the relay waited arrived');

is($node->in_status('PUBLISHED'), 3, 'all entries are PUBLISHED');
is($node->sql('SELECT count(*) FROM acme_outbox.outbox_entry WHERE attempts > 0'), 0,
	'no attempt was charged');
is($node->sql('SELECT count(*) FROM acme_outbox.outbox_claim'), 0, 'no claim is left open');
$node->verify_ok('after delivery');

is($bridge->stop, 0, 'the relay stops cleanly');
unlike($bridge->log_text, qr/orderId|b\xc3\xbcro/, 'its log has no payload');

done_testing();
