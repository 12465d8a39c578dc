# Fifty clients with one Idempotency-Key: one executes, nobody waits for it, the others are
# told the truth; a crash leaves the key free after its in-flight time; retention beside
# new claims of the same keys loses nothing.
use strict;
use warnings;

use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = AcmeOutbox::Cluster->create('main', 'max_connections = 120');
my $dir = PostgreSQL::Test::Utils::tempdir();
my %env = $node->libpq_env('postgres');
@ENV{ keys %env } = values %env;

$node->sql(<<'SQL');
UPDATE acme_outbox.duty_run SET started_at = 'infinity';
CREATE TABLE payment (key text, client int, at timestamptz DEFAULT clock_timestamp());
CREATE TABLE answer (round text, decision text, code text, status int, response jsonb, took interval);
CREATE FUNCTION ask(round text, body text DEFAULT '{"amount": 1}', flight interval DEFAULT '1 minute')
RETURNS boolean LANGUAGE sql AS $$
	INSERT INTO answer SELECT round, b.decision, b.code, b.status, b.response, clock_timestamp() - statement_timestamp()
	FROM acme_outbox.idempotency_begin('POST /pay', round, body, in_flight_ttl => flight) b
	RETURNING decision = 'execute'
$$;
SQL

# Each client runs a script once, all at once.
sub clients
{
	my ($n, $name, $script, @options) = @_;
	@options = ('-t', 1) unless @options;
	append_to_file("$dir/$name.sql", $script) unless -e "$dir/$name.sql";
	my $ok = IPC::Run::run(
		[ 'pgbench', '-n', '-c', $n, '-j', 4, @options, '-f', "$dir/$name.sql", 'postgres' ],
		'>', \my $out, '2>', \my $err);
	ok($ok, "$name: no client fails") or diag $err;
	return;
}

sub answers
{
	my ($round) = @_;
	return $node->sql(<<"SQL");
SELECT concat_ws(' ', decision, code, status, response, count(*)) FROM answer
 WHERE round = '$round' GROUP BY decision, code, status, response ORDER BY 1
SQL
}

# The first is held open: its transaction is not committed.

my $first = $node->background_psql('postgres');
is( $first->query_safe(q{BEGIN; SELECT decision FROM acme_outbox.idempotency_begin('POST /pay', 'held', '{"amount": 1}')}),
	'execute', 'the first executes');
my $at = time();
clients(49, 'held', "SELECT ask('held');\n");
my $took = time() - $at;
is(answers('held'), 'in_flight IDEMPOTENCY_KEY_IN_FLIGHT 409 49', 'the other 49 are told that it is in flight');
is($node->sql("SELECT max(took) < '1 second' FROM answer"), 't', 'at once');
diag sprintf '49 clients took %.2f s', $took;
is($node->sql(q{SELECT decision FROM acme_outbox.idempotency_begin('POST /pay', 'held', 'other body')}),
	'in_flight', 'a body that cannot be compared yet is in flight too');

$first->query_safe(q{SELECT acme_outbox.idempotency_complete('POST /pay', 'held', 201, '{"id": 7, "list": [1, null]}')});
$node->sql("DELETE FROM answer");
clients(10, 'held');
is(answers('held'), 'in_flight IDEMPOTENCY_KEY_IN_FLIGHT 409 10', 'completed but not committed: still in flight');
$first->query_safe('COMMIT');
$node->sql("DELETE FROM answer");
clients(49, 'held');
is(answers('held'), 'replay 201 {"id": 7, "list": [1, null]} 49', 'then all get the same status and body');
is( $node->sql(q{SELECT concat_ws(' ', decision, code, status) FROM acme_outbox.idempotency_begin('POST /pay', 'held', '{"amount": 2}')}),
	'reuse IDEMPOTENCY_KEY_REUSE 409', 'another body does not');

# All fifty at once.

