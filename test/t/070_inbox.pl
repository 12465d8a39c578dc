# One event delivered by fifty sessions at once changes the data once; nothing that ends
# or cancels a session is taken for a message's fault; attempts bound a message that ends
# its session; the worker purges every inbox, as its owner.
use strict;
use warnings;

use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;

use constant SESSIONS => 50;
use constant EVENTS   => 10;

my $node = AcmeOutbox::Cluster->create('main',
	'acme_outbox.duty_interval = 1', 'acme_outbox.reaper_first_delay = 1',
	'acme_outbox.retention_interval = 1', 'max_connections = 80');

$node->sql(<<'SQL');
CREATE TABLE change (event_id text, by_pid int DEFAULT pg_backend_pid());
CREATE FUNCTION env(id text) RETURNS text LANGUAGE sql AS
$$ SELECT json_build_object('header', json_build_object('eventId', id))::text $$;
CREATE FUNCTION handle(message jsonb) RETURNS void LANGUAGE sql AS
$$ INSERT INTO change (event_id) VALUES (message -> 'header' ->> 'eventId') $$;
SQL

# Fifty sessions wait for one lock, and deliver together once it is free.

my %call = (
	accept => "INSERT INTO change (event_id) SELECT id WHERE acme_outbox.inbox_accept('c', id)",
	process => "PERFORM acme_outbox.inbox_process('c', env(id), 'public.handle')",
	try     => "PERFORM acme_outbox.inbox_try_process('c', env(id), 'public.handle')",
	batch   => "PERFORM acme_outbox.inbox_try_process_batch('c', ARRAY[env(id), env('x' || id)], 'public.handle')");
my @kinds = sort keys %call;

for my $kind (@kinds)
{
	$node->sql("CREATE PROCEDURE deliver_$kind(id text) LANGUAGE plpgsql AS \$\$ BEGIN $call{$kind}; END \$\$");
}

sub script_of
{
	my ($session) = @_;
	my $script = "SELECT pg_advisory_lock_shared(1);\n";
	for my $event (1 .. EVENTS)
	{
		my $kind = $kinds[ ($session + $event) % @kinds ];
		$script .= "CALL deliver_$kind('e$event');\n";
	}
	return $script;
}

my $gate = $node->background_psql('postgres');
$gate->query_safe('SELECT pg_advisory_lock(1)');
my $folder = PostgreSQL::Test::Utils::tempdir();
my @sessions;
for my $session (1 .. SESSIONS)
{
	my ($out, $err) = ('', '');
	append_to_file("$folder/$session.sql", script_of($session));
	my $handle = IPC::Run::start(
		[   'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres'),
			'-f', "$folder/$session.sql"
		],
		'<', \undef, '>', \$out, '2>', \$err);
	push @sessions, [ $handle, \$err ];
}
$node->wait_sql('SELECT count(*) = ' . SESSIONS
	  . " FROM pg_locks WHERE locktype = 'advisory' AND NOT granted");
$gate->query_safe('SELECT pg_advisory_unlock(1)');

my @failed = grep { !$_->[0]->finish } @sessions;
is(scalar @failed, 0, 'all sessions ended well') or diag ${ $failed[0][1] };
is($node->sql("SELECT count(*) FROM change WHERE event_id ~ '^e'"),
	EVENTS, 'each event made one change');
is($node->sql('SELECT count(*) FROM (SELECT FROM change GROUP BY event_id HAVING count(*) > 1) x'),
	0, 'none made two');
cmp_ok($node->sql('SELECT count(DISTINCT by_pid) FROM change'),
	'>', 1, 'several sessions came first');
is( $node->sql(q{SELECT count(*) FROM acme_outbox.processed_event WHERE event_id ~ '^e'}),
	EVENTS, 'each is recorded once');

# A session that is cancelled or ended while a handler runs: raised, nothing left.

$node->sql(<<'SQL');
CREATE FUNCTION sleeps(message jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO change (event_id) VALUES (message -> 'header' ->> 'eventId');
	IF message -> 'header' ->> 'eventId' = 'slow' THEN
		PERFORM pg_sleep(300);
	END IF;
END $$;
SQL

sub interrupted
{
	my ($how) = @_;
	my ($out, $err) = ('', '');
	my $handle = IPC::Run::start(
		[   'psql', '-XqAt', '-v', 'VERBOSITY=verbose', '-d', $node->connstr('postgres'), '-c',
			"SELECT acme_outbox.inbox_try_process_batch('c', ARRAY[env('before'), env('slow'), env('after')], 'public.sleeps')"
		],
		'<', \undef, '>', \$out, '2>', \$err);
	$node->wait_sql("SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'");
	$node->sql("SELECT $how(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'");
	$handle->finish;
	return "$out$err";
}

like(interrupted('pg_cancel_backend'), qr/ERROR: +57014/, 'a cancelled batch is cancelled');
like(interrupted('pg_terminate_backend'), qr/FATAL: +57P01/, 'an ended session ends');
is($node->sql("SELECT count(*) FROM change WHERE event_id IN ('before', 'slow', 'after')"),
	0, 'nothing is left of them');
is($node->sql("SELECT count(*) FROM acme_outbox.processed_event WHERE event_id IN ('before', 'slow', 'after')"),
	0, 'and they can be delivered again');

# A message that ends its session: bounded by attempts counted before each run.

$node->sql(<<'SQL');
CREATE FUNCTION kills(message jsonb) RETURNS void LANGUAGE sql AS
$$ SELECT pg_terminate_backend(pg_backend_pid()) $$;
SQL
my $runs = 0;
while ($node->sql("SELECT allowed FROM acme_outbox.inbox_attempt('c', 'killer', 5)") eq 't')
{
	my ($status) = $node->psql('postgres',
		"SELECT acme_outbox.inbox_try_process('c', env('killer'), 'public.kills')");
	isnt($status, 0, 'the session was ended');
	last if ++$runs > 10;
}
is($runs, 5, 'run five times, and then no more');

# The worker purges a service's inbox as its owner.

$node->sql(<<'SQL');
CREATE ROLE service;
CREATE SCHEMA svc AUTHORIZATION service;
SELECT acme_outbox.create_inbox('svc');
SET SESSION AUTHORIZATION service;
CREATE TABLE svc.ran (what text, as_user name DEFAULT current_user);
CREATE FUNCTION svc.spy() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO svc.ran VALUES (OLD.event_id); RETURN OLD; END $$;
CREATE TRIGGER spy BEFORE DELETE ON svc.processed_event FOR EACH ROW EXECUTE FUNCTION svc.spy();
CREATE TRIGGER spy BEFORE DELETE ON svc.consumer_attempt FOR EACH ROW EXECUTE FUNCTION svc.spy();
INSERT INTO svc.consumer_attempt VALUES ('c', 'old attempt', 1, now(), now() - interval '31 days');
INSERT INTO svc.processed_event VALUES ('c', 'young', now() - interval '29 days'),
	('c', 'old', now() - interval '31 days');
SQL
ok($node->wait_sql('SELECT count(*) = 2 FROM svc.ran'), 'the worker purges it');
is($node->sql('SELECT what, as_user FROM svc.ran ORDER BY 1'),
	"old|service\nold attempt|service", 'its triggers run as its owner');
is($node->sql('SELECT event_id FROM svc.processed_event'), 'young', 'what is young stays');

$gate->quit;
$node->stop;
done_testing();
