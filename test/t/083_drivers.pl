# What the drivers do with arguments is what the pages say, slips included; every envelope that
# publish renders is valid by docs/envelope.schema.json.
use strict;
use warnings;

use AcmeOutbox::Cluster;
use FindBin;
use lib "$FindBin::RealBin/../docs";
use Driver;
use PostgreSQL::Test::Utils;
use Test::More;

my $stage = $ENV{ACME_STAGE} // "$FindBin::RealBin/../..";
my $node = AcmeOutbox::Cluster->create('main', "listen_addresses = '127.0.0.1'",
	"acme_outbox.autocommit_publish = 'warn'");
my $drivers = Driver->new($stage, PostgreSQL::Test::Utils::tempdir());

$node->sql(<<'SQL');
CREATE ROLE app LOGIN;
SELECT acme_outbox.grant_publisher('app');
SELECT acme_outbox.grant_consumer('app', 'acme_outbox');
CREATE TABLE orders (id int PRIMARY KEY);
CREATE FUNCTION handler(message jsonb) RETURNS void LANGUAGE sql AS 'SELECT';
GRANT ALL ON orders TO app;
SQL

sub run_program
{
	my ($language, $text, $name) = @_;
	my ($ok, $out, $err) = $drivers->run({ language => $language, mark => '', text => $text },
		$node->libpq_env('app'));
	ok($ok, "$name: runs") or diag $out, $err;
	return $out;
}

sub events { return $node->sql(q{SELECT string_agg(event_name, ' ' ORDER BY id) FROM acme_outbox.outbox_entry}); }

my $warning = 'event published outside a transaction block';

# psycopg

my $out = run_program('python', <<'PY', 'psycopg');
import uuid
import psycopg
from psycopg.types.json import Json, Jsonb

PUBLISH = "SELECT acme_outbox.publish(%s, %s, %s, %s, %s)"
notices = []

# the slip: autocommit makes each statement a transaction, and the change that fails leaves its event
conn = psycopg.connect(autocommit=True)
conn.add_notice_handler(lambda d: notices.append(f"{d.severity}: {d.message_primary}"))
conn.execute(PUBLISH, ("e", "k", "1", "Slipped", "{}"))
try:
    conn.execute("INSERT INTO orders VALUES (NULL)")
except psycopg.errors.NotNullViolation:
    print("the change failed")
print(notices)
with conn.transaction():
    conn.execute(PUBLISH, ("e", "k", "1", "InTransaction", Jsonb({"a": 1})))
print(len(notices))

def state(*arguments, prepare=None):
    try:
        with conn.transaction():
            conn.execute(PUBLISH, arguments, prepare=prepare)
        return "ok"
    except psycopg.Error as error:
        return error.sqlstate

print(state("e", "k", "1", "Refused", None), state("e", "k", 1, "Refused", "{}"),
      state("e", "k", uuid.uuid4(), "Refused", "{}"), state("e", "k", "1", "Refused", b"{}"))
print(state("e", "k", "1", "AsText", '{"a": 1}', prepare=True), state("e", "k", "1", "AsJson", Json([1])),
      state("e", None, None, "AsJsonb", Jsonb("text"), prepare=True))
try:
    conn.execute(PUBLISH, ("e", "k", "1", "Refused", {"a": 1}))
except psycopg.ProgrammingError as error:
    print("a dict is not adapted:", error.sqlstate)

envelope = {"header": {"eventId": str(uuid.uuid4())}, "body": {"payload": {}}}
with conn.transaction():
    print(conn.execute("SELECT outcome FROM acme_outbox.inbox_try_process_batch(%s, %s, %s, %s)",
        ("py", ['{"header": {"eventId": "py-1"}}', "x"], "public.handler",
         [Jsonb({"queue": "q"}), None])).fetchall())
    print(conn.execute("SELECT outcome FROM acme_outbox.inbox_try_process_batch(%s, %s, %s)",
        ("py", [Jsonb(envelope)], "public.handler")).fetchall())
    print(conn.execute("SELECT acme_outbox.inbox_accept(%s, %s)", ("py", uuid.uuid4())).fetchone()[0])
    print(conn.execute("SELECT * FROM acme_outbox.inbox_attempt(%s, %s)", ("py", uuid.uuid4())).fetchone())
PY
$out =~ s/\r//g;
is($out, <<"OUT", 'psycopg: autocommit is warned of, a transaction is not; what resolves and what does not');
the change failed
['WARNING: $warning']
1
OX001 42883 42883 42883
ok ok ok
a dict is not adapted: None
[('applied',), ('invalid',)]
[('applied',)]
True
(1, True)
OUT
is(events(), 'Slipped InTransaction AsText AsJson AsJsonb', 'psycopg: what was stored');

# node-postgres

