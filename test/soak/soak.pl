# Everything at once, for SOAK_MINUTES: writers of three origins, two relays of each,
# one consumer, and faults of every kind at random. In the end all of it must have
# arrived: what was committed, what the consumer saw and what is PUBLISHED are the same
# events, keys are in order, nothing was charged, and verify() is clean. A kind of fault
# that never happened fails the run, too.
#
# Beside it two bridges consume a second queue: what was committed is applied or parked
# once, or is a dead letter, whatever its handler does and whoever is killed.
use strict;
use warnings;

use AcmeOutbox::Bridge;
use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use AcmeOutbox::FaultProxy;
use JSON::PP qw(decode_json);
use List::Util qw(shuffle);
use POSIX qw(WNOHANG);
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

use constant ORIGINS => qw(shop billing stock);
use constant WRITERS => 3;
use constant KEYS => 40;
use constant BACKLOG_MAX => 20_000;

my $minutes = $ENV{SOAK_MINUTES} || 20;
my $seed = $ENV{FAULT_SEED} // int time();
srand($seed);
note "random seed $seed (FAULT_SEED sets it), $minutes minutes";

my $node = AcmeOutbox::Cluster->create('main', 'acme_outbox.lease_duration = 2s',
	'acme_outbox.hold_backoff_base = 200ms', 'acme_outbox.hold_backoff_cap = 2s',
	'max_prepared_transactions = 50', 'max_connections = 100');
my $broker =
  AcmeOutbox::Broker->new(private => 1)->standard_topology('x-queue-type' => 'classic');
my $proxy = AcmeOutbox::FaultProxy->start($broker->{port});
my $dir = PostgreSQL::Test::Utils::tempdir();
my $stop_file = "$dir/stop";
my $end = time() + 60 * $minutes;
my $entry = 'acme_outbox.outbox_entry';
my %count;

$node->sql("SELECT acme_outbox.grant_relay('relay', '$_')") for ORIGINS;
# What was committed, written by the same transactions, beside the outbox.
$node->sql('CREATE TABLE journal (event_id uuid, origin text, kind text)');

