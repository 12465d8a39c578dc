# Counters count what committed, and nothing else: not what was rolled back, in whole or to
# a savepoint. They are exact under load, bounded, apart per database, and survive a
# restart where it matters: which version of which event was consumed last.
use strict;
use warnings;

use AcmeOutbox::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = AcmeOutbox::Cluster->create('main', 'acme_outbox.counter_sets = 100');

# The worker's turn comes when the test says so.
$node->sql(q{UPDATE acme_outbox.duty_run SET started_at = 'infinity'});

# A counter's value by its labels; 0 where it was never counted.
sub counted
{
	my ($name, %labels) = @_;
	my $json = '{' . join(', ', map { qq{"$_": "$labels{$_}"} } keys %labels) . '}';
	return $node->sql(<<"SQL");
SELECT coalesce(sum(value), 0) FROM acme_outbox.metrics()
 WHERE name = 'acme_outbox_$name' AND labels @> '$json'
SQL
}

sub publish { return "SELECT acme_outbox.publish('$_[0]', 'k', 'a', 'OrderPlaced', '{}'::text);" }

subtest 'what committed' => sub {
	$node->sql('BEGIN;' . publish('plain') . publish('plain') . 'COMMIT');
	$node->sql('BEGIN;' . publish('plain') . 'ROLLBACK');
	is(counted('published_entries_total', origin => 'shop', topic => 'plain'), 2, 'a rollback takes it back');

	$node->sql('BEGIN;'
		  . publish('nested') . 'SAVEPOINT a;' . publish('nested') . 'SAVEPOINT b;'
		  . publish('nested') . publish('inner') . 'RELEASE b;' . publish('nested')
		  . 'ROLLBACK TO a;' . publish('nested') . 'SAVEPOINT c;' . publish('nested')
		  . publish('inner') . 'RELEASE c; COMMIT');
	is(counted('published_entries_total', topic => 'nested'), 3, 'savepoints: what they kept');
	is(counted('published_entries_total', topic => 'inner'), 1, 'of all topics');

	$node->sql(<<'SQL');
DO $$ BEGIN
	FOR i IN 1 .. 100 LOOP
		BEGIN
			PERFORM acme_outbox.publish('loop', 'k', 'a', 'OrderPlaced', '{}'::text);
			IF i % 4 = 0 THEN RAISE 'no'; END IF;
		EXCEPTION WHEN raise_exception THEN NULL;
		END;
	END LOOP;
END $$
SQL
	is(counted('published_entries_total', topic => 'loop'), 75, 'exception blocks');

	my $once = "SELECT acme_outbox.publish('once', 'k', 'a', 'OrderPlaced', '{}'::text, event_id => '018f0000-0000-7000-8000-000000000001');";
	$node->sql("BEGIN; $once COMMIT") for 1 .. 3;
	is(counted('published_entries_total', topic => 'once'), 1, 'the same event again is none');

	$node->sql('BEGIN;' . publish('prepared') . "PREPARE TRANSACTION 'p'");
	$node->sql("COMMIT PREPARED 'p'");
	is(counted('published_entries_total', topic => 'prepared'), 0, 'a prepared transaction is not counted');
};

subtest 'exact under load' => sub {
	$node->pgbench('--no-vacuum --client=6 --transactions=150', 0, [qr{processed: 900/900}], [qr/^$/],
		'six sessions', { '033_load' => <<'SQL' });
BEGIN;
SELECT acme_outbox.publish('load', 'k', NULL, 'OrderPlaced', '{}'::text);
SAVEPOINT s;
SELECT acme_outbox.publish('load', 'k', NULL, 'OrderPlaced', '{}'::text);
ROLLBACK TO s;
COMMIT;
SQL
	is(counted('published_entries_total', topic => 'load'), 900, 'each commit once');
};