my ($losers, $replays) = (0, 0);
for my $round (1 .. 10)
{
	clients(50, "race$round", <<"SQL");
BEGIN;
SELECT ask('race$round')::int AS run \\gset
\\if :run
INSERT INTO payment VALUES ('race$round', :client_id);
SELECT acme_outbox.idempotency_complete('POST /pay', 'race$round', 200, '{"paid": $round}');
\\endif
COMMIT;
SQL
	is($node->sql("SELECT count(*) FROM payment WHERE key = 'race$round'"), 1, "round $round: one payment");
	is($node->sql("SELECT count(*) FROM answer WHERE round = 'race$round' AND (decision IN ('execute', 'in_flight') OR (decision, status, response) = ('replay', 200, '{\"paid\": $round}'))"),
		50, "round $round: fifty true answers");
	$losers += $node->sql("SELECT count(*) FROM answer WHERE round = 'race$round' AND decision = 'in_flight'");
	$replays += $node->sql("SELECT count(*) FROM answer WHERE round = 'race$round' AND decision = 'replay'");
}
cmp_ok($losers, '>', 0, "clients met the first in flight ($losers, and $replays replays)");

# The first fails, in one transaction and in two.

$first->query_safe('BEGIN');
is($first->query_safe(q{SELECT decision FROM acme_outbox.idempotency_begin('POST /pay', 'killed', 'x')}), 'execute', 'begun');
$node->sql(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'});
ok(wait_until(sub { $node->sql(q{SELECT decision FROM acme_outbox.idempotency_begin('POST /pay', 'killed', 'x', in_flight_ttl => '2 seconds')}) eq 'execute' }, 20),
	'killed within its transaction: free at once');
eval { $first->quit };

is($node->sql(q{SELECT decision FROM acme_outbox.idempotency_begin('POST /pay', 'killed', 'x')}), 'in_flight', 'begun and committed: in flight');
$node->stop('immediate');
$node->start;
$node->sql("UPDATE acme_outbox.duty_run SET started_at = 'infinity'");
ok( wait_until(
		sub {
			$node->sql(q{SELECT decision FROM acme_outbox.idempotency_begin('POST /pay', 'killed', 'x')}) eq 'execute';
		},
		20),
	'after a crash it can be executed when its in-flight time is over, without retention');
is($node->sql(q{SELECT executions FROM acme_outbox.idempotency_key WHERE key = 'killed'}), 2, 'it is the second execution');

# A prepared transaction keeps the key, over a restart too.

my $ask = q{SELECT decision FROM acme_outbox.idempotency_begin('POST /pay', 'prepared', '%s')};
$node->sql('BEGIN; ' . sprintf($ask, 'x') . q{; PREPARE TRANSACTION 'idempotency'});
$node->restart;
$node->sql("UPDATE acme_outbox.duty_run SET started_at = 'infinity'");
is($node->sql(sprintf $ask, $_), 'in_flight', 'prepared: in flight') for 'x', 'y';
$node->sql(q{COMMIT PREPARED 'idempotency'});
is($node->sql(sprintf $ask, 'y'), 'reuse', 'then committed: another body is told apart');

# Retention beside claims of keys that expire all the time.

append_to_file("$dir/claim.sql", <<'SQL');
\set n random(1, 5)
BEGIN;
SELECT (decision = 'execute')::int AS run FROM acme_outbox.idempotency_begin('POST /short', 'k' || :n, 'x', '1 ms', '1 ms') \gset
\if :run
INSERT INTO payment VALUES ('k' || :n, :client_id);
SELECT acme_outbox.idempotency_complete('POST /short', 'k' || :n, 200);
\endif
COMMIT;
SQL
append_to_file("$dir/purge.sql", "INSERT INTO answer (round, status) SELECT 'purged', affected FROM acme_outbox.purge() WHERE what = 'keys';\n");
my $ok = IPC::Run::run(
	[ 'pgbench', '-n', '-c', 8, '-j', 2, '-T', 5, '-f', "$dir/claim.sql\@9", '-f', "$dir/purge.sql\@1", 'postgres' ],
	'>', \my $out, '2>', \my $err);
ok($ok && $err !~ /ERROR/, 'no execution loses its row to retention') or diag $err;
my $executed = $node->sql("SELECT count(*) FROM payment WHERE key LIKE 'k%'");
my $purged = $node->sql("SELECT sum(status) FROM answer WHERE round = 'purged'");
cmp_ok($executed, '>', 100, "keys were executed over and over ($executed)");
cmp_ok($purged, '>', 10, "while retention deleted them ($purged)");
done_testing();
