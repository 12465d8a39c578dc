# Twenty tenants through a pgbouncer in transaction mode with five server connections: all calls
# of a consumer, and publishing; nothing of one transaction is seen by another, and without a
# tenant an inbox that requires one fails closed. The connections must have been shared, or the
# test fails. What the pages say of prepared statements holds for this pgbouncer.
use strict;
use warnings;

use AcmeOutbox::Cluster;
use AcmeOutbox::Pooler;
use FindBin;
use lib "$FindBin::RealBin/../docs";
use Driver;
use PostgreSQL::Test::Utils;
use Test::More;

use constant { TENANTS => 20, SERVERS => 5, ROUNDS => 6 };

my $stage = $ENV{ACME_STAGE} // "$FindBin::RealBin/../..";
my $node = AcmeOutbox::Cluster->create('main', "listen_addresses = '127.0.0.1'",
	"acme_outbox.autocommit_publish = 'warn'");

$node->sql(<<'SQL');
CREATE ROLE svc_app LOGIN;
CREATE SCHEMA svc;
SELECT acme_outbox.create_inbox('svc', 'required');
SELECT acme_outbox.grant_consumer('svc_app', 'svc');
SELECT acme_outbox.grant_publisher('svc_app');
ALTER ROLE svc_app SET acme_outbox.inbox_schema = 'svc';
ALTER ROLE svc_app SET acme_outbox.origin = 'svc';
CREATE TABLE svc.deal (id text PRIMARY KEY, tenant text, last_event_at timestamptz);
GRANT ALL ON svc.deal TO svc_app;
GRANT USAGE ON SCHEMA svc TO svc_app;
-- each handler leaves settings behind
CREATE FUNCTION svc.publishes(message jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF acme_outbox.message() ->> 'queue' IS DISTINCT FROM message #>> '{body,payload,tenant}' THEN
		RAISE 'message() is another''s: %', acme_outbox.message();
	END IF;
	PERFORM acme_outbox.publish('e', 'k', acme_outbox.tenant(), 'PooledByHandler', message #> '{body,payload}');
	PERFORM acme_outbox.context('left behind', '', 'xx');
END $$;
CREATE FUNCTION svc.parks(message jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN PERFORM acme_outbox.park('INVALID_STATE'); PERFORM acme_outbox.context('left behind'); END $$;
CREATE FUNCTION svc.fails(message jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM acme_outbox.context('left behind');
	IF message #>> '{body,payload,fine}' IS NULL THEN RAISE 'failed'; END IF;
END $$;
SQL
my $pooler = AcmeOutbox::Pooler->start($node, 'svc_app', pool_mode => 'transaction',
	default_pool_size => SERVERS, max_client_conn => 100);

sub run_python
{
	my (@command) = @_;
	my %env = $pooler->libpq_env('svc_app');
	local @ENV{ keys %env } = values %env;
	my ($out, $err) = ('', '');
	my $ok = IPC::Run::run([ Driver::PYTHON, @command ], '<', \undef, '>', \$out, '2>', \$err,
		IPC::Run::timeout(180));
	ok($ok, 'the clients ran') or diag $out, $err;
	return $out;
}

my $out = run_python("$stage/test/tools/pooler_clients.py", TENANTS, ROUNDS);
my (%pids_of, %tenants_of, @wrong);
for my $line (split /\n/, $out)
{
	if ($line =~ /^(tenant-\d+)((?: \d+)+)$/)
	{
		$pids_of{$1} = [ split ' ', $2 ];
		push @{ $tenants_of{$_} }, $1 for @{ $pids_of{$1} };
	}
	elsif (length $line) { push @wrong, $line; }
}
is(join("\n", @wrong), '', 'each tenant saw its own, and nothing without a tenant');

# Were connections shared?

is(scalar keys %pids_of, TENANTS, 'all tenants were there');
cmp_ok(scalar keys %tenants_of, '<=', SERVERS, 'on few server connections');
cmp_ok(scalar keys %tenants_of, '>=', 2, 'on more than one');
my @few = grep { @{ $tenants_of{$_} } < TENANTS / 2 } keys %tenants_of;
is(scalar @few, 0, 'each of which served at least half of the tenants');
my $moved = grep { @$_ > 1 } values %pids_of;
cmp_ok($moved, '>=', TENANTS / 2, "tenants moved between connections ($moved of @{[TENANTS]})");

# What is stored belongs to whom it says.

sub value_of { return $node->sql(@_); }
is( value_of("SELECT count(*), count(DISTINCT tenant_id) FROM svc.parked_message WHERE tenant_id = payload #>> '{body,payload,tenant}'"),
	2 * TENANTS * ROUNDS . '|' . TENANTS, 'parked messages');
is( value_of("SELECT count(*), count(DISTINCT tenant_id) FROM svc.idempotency_key WHERE stored_response #>> '{body,tenant}' = tenant_id"),
	TENANTS * ROUNDS . '|' . TENANTS, 'idempotency keys, the same ones for all tenants');
is(value_of("SELECT count(*) FROM svc.deal WHERE id LIKE tenant || '-%'"), TENANTS * ROUNDS, 'projections');
is(value_of(<<'SQL'), TENANTS * ROUNDS . '|' . TENANTS * ROUNDS . '|' . TENANTS, 'events carry tenant, trace and locale of their transaction');
SELECT count(*) FILTER (WHERE event_name = 'Pooled'), count(*) FILTER (WHERE event_name = 'PooledByHandler'), count(DISTINCT tenant_id)
FROM acme_outbox.outbox_entry e, substring(e.tenant_id, '\d+$') AS n
WHERE tenant_id = payload::jsonb #>> '{body,payload,tenant}' AND origin = 'svc'
  AND payload::jsonb #>> '{header,traceId}' = lpad(to_hex(n::int + 1), 32, '0') AND payload::jsonb #>> '{header,locale}' = 'l' || n
SQL
is(value_of('SELECT count(*) FROM acme_outbox.outbox_entry'), 2 * TENANTS * ROUNDS, 'no event of what was rolled back');
is(value_of("SELECT count(*) FROM svc.processed_event WHERE event_id LIKE '%undone%'"), 0, 'nor a guard');

# The slip with autocommit is seen through a pooler, too; prepared statements.

my $file = PostgreSQL::Test::Utils::tempdir() . '/prepared.py';
append_to_file($file, <<'PY');
import psycopg

notices = []
slip = psycopg.connect(autocommit=True, prepare_threshold=None)
slip.add_notice_handler(lambda d: notices.append(d.message_primary))
slip.execute("SELECT acme_outbox.publish('e', 'k', '1', 'Slipped', %s)", ("{}",))
print(notices)

def connect(threshold=None):
    return psycopg.connect(autocommit=True, prepare_threshold=threshold)

def pid(conn):
    return conn.execute("SELECT pg_backend_pid()").fetchone()[0]

def elsewhere(conn, first):
    """The connections that now hold the server process that served the first transaction."""
    others = []
    while True:
        other = connect()
        others.append(other)
        other.execute("BEGIN")
        if pid(other) == first:
            return others

for prepare in (False, True):
    conn = connect(5 if prepare else None)
    accept = "SELECT acme_outbox.inbox_accept('prepared', %s)"
    with conn.transaction():
        first = pid(conn)
        conn.execute(accept, (f"first {prepare}",), prepare=prepare)
    others = elsewhere(conn, first)
    try:
        with conn.transaction():
            assert pid(conn) != first
            conn.execute(accept, (f"second {prepare}",), prepare=prepare)
        print("prepared" if prepare else "parameters", "work")
    except psycopg.Error as error:
        print(error.sqlstate)
    for other in others:
        other.close()
    conn.close()
PY
my ($major, $minor) = AcmeOutbox::Pooler::version();
my $supports = $major > 1 || $minor >= 21;
if ($supports)
{
	$pooler->stop;
	$pooler = AcmeOutbox::Pooler->start($node, 'svc_app', pool_mode => 'transaction',
		default_pool_size => SERVERS, max_client_conn => 100, max_prepared_statements => 100);
}
is(run_python($file), "['event published outside a transaction block']\nparameters work\n"
	  . ($supports ? "prepared work\n" : "26000\n"),
	"prepared statements as the page says of pgbouncer $major.$minor");
$pooler->stop;
$node->verify_ok('in the end');
done_testing();
