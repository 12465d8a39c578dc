# Projections under concurrent delivery: many clients deliver the same events in orders of
# their own, with ties and deletes; a table rebuilt under traffic ends as one that never was.
use strict;
use warnings;

use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use List::Util qw(shuffle);
use PostgreSQL::Test::Utils;
use Test::More;

my $node = AcmeOutbox::Cluster->create('main', 'deadlock_timeout = 200ms');
my $dir = PostgreSQL::Test::Utils::tempdir();
my %env = $node->libpq_env('postgres');
@ENV{ keys %env } = values %env;

# Six clients, each of them all events, each in its own order.

$node->sql(<<'SQL');
CREATE TABLE event AS
	SELECT n, 1 + floor(random() * 20)::int AS row, '2026-01-01Z'::timestamptz + floor(random() * 20) * interval '1 second' AS at,
		gen_random_uuid() AS id, random() < 0.3 AS is_delete
	FROM generate_series(1, 1000) n;
CREATE TABLE deal (id int PRIMARY KEY, n int, last_event_at timestamptz, last_event_id uuid);
CREATE FUNCTION deliver(number int) RETURNS boolean LANGUAGE sql AS $$
	SELECT CASE WHEN e.is_delete THEN acme_outbox.project_delete('deal', jsonb_build_object('id', e.row), e.at, e.id)
		ELSE acme_outbox.project('deal', jsonb_build_object('id', e.row), jsonb_build_object('n', e.n), e.at, e.id) END
	FROM event e WHERE e.n = number