subtest 'settled and stuck' => sub {
	$node->sql('UPDATE acme_outbox.outbox_entry SET status = $$PUBLISHED$$');
	$node->sql('BEGIN;' . publish('broker') x 4 . 'COMMIT');
	$node->sql(<<'SQL');
SET client_min_messages = error;
CREATE TABLE claimed AS SELECT c.*, l.epoch FROM acme_outbox.relay_acquire('shop', 'r') l,
	LATERAL acme_outbox.claim('shop', l.epoch, 100, 1000000) c;
UPDATE acme_outbox.outbox_claim SET claimed_at = claimed_at - interval '1 hour';
SELECT acme_outbox.reap();
SELECT acme_outbox.settle(epoch, claim_id, ARRAY[id],
	ARRAY[(ARRAY['PUBLISHED', 'PUBLISHED', 'REJECTED', 'NACKED'])[n]]::acme_outbox.settle_outcome[],
	ARRAY[NULL]::smallint[], ARRAY[NULL]::text[])
  FROM (SELECT *, row_number() OVER (ORDER BY id) AS n FROM claimed) c;
SQL
	is(counted('relay_stuck_publishing_total', event_type => 'OrderPlaced'), 4, 'stuck, by event type');
	is(counted('settled_entries_total', origin => 'shop', outcome => 'PUBLISHED'), 2, 'published');
	is(counted('settled_entries_total', origin => 'shop', outcome => 'REJECTED'), 1, 'rejected');
	is(counted('settled_entries_total', origin => 'shop', outcome => 'NACKED'), 1, 'nacked');
	is(counted('settled_entries_total'), 4, 'and no others');
};

# An envelope of an event: id, name, version, payload.
sub envelope
{
	my ($id, $name, $version, $payload) = @_;
	return
	  qq('{"header": {"eventId": "$id", "schemaVersion": "$version"}, "body": {"eventName": "$name", "payload": "$payload"}}');
}