$node->sql('DELETE FROM acme_outbox.outbox_entry');
$out = run_program('js', <<'JS', 'node-postgres');
const { Pool } = require('pg');
const { randomUUID } = require('crypto');
const pool = new Pool({ max: 2 });
const PUBLISH = 'SELECT acme_outbox.publish($1, $2, $3, $4, $5)';
const notices = [];
pool.on('connect', (client) => client.on('notice', (n) => notices.push(`${n.severity}: ${n.message}`)));

// the slip: a transaction on a client, the event through the pool
const client = await pool.connect();
await client.query('BEGIN');
await client.query('INSERT INTO orders VALUES (1)');
await pool.query(PUBLISH, ['e', 'k', '1', 'Slipped', {}]);
await client.query('ROLLBACK');
console.log(notices.join());

await client.query('BEGIN');
await client.query('INSERT INTO orders VALUES (2)');
await client.query(PUBLISH, ['e', 'k', '2', 'InTransaction', { a: 1 }]);
await client.query('COMMIT');
console.log(notices.length);

async function state(...values) {
  await client.query('BEGIN');
  try {
    await client.query({ text: PUBLISH, values, name: values[3] });    // prepared by name
    await client.query('COMMIT');
    return 'ok';
  } catch (error) {
    await client.query('ROLLBACK');
    return error.code;
  }
}
console.log(await state('e', 'k', '1', 'Null', null), await state('e', 'k', '1', 'Undefined', undefined),
  await state('e', 'k', '1', 'AnArray', [1, 2]), await state('e', 'k', '1', 'Empty', ''));
console.log(await state('e', 'k', 1, 'NumberAsKey', '{}'), await state('e', 'k', randomUUID(), 'UuidAsKey', '[1]'),
  await state('e', null, null, 'Buffered', Buffer.from('{}')));

const { rows } = await client.query('SELECT outcome FROM acme_outbox.inbox_try_process_batch($1, $2, $3, $4)',
  ['js', [JSON.stringify({ header: { eventId: 'js-1' }, quotes: '"\\{}' }), '{', null], 'public.handler',
    [JSON.stringify({ queue: 'q' }), null, null]]);
console.log(rows.map((row) => row.outcome).join());
console.log((await client.query('SELECT acme_outbox.inbox_process($1, $2, $3, $4) AS outcome',
  ['js', { header: { eventId: 'js-2' } }, 'public.handler', { queue: 'q' }])).rows[0].outcome);
JS
is($out, <<"OUT", 'node-postgres: pool.query is warned of, a transaction is not; arrays and null are refused');
WARNING: $warning
1
OX001 OX001 OX001 OX001
ok ok ok
applied,invalid,invalid
applied
OUT
is(events(), 'Slipped InTransaction NumberAsKey UuidAsKey Buffered', 'node-postgres: what was stored');

# JDBC

$node->sql('DELETE FROM acme_outbox.outbox_entry');
$out = run_program('java', <<'JAVA', 'JDBC');
import java.sql.*;
import java.time.*;
import java.util.*;

class Drivers {
	static Connection c;

	static String state(String sql, Object... values) throws SQLException {
		try (PreparedStatement s = c.prepareStatement(sql)) {
			for (int i = 0; i < values.length; i++) {
				if (values[i] instanceof String) s.setString(i + 1, (String) values[i]);
				else if (values[i] == null) s.setNull(i + 1, Types.VARCHAR);
				else if (values[i] instanceof Object[]) s.setObject(i + 1, ((Object[]) values[i])[0], Types.OTHER);
				else s.setObject(i + 1, values[i]);
			}
			ResultSet row = s.executeQuery();
			row.next();
			SQLWarning w = s.getWarnings();
			String result = row.getString(1);
			if (!c.getAutoCommit()) c.commit();
			return w != null ? w.getMessage() : result;
		} catch (SQLException e) {
			if (!c.getAutoCommit()) c.rollback();
			return e.getSQLState();
		}
	}

	static Object[] untyped(String value) { return new Object[] { value }; }

