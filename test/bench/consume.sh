# shellcheck shell=bash
# consume: a quorum queue, into a SQL handler that upserts a row, each change once.
#
#   acme_outbox (N)   "acme-outbox-bridge consume" with batches of N
#   each              a program with one transaction a message, by inbox_process()
#   ack only          a program that acknowledges, and no database
#
# Commits are flushed: that is what a batch shares.

consume_batches=(1 32 200 1000)
consume_prefetch=1000

consume_with()
{
	local contender=$1 messages=$2
	case $contender in
	each) consume_plainly "$messages" each ;;
	"ack only") consume_plainly "$messages" ack ;;
	*)
		timed consume env RABBITMQ_URI="$broker_uri" PGAPPNAME=bench_consumer \
			"$bin/stopwatch" "$work/stopwatch.out" "$bin/acme-outbox-bridge" consume \
			--queue bench --consumer bench --handler bench.upsert --once \
			--prefetch "$consume_prefetch" --batch "${contender//[!0-9]/}"
		;;
	esac
}

consume_plainly()
{
	timed consume "$bin/stopwatch" "$work/stopwatch.out" "$bin/plain_consumer" \
		"$broker_uri" bench "$1" "$consume_prefetch" "$2"
}

# Each message changed one row once, or none.
check_consumed()
{
	local contender=$1 messages=$2 changed
	wait_until 30 queue_has 0 || die "$contender: $(queue_length) messages are left"
	changed=$(query 'SELECT sum(messages) FROM bench.item')
	[ "$contender" != "ack only" ] || messages=0
	[ "$changed" = "$messages" ] || die "$contender: $changed changes, not $messages"
}

measure_consume()
{
	local round=$1 contender=$2 messages=$3
	fresh_database acme_outbox consumer
	await_worker
	fill acme_outbox "$messages"
	fresh_queue '{"x-queue-type": "quorum"}'
	run_bridge
	wait_until 30 queue_has "$messages" || die "$(queue_length) messages, not $messages"

	consume_with "$contender" "$messages"
	check_consumed "$contender" "$messages"
	no_alarm
	record consume "$round" "$contender" messages 1/s "$(calc "$messages / $elapsed")"
	record consume "$round" "$contender" "its processor time" us/message \
		"$(calc "1000000 * $processor / $messages")"
	record consume "$round" "$contender" "broker's" us/message \
		"$(calc "1000000 * $broker / $messages")"
	record consume "$round" "$contender" "database's" us/message \
		"$(calc "1000000 * $database / $messages")"
}

part_consume()
{
	local round messages batch
	messages=$(scaled 50000 2000)
	use_server pg
	start_broker
	compare consume messages "acme_outbox (200)" each '>=5'
	compare consume messages "acme_outbox (200)" "ack only"
	for batch in "${consume_batches[@]}"; do
		[ "$batch" = 200 ] || compare consume messages "acme_outbox ($batch)" each
	done
	for round in $(seq "$rounds"); do
		for batch in "${consume_batches[@]}"; do
			measure_consume "$round" "acme_outbox ($batch)" "$messages"
		done
		measure_consume "$round" each "$messages"
		measure_consume "$round" "ack only" "$messages"
	done
}
