# The launcher and the workers: a worker runs wherever the extension is, comes
# back after any death, and is never in the way.
# Slow: begins before the others.
use strict;
use warnings;

use AcmeOutbox::Cluster;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my @quick = ('acme_outbox.duty_interval = 1', 'acme_outbox.reaper_first_delay = 1');
# %b tells our workers from autovacuum's.
my $node = AcmeOutbox::Cluster->create_empty('main', @quick,
	"log_line_prefix = '%m [%p] %b %q%a '");

sub worker_pid
{
	my ($database) = @_;
	return $node->sql(<<"SQL");
SELECT pid FROM pg_stat_activity
 WHERE backend_type = 'acme_outbox worker' AND datname = '$database'
SQL
}

sub launcher_pid
{
	return $node->sql(
		"SELECT pid FROM pg_stat_activity WHERE backend_type = 'acme_outbox launcher'");
}

# A worker other than the given one runs and has found the extension.
sub wait_worker
{
	my ($database, $not) = @_;
	$not ||= 0;
	return $node->poll_query_until($database, <<"SQL");
SELECT EXISTS (SELECT FROM acme_outbox.worker_status
                WHERE database = current_database() AND state = 'running'
                  AND pid <> $not AND last_duty_at IS NOT NULL)
SQL
}

sub wait_no_worker
{
	my ($database) = @_;
	return $node->wait_sql(<<"SQL");
SELECT NOT EXISTS (SELECT FROM pg_stat_activity
                    WHERE backend_type = 'acme_outbox worker' AND datname = '$database')
SQL
}

subtest 'starts with CREATE EXTENSION, without a restart' => sub {
	ok($node->wait_sql(
			"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'acme_outbox launcher'"),
		'the launcher runs');
	ok(wait_no_worker('postgres'), 'no worker where there is no extension');
	$node->sql('BEGIN; CREATE EXTENSION acme_outbox; ROLLBACK');
	$node->set_up('postgres');
	ok(wait_worker('postgres'), 'the worker runs');
	is($node->sql('SELECT acme_outbox.worker_preloaded()'), 't', 'preloaded');
	is($node->sql(
			"SELECT application_name FROM pg_stat_activity WHERE pid = " . worker_pid('postgres')),
		'acme_outbox worker for postgres', 'it has a name to be found by');
};

subtest 'comes back' => sub {
	my $pid = worker_pid('postgres');
	$node->sql("SELECT pg_cancel_backend($pid)");
	$node->sql("SELECT pg_terminate_backend($pid)");
	ok(wait_worker('postgres', $pid), 'after pg_terminate_backend');

	$pid = worker_pid('postgres');
	my $launcher = launcher_pid();
	$node->sql("SELECT pg_terminate_backend($launcher)");
	ok($node->wait_sql(
			"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'acme_outbox launcher' AND pid <> $launcher"),
		'the launcher, after pg_terminate_backend');
	is(worker_pid('postgres'), $pid, 'the new launcher keeps the worker that runs');
	$node->sql("SELECT pg_terminate_backend($pid)");
	ok(wait_worker('postgres', $pid), 'and starts it again when it ends');

	$pid = worker_pid('postgres');
	kill 'KILL', $pid;
	ok($node->poll_query_until('postgres',
			"SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid"),
		'the server recovers from a killed worker');
	ok(wait_worker('postgres', $pid), 'after kill -9 of the worker');

	$pid = worker_pid('postgres');
	kill 'KILL', launcher_pid();
	ok(wait_worker('postgres', $pid), 'after kill -9 of the launcher');

	$pid = worker_pid('postgres');
	$node->stop('immediate');
	$node->start;
	ok(wait_worker('postgres', $pid), 'after a crash of the server');
};