	public static void main(String[] args) throws Exception {
		String publish = "SELECT acme_outbox.publish(?, ?, ?, ?, ?)";
		String url = System.getenv("JDBC_URL");
		c = DriverManager.getConnection(url);
		System.out.println(state(publish, "e", "k", "1", "Slipped", "{}"));
		c.setAutoCommit(false);
		for (int i = 0; i < 7; i++)		// from the fifth on with a named statement
			if (state(publish, "e", "k", "1", "InTransaction", "{}").length() != 36) System.out.println("not prepared");
		System.out.println(state(publish, "e", "k", "1", "Refused", null) + " " + state(publish, "e", "k", 1L, "Refused", "{}")
			+ " " + state(publish, "e", "k", UUID.randomUUID(), "Refused", "{}"));
		String headers = "SELECT acme_outbox.publish(?, ?, ?, ?, ?, headers => ?)";
		System.out.println(state(headers, "e", "k", "1", "Refused", "{}", "{\"a\": 1}")
			+ " " + state(headers, "e", "k", "1", "Untyped", "{}", untyped("{\"a\": 1}")).length());
		System.out.println(state("SELECT acme_outbox.publish(?, ?, ?, ?, ?, event_id => ?, not_before => ?) IS NOT NULL",
			"e", "k", "1", "Typed", "{}", UUID.randomUUID(), OffsetDateTime.now()));
		System.out.println(state("SELECT acme_outbox.inbox_process(?, ?, ?, ?)", "java", "{\"header\": {\"eventId\": \"java-1\"}}",
			"public.handler", "{\"queue\": \"q\"}") + " " + state("SELECT acme_outbox.inbox_accept(?, ?)", "java", UUID.randomUUID()));
		Array envelopes = c.createArrayOf("text", new String[] { "{\"header\": {\"eventId\": \"java-2\"}}", "x" });
		System.out.println(state("SELECT string_agg(outcome, ' ') FROM acme_outbox.inbox_try_process_batch(?, ?, ?)", "java", envelopes, "public.handler"));
		c.close();
		c = DriverManager.getConnection(url + "&stringtype=unspecified");
		c.setAutoCommit(false);
		System.out.println(state(headers, "e", "k", "1", "Unspecified", "{}", "{\"a\": 1}").length());
	}
}
JAVA
is($out, <<"OUT", 'JDBC: autocommit is warned of; setString for all that is required, untyped for the rest');
$warning
OX001 42883 42883
42883 36
t
applied t
applied invalid
36
OUT
like(events(), qr/^Slipped( InTransaction){7} Untyped Typed Unspecified$/, 'JDBC: what was stored');

# Every envelope is valid.

$node->sql(<<'SQL');
DELETE FROM acme_outbox.outbox_entry;
SET acme_outbox.autocommit_publish = off;
SELECT acme_outbox.publish('e', 'k', aggregate, name, payload, kind => kind, schema_version => version, locale => locale, trace_id => trace)
	FROM unnest(ARRAY[NULL, '', '1', E'\u00fc"\\\t\u0001', repeat('x', 255)]) AS aggregate,
		unnest(ARRAY['OrderPlaced', 'shop.order_1.placed-again']) AS name,
		unnest(ARRAY['{}', 'null', '-1.5e300', '"\ud83d\ude00 \n"', E'[1,\n {"a": {"b": [null, true]}}]']) AS payload,
		(VALUES ('EVENT', '1.0.0', NULL, NULL), ('COMMAND', '10.20.30-rc.1+build-5', 'es', E'a "trace"\n'), ('EVENT', '2.0.0', 'zh-Hant_TW', repeat('t', 255))) AS v (kind, version, locale, trace);
SELECT acme_outbox.publish('e', 'k', '1', 'OrderPlaced', '{"a": 1}'::jsonb, traceparent => '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01',
	event_id => '018f0000-0000-7000-8000-00000000ABCD', not_before => '2030-01-01', tenant_id => 't', headers => '{"a": 1}');
SELECT acme_outbox.enqueue_job('e', 'k', 'SendMail', '[]'::json);
SET acme_outbox.origin = E'another "origin"\\';
SELECT acme_outbox.publish('e', 'k', '1', 'OrderPlaced', '1');
CREATE TRIGGER changed AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION acme_outbox.publish_row('e', 'k', 'OrderPlaced', 'id');
INSERT INTO orders VALUES (100);
SQL
my $lines = $node->sql('SELECT to_json(payload) FROM acme_outbox.outbox_entry UNION ALL'
	  . q{ SELECT to_json(acme_outbox.envelope('1', 'OrderPlaced', '{}'))});
my $count = () = $lines =~ /^/mg;
is($count, 155, 'envelopes of many inputs');
my ($found, $err);
IPC::Run::run([ Driver::PYTHON, '-W', 'error', "$stage/test/contract/validate.py", "$stage/docs/envelope.schema.json" ],
	'<', \$lines, '>', \$found, '2>', \$err);
is($?, 0, 'the validator ran') or diag $err;
like($found, qr/\Aread 155\nnoticed (?:2[5-9]|[3-9]\d)\n\z/, 'all are valid, and the schema notices what is not')
  or diag $found;
for my $version ('1.0', '1.0.0-', "1.0.0-\x{c3}\x{bc}", '1.0.0 beta', 'v1.0.0')
{
	my (undef, undef, $refused) = $node->psql('postgres', "SELECT acme_outbox.envelope('1', 'OrderPlaced', '{}', schema_version => '$version')");
	like($refused, qr/invalid schema_version/, "schema version $version is refused");
}
$node->stop;
done_testing();
