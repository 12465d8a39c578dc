#!/bin/bash
# Idempotency keys and projections against the same work in plain statements, side by side:
#
#   test/bench/consumer_side.sh [SECONDS [ROUNDS]]
#
#   project       project() on rows that exist, against a hand-written prepared upsert with
#                 the same guard
#   project-new   the same on rows that do not
#   idempotency   begin and complete in one transaction, against INSERT ... ON CONFLICT DO
#                 NOTHING and UPDATE of a table of the same shape
#
# One client, prepared statements, commits not flushed: so it is the processor's time that is
# compared, which is what the functions add. A round measures one after the other; the ratio
# is that of the medians.
set -euo pipefail
# shellcheck source=test/env/lib.sh
. "$(dirname "$0")/../env/lib.sh"
cd "$ACME_ROOT"

seconds=${1:-5}
rounds=${2:-3}
work=$(mktemp -d "${TMPDIR:-/tmp}/acme_outbox_bench.XXXXXX")
server_dir "$work"
chmod 755 "$work"
trap 'test/env/postgres stop "$work/pg" immediate || true; rm -rf "$work"' EXIT

private_postgres "$work/root"
install_extension >/dev/null
test/env/postgres start "$work/pg" synchronous_commit=off shared_buffers=512MB \
	max_wal_size=4GB autovacuum_naptime=5s shared_preload_libraries=acme_outbox
# shellcheck source=/dev/null
. "$work/pg/env"
psql=("$PGBIN/psql" -XAtq -v ON_ERROR_STOP=1)

set_up()
{
	"${psql[@]}" -c 'DROP SCHEMA IF EXISTS bench CASCADE; CREATE EXTENSION IF NOT EXISTS acme_outbox' 2>/dev/null
	"${psql[@]}" <<'SQL'
TRUNCATE acme_outbox.idempotency_key;
CREATE SCHEMA bench;
CREATE SEQUENCE bench.n CACHE 100;
CREATE TABLE bench.deal (id bigint PRIMARY KEY, customer text, amount numeric, state text,
	last_event_at timestamptz, last_event_id uuid) WITH (fillfactor = 50);
INSERT INTO bench.deal SELECT n, 'customer', 1, 'DRAFT', '2026-01-01' FROM generate_series(1, 10000) n;
CREATE TABLE bench.key (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), tenant_id text NOT NULL,
	endpoint text NOT NULL, key text NOT NULL, payload_hash text NOT NULL, stored_response jsonb,
	completed_at timestamptz, expires_at timestamptz, created_at timestamptz,
	UNIQUE (tenant_id, endpoint, key)) WITH (fillfactor = 70);
CREATE INDEX ON bench.key (expires_at);
VACUUM ANALYZE;
SQL
}

cat >"$work/project-plain.sql" <<'SQL'
\set id random(1, 10000)
INSERT INTO bench.deal AS t VALUES (:id, 'customer', :id, 'LOCKED', clock_timestamp(), gen_random_uuid()) ON CONFLICT (id) DO UPDATE SET customer = excluded.customer, amount = excluded.amount, state = excluded.state, last_event_at = excluded.last_event_at, last_event_id = excluded.last_event_id WHERE (t.last_event_at, t.last_event_id) < (excluded.last_event_at, excluded.last_event_id);
SQL
cat >"$work/project-ours.sql" <<'SQL'
\set id random(1, 10000)
SELECT acme_outbox.project('bench.deal', jsonb_build_object('id', :id::bigint), jsonb_build_object('customer', 'customer', 'amount', :id::bigint, 'state', 'LOCKED'), clock_timestamp(), gen_random_uuid());
SQL
sed 's/:id, .customer., :id/nextval('"'bench.n'"') + 10000, '"'customer'"', :id/' \
	"$work/project-plain.sql" >"$work/project-new-plain.sql"
sed "s/jsonb_build_object('id', :id::bigint)/jsonb_build_object('id', nextval('bench.n') + 10000)/" \
	"$work/project-ours.sql" >"$work/project-new-ours.sql"
cat >"$work/idempotency-plain.sql" <<'SQL'
SELECT nextval('bench.n') AS n \gset
BEGIN;
INSERT INTO bench.key (tenant_id, endpoint, key, payload_hash, created_at, expires_at) VALUES ('', 'POST /payments', 'key-' || :n, encode(sha256('{"amount": 10}'), 'hex'), now(), now() + interval '1 day') ON CONFLICT (tenant_id, endpoint, key) DO NOTHING RETURNING id;
UPDATE bench.key SET completed_at = now(), stored_response = '{"status": 201, "body": {"id": 7}}' WHERE tenant_id = '' AND endpoint = 'POST /payments' AND key = 'key-' || :n;
COMMIT;
SQL
cat >"$work/idempotency-ours.sql" <<'SQL'
SELECT nextval('bench.n') AS n \gset
BEGIN;
SELECT * FROM acme_outbox.idempotency_begin('POST /payments', 'key-' || :n, '{"amount": 10}');
SELECT acme_outbox.idempotency_complete('POST /payments', 'key-' || :n, 201, '{"id": 7}');
COMMIT;
SQL

# tps SCRIPT
tps()
{
	"$PGBIN/pgbench" -n -M prepared -c 1 -T "$seconds" -f "$work/$1.sql" 2>"$work/err" \
		| sed -n 's/^tps = \([0-9.]*\).*/\1/p'
}

median()
{
	sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}

printf '%-12s %14s %14s %8s\n' what plain/s ours/s ratio
for what in project project-new idempotency; do
	for ((round = 0; round < rounds; round++)); do
		set_up
		tps "$what-plain" >>"$work/$what.plain"
		set_up
		tps "$what-ours" >>"$work/$what.ours"
	done
	plain=$(median <"$work/$what.plain") ours=$(median <"$work/$what.ours")
	awk -v what="$what" -v plain="$plain" -v ours="$ours" \
		'BEGIN { printf "%-12s %14.0f %14.0f %8.2f\n", what, plain, ours, ours / plain }'
done
