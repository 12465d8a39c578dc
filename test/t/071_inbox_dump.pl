# A dump takes inboxes, what they remember, parked messages and handlers along.
use strict;
use warnings;

use AcmeOutbox::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = AcmeOutbox::Cluster->create('main');
my $env = q{'{"header":{"eventId":"e1"},"body":{"eventName":"OrderPlaced"}}'};

$node->sql(<<"SQL");
CREATE ROLE app LOGIN;
CREATE ROLE service;
CREATE SCHEMA svc AUTHORIZATION service;
SELECT acme_outbox.create_inbox('svc', 'required');
SELECT acme_outbox.grant_consumer('app', 'svc');
CREATE TABLE svc.change (id text);
GRANT INSERT ON svc.change TO app;
CREATE FUNCTION svc.handle(message jsonb) RETURNS void LANGUAGE sql AS
\$\$ INSERT INTO svc.change VALUES (message -> 'header' ->> 'eventId') \$\$;
SELECT acme_outbox.register_handler('c', 'svc.handle', 'app', 'svc');
SELECT acme_outbox.park_message('c', $env, 'INVALID_STATE');
SELECT acme_outbox.inbox_accept('c', 'e2');
SET acme_outbox.inbox_schema = 'svc';
BEGIN;
SELECT acme_outbox.context('tenant-a');
SELECT acme_outbox.park_message('c', $env, 'INVALID_STATE');
COMMIT;
SQL
$node->safe_psql('postgres', 'CREATE DATABASE copy TEMPLATE template0');
my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump';
$node->command_ok([ 'pg_dump', '-Fc', '-f', $dump, '-d', $node->connstr('postgres') ], 'dumped');
$node->command_ok([ 'pg_restore', '-e', '-d', $node->connstr('copy'), $dump ], 'restored');

my $same = <<'SQL';
SELECT schema, tenancy, owner FROM acme_outbox.inbox ORDER BY 1;
SELECT schema, consumer, handler, role_name FROM acme_outbox.inbox_handler;
SELECT role_name, schema FROM acme_outbox.consumer_grant;
SELECT inbox, id, tenant_id, event_id FROM acme_outbox.parked_open ORDER BY 1;
SELECT consumer, event_id FROM acme_outbox.processed_event ORDER BY 2;
SELECT consumer, event_id FROM svc.processed_event;
SQL
is($node->safe_psql('copy', $same), $node->sql($same), 'the copy has the same');
$node->safe_psql('copy', q{SELECT acme_outbox.create_inbox('svc', 'required')});
is( $node->safe_psql('copy',
		q{SELECT acme_outbox.replay_parked(inbox, id) FROM acme_outbox.parked_open WHERE inbox = 'svc'}),
	'applied', 'its parked message can be replayed');
is($node->safe_psql('copy', 'SELECT id FROM svc.change'), 'e1', 'as the registered role');
isnt(
	$node->psql('copy',
		"SET acme_outbox.inbox_schema = 'svc'; SET ROLE app; SELECT acme_outbox.park_message('c', $env, 'INVALID_STATE')"),
	0, 'the policy holds in the copy');

$node->stop;
done_testing();
