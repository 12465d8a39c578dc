# shellcheck shell=bash
# What the parts of the benchmark share. Sourced by run, after test/env/lib.sh.
#
# $work    temporary folder            $results  file of raw results
# $bin     the programs, the bridge    $rounds   how often each is measured

# ---------------------------------------------------------------------------
# Results: one line each, tabs between. report makes tables of them.

result_line()
{
	local IFS=$'\t'
	printf '%s\n' "$*" >>"$results"
}

# fact NAME VALUE: about the machine, the versions, the settings.
fact()
{
	result_line fact "$1" "$2"
}

# record PART ROUND CONTENDER METRIC UNIT NUMBER
record()
{
	[[ $6 =~ ^-?[0-9]+(\.[0-9]+)?$ ]] || die "$1: $3 has no $4: \"$6\""
	result_line value "$@"
	progress "$1" "round $2: $3: $4 $(printf '%.6g' "$6") $5"
}

# compare PART METRIC CONTENDER BASELINE [AIM]: contender divided by baseline, in
# each round; the aim is like ">=0.80", or missing.
compare()
{
	result_line compare "$1" "$2" "$3" "$4" "${5:--}"
}

progress()
{
	printf '%4d s  %-8s %s\n' "$SECONDS" "$1" "$2"
}

# scaled NUMBER [LEAST]: by BENCH_SCALE.
scaled()
{
	awk -v n="$1" -v scale="$scale" -v least="${2:-1}" \
		'BEGIN { n = int(n * scale + 0.5); print n < least ? least : n }'
}

# calc EXPRESSION
calc()
{
	awk "BEGIN { printf \"%.6f\", $1 }"
}

# processor_seconds PID [children]: user and system time of a process so far, or of
# those of its children that have ended.
processor_seconds()
{
	sed 's/.*) //' "/proc/$1/stat" | awk -v hz="$(getconf CLK_TCK)" -v children="${2:-}" \
		'{ print (children ? $14 + $15 : $12 + $13) / hz }'
}

# ---------------------------------------------------------------------------
# PostgreSQL

# The settings of all servers. jit is off and work_mem large for the sake of the
# claims that sort.
server_settings=(
	shared_buffers=1GB max_wal_size=8GB checkpoint_timeout=30min
	fsync=on synchronous_commit=on full_page_writes=on
	work_mem=64MB jit=off max_connections=60
)

# start_server NAME [SETTING=VALUE ...]
start_server()
{
	local name=$1
	shift
	test/env/postgres start "$work/$name" "${server_settings[@]}" "$@"
	use_server "$name"
	query 'CREATE ROLE bench_relay LOGIN'
	[ "$(query 'SHOW fsync')$(query 'SHOW synchronous_commit')" = onon ] \
		|| die "the server $name does not write durably"
}

use_server()
{
	# shellcheck source=/dev/null
	. "$work/$1/env"
}

query()
{
	"$PGBIN/psql" -XAtq -v ON_ERROR_STOP=1 -F ' ' -c "$1"
}

# fresh_database CONTENDER...: the database "bench" anew, with the business and
# the contenders' tables, everything else being forgotten. The checkpoint comes
# first, so the pages of these tables are new, and no contender pays for full images
# of them: how many of those it would pay depends only on when checkpoints happen.
fresh_database()
{
	local name files=()
	export PGDATABASE=postgres
	PGOPTIONS='-c client_min_messages=warning' "$PGBIN/dropdb" --force --if-exists bench
	query CHECKPOINT
	"$PGBIN/createdb" bench
	query "ALTER DATABASE bench SET acme_outbox.origin = 'shop'"
	query "ALTER DATABASE bench SET acme_outbox.autocommit_publish = 'off'"
	export PGDATABASE=bench
	for name in business "$@"; do
		files+=(-f "test/bench/sql/$name.sql")
	done
	PGOPTIONS='-c client_min_messages=warning' \
		"$PGBIN/psql" -Xq -v ON_ERROR_STOP=1 -o /dev/null "${files[@]}"
}

worker_runs()
{
	[ "$(query "SELECT state FROM acme_outbox.worker_status
		WHERE database = current_database()")" = running ]
}

# No comparison is about a worker that is still starting.
await_worker()
{
	wait_until 60 worker_runs || die "no worker in the database"
}