$$;
SQL
my @clients;
for my $client (1 .. 6)
{
	append_to_file("$dir/deliver$client.sql", join '', map { "SELECT deliver($_);\n" } shuffle 1 .. 1000);
	push @clients,
	  IPC::Run::start([ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-f', "$dir/deliver$client.sql", 'postgres' ],
		'>', "$dir/out$client", '2>', "$dir/err$client");
}
is(join(' ', map { $_->finish ? () : $_->full_result } @clients), '', 'no client fails')
  or diag slurp_file("$dir/err1");
is($node->sql(<<'SQL'), '', 'each row is its newest event');
WITH newest AS (SELECT DISTINCT ON (row) row AS id, n, at, id AS event_id, is_delete FROM event ORDER BY row, at DESC, event.id DESC)
SELECT * FROM (SELECT id, n, at, event_id FROM newest WHERE NOT is_delete) w FULL JOIN deal d ON (w.id, w.n, w.at, w.event_id) = (d.id, d.n, d.last_event_at, d.last_event_id)
WHERE w.id IS NULL OR d.id IS NULL
SQL
is( $node->sql('SELECT (SELECT count(*) FROM deal) + (SELECT count(*) FROM acme_outbox.projection_tombstone)'),
	20, 'and has a tombstone where that is a delete');

# Rebuilds under traffic.  Sources change, their events wait in a queue and are delivered
# in any order, to the table under test and to a twin that is never rebuilt.

$node->sql(<<'SQL');
CREATE TABLE source (id int PRIMARY KEY, amount int, changed_at timestamptz);
CREATE TABLE queue (id uuid DEFAULT gen_random_uuid(), row int, amount int, at timestamptz, r float DEFAULT random());
CREATE INDEX ON queue (r);
CREATE TABLE live (id int PRIMARY KEY, amount int, last_event_at timestamptz, last_event_id uuid);
CREATE TABLE twin (LIKE live INCLUDING ALL);
CREATE TABLE rebuilt (seeded bigint, removed bigint);
-- lock first, then take the time: the event's order is that of the source
CREATE FUNCTION change(n int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	at timestamptz;
	new int := floor(random() * 1000);
BEGIN
	PERFORM pg_advisory_xact_lock(n);
	at := clock_timestamp();
	IF random() < 0.3 THEN
		DELETE FROM source WHERE id = n;
		new := NULL;
	ELSE
		INSERT INTO source VALUES (n, new, at) ON CONFLICT (id) DO UPDATE SET amount = new, changed_at = at;
	END IF;
	INSERT INTO queue (row, amount, at) VALUES (n, new, at);
END $$;
CREATE FUNCTION deliver_one() RETURNS int LANGUAGE plpgsql AS $$
DECLARE
	e record;
	target regclass;
BEGIN
	DELETE FROM queue WHERE ctid = (SELECT ctid FROM queue WHERE r >= random() ORDER BY r LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING * INTO e;
	IF e.id IS NULL THEN
		DELETE FROM queue WHERE ctid = (SELECT ctid FROM queue LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING * INTO e;
	END IF;
	IF e.id IS NULL THEN
		RETURN 0;
	END IF;
	FOREACH target IN ARRAY '{live,twin}'::regclass[] LOOP
		IF e.amount IS NULL THEN
			PERFORM acme_outbox.project_delete(target, jsonb_build_object('id', e.row), e.at, e.id);
		ELSE
			PERFORM acme_outbox.project(target, jsonb_build_object('id', e.row), jsonb_build_object('amount', e.amount), e.at, e.id);
		END IF;
	END LOOP;
	RETURN 1;
END $$;
CREATE FUNCTION seed_rows() RETURNS TABLE (key jsonb, fields jsonb, event_at timestamptz) LANGUAGE sql AS $$
	SELECT jsonb_build_object('id', id), jsonb_build_object('amount', amount), changed_at FROM source
$$;
CREATE FUNCTION seed_calls() RETURNS void LANGUAGE sql AS $$
	SELECT acme_outbox.project('live', jsonb_build_object('id', id), jsonb_build_object('amount', amount), changed_at) FROM source
$$;
SELECT change(n) FROM generate_series(1, 200) n;
SQL

# what a projection looks like that needs a rebuild: wrong, missing and superfluous rows
sub damage
{
	$node->sql(<<'SQL');
BEGIN;
LOCK TABLE live IN SHARE ROW EXCLUSIVE MODE;
UPDATE live SET amount = -1 WHERE id % 3 = 0;
DELETE FROM live WHERE id % 5 = 0;
INSERT INTO live SELECT n, -1, '2026-01-01' FROM generate_series(1001, 1010) n ON CONFLICT DO NOTHING;
COMMIT;
SQL
	return;
}

append_to_file("$dir/change.sql", "\\set n random(1, 200)\nSELECT change(:n);\n");
append_to_file("$dir/deliver.sql", "SELECT deliver_one();\n");
my $traffic = IPC::Run::start(
	[ 'pgbench', '-n', '-c', 5, '-j', 2, '-T', 8, '-f', "$dir/change.sql\@1", '-f', "$dir/deliver.sql\@1", 'postgres' ],
	'>', "$dir/traffic", '2>', "$dir/traffic_err");
ok($node->wait_sql('SELECT count(*) > 100 FROM twin'), 'traffic flows');
for my $round (1 .. 6)
{
	my $seed = $round % 2 ? 'seed_rows' : 'public.seed_calls()';
	damage();
	$node->sql("INSERT INTO rebuilt SELECT * FROM acme_outbox.projection_rebuild('live', '$seed')");
}
my $left_damage = $node->sql('SELECT count(*) FROM live WHERE amount = -1');
ok($traffic->finish, 'traffic was not disturbed') or diag slurp_file("$dir/traffic_err");
unlike(slurp_file("$dir/traffic_err"), qr/ERROR/, 'no error in it');
is($left_damage, 0, 'nothing wrong is left after a rebuild');
is($node->sql('SELECT bool_and(seeded > 50), sum(removed) >= 60 FROM rebuilt'), 't|t', 'the rebuilds had work');
1 while $node->sql('SELECT sum(deliver_one()) FROM generate_series(1, 1000)') > 0;
my $difference = 'SELECT id, amount FROM %s EXCEPT SELECT id, amount FROM %s';
is($node->sql(sprintf $difference, @$_), '', "no row of $_->[0] is missing in $_->[1]")
  for [ 'live', 'twin' ], [ 'twin', 'live' ], [ 'twin', 'source' ], [ 'source', 'live' ];
is($node->sql('SELECT count(*) FROM live l JOIN twin t USING (id) WHERE l.last_event_at <> t.last_event_at'), 0, 'nor of another time');
cmp_ok($node->sql('SELECT count(*) FROM acme_outbox.projection_tombstone'), '>', 0, 'rows were deleted meanwhile');
done_testing();