subtest 'goes with the extension' => sub {
	$node->sql('DROP EXTENSION acme_outbox');
	ok(wait_no_worker('postgres'), 'leaves after DROP EXTENSION');
	$node->set_up('postgres');
	ok(wait_worker('postgres'), 'is back after CREATE EXTENSION');
	$node->sql('DROP EXTENSION acme_outbox; CREATE EXTENSION acme_outbox') for 1 .. 5;
	ok(wait_worker('postgres'), 'runs after the extension came and went');

	$node->sql('CREATE DATABASE gone');
	$node->safe_psql('gone', 'CREATE EXTENSION acme_outbox');
	ok(wait_worker('gone'), 'a worker of its own for a second database');
	$node->safe_psql('gone', 'DROP EXTENSION acme_outbox');
	$node->sql('DROP DATABASE gone');
	pass('DROP DATABASE right after DROP EXTENSION');
};

subtest 'is not in the way' => sub {
	$node->sql('CREATE DATABASE two');
	$node->safe_psql('two', 'CREATE EXTENSION acme_outbox');
	ok(wait_worker('two'), 'the worker runs');

	$node->sql('CREATE DATABASE copy TEMPLATE two');
	ok(wait_worker('two'), 'CREATE DATABASE ... TEMPLATE; then it is back');
	$node->sql('ALTER DATABASE two RENAME TO three');
	ok(wait_worker('three'), 'ALTER DATABASE ... RENAME; then it is back');
	is($node->safe_psql('copy', 'SELECT acme_outbox.worker_start()'),
		't', 'the copy asks for a worker');
	ok(wait_worker('copy'), 'and gets one');

	my $session = $node->background_psql('three');
	my ($code, $out, $err) = $node->psql('postgres', 'DROP DATABASE three');
	like($err, qr/being accessed by other users/, 'a refused DROP DATABASE');
	$session->quit;
	ok(wait_worker('three'), 'brings it back');

	my $at = time();
	my $log = -s $node->logfile;
	$node->sql('DROP DATABASE three');
	cmp_ok(time() - $at, '<', 5, 'DROP DATABASE does not wait for it');
	$node->sql('DROP DATABASE copy WITH (FORCE)');
	pass('DROP DATABASE WITH (FORCE)');
	ok(wait_worker('postgres'), 'the other database kept its worker');

	$node->sql('CREATE DATABASE mine');
	$node->safe_psql('mine', 'CREATE EXTENSION acme_outbox');
	ok(wait_worker('mine'), 'one more');
	my $pid = worker_pid('mine');
	$node->sql('CREATE ROLE nobody LOGIN CREATEDB');
	$node->psql('postgres', 'SET ROLE nobody; DROP DATABASE mine');
	is(worker_pid('mine'), $pid, 'who may not drop a database does not disturb its worker');
	$node->sql('DROP DATABASE mine');
	unlike(slurp_file($node->logfile, $log), qr/acme_outbox worker.*FATAL:.*database .* does not exist/,
		'no worker is started in a database that is gone');
};

subtest 'is switched off and on by a reload' => sub {
	$node->sql('ALTER SYSTEM SET acme_outbox.worker = off');
	$node->reload;
	ok(wait_no_worker('postgres'), 'off: it leaves');
	$node->publish(1);
	is($node->in_status('PENDING'), 1, 'publishing goes on');
	is($node->sql('SELECT state FROM acme_outbox.worker_status'), 'none', 'and the view says so');
	$node->sql('ALTER SYSTEM RESET acme_outbox.worker');
	$node->reload;
	ok(wait_worker('postgres'), 'on: it is back');
};