# Sixteen kinds of events by their ids: one is parked, one always fails, one fails at
# first, one ends its session at first, the others are applied.
$broker->declare_exchange('dlx', 'direct');
for my $queue (qw(work dead)) { $broker->declare_queue($queue, 'x-queue-type' => 'classic'); }
$broker->bind('dead', 'dlx', 'dead-letter');
$broker->bind('work', 'events');
$node->sql(<<'SQL');
CREATE ROLE eater LOGIN;
SELECT acme_outbox.grant_consumer('eater', 'acme_outbox');
CREATE TABLE applied (event_id uuid);
GRANT INSERT ON applied TO eater;
CREATE FUNCTION eat(message jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	id      text := message #>> '{header,eventId}';
	kind    int := hashtext(id) & 15;
	attempt int := acme_outbox.message() ->> 'attempt';
BEGIN
	IF kind = 0 THEN
		PERFORM acme_outbox.park('INVALID_STATE', 'thing', id);
		RETURN;
	END IF;
	INSERT INTO applied VALUES (id::uuid);
	IF kind = 1 OR (kind = 2 AND attempt < 3) THEN
		RAISE EXCEPTION 'not now';
	ELSIF kind = 3 AND hashtext('x' || id) & 7 = 0 AND attempt < 3 THEN
		PERFORM pg_terminate_backend(pg_backend_pid());
	END IF;
END $$;
SQL

# One query that may meet a server that is just being restarted.
sub try_sql
{
	my ($query) = @_;
	my ($status, $out) = $node->psql('postgres', $query, timeout => 60);
	return defined $status && $status == 0 ? $out : undef;
}

# ---- children ----

my @children;

# A loop in a process of its own, until the stop file is there.
sub child
{
	my ($work) = @_;
	my $pid = fork() // die "could not fork: $!\n";
	if ($pid == 0)
	{
		srand($seed + $$);
		while (!-e $stop_file)
		{
			eval { $work->(); 1 } or sleep 0.2;
		}
		POSIX::_exit(0);
	}
	push @children, $pid;
	return;
}

# The key's lock first, publish second: then the order of ids is the order of commits.
sub publish_sql
{
	my ($kind, @keys) = @_;
	return join '', map {
		"SELECT count(pg_advisory_xact_lock(hashtext(current_setting('acme_outbox.origin') || '$_')));\n"
		  . "INSERT INTO journal SELECT acme_outbox.publish('events', 'k.$kind', '$_', 'Soaked', json_build_object('t', clock_timestamp(), 'fill', repeat('x', @{[int rand 400]}))), current_setting('acme_outbox.origin'), '$kind';\n"
	} sort @keys;
}

sub some_keys { my ($n) = @_; return map { 'key-' . int rand KEYS } 1 .. $n; }

my $prepared = 0;

sub transaction
{
	my $dice = rand;
	my $one = publish_sql('plain', some_keys(1 + int rand 3));
	return "BEGIN;\n${one}COMMIT;\n" if $dice < 0.4;
	return "BEGIN;\n" . publish_sql('rolled-back', some_keys(2)) . "ROLLBACK;\n" if $dice < 0.5;
	return "BEGIN;\n${one}SAVEPOINT s;\n" . publish_sql('rolled-back', some_keys(1))
	  . "ROLLBACK TO s;\n" . publish_sql('savepoint', some_keys(1)) . "SAVEPOINT r;\n"
	  . publish_sql('savepoint', some_keys(1)) . "RELEASE r;\nCOMMIT;\n" if $dice < 0.65;
	return "SET synchronous_commit = off;\nBEGIN;\n${one}COMMIT;\nRESET synchronous_commit;\n" if $dice < 0.75;
	if ($dice < 0.77)
	{
		my $name = "soak-$$-" . ++$prepared;
		# keys of its own: it may be open for long
		return "BEGIN;\n" . publish_sql('prepared', "$name-a", "$name-b") . "PREPARE TRANSACTION '$name';\n";
	}
	return "BEGIN;\n" . publish_sql('batch', map { "key-$_" } 1 .. 20) . "COMMIT;\n" if $dice < 0.85;
	# open for a while, below others' ids
	return "BEGIN;\n" . publish_sql('late', 'late-' . int rand 5) . "SELECT pg_sleep(0.3);\nCOMMIT;\n" if $dice < 0.9;
	return "BEGIN;\nSELECT count(acme_outbox.publish('events', 'k', NULL, 'Soaked', '{}'::text)) FROM generate_series(1, 0);\n${one}COMMIT;\n";
}

sub write_some
{
	my $origin = (ORIGINS)[ rand ORIGINS ];
	my $backlog = try_sql("SELECT count(*) FROM $entry WHERE status = 'PENDING'");
	if (!defined $backlog || $backlog > BACKLOG_MAX)
	{
		sleep 0.5;
		return;
	}
	my $sql = "SET acme_outbox.origin = '$origin';\n" . join '', map { transaction() } 1 .. 15;
	# what fails with the server is the journal's to know
	my $errors = '';
	IPC::Run::run([ 'psql', '-Xqt', '-o', '/dev/null', '-d', $node->connstr('postgres') ],
		'<', \$sql, '2>', \$errors);
	sleep 0.2;
	return;
}

my $seen_file = "$dir/seen";

# Takes what is there, and notes each message before it is acknowledged.
sub consume
{
	my $uri = $broker->uri(user => 'guest', password => 'guest');
	system("'$ENV{ACME_STAGE}/test/tools/amqp_probe' drain --uri '$uri' --queue all --timeout 3"
		  . " >>'$seen_file' 2>>'$dir/consumer.log' </dev/null");
	sleep 0.1;
	return;
}

# ---- relays ----

my @relays;    # { origin, bridge, expected => why it may end }

sub start_relay
{
	my ($origin) = @_;
	push @relays, {
		origin => $origin,
		bridge => AcmeOutbox::Bridge->start($node, $broker,
			origin => $origin,
			uri    => $broker->uri(port => $proxy->port),
			args   => [ '--confirm-timeout', '5s', '--connect-timeout', '3s', '--heartbeat', '3s',
				'--reconnect-max', '2s', '--stop-timeout', '6s', '--duty-interval', '5s',
				'--claim-rows', 20 + int rand 300, (rand() < 0.3 ? '--strict-order' : ()) ])
	};
	return;
}

my @bad_ends;

# Two of each origin, always. One that has begun its work may end only by our hand.
sub keep_relays
{
	for my $relay (grep { !$_->{bridge}->running } @relays)
	{
		my $status = $relay->{bridge}->wait_exit(1) // 'none';
		my $log = $relay->{bridge}->log_text;
		my $established = $log =~ /lease acquired|standing by/;
		if (!defined $relay->{expected})
		{
			$count{'relay ended at its start'}++;
			push @bad_ends, "$relay->{origin}: $status: " . substr($log, -600)
			  if $established || $status =~ /signal|^70$/;
		}
		elsif ($relay->{expected} ne $status) { push @bad_ends, "expected $relay->{expected}: $status"; }
	}
	@relays = grep { $_->{bridge}->running } @relays;
	for my $origin (ORIGINS)
	{
		my $n = grep { $_->{origin} eq $origin && !defined $_->{expected} } @relays;
		start_relay($origin) for $n + 1 .. 2;
	}
	return;
}

my @consumers;    # { bridge, expected => why it may end }

# Two, always; the same rule.
sub keep_consumers
{
	for my $consumer (grep { !$_->{bridge}->running } @consumers)
	{
		my $status = $consumer->{bridge}->wait_exit(1) // 'none';
		my $log = $consumer->{bridge}->log_text;
		push @bad_ends, "consumer: $status: " . substr($log, -600)
		  if defined $consumer->{expected} ? $consumer->{expected} ne $status : $log =~ /msg=consuming/;
	}
	@consumers = grep { $_->{bridge}->running } @consumers;
	push @consumers, {
		bridge => AcmeOutbox::Bridge->start($node, $broker,
			command => 'consume',
			user    => 'eater',
			uri     => $broker->uri(port => $proxy->port),
			args    => [ '--queue', 'work', '--consumer', 'eat', '--handler', 'public.eat',
				'--dead-letter-exchange', 'dlx', '--retry-backoff', '50ms', '--confirm-timeout', '5s',
				'--connect-timeout', '3s', '--heartbeat', '3s', '--reconnect-max', '2s', '--max-attempts', 10 ])
	} while @consumers < 2;
	return;
}

sub any_relay { my @running = grep { !defined $_->{expected} && !$_->{frozen} } @relays; return $running[ rand @running ]; }

# ---- faults ----

my @later;    # [time, sub]

sub after { my ($seconds, $what) = @_; push @later, [ time() + $seconds, $what ]; return; }

sub run_later
{
	my ($all) = @_;
	my @due = grep { $all || $_->[0] <= time() } @later;
	@later = grep { !$all && $_->[0] > time() } @later;
	$_->[1]->() for @due;
	return;
}

sub wait_for_server
{
	return wait_until(sub { (try_sql('SELECT pg_is_in_recovery()') // '') eq 'f' }, 60);
}

my %faults = (
	'relay killed' => sub {
		my $relay = any_relay() or return 0;
		$relay->{expected} = 'signal 9';
		$relay->{bridge}->signal('KILL');
		return 1;
	},
	'consumer killed' => sub {
		my ($consumer) = grep { !defined $_->{expected} && $_->{bridge}->running } shuffle @consumers or return 0;
		$consumer->{expected} = 'signal 9';
		$consumer->{bridge}->signal('KILL');
		return 1;
	},
	'relay frozen' => sub {
		my $relay = any_relay() or return 0;
		$relay->{frozen} = 1;
		$relay->{bridge}->signal('STOP');
		# longer than the lease, and shorter
		after(0.5 + rand 6, sub {
				delete $relay->{frozen};
				$relay->{bridge}->signal('CONT') if $relay->{bridge}->running;
			});
		return 1;
	},
	'relay stopped' => sub {
		my $relay = any_relay() or return 0;
		$relay->{expected} = '0';
		$relay->{bridge}->signal('TERM');
		my $at = time();
		after(15, sub {
				push @bad_ends, "$relay->{origin}: SIGTERM not obeyed" if $relay->{bridge}->running;
			});
		return 1;
	},
	'backend ended' => sub {
		return (try_sql(
				"SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 2) s"
			) // 0) > 0;
	},
	'backend killed' => sub {
		my $pid = try_sql(
			"SELECT pid FROM pg_stat_activity WHERE usename IN ('relay', 'eater') ORDER BY random() LIMIT 1");
		return 0 unless $pid && kill 'KILL', $pid;
		return wait_for_server();
	},
	'server restarted' => sub {
		$node->stop('immediate');
		$node->start;
		return 1;
	},
	'broker killed' => sub {
		$broker->kill9;
		$broker->start;
		return 1;
	},
	'memory alarm' => sub {
		$broker->ctl('set_vm_memory_high_watermark', 'absolute', '1MiB');
		after(3, sub { $broker->ctl('set_vm_memory_high_watermark', 'absolute', '1GiB') });
		return wait_until(sub { $broker->api('GET', 'nodes')->[0]{mem_alarm} }, 20);
	},
	'connections closed' => sub { return $broker->close_connections > 0; },
	'connections reset' => sub { $proxy->tell('reset'); return 1; },
	'connections half-open' => sub {
		$proxy->tell('blackhole');
		after(4, sub { $proxy->tell('pass') });
		return 1;
	},
	'frame cut' => sub { $proxy->tell('cut up ' . int rand 20_000); return 1; },
	'rows locked' => sub {
		# again and again: most entries are unsent only for a moment
		my $sql = 'BEGIN;' . "SELECT count(*) FROM (SELECT 1 FROM $entry WHERE status IN ('PENDING', 'PUBLISHING') LIMIT 50 FOR UPDATE SKIP LOCKED) s; SELECT pg_sleep(0.1);" x 20
		  . 'SELECT pg_sleep(3); COMMIT';
		my ($out, $in) = ('', '');
		my $locker = IPC::Run::start([ 'psql', '-Xqt', '-d', $node->connstr('postgres'), '-c', $sql ],
			'<', \undef, '>', \$out, '2>', '/dev/null');
		after(5, sub { eval { $locker->finish }; $count{'rows that were locked'} += $_ for $out =~ /(\d+)/g; });
		return 1;
	});

sub resolve_prepared
{
	my ($all) = @_;
	my $names = try_sql('SELECT gid FROM pg_prepared_xacts ORDER BY prepared') // return;
	my @names = split /\n/, $names;
	@names = @names[ 0 .. $#names / 2 ] unless $all;
	for my $name (@names)
	{
		my $how = rand() < 0.7 ? 'COMMIT' : 'ROLLBACK';
		$count{ lc($how) . ' of a prepared transaction' }++ if defined try_sql("$how PREPARED '$name'");
	}
	return;
}

# ---- the run ----

keep_relays();
keep_consumers();
child(\&write_some) for 1 .. WRITERS;
child(\&consume);
wait_until(sub { -s $seen_file }) or die "nothing flows\n";

my @violations;
while (time() < $end)
{
	for my $name (shuffle sort keys %faults)
	{
		last if time() >= $end;
		run_later();
		keep_relays();
		keep_consumers();
		resolve_prepared();
		my $before = -s $seen_file;
		$count{"fault: $name"}++ if eval { $faults{$name}->() };
		note "$name: $@" if $@;
		# Let something flow before the next one, but do not wait for ever.
		my $next = time() + 1 + rand 3;
		wait_until(sub { run_later(); return time() > $next && -s $seen_file > $before; }, 12);
	}
	my $found = try_sql('SELECT * FROM acme_outbox.verify()');
	$count{'verify() in the run'}++ if defined $found;
	push @violations, $found if defined $found && $found ne '';
}

# ---- the end ----

open(my $file, '>', $stop_file);
close $file;
run_later(1);
$proxy->tell('pass');
wait_for_server() or die "the server is not there\n";
resolve_prepared(1);
$_->{bridge}->running && $_->{bridge}->signal('CONT') for @relays;
keep_relays();
ok($node->wait_drained, 'everything is sent in the end');
my $consumer = pop @children;
waitpid $_, 0 for @children;
resolve_prepared(1);
ok($node->wait_drained, 'and what the writers committed last');
ok( wait_until(sub {
		system("'$ENV{ACME_STAGE}/test/tools/amqp_probe' drain --uri '"
			  . $broker->uri(user => 'guest', password => 'guest')
			  . "' --queue all --timeout 2 >>'$seen_file' </dev/null") if waitpid($consumer, WNOHANG) != 0;
		return $broker->count == 0 && waitpid($consumer, WNOHANG) != 0;
	}),
	'the queue is empty');

# Every committed event was applied, parked or given up.
my @dead;
ok( wait_until(sub {
		keep_consumers();
		push @dead, map { decode_json($_->{body})->{header}{eventId} } $broker->drain('dead', timeout => 0.5);
		my $list = join ',', map { "'$_'" } @dead;
		my $left = try_sql(
			"SELECT count(*) FROM journal j WHERE NOT EXISTS (SELECT FROM applied a WHERE a.event_id = j.event_id) AND NOT EXISTS (SELECT FROM acme_outbox.parked_message p WHERE p.event_id = j.event_id::text) AND NOT j.event_id = ANY (ARRAY[$list]::uuid[])"
		);
		return defined $left && $left == 0 && $broker->count('work') == 0;
	}),
	'consumers: every event was applied, parked or given up');
$count{'applied'} = $node->sql('SELECT count(*) FROM applied');
$count{'parked'} = $node->sql('SELECT count(*) FROM acme_outbox.parked_message');
$count{'dead letters'} = @dead;
is($node->sql('SELECT count(*) - count(DISTINCT event_id) FROM applied'), 0, 'consumers: none was applied twice');
is($node->sql('SELECT count(*) - count(DISTINCT event_id) FROM acme_outbox.parked_message'), 0, 'consumers: none was parked twice');
is( $node->sql('SELECT count(*) FROM applied a WHERE NOT EXISTS (SELECT FROM journal j WHERE j.event_id = a.event_id)'),
	0, 'consumers: nothing was applied that was not committed');
is($node->sql('SELECT count(*) FROM applied WHERE hashtext(event_id::text) & 15 < 2'), 0, 'consumers: nothing that fails or is parked was applied');
my $given_up = join ',', map { "'$_'" } @dead;
is($node->sql("SELECT count(*) FROM unnest(ARRAY[$given_up]::text[]) id WHERE hashtext(id) & 15 > 3 OR hashtext(id) & 15 = 0"),
	0, 'consumers: no healthy event was given up');
cmp_ok($count{$_}, '>', 0, "consumers: the stress happened: $_") for 'applied', 'parked', 'dead letters';
is(scalar(grep { $_->{bridge}->stop(20) } @consumers), 0, 'consumers: they stop cleanly');

my @messages = map { decode_json($_) } split /\n/, slurp_file($seen_file);
my %journal = map { $_ => 1 } split /\n/, $node->sql('SELECT event_id FROM journal');
my %arrived = map { $_->{message_id} => 1 } @messages;
my @entries = map {
	my ($id, $event_id, $key, $attempts, $status) = split /\|/, $_;
	{ id => $id, event_id => $event_id, key => $key, attempts => $attempts, status => $status }
} split /\n/, $node->sql(
	"SELECT id, event_id, origin || ' ' || message_key, attempts, status FROM $entry ORDER BY id");

$count{'published and committed'} = keys %journal;
$count{'entries'} = @entries;
$count{'messages'} = @messages;
$count{'distinct messages'} = keys %arrived;
$count{'entries PUBLISHED'} = grep { $_->{status} eq 'PUBLISHED' } @entries;
$count{'entries otherwise'} = grep { $_->{status} ne 'PUBLISHED' } @entries;
$count{'attempts charged'} = grep { $_->{attempts} > 0 } @entries;
$count{'duplicates'} = @messages - keys %arrived;
$count{'epochs'} = $node->sql('SELECT last_value FROM acme_outbox.relay_epoch_seq');
$count{"kind: $_->[0]"} = $_->[1] for map { [ split /\|/ ] } split /\n/,
  $node->sql('SELECT kind, count(*) FROM journal GROUP BY 1');
diag sprintf '%-40s %8d', $_, $count{$_} for sort keys %count;

delivered_ok(\@entries, \@messages, 'soak');
is(scalar(grep { !$journal{ $_->{event_id} } } @entries), 0, 'soak: no entry that was not committed');
is(scalar @entries, scalar keys %journal, 'soak: what was committed is what is stored');
is($count{'entries PUBLISHED'}, scalar @entries, 'soak: all is PUBLISHED, nothing is stuck');
order_ok(\@entries, \@messages, 'soak');
is($count{'attempts charged'}, 0, 'soak: no attempt is charged');
is($node->sql('SELECT count(*) FROM acme_outbox.outbox_claim'), 0, 'soak: no claim is open');
$node->verify_ok('soak');
is(join("\n", @violations), '', 'soak: nor did verify() find any on the way');
is(join("\n", @bad_ends), '', 'soak: no relay ended by itself');
cmp_ok($count{"fault: $_"} // 0, '>', 0, "soak: the stress happened: $_") for sort keys %faults;
cmp_ok($count{"kind: $_"} // 0, '>', 0, "soak: the stress happened: $_")
  for qw(plain savepoint prepared batch late);
cmp_ok($count{'rows that were locked'} // 0, '>', 0, 'soak: the stress happened: locked entries');
is($count{'kind: rolled-back'} // 0, 0, 'soak: nothing that was rolled back is there');
is(scalar(grep { $_->{bridge}->stop(20) } grep { $_->{bridge}->running } @relays), 0,
	'soak: the relays stop cleanly');

done_testing();

END
{
	my $status = $?;
	if (defined $stop_file)
	{
		open(my $file, '>', $stop_file);
		for my $child (@children) { kill 'TERM', $child; waitpid $child, 0; }
	}
	$? = $status;
}
