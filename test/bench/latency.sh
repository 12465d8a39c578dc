# shellcheck shell=bash
# latency: from the return of COMMIT to the consumer, at 200 events a second.
#
# With the extension preloaded, so that its worker wakes the bridge; and, for
# contrast, without, so that the bridge finds the events when it looks, once a
# second. Two servers with the same settings.

latency_rate=200

bridge_is_active()
{
	alive "$relay" || { tail -n 20 "$work/relay.log" >&2; die "the bridge ended"; }
	grep -q 'lease acquired' "$work/relay.log"
}

measure_latency()
{
	local round=$1 name=$2 server=$3 seconds=$4 count p50 p99 highest
	use_server "$server"
	fresh_database acme_outbox
	[ "$server" != pg ] || await_worker
	fresh_queue '{"x-queue-type": "quorum"}'
	PGUSER=bench_relay RABBITMQ_URI=$broker_uri \
		"$bin/acme-outbox-bridge" relay --origin shop >"$work/relay.log" 2>&1 &
	relay=$!
	wait_until 30 bridge_is_active || die "the bridge is not active"

	"$bin/event_latency" "$broker_uri" bench bench "$latency_rate" "$seconds" \
		>"$work/latency.out"
	read -r count p50 p99 highest <"$work/latency.out"
	[ "$count" = $((latency_rate * seconds)) ] || die "$count events arrived"
	stop_pid "$relay"
	wait "$relay" || die "the bridge did not stop orderly"
	relay=
	record latency "$round" "$name" "p50" ms "$p50"
	record latency "$round" "$name" "p99" ms "$p99"
	record latency "$round" "$name" "highest" ms "$highest"
}

part_latency()
{
	local round seconds
	seconds=$(scaled 20 2)
	[ -e "$work/nopreload/env" ] || start_server nopreload
	start_broker
	compare latency p50 "woken by the worker" "found by the poll"
	compare latency p99 "woken by the worker" "found by the poll"
	for round in $(seq "$rounds"); do
		measure_latency "$round" "woken by the worker" pg "$seconds"
		measure_latency "$round" "found by the poll" nopreload "$seconds"
	done
}