subtest 'survives its duties' => sub {
	my $pid = worker_pid('postgres');
	my $log = -s $node->logfile;
	$node->sql('ALTER TABLE acme_outbox.duty_run RENAME TO hidden');
	$node->wait_for_log(qr/WARNING: .* outbox worker failed while running duties: /, $log);
	pass('a failing call is a warning');
	$node->sql('ALTER TABLE acme_outbox.hidden RENAME TO duty_run');

	$node->sql('ALTER TABLE acme_outbox.purge_position RENAME TO hidden');
	$node->sql("UPDATE acme_outbox.duty_run SET started_at = '-infinity'");
	ok($node->wait_sql(
			"SELECT string_agg(duty || '=' || result, ' ' ORDER BY duty) = 'consumed=done purge=failed reap=done' FROM acme_outbox.duty_run"),
		'one duty that fails does not stop the other');
	$node->sql('ALTER TABLE acme_outbox.hidden RENAME TO purge_position');

	my $locker = $node->background_psql('postgres');
	$locker->query_safe(
		'BEGIN; LOCK acme_outbox.outbox_entry IN ACCESS EXCLUSIVE MODE');
	$node->sql("UPDATE acme_outbox.duty_run SET started_at = '-infinity'");
	ok($node->wait_sql(
			"SELECT bool_and(result = 'contended') FROM acme_outbox.duty_run WHERE duty <> 'consumed'"),
		'a locked table is contention');
	$locker->query_safe('COMMIT');
	$locker->quit;
	$node->sql("UPDATE acme_outbox.duty_run SET started_at = '-infinity'");
	ok($node->wait_sql("SELECT bool_and(result = 'done') FROM acme_outbox.duty_run"),
		'all is well again');
	is(worker_pid('postgres'), $pid, 'all the time it was the same worker');
};

subtest 'there are at most max_workers' => sub {
	$node->append_conf('postgresql.conf', 'acme_outbox.max_workers = 1');
	my $log = -s $node->logfile;
	$node->restart;
	ok(wait_worker('postgres'), 'the first database has it');
	$node->sql('CREATE DATABASE second');
	$node->safe_psql('second', 'CREATE EXTENSION acme_outbox');
	$node->wait_for_log(
		qr/no worker can be started for database "second".*acme_outbox.max_workers/s, $log);
	is($node->sql(
			"SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'acme_outbox worker'"),
		1, 'no second one, but a warning');
	$node->sql('SET acme_outbox.allow_drop = on; DROP EXTENSION acme_outbox');
	ok($node->poll_query_until('second',
			"SELECT state = 'running' FROM acme_outbox.worker_status WHERE database = 'second'"),
		'the second database has it when the first needs it no more');
};

subtest 'not on a standby' => sub {
	my $primary = AcmeOutbox::Cluster->new('primary');
	$primary->init(allows_streaming => 1,
		extra => [ '-U', 'postgres', '-E', 'UTF8', '--no-locale' ],
		auth_extra => [ '--user', 'postgres' ]);
	$primary->append_conf('postgresql.conf', $_)
	  for 'shared_preload_libraries = acme_outbox', @quick;
	$primary->start;
	$primary->backup('base');
	my $standby = AcmeOutbox::Cluster->new('standby');
	$standby->init_from_backup($primary, 'base', has_streaming => 1);
	$standby->start;
	$primary->sql('CREATE EXTENSION acme_outbox');
	$primary->wait_for_catchup($standby);
	is($standby->sql('SELECT state FROM acme_outbox.worker_status'), 'none', 'none there');
	is($standby->sql("SELECT value FROM acme_outbox.metrics() WHERE name = 'acme_outbox_worker_up'"),
		0, 'as its metrics say');
	is($standby->sql(
			"SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'acme_outbox%'"),
		0, 'and no launcher');
	$primary->stop;
	$standby->promote;
	ok($standby->wait_sql("SELECT state = 'running' FROM acme_outbox.worker_status"),
		'one starts on promotion');
	$standby->stop;
};

subtest 'without preload' => sub {
	my $plain = AcmeOutbox::Cluster->create_empty('plain', "shared_preload_libraries = ''");
	$plain->sql('CREATE EXTENSION acme_outbox');
	is($plain->sql('SELECT acme_outbox.worker_preloaded(), acme_outbox.worker_start()'),
		'f|f', 'says that it is not preloaded');
	is($plain->sql('SELECT state FROM acme_outbox.worker_status'),
		'not preloaded', 'so does the view');
	$plain->publish(3);
	is($plain->sql("SELECT string_agg(duty || '=' || result, ' ') FROM acme_outbox.run_due_duties()"),
		'reap=done purge=done consumed=done', 'duties can be run by anyone permitted');
	is($plain->sql("SELECT count(*) FROM acme_outbox.run_due_duties()"), 0, 'when they are due');
	$plain->stop;
};

done_testing();