# fill CONTENDER ENTRIES [PER_TRANSACTION]: a backlog just written, and analyzed.
fill()
{
	PGOPTIONS='-c synchronous_commit=off' query "CALL bench.fill('$1', $2, ${3:-100})"
	query ANALYZE
}

# The sessions of the server in use that have ended.
sessions_seconds()
{
	processor_seconds "$(head -n 1 "$PGHOST/data/postmaster.pid")" children
}

# No session of the superuser's is left in the database: all are counted by then.
no_session_is_left()
{
	! pgrep -P "$(head -n 1 "$PGHOST/data/postmaster.pid")" -f '^postgres: postgres bench ' >/dev/null
}

relay_session_is_gone()
{
	[ "$(query "SELECT count(*) FROM pg_stat_activity WHERE usename = 'bench_relay'")" = 0 ]
}

wal_position()
{
	query "SELECT pg_current_wal_insert_lsn() - '0/0'"
}

# An old snapshot: a session that read something long ago and stays.
hold_snapshot()
{
	PGAPPNAME=bench_holder "$PGBIN/psql" -Xq -o /dev/null -c \
		"BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM account;
		 SELECT pg_sleep(86400)" 2>/dev/null &
	holder=$!
	wait_until 30 snapshot_is_held || die "the old snapshot is not held"
}

snapshot_is_held()
{
	[ "$(query "SELECT count(*) FROM pg_stat_activity
		WHERE application_name = 'bench_holder' AND backend_xmin IS NOT NULL
		  AND wait_event = 'PgSleep'")" = 1 ]
}

# end_snapshot TRANSACTIONS: it must have been held over that many, to the end.
end_snapshot()
{
	local age
	age=$(query "SELECT age(backend_xmin) FROM pg_stat_activity
		WHERE application_name = 'bench_holder' AND wait_event = 'PgSleep'")
	[ "${age:-0}" -ge "$1" ] \
		|| die "the old snapshot was held over ${age:-0} transactions, not $1"
	query "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE application_name = 'bench_holder'" >/dev/null
	wait "$holder" 2>/dev/null || true
	holder=
}

# ---------------------------------------------------------------------------
# RabbitMQ

start_broker()
{
	[ ! -e "$work/mq/env" ] || return 0
	progress broker "starting RabbitMQ"
	test/env/rabbitmq start "$work/mq"
	# shellcheck source=/dev/null
	. "$work/mq/env"
	broker_uri="amqp://guest:guest@127.0.0.1:$RABBITMQ_PORT/%2f"
	# RabbitMQ's own default; a private node of the tests has less.
	test/env/rabbitmq ctl "$work/mq" -q set_vm_memory_high_watermark 0.4
	broker_api PUT exchanges/%2f/bench '{"type": "topic", "durable": true}'
}

broker_seconds()
{
	processor_seconds "$(cat "$work"/mq/mnesia/*.pid)"
}

# broker_api METHOD PATH [BODY]
broker_api()
{
	curl -sS --fail-with-body -o "$work/api.log" -u guest:guest -X "$1" \
		-H 'content-type: application/json' ${3:+-d "$3"} \
		"http://127.0.0.1:$RABBITMQ_HTTP_PORT/api/$2" \
		|| die "$1 $2: $(cat "$work/api.log")"
}

# fresh_queue ARGUMENTS: the durable queue "bench" anew and empty, all keys of the
# exchange bound to it.
fresh_queue()
{
	[ -z "${queue_exists:-}" ] || broker_api DELETE queues/%2f/bench
	broker_api PUT queues/%2f/bench "{\"durable\": true, \"arguments\": $1}"
	queue_exists=1
	broker_api POST bindings/%2f/e/bench/q/bench '{"routing_key": "#"}'
}

queue_length()
{
	"$bin/amqp_probe" count --uri "$broker_uri" --queue bench
}

queue_has()
{
	[ "$(queue_length)" = "$1" ]
}

# Alarms stop publishers: no number taken under one counts.
no_alarm()
{
	broker_api GET health/checks/alarms
}

# check_published ENTRIES: all there, all published, nothing out of sight.
check_published()
{
	local found
	found=$(query "SELECT count(*), count(*) FILTER (WHERE status = 'PUBLISHED')
		FROM acme_outbox.outbox_entry")
	[ "$found" = "$1 $1" ] || die "of $1 entries there are, and are published: $found"
	found=$(query 'SELECT count(*) FROM acme_outbox.verify()')
	[ "$found" = 0 ] || die "verify() finds violations"
}
