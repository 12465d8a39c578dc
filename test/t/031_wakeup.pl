# The wake-up: a commit that published reaches a listening session at once, one
# notification a burst, never before its row is visible, never for what was
# rolled back, and only if a relay waits.
use strict;
use warnings;

use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

# Far above what a wake-up takes, far below anything periodic in this test.
use constant INSTANT => 0.8;

# Duties are kept quiet, so that nothing else wakes the worker.
my $node = AcmeOutbox::Cluster->create('main',
	'wal_level = replica', 'max_wal_senders = 2',
	'autovacuum = off',
	'acme_outbox.duty_interval = 3600', 'acme_outbox.reaper_first_delay = 3600');
$node->wait_sql("SELECT state = 'running' FROM acme_outbox.worker_status");

my $publish = "SELECT acme_outbox.publish('events', 'k', 'a', 'Happened', '{}'::text)";
my $listener = $node->background_psql('postgres');
$listener->query_safe('LISTEN acme_outbox');

# Relays of these origins have claimed all there is, and wait.
my %epoch;

sub await
{
	for my $origin (@_ ? @_ : ('shop', 'last'))
	{
		$epoch{$origin} //= $node->sql(
			"SELECT epoch FROM acme_outbox.relay_acquire('$origin', 'relay')");
		1 while $node->sql("SELECT count(*) FROM acme_outbox.claim('$origin', $epoch{$origin}, 10000, 1000000)");
	}
}

# Payloads that have come since the last call.
sub heard
{
	my $output = $listener->query_safe('SELECT 1');
	return $output =~ /Asynchronous notification "acme_outbox" with payload "([^"]*)"/g;
}

# Wait for some; returns them and how long it took.
sub hear
{
	my $at = time();
	my @heard;
	wait_until(sub { push @heard, heard(); @heard > 0 });
	return (time() - $at, @heard);
}

# Publish once and wait for it: everything before has been heard, too.
sub hear_up_to_now
{
	my @heard = heard();
	await('last');
	$node->sql("SET acme_outbox.origin = 'last'; $publish");
	wait_until(sub { push @heard, heard(); grep { $_ eq 'last' } @heard });
	await();
	return grep { $_ ne 'last' } @heard;
}

sub counted
{
	my ($what) = @_;
	return $node->sql("SELECT $what FROM acme_outbox.worker_status");
}

# A worker that starts does not know who waits.
hear_up_to_now();

subtest 'at commit' => sub {
	my ($took, @heard);

	$node->sql($publish);
	($took, @heard) = hear();
	is_deeply(\@heard, ['shop'], 'names the origin');
	cmp_ok($took, '<', INSTANT, sprintf 'at once (%.3f s)', $took);

	$node->sql($publish);
	is_deeply([hear_up_to_now()], [], 'not while the relay has not claimed since');
	my $claimed = 0;
	$node->sql($publish);
	$claimed = $node->sql("SELECT count(*) FROM acme_outbox.claim('shop', $epoch{shop}, 10000, 1000000)");
	$node->sql("$publish;" x 2);
	is_deeply([ $claimed, hear_up_to_now() ], [ 1, 'shop' ],
		'for the first commit, not after the claim that found it');

	$node->sql("BEGIN; $publish; ROLLBACK");
	$node->sql("BEGIN; SAVEPOINT s; $publish; ROLLBACK TO s; SELECT pg_current_xact_id(); COMMIT");
	$node->sql(<<"SQL");
BEGIN;
SAVEPOINT a;
SAVEPOINT b;
$publish;
RELEASE b;
ROLLBACK TO a;
SELECT pg_current_xact_id();
COMMIT;
SQL
	$node->sql(<<'SQL');
DO $$ BEGIN
  BEGIN
    PERFORM acme_outbox.publish('events', 'k', 'a', 'Happened', '{}'::text);
    PERFORM 1 / 0;
  EXCEPTION WHEN division_by_zero THEN NULL;
  END;
  PERFORM pg_current_xact_id();
END $$
SQL
	is_deeply([hear_up_to_now()], [], 'not for anything rolled back');

	$node->sql("BEGIN; SAVEPOINT s; $publish; RELEASE s; COMMIT");
	is_deeply([hear_up_to_now()], ['shop'], 'for a released savepoint');
	$node->sql("BEGIN; $publish; SAVEPOINT s; $publish; ROLLBACK TO s; COMMIT");
	is_deeply([hear_up_to_now()], ['shop'], 'for what was published outside of the one rolled back');
	$node->sql("BEGIN; SAVEPOINT a; SAVEPOINT b; $publish; RELEASE b; $publish; RELEASE a; COMMIT");
	is_deeply([hear_up_to_now()], ['shop'], 'for nested ones');
};

