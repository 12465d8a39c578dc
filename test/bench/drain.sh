# shellcheck shell=bash
# drain:  a backlog, from the outbox to the broker, against a program that has the
#         same messages to send and no database.
# memory: how large the bridge becomes, by the size of the backlog.

drain_window=1000

# body_bytes: what the messages of the backlog weigh.
body_bytes()
{
	query 'SELECT round(avg(octet_length(payload))) FROM acme_outbox.outbox_entry'
}

# timed NAME COMMAND...: sets elapsed, processor and peak of the command, and what
# the broker and the database's sessions spent meanwhile.
timed()
{
	local name=$1
	shift
	broker=$(broker_seconds)
	database=$(sessions_seconds)
	"$@" >"$work/$name.log" 2>&1 || {
		tail -n 20 "$work/$name.log" >&2
		die "$name failed"
	}
	wait_until 30 relay_session_is_gone || die "$name left its session behind"
	broker=$(calc "$(broker_seconds) - $broker")
	database=$(calc "$(sessions_seconds) - $database")
	read -r elapsed processor peak <"$work/stopwatch.out"
}

run_plain()
{
	timed plain "$bin/stopwatch" "$work/stopwatch.out" "$bin/plain_publisher" \
		"$broker_uri" bench order.placed "$1" "$2" "$drain_window"
}

# run_bridge [OPTION ...]
run_bridge()
{
	timed bridge env PGUSER=bench_relay RABBITMQ_URI="$broker_uri" \
		"$bin/stopwatch" "$work/stopwatch.out" "$bin/acme-outbox-bridge" \
		relay --origin shop --once "$@"
}

record_drain()
{
	local round=$1 name=$2 entries=$3
	no_alarm
	wait_until 30 queue_has "$entries" \
		|| die "$name: $(queue_length) messages in the queue, not $entries"
	record drain "$round" "$name" messages 1/s "$(calc "$entries / $elapsed")"
	record drain "$round" "$name" "its processor time" us/message \
		"$(calc "1000000 * $processor / $entries")"
	record drain "$round" "$name" "broker's" us/message \
		"$(calc "1000000 * $broker / $entries")"
	record drain "$round" "$name" "database's" us/message \
		"$(calc "1000000 * $database / $entries")"
}

measure_drain()
{
	local round=$1 type=$2 entries=$3
	local arguments="{\"x-queue-type\": \"$type\"}"
	fresh_database acme_outbox
	await_worker
	fill acme_outbox "$entries"

	fresh_queue "$arguments"
	run_plain "$entries" "$(body_bytes)"
	record_drain "$round" "plain publisher, $type queue" "$entries"

	fresh_queue "$arguments"
	run_bridge
	record_drain "$round" "bridge, $type queue" "$entries"
	check_published "$entries"
}

# Each message twice: the second time to a fanout exchange with a queue of its own.
measure_audit()
{
	local round=$1 entries=$2
	fresh_database acme_outbox
	await_worker
	fill acme_outbox "$entries"
	fresh_queue '{"x-queue-type": "quorum"}'
	broker_api PUT exchanges/%2f/bench-audit '{"type": "fanout", "durable": true}'
	broker_api PUT queues/%2f/bench-audit '{"durable": true, "arguments": {"x-queue-type": "quorum"}}'
	broker_api POST bindings/%2f/e/bench-audit/q/bench-audit '{}'
	run_bridge --audit-exchange bench-audit
	record_drain "$round" "bridge with the audit lane, quorum queues" "$entries"
	[ "$("$bin/amqp_probe" count --uri "$broker_uri" --queue bench-audit)" = "$entries" ] \
		|| die "the audit queue does not have all $entries"
	broker_api DELETE queues/%2f/bench-audit
	check_published "$entries"
}

# A broker that has just started is slow.
warm_up()
{
	local type
	progress drain "warming RabbitMQ up"
	for type in quorum classic; do
		fresh_queue "{\"x-queue-type\": \"$type\"}"
		run_plain "$1" 800
	done
}

part_drain()
{
	local round type entries
	entries=$(scaled 100000 2000)
	use_server pg
	start_broker
	for type in quorum classic; do
		compare drain messages "bridge, $type queue" "plain publisher, $type queue" '>=0.8'
	done
	compare drain messages "bridge with the audit lane, quorum queues" "bridge, quorum queue"
	warm_up "$entries"
	for round in $(seq "$rounds"); do
		for type in quorum classic; do
			measure_drain "$round" "$type" "$entries"
		done
		measure_audit "$round" "$entries"
	done
}

# The queue keeps only the last thousand: the broker's memory is not the question.
measure_memory()
{
	local round=$1 entries=$2
	fresh_database acme_outbox
	await_worker
	fill acme_outbox "$entries" 1000
	fresh_queue '{"x-max-length": 1000}'
	run_bridge
	check_published "$entries"
	record memory "$round" "$entries entries" "highest resident size" kB "$peak"
}

part_memory()
{
	local round small large
	small=1000
	large=$(scaled 1000000 10000)
	use_server pg
	start_broker
	compare memory "highest resident size" "$large entries" "$small entries" '<=1.5'
	for round in $(seq "$rounds"); do
		measure_memory "$round" "$small"
		measure_memory "$round" "$large"
	done
}
