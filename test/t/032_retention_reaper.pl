# The worker does its duties by itself: published entries go after their
# retention and nothing else does, the reaper warns and fails what it may.
use strict;
use warnings;

use AcmeOutbox::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = AcmeOutbox::Cluster->create('main',
	'acme_outbox.duty_interval = 1', 'acme_outbox.reaper_first_delay = 1',
	'acme_outbox.reaper_interval = 1', 'acme_outbox.retention_interval = 1',
	'acme_outbox.reaper_warn_after = 1', 'acme_outbox.lease_duration = 1h');

my $acquire = "SELECT epoch FROM acme_outbox.relay_acquire('shop', 'relay')";
my $claim = <<'SQL';
WITH c AS MATERIALIZED (
	SELECT (acme_outbox.claim('shop', l.epoch, 10000, 100000000)).*, l.epoch
	  FROM acme_outbox.relay_lease l WHERE l.origin = 'shop')
SQL

# Claims all there is; settles it as PUBLISHED in a second transaction.
sub deliver
{
	$node->sql(<<'SQL');
CREATE TEMPORARY TABLE c AS
	SELECT c.claim_id, c.id, l.epoch
	  FROM acme_outbox.relay_lease l,
	       LATERAL acme_outbox.claim('shop', l.epoch, 10000, 100000000) c
	 WHERE l.origin = 'shop';
SELECT count(*) FROM (
	SELECT acme_outbox.settle(epoch, claim_id, array_agg(id),
			array_agg('PUBLISHED'::acme_outbox.settle_outcome),
			array_agg(NULL::smallint), array_agg(NULL::text))
	  FROM c GROUP BY epoch, claim_id) s;
SQL
	return;
}

sub set
{
	my (%settings) = @_;
	$node->sql("ALTER SYSTEM SET acme_outbox.$_ = '$settings{$_}'") for sort keys %settings;
	$node->reload;
	return;
}

subtest 'retention' => sub {
	$node->sql($acquire);
	$node->publish(200);
	deliver();
	is($node->in_status('PUBLISHED'), 200, 'delivered');
	my $runs = "SELECT count(*) FROM acme_outbox.duty_run WHERE duty = 'purge' AND started_at > ";
	my $now = $node->sql('SELECT clock_timestamp()');
	ok($node->wait_sql("$runs '$now'", 1), 'retention ran');
	is($node->in_status('PUBLISHED'), 200, 'and kept what is young');

	$node->publish(10, first => 1000, exchange => 'undelivered');
	set(retention_published => '1s');
	ok($node->wait_sql(
			"SELECT count(*) = 0 FROM acme_outbox.outbox_entry WHERE status = 'PUBLISHED'"),
		'the worker deletes what is old');
	is($node->in_status('PENDING'), 10, 'and nothing undelivered');

	# A duty has no more than a batch of a hundred at a time, and goes on at once.
	set(duty_batch_rows => 100);
	$node->publish(20000, keys => 500);
	deliver() for 1 .. 3;
	my $at = time();
	ok($node->wait_sql('SELECT count(*) = 0 FROM acme_outbox.outbox_entry'),
		'it keeps up with any amount');
	cmp_ok(time() - $at, '<', 15, 'without waiting for its interval between batches');
	$node->verify_ok('after retention');
	set(retention_published => '7d', duty_batch_rows => 1000);
};

subtest 'duty_interval takes effect at a reload' => sub {
	my $last = 'SELECT last_duty_at FROM acme_outbox.worker_status';
	set(duty_interval => 3600);
	my $pid = $node->sql('SELECT pid FROM acme_outbox.worker_status');
	set(duty_interval => 1);
	my $at = $node->sql($last);
	ok($node->wait_sql("SELECT ($last) > '$at'"), 'the worker looks again soon');
	is($node->sql('SELECT pid FROM acme_outbox.worker_status'), $pid, 'the same worker');
};

subtest 'four purgers at once' => sub {
	$node->publish(20000, keys => 500);
	deliver() for 1 .. 3;
	$node->sql(<<'SQL');
ALTER SYSTEM SET acme_outbox.worker = off;
SELECT pg_reload_conf();
UPDATE acme_outbox.outbox_entry SET created_at = created_at - interval '8 days',
	published_at = published_at - interval '8 days';
SQL
	my $log = -s $node->logfile;
	my $script = $node->basedir . '/purge.sql';
	append_to_file($script, "SELECT acme_outbox.purge();\n");
	command_ok(
		[   'pgbench', '-n', '-c', 4, '-j', 2, '-t', 10, '-f', $script,
			$node->connstr('postgres')
		],
		'four purgers');
	$node->sql('SELECT acme_outbox.purge()') for 1 .. 3;
	is($node->in_status('PUBLISHED'), 0, 'everything old is gone');
	unlike(slurp_file($node->logfile, $log), qr/deadlock|ERROR/, 'without a deadlock or error');
	$node->sql('ALTER SYSTEM RESET acme_outbox.worker');
	$node->reload;
};

subtest 'a live relay that does not settle' => sub {
	my $log = -s $node->logfile;
	$node->sql($acquire);
	$node->publish(5);
	$node->sql("$claim SELECT count(*) FROM c");
	is($node->in_status('PUBLISHING'), 5, 'in flight');
	$node->wait_for_log(qr/5 entries of origin "shop" are stuck in PUBLISHING/, $log);
	$node->wait_for_log(qr/The relay holds its lease but does not settle them/, $log);
	set(stale_claim_policy => 'strand', reaper_fail_after => '1s');
	$log = -s $node->logfile;
	$node->wait_for_log(qr/5 entries of origin "shop" are stuck in PUBLISHING/, $log);
	is($node->in_status('PUBLISHING'), 5, 'is warned about, even under strand');
};