subtest 'a burst is one notification' => sub {
	$node->sql('ALTER SYSTEM SET acme_outbox.wake_delay = 1000');
	$node->reload;
	await();
	my $before = counted('notifies');
	$node->sql(join(';', ($publish) x 50));
	is(counted("notifies - $before"), 0, 'is collected for wake_delay');
	my ($took, @heard) = hear();
	is_deeply(\@heard, ['shop'], 'fifty commits, one notification');
	is(counted("notifies - $before"), 1, 'as the view says');
	$node->sql('ALTER SYSTEM RESET acme_outbox.wake_delay');
	$node->reload;
};

subtest 'origins' => sub {
	my $set = join(';', map { "SET LOCAL acme_outbox.origin = 'o$_'; $publish" } 1 .. 3);
	await('o1', 'o2', 'o3');
	$node->sql("BEGIN; $set; COMMIT");
	is_deeply([ sort(hear_up_to_now()) ], [ 'o1', 'o2', 'o3' ], 'each is named');
	$set = join(';', map { "SET LOCAL acme_outbox.origin = 'o$_'; $publish" } 1 .. 40);
	$node->sql("BEGIN; $set; COMMIT");
	is_deeply([hear_up_to_now()], ['*'], 'too many are any');
	my $long = 'x' x 100;
	await($long);
	$node->sql("SET acme_outbox.origin = '$long'; $publish");
	is_deeply([hear_up_to_now()], ['*'], 'a long one is any');
	$node->sql("$publish; $publish");
	my ($took, @heard) = hear();
	is_deeply(\@heard, ['shop'], 'and one that is short is named again');
};

subtest 'never before the row is visible' => sub {
	# From now on a commit waits for a standby that does not exist, unless its
	# session says otherwise.  Claims wait for it too, so they come before.
	await();
	local $ENV{PGOPTIONS} = '-c synchronous_commit=local';
	$node->sql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
	$node->reload;
	my $probe = $node->background_psql('postgres', on_error_stop => 0);
	my $probe_pid = $probe->query_safe('SELECT pg_backend_pid()');
	$probe->query_until(qr/started/, "\\echo started\nSET synchronous_commit = on;\n"
		  . "DO \$\$ BEGIN LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END \$\$;\n");
	ok($node->wait_sql("SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $probe_pid"),
		'commits wait for a standby');
	$node->sql("SELECT pg_terminate_backend($probe_pid)");
	eval { $probe->quit };
	heard();

	my $known = $node->sql('SELECT count(*) FROM acme_outbox.outbox_entry');
	my $before = counted('wakes');

	# Its commit is flushed, and then waits: the row is not visible yet.
	my $publisher = $node->background_psql('postgres', on_error_stop => 0);
	my $pid = $publisher->query_safe('SELECT pg_backend_pid()');
	$publisher->query_until(qr/started/,
		"\\echo started\nSET synchronous_commit = on;\n$publish;\n");
	ok($node->wait_sql(
			"SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $pid"),
		'the commit waits for a standby');
	is($node->sql('SELECT count(*) FROM acme_outbox.outbox_entry'),
		$known, 'its row is not visible');
	is(counted("wakes - $before"), 0, 'and nobody was woken');
	is_deeply([heard()], [], 'or notified');

	$node->sql("SELECT pg_cancel_backend($pid)");
	my ($took, @heard) = hear();
	is_deeply(\@heard, ['shop'], 'it gives up waiting: the notification comes');
	cmp_ok($took, '<', INSTANT,
		sprintf 'at once, as the worker waits for no standby (%.3f s)', $took);
	is($node->sql('SELECT count(*) FROM acme_outbox.outbox_entry'),
		$known + 1, 'and the row is visible');
	$publisher->quit;
	$node->sql('ALTER SYSTEM RESET synchronous_standby_names');
	$node->reload;
};