subtest 'consumers' => sub {
	$node->sql(<<'SQL');
CREATE SCHEMA app;
CREATE FUNCTION app.handle(m jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM acme_outbox.inbox_accept('lines', (m->'header'->>'eventId') || ':1');
	IF m->'body'->>'payload' = 'park' THEN PERFORM acme_outbox.park('INVALID_STATE', 'sale', '1'); END IF;
	IF m->'body'->>'payload' = 'fail' THEN RAISE 'no'; END IF;
END $$;
SQL
	my @batch = (
		envelope('1', 'Paid', '1.0.0', 'ok'), envelope('1', 'Paid', '1.0.0', 'ok'),
		envelope('2', 'Paid', '2.0.0', 'ok'), envelope('3', 'Paid', '1.0.0', 'park'),
		envelope('4', 'Paid', '1.0.0', 'fail'), envelope('5', 'Sent', '1.0.0', 'ok'),
		"'no envelope'");
	my $batch = 'ARRAY[' . join(',', @batch) . ']::text[]';
	$node->sql("SELECT acme_outbox.inbox_try_process_batch('billing', $batch, 'app.handle')");
	my %of = (consumer => 'billing', event_name => 'Paid', schema_version => '1.0.0');
	is(counted('consumed_messages_total', %of, outcome => 'applied'), 1, 'applied');
	is(counted('consumed_messages_total', %of, outcome => 'duplicate'), 1, 'duplicate');
	is(counted('consumed_messages_total', %of, outcome => 'parked'), 1, 'parked');
	is(counted('consumed_messages_total', %of, outcome => 'failed'), 1, 'failed');
	is(counted('consumed_messages_total', consumer => 'billing', outcome => 'invalid'), 1, 'invalid');
	is(counted('consumed_messages_total', %of, schema_version => '2.0.0'), 1, 'versions apart');
	is(counted('consumed_messages_total', consumer => 'lines'), 0, 'what a handler records is no message');
	is(counted('parked_messages_total', consumer => 'billing', event_type => 'Paid', reason => 'INVALID_STATE'),
		1, 'parked messages');
	is(counted('consumer_redeliveries_total', consumer => 'billing'), 1, 'redeliveries');

	$node->sql("SELECT acme_outbox.inbox_process('billing', $batch[1]::text, 'app.handle')");
	$node->sql("BEGIN; SELECT acme_outbox.inbox_process('billing', "
		  . envelope('6', 'Paid', '1.0.0', 'ok') . "::text, 'app.handle'); ROLLBACK");
	my ($status) = $node->psql('postgres', "SELECT acme_outbox.inbox_process('billing', "
		  . envelope('6', 'Paid', '1.0.0', 'fail') . "::text, 'app.handle')");
	isnt($status, 0, 'a handler that fails');
	is(counted('consumer_redeliveries_total', consumer => 'billing'), 2, 'one more redelivery');
	is(counted('consumed_messages_total', consumer => 'billing'), 8, 'and nothing of what was rolled back');
	$node->sql("SELECT acme_outbox.inbox_accept('bare', 'e'), acme_outbox.inbox_accept('bare', 'e')");
	is(counted('consumed_messages_total', consumer => 'bare', event_name => '', outcome => 'applied'), 1,
		'the guard alone');
	is(counted('consumer_redeliveries_total', consumer => 'bare'), 1, 'and its duplicates');
};

subtest 'requests and projections' => sub {
	$node->sql("SELECT acme_outbox.idempotency_begin('pay', 'k', 'body'::text)") for 1 .. 2;
	$node->sql("SELECT acme_outbox.idempotency_begin('pay', NULL, 'body'::text)");
	is(counted('idempotency_decisions_total', decision => $_), 1, $_) for qw(execute in_flight bypass);
	$node->sql(<<'SQL');
CREATE TABLE app.deals (id int PRIMARY KEY, status text, last_event_at timestamptz);
SELECT acme_outbox.project('app.deals', '{"id": 1}', '{"status": "new"}', t::timestamptz, NULL::text)
  FROM unnest('{2026-01-02,2026-01-01,2026-01-03}'::text[]) t;
SQL
	is(counted('projected_events_total', target => 'app.deals', outcome => 'applied'), 2, 'applied');
	is(counted('projected_events_total', target => 'app.deals', outcome => 'stale'), 1, 'stale');
};

subtest 'retiring a version' => sub {
	my $rows = q{SELECT consumer, event_name, schema_version, handled FROM acme_outbox.consumed_versions ORDER BY 1, 2, 3};
	my $expected = "billing|Paid|1.0.0|5\nbilling|Paid|2.0.0|1\nbilling|Sent|1.0.0|1";
	is($node->sql($rows), $expected, 'what was sent, before anything is stored');
	is($node->sql('BEGIN; SELECT affected > 0 FROM acme_outbox.save_consumed(); ROLLBACK'), 't', 'it can be stored');
	$node->sql('BEGIN; SAVEPOINT s; SELECT acme_outbox.save_consumed(); ROLLBACK TO s; SELECT acme_outbox.save_consumed(), acme_outbox.save_consumed(); COMMIT');
	is($node->sql($rows), $expected, 'once it is stored, whatever was tried before');
	is($node->sql('SELECT sum(handled) FROM acme_outbox.consumed_version'), 7, 'all of it');
	is($node->sql('SELECT affected FROM acme_outbox.save_consumed()'), 0, 'and nothing twice');

	# The worker does it, too; until then it is shown all the same.
	$node->sql("SELECT acme_outbox.inbox_process('billing', "
		  . envelope('7', 'Paid', '2.0.0', 'ok') . "::text, 'app.handle')");
	is($node->sql("$rows LIMIT 1 OFFSET 1"), 'billing|Paid|2.0.0|2', 'shown before it is stored');
	$node->append_conf('postgresql.conf', 'acme_outbox.duty_interval = 1s');
	$node->reload;
	$node->sql(q{UPDATE acme_outbox.duty_run SET started_at = '-infinity' WHERE duty = 'consumed'});
	ok($node->wait_sql(q{SELECT handled = 2 FROM acme_outbox.consumed_version WHERE schema_version = '2.0.0'}),
		'the worker stores it');

	my $other = $node->background_psql('postgres');
	$other->query_safe('BEGIN; SELECT acme_outbox.save_consumed()');
	is($node->sql('SELECT result FROM acme_outbox.save_consumed()'), 'contended', 'one at a time');
	$other->query_safe('COMMIT');
	$other->quit;

	my $last = q{SELECT max(last_at) FROM acme_outbox.consumed_versions WHERE schema_version = '1.0.0'};
	my $at = $node->sql($last);
	$node->sql('CHECKPOINT');    # the worker commits asynchronously
	$node->stop('immediate');
	$node->start;
	is($node->sql($last), $at, 'a crash does not forget when version 1 came last');
	is(counted('consumed_messages_total'), 0, 'counters begin anew');
	$node->sql("SELECT acme_outbox.inbox_process('billing', "
		  . envelope('8', 'Paid', '2.0.0', 'ok') . "::text, 'app.handle')");
	$node->sql('SELECT acme_outbox.save_consumed()');
	is($node->sql("$rows LIMIT 1 OFFSET 1"), 'billing|Paid|2.0.0|3', 'and go on where they were');

	$node->sql(q{INSERT INTO acme_outbox.consumed_version
		SELECT 'old', 'E' || n, '1.0.0', 1, '2020-01-01' FROM generate_series(1, 10000) n});
	$node->sql("SELECT acme_outbox.inbox_process('new', "
		  . envelope('9', 'Paid', '2.0.0', 'ok') . "::text, 'app.handle')");
	$node->sql('SELECT acme_outbox.save_consumed()');
	is($node->sql('SELECT count(*), bool_or(consumer = $$new$$) FROM acme_outbox.consumed_version'),
		'10000|t', 'the table has a bound, and the oldest go');
};

subtest 'bounded' => sub {
	my $sets = counted('counter_sets');
	cmp_ok($sets, '>', 0, 'there are label sets');
	$node->sql(<<'SQL');
SELECT count(acme_outbox.publish('t' || n, 'k', NULL, 'OrderPlaced', '{}'::text)) FROM generate_series(1, 90) n
SQL
	is(counted('counter_sets'), $sets + 90, 'each topic has its own');
	$node->sql(<<'SQL');
SELECT count(acme_outbox.publish('u' || n, 'k', NULL, 'OrderPlaced', '{}'::text)) FROM generate_series(1, 400) n
SQL
	is(counted('counter_sets'), 100, 'as long as there is room');
	is(counted('counter_sets_limit'), 100, 'the limit is the setting');
	is(counted('published_entries_total') + counted('counter_overflow_total'), 490, 'nothing goes uncounted');
	$node->sql('BEGIN;' . publish('t1') . 'COMMIT');
	is(counted('published_entries_total', topic => 't1'), 2, 'what has a set goes on');

	# Room is made when a database is gone; what is new then has a set again.
	$node->restart;
	$node->sql('CREATE DATABASE other');
	$node->safe_psql('other', 'CREATE EXTENSION acme_outbox');
	$node->safe_psql('other', 'BEGIN;' . publish('theirs') . 'COMMIT');
	is($node->safe_psql('other', q{SELECT labels->>'topic' FROM acme_outbox.counters()}), 'theirs', 'a database of its own');
	is(counted('published_entries_total'), 0, 'is not counted here');
	$sets = counted('counter_sets');
	$node->sql('DROP DATABASE other');
	$node->sql('CREATE DATABASE third');
	$node->safe_psql('third', 'CREATE EXTENSION acme_outbox');
	ok($node->wait_sql("SELECT used = $sets - 1 FROM acme_outbox.counters_about()"), 'its sets go with it');

	my $long = "\x{c3}\x{bc}" x 60;
	$node->sql('BEGIN;' . publish($long) . 'COMMIT');
	is($node->sql(q{SELECT octet_length(labels->>'topic') FROM acme_outbox.counters() WHERE labels->>'topic' ~ '^ü'}),
		100, 'a long label is clipped between characters');
};

done_testing();