subtest 'a dead relay under strand' => sub {
	my $log = -s $node->logfile;
	$node->sql('UPDATE acme_outbox.relay_lease SET expires_at = clock_timestamp()');
	ok($node->wait_sql(
			"SELECT count(*) = 5 FROM acme_outbox.outbox_failed WHERE last_error LIKE 'stranded in PUBLISHING for % never confirmed; reaper'"),
		'its entries are FAILED');
	$node->wait_for_log(qr/5 stranded entries of origin "shop" are FAILED now/, $log);
	is($node->sql('SELECT count(*) FROM acme_outbox.outbox_claim'), 0, 'the claim is closed');
	$node->sql($acquire);
	is($node->sql("$claim SELECT count(*) FROM c"), 0, 'and never sent again');
	$node->verify_ok('after the reaper');
	$node->sql('DELETE FROM acme_outbox.outbox_entry');
};

subtest 'a dead relay under reclaim' => sub {
	set(stale_claim_policy => 'reclaim');
	$node->publish(5);
	$node->sql("$claim SELECT count(*) FROM c");
	my $log = -s $node->logfile;
	$node->sql('UPDATE acme_outbox.relay_lease SET expires_at = clock_timestamp()');
	$node->wait_for_log(qr/No relay holds the lease: start one/, $log);
	is($node->in_status('PUBLISHING'), 5, 'the reaper only warns');
	$node->sql("SELECT acme_outbox.relay_acquire('shop', 'next')");
	is($node->sql("$claim SELECT count(*) FROM c"), 5, 'the next relay sends them');
};

subtest 'what others hold locked' => sub {
	$node->sql('ALTER SYSTEM SET acme_outbox.worker = off');
	$node->reload;
	$node->wait_sql("SELECT state = 'none' FROM acme_outbox.worker_status");
	$node->sql('DELETE FROM acme_outbox.outbox_entry; DELETE FROM acme_outbox.outbox_claim');
	my $other = $node->background_psql('postgres');
	my $id = 'SELECT min(id) FROM acme_outbox.outbox_entry';

	$node->sql("SELECT acme_outbox.relay_acquire('shop', 'next')");
	$node->publish(5);
	deliver();
	$node->sql(<<'SQL');
UPDATE acme_outbox.outbox_entry SET created_at = created_at - interval '8 days',
	published_at = published_at - interval '8 days'
SQL
	$other->query_safe("BEGIN; SELECT FROM acme_outbox.outbox_entry WHERE id = ($id) FOR UPDATE");
	is($node->sql("SELECT result, affected FROM acme_outbox.purge() WHERE what = 'published'"),
		'contended|4', 'retention leaves out a locked entry');
	$other->query_safe('ROLLBACK');

	$node->sql("UPDATE acme_outbox.duty_run SET started_at = '-infinity'");
	$other->query_safe('BEGIN; SELECT FROM acme_outbox.duty_run FOR UPDATE');
	is( $node->sql("SELECT duty, result FROM acme_outbox.run_due_duties()"),
		"reap|contended\npurge|contended\nconsumed|contended",
		'a duty that another session runs is contended');
	$other->query_safe('ROLLBACK');

	$node->sql('DELETE FROM acme_outbox.outbox_entry');
	$node->publish(5);
	$node->sql("$claim SELECT count(*) FROM c");
	$node->sql('UPDATE acme_outbox.relay_lease SET expires_at = clock_timestamp()');
	$node->sql("UPDATE acme_outbox.outbox_claim SET claimed_at = claimed_at - interval '1 hour'");
	my $reap = <<'SQL';
SET acme_outbox.stale_claim_policy = strand;
SET acme_outbox.reaper_fail_after = '1s';
SELECT result, failed FROM acme_outbox.reap();
SQL
	$other->query_safe('BEGIN; SELECT FROM acme_outbox.outbox_claim FOR UPDATE');
	is($node->sql($reap), 'contended|0', 'the reaper leaves out a locked claim');
	$other->query_safe('ROLLBACK');
	$other->query_safe("BEGIN; SELECT FROM acme_outbox.outbox_entry WHERE id = ($id) FOR UPDATE");
	is($node->sql($reap), 'contended|4', 'and a locked entry');
	is($node->sql('SELECT cardinality(ids) FROM acme_outbox.outbox_claim'),
		1, 'whose claim stays open');
	$other->query_safe('ROLLBACK');
	is($node->sql($reap), 'done|1', 'until it can be had');
	is($node->sql('SELECT count(*) FROM acme_outbox.outbox_claim'), 0, 'then it is closed');

	$other->query_safe('BEGIN; LOCK acme_outbox.outbox_entry IN ACCESS EXCLUSIVE MODE');
	my $at = time();
	is($node->sql("SET acme_outbox.duty_lock_timeout = '300ms'; SELECT result FROM acme_outbox.reap()"),
		'contended', 'a locked table is waited for');
	my $took = time() - $at;
	cmp_ok($took, '>', 0.3, sprintf 'as long as duty_lock_timeout says (%.2f s)', $took);
	cmp_ok($took, '<', 3, 'and no longer');
	$other->query_safe('ROLLBACK');
	$other->quit;
};

done_testing();