subtest 'prepared transactions' => sub {
	$node->sql("BEGIN; $publish; PREPARE TRANSACTION 'p1'");
	$node->sql("BEGIN; $publish; PREPARE TRANSACTION 'p2'");
	is_deeply([hear_up_to_now()], [], 'PREPARE wakes nobody');
	$node->sql("COMMIT PREPARED 'p1'");
	$node->sql("ROLLBACK PREPARED 'p2'");
	is_deeply([hear_up_to_now()], [], 'nor does COMMIT PREPARED: the poll finds the entry');
	$node->sql("BEGIN; $publish; PREPARE TRANSACTION 'p3'; $publish; COMMIT PREPARED 'p3'");
	is_deeply([hear_up_to_now()], ['shop'], 'the session goes on as usual');
};

subtest 'each database for itself' => sub {
	$node->sql('CREATE DATABASE other');
	$node->set_up('other');
	my $there = $node->background_psql('other');
	$there->query_safe('LISTEN acme_outbox');
	$node->poll_query_until('other',
		"SELECT count(*) = 2 FROM acme_outbox.worker_status WHERE state = 'running'");
	my $there_epoch = $node->safe_psql('other', "SELECT epoch FROM acme_outbox.relay_acquire('shop', 'relay')");
	$node->safe_psql('other', "SELECT acme_outbox.claim('shop', $there_epoch, 10, 1000000)");
	$node->safe_psql('other', $publish);
	my $output = '';
	ok(wait_until(sub { $output .= $there->query_safe('SELECT 1'); $output =~ /"shop"/ }),
		'the other one hears it');
	is_deeply([hear_up_to_now()], [], 'this one does not');
	$there->quit;
};

subtest 'a commit without a worker brings one' => sub {
	# The launcher does not know of the copy, nor is it told.
	$node->sql('CREATE DATABASE copy TEMPLATE other');
	$node->safe_psql('copy', "SET acme_outbox.origin = 'shop'; $publish");
	my $at = time();
	ok($node->poll_query_until('copy',
			"SELECT state = 'running' FROM acme_outbox.worker_status WHERE database = 'copy'"),
		'it runs');
	cmp_ok(time() - $at, '<', 10, 'before the launcher looks by itself');
	$node->sql("DROP DATABASE $_") for qw(copy other);
};

subtest 'many sessions at once' => sub {
	my $before = counted('wakes');
	my $script = $node->basedir . '/publish.sql';
	append_to_file($script, "$publish;\n");
	command_ok(
		[   'pgbench', '-n', '-c', 8, '-j', 2, '-t', 250, '-f', $script,
			$node->connstr('postgres')
		],
		'eight publishers');
	wait_until(sub { push my @heard, heard(); @heard > 0 });
	cmp_ok(counted("wakes - $before"), '>', 0, 'they woke the worker');
	cmp_ok(counted("wakes - $before"), '<=', 2000, 'no more often than they committed');
};

is($node->sql("SELECT bool_and(started_at = '-infinity') FROM acme_outbox.duty_run"),
	't', 'all the time no duty ran: reaper_first_delay was not over');

$listener->quit;
done_testing();
