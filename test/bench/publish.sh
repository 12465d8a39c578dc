# shellcheck shell=bash
# publish: what an event costs the transaction that publishes it.
#
# The business transaction alone, and with each way of writing an event beside it.
# Eight clients, prepared statements; the payload is a parameter.

publish_contenders=(business acme_outbox guidelines lean lean-notify)

# The event, as a pgbench script's lines.
event_of()
{
	case $1 in
	business) ;;
	acme_outbox)
		echo "SELECT acme_outbox.publish('bench', 'order.placed', 'order-' || :account::int, 'OrderPlaced', :payload::text);"
		;;
	guidelines)
		echo "INSERT INTO outbox_message (origin, routing_key, topic, message_key, payload) VALUES ('shop', 'order.placed', 'bench', 'order-' || :account::int, :payload);"
		;;
	lean | lean-notify)
		echo "INSERT INTO lean_outbox (topic, payload) VALUES ('bench', :payload);"
		[ "$1" = lean ] || echo "NOTIFY lean_outbox;"
		;;
	esac
}

table_of()
{
	case $1 in
	acme_outbox) echo acme_outbox.outbox_entry ;;
	guidelines) echo outbox_message ;;
	lean*) echo lean_outbox ;;
	esac
}

transaction_of()
{
	cat <<-'SQL'
		\set account random(1, 100000)
		\set amount random(1, 10000)
		BEGIN;
		UPDATE account SET balance = balance + :amount WHERE id = :account;
		INSERT INTO orders (account_id, amount) VALUES (:account, :amount);
	SQL
	event_of "$1"
	echo "COMMIT;"
}

measure_publish()
{
	local contender=$1 round=$2 seconds=$3 before after transactions rate rows
	fresh_database acme_outbox guidelines lean
	await_worker
	transaction_of "$contender" >"$work/transaction.sql"
	before=$(wal_position)
	"$PGBIN/pgbench" -n -M prepared -c 8 -j 2 -T "$seconds" \
		-D payload="$(query 'SELECT bench.payload(1)')" \
		-f "$work/transaction.sql" bench >"$work/pgbench.log" 2>&1 \
		|| { cat "$work/pgbench.log" >&2; die "pgbench failed"; }
	after=$(wal_position)
	transactions=$(sed -n 's/^number of transactions actually processed: \([0-9]*\).*/\1/p' "$work/pgbench.log")
	rate=$(sed -n 's/^tps = \([0-9.]*\).*/\1/p' "$work/pgbench.log")
	if [ "$contender" != business ]; then
		rows=$(query "SELECT count(*) FROM $(table_of "$contender")")
		[ "$rows" = "$transactions" ] \
			|| die "$transactions transactions, but $rows events"
	fi
	record publish "$round" "$contender" transactions 1/s "$rate"
	record publish "$round" "$contender" WAL B/transaction \
		"$(calc "($after - $before) / $transactions")"
}

part_publish()
{
	local round contender seconds
	seconds=$(scaled 15 2)
	use_server pg
	for contender in "${publish_contenders[@]}"; do
		[ "$contender" = business ] \
			|| compare publish transactions "$contender" business \
				"$([ "$contender" != acme_outbox ] || echo '>=0.80')"
	done
	for round in $(seq "$rounds"); do
		for contender in "${publish_contenders[@]}"; do
			measure_publish "$contender" "$round" "$seconds"
		done
	done
}
