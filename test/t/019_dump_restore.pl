# A dump carries the events and the sequence, not the relay's position. The copy
# stays silent until it is adopted, and then sends exactly what was pending.
use strict;
use warnings;

use AcmeOutbox::Bridge;
use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $source = AcmeOutbox::Cluster->create('source', 'acme_outbox.lease_duration = 1s');
my $broker = AcmeOutbox::Broker->new->standard_topology;

# Some published, some in flight at a relay that died, some pending.
$source->publish(100);
my $bridge = AcmeOutbox::Bridge->start($source, $broker, args => ['--once']);
is($bridge->wait_exit, 0, 'the source has published some');
$source->publish(20, first => 101);
$bridge = AcmeOutbox::Bridge->start($source, $broker,
	env => { ACME_OUTBOX_CRASH_AT => 'claim-committed' });
is($bridge->wait_exit, 'signal 9', 'a relay of the source died');
is($source->in_status('PUBLISHING'), 20, 'with some in flight');
$source->publish(30, first => 121);
$broker->drain;
$source->sql("SELECT acme_outbox.redact_event('UserInvited', 'payload.token')");

my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump';
$source->command_ok([ 'pg_dump', '-Fc', '-f', $dump, 'postgres' ], 'pg_dump');

# Another cluster, with lower transaction ids.
my $copy = AcmeOutbox::Cluster->create_empty('copy');
$copy->sql('CREATE ROLE relay LOGIN');
$copy->sql("ALTER DATABASE postgres SET acme_outbox.origin = 'shop'");
$copy->command_ok([ 'pg_restore', '--exit-on-error', '-d', 'postgres', $dump ], 'pg_restore');

my $counts = 'SELECT status, count(*) FROM acme_outbox.outbox_entry GROUP BY 1 ORDER BY 1';
is($copy->sql($counts), $source->sql($counts), 'the copy has the same events');
is($copy->sql("SELECT acme_outbox.redacted('UserInvited', '{\"body\":{\"payload\":{\"token\":1}}}')"),
	'{"body":{"payload":{}}}', 'and the same redaction rules');
for my $table (qw(outbox_cursor outbox_claim relay_lease outbox_origin))
{
	is($copy->sql("SELECT count(*) FROM acme_outbox.$table"), 0, "$table did not travel");
}

$bridge = AcmeOutbox::Bridge->start($copy, $broker, args => ['--once']);
ok($bridge->wait_for_log('adopt'), 'the relay of the copy refuses, and says adopt()');
if ($bridge->running) { $bridge->stop; }
is($broker->count, 0, 'it sent nothing');

$copy->sql('SELECT acme_outbox.adopt()');
# Privileges are the restored roles' business; the relay's came along.
$bridge = AcmeOutbox::Bridge->start($copy, $broker, args => ['--once']);
is($bridge->wait_exit, 0, 'after adopt() it works') or diag $bridge->log_text;
my @messages = $broker->drain;
my @pending = grep { $_->{id} > 100 } $copy->entries;
is(scalar @messages, 50, 'it sends exactly what was pending');
delivered_ok(\@pending, \@messages, 'the copy');
order_ok(\@pending, \@messages, 'the copy');

$copy->publish(1, first => 1000);
is($copy->sql('SELECT max(id) > 150 FROM acme_outbox.outbox_entry'), 't', 'the sequence goes on');
$bridge = AcmeOutbox::Bridge->start($copy, $broker, args => ['--once']);
is($bridge->wait_exit, 0, 'and new events flow');
is(scalar($broker->drain), 1, 'one of them');
$copy->verify_ok('the copy');
$source->verify_ok('the source');
done_testing();
