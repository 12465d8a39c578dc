# shellcheck shell=bash
# consumer: the functions of a consumer against the same work written by hand.
#
#   handle        guard and a handler that upserts a row: one message a transaction, or a batch
#   project       a guarded upsert of rows that exist, and of new ones
#   idempotency   begin and complete in one transaction; an INSERT and an UPDATE by hand
#   memory        of a session that has projected into 500 tables
#
# One client, prepared statements, a fixed number of messages. Commits are not flushed: it is the
# server's work that is compared, and a flush would hide it.

consumer_batches=(1 32 200 1000)

consumer_name()
{
	case $2 in
	ours) echo "acme_outbox ($1)" ;;
	plain) echo "by hand ($1)" ;;
	esac
}

# The transaction of a kind of work, as a pgbench script's lines.
consumer_transaction()
{
	case $1-$2 in
	handle-1-ours)
		cat <<-'SQL'
			\set n :n + 1
			SELECT acme_outbox.inbox_process('bench', envelope, 'bench.upsert') FROM bench.message WHERE n = :n;
		SQL
		;;
	handle-*-ours)
		cat <<-SQL
			SELECT count(*) FROM acme_outbox.inbox_try_process_batch('bench', bench.envelopes(:n::int + 1, :n::int + ${1#handle-}), 'bench.upsert');
			\\set n :n + ${1#handle-}
		SQL
		;;
	handle-1-plain)
		cat <<-'SQL'
			\set n :n + 1
			SELECT bench.handle_by_hand(ARRAY[envelope]) FROM bench.message WHERE n = :n;
		SQL
		;;
	handle-*-plain)
		cat <<-SQL
			SELECT bench.handle_by_hand(bench.envelopes(:n::int + 1, :n::int + ${1#handle-}));
			\\set n :n + ${1#handle-}
		SQL
		;;
	project-ours)
		cat <<-'SQL'
			\set id random(1, 10000)
			SELECT acme_outbox.project('bench.deal', '{"id": ' || :id::int || '}', :fields::text, clock_timestamp(), gen_random_uuid());
		SQL
		;;
	project-new-ours)
		cat <<-'SQL'
			\set n :n + 1
			SELECT acme_outbox.project('bench.deal', '{"id": ' || :n::int + 10000 || '}', :fields::text, clock_timestamp(), gen_random_uuid());
		SQL
		;;
	project-plain | project-new-plain)
		if [ "$1" = project ]; then
			echo '\set id random(1, 10000)'
		else
			printf '%s\n' '\set n :n + 1' '\set id :n + 10000'
		fi
		cat <<-'SQL'
			INSERT INTO bench.deal AS t VALUES (:id, 'customer', :id, 'LOCKED', clock_timestamp(), gen_random_uuid()) ON CONFLICT (id) DO UPDATE SET customer = excluded.customer, amount = excluded.amount, state = excluded.state, last_event_at = excluded.last_event_at, last_event_id = excluded.last_event_id WHERE (t.last_event_at, t.last_event_id) < (excluded.last_event_at, excluded.last_event_id) OR t.last_event_id IS NULL;
		SQL
		;;
	idempotency-ours)
		cat <<-'SQL'
			\set n :n + 1
			BEGIN;
			SELECT * FROM acme_outbox.idempotency_begin('POST /payments', 'key-' || :n::int, '{"amount": 10}');
			SELECT acme_outbox.idempotency_complete('POST /payments', 'key-' || :n::int, 201, '{"id": 7}');
			COMMIT;
		SQL
		;;
	idempotency-plain)
		cat <<-'SQL'
			\set n :n + 1
			BEGIN;
			INSERT INTO bench.key (tenant_id, endpoint, key, payload_hash, created_at, expires_at) VALUES ('', 'POST /payments', 'key-' || :n::int, encode(sha256('{"amount": 10}'), 'hex'), now(), now() + interval '1 day') ON CONFLICT (tenant_id, endpoint, key) DO NOTHING RETURNING id;
			UPDATE bench.key SET completed_at = now(), stored_response = '{"status": 201, "body": {"id": 7}}' WHERE tenant_id = '' AND endpoint = 'POST /payments' AND key = 'key-' || :n::int;
			COMMIT;
		SQL
		;;
	*) die "no such work: $1 $2" ;;
	esac
}

# What must be there after N messages.
consumer_check()
{
	local what=$1 whose=$2 n=$3 sql
	case $what-$whose in
	handle-*-ours) sql="SELECT count(*), (SELECT sum(messages) FROM bench.item) FROM acme_outbox.processed_event" ;;
	handle-*-plain) sql="SELECT count(*), (SELECT sum(messages) FROM bench.item) FROM bench.processed" ;;
	project-new-*) sql="SELECT count(*) - 10000, (SELECT count(*) FROM bench.deal WHERE state = 'LOCKED') FROM bench.deal" ;;
	project-*) sql="SELECT CASE WHEN count(*) > 0 THEN $n END, $n FROM bench.deal WHERE state = 'LOCKED'" ;;
	idempotency-ours) sql="SELECT count(*), count(completed_at) FROM acme_outbox.idempotency_key WHERE endpoint = 'POST /payments'" ;;
	idempotency-plain) sql="SELECT count(*), count(completed_at) FROM bench.key WHERE endpoint = 'POST /payments'" ;;
	esac
	sql=$(query "$sql")
	[ "$sql" = "$n $n" ] || die "$what, $whose: after $n messages there are $sql"
}

# measure_consumer WORK WHOSE ROUND MESSAGES [A TRANSACTION]
measure_consumer()
{
	local what=$1 whose=$2 round=$3 messages=$4 batch=${5:-1} name cpu rate
	name=$(consumer_name "$what" "$whose")
	fresh_database acme_outbox consumer
	await_worker
	query "ALTER DATABASE bench SET synchronous_commit = off"
	case $what in
	handle-*) query "SELECT bench.fill_messages($messages)" >/dev/null ;;
	# plans made for an empty table read all of it
	idempotency) query 'SELECT bench.fill_keys(10000)' >/dev/null ;;
	esac
	query 'VACUUM ANALYZE'
	consumer_transaction "$what" "$whose" >"$work/transaction.sql"
	wait_until 30 no_session_is_left || die "a session does not end"
	cpu=$(sessions_seconds)
	"$PGBIN/pgbench" -n -M prepared -c 1 -t $((messages / batch)) -D n=0 \
		-D fields='{"customer": "customer", "amount": 10, "state": "LOCKED"}' \
		-f "$work/transaction.sql" bench >"$work/pgbench.log" 2>&1 \
		|| { cat "$work/pgbench.log" >&2; die "pgbench failed"; }
	rate=$(sed -n 's/^tps = \([0-9.]*\).*/\1/p' "$work/pgbench.log")
	wait_until 30 no_session_is_left || die "a session does not end"
	cpu=$(calc "$(sessions_seconds) - $cpu")
	consumer_check "$what" "$whose" "$messages"
	record consumer "$round" "$name" messages 1/s "$(calc "$rate * $batch")"
	record consumer "$round" "$name" "server's processor time" us/message \
		"$(calc "1000000 * $cpu / $messages")"
}

# What a session holds more of after it has written into 500 tables.
consumer_session()
{
	cat <<-'SQL'
		SELECT sum(total_bytes) AS before FROM pg_backend_memory_contexts \gset
		SELECT sum(total_bytes) AS before FROM pg_backend_memory_contexts \gset
	SQL
	case $1 in
	ours)
		echo "DO \$\$ BEGIN FOR n IN 1 .. 500 LOOP PERFORM acme_outbox.project(format('bench.target_%s', n), '{\"id\": 1}', '{\"state\": \"NEW\"}', now(), gen_random_uuid()); END LOOP; END \$\$;"
		;;
	plain)
		echo "DO \$\$ BEGIN FOR n IN 1 .. 500 LOOP EXECUTE format('PREPARE p%s AS INSERT INTO bench.target_%s AS t (id, state, last_event_at, last_event_id) VALUES (\$1, \$2, \$3, \$4) ON CONFLICT (id) DO UPDATE SET state = excluded.state, last_event_at = excluded.last_event_at, last_event_id = excluded.last_event_id WHERE t.last_event_at < excluded.last_event_at', n, n); EXECUTE format('EXECUTE p%s (1, ''NEW'', now(), gen_random_uuid())', n); END LOOP; END \$\$;"
		;;
	esac
	echo "SELECT (sum(total_bytes) - :before) / 1024.0 FROM pg_backend_memory_contexts;"
}

measure_consumer_memory()
{
	local whose=$1 round=$2 kib
	fresh_database acme_outbox consumer
	query 'CALL bench.make_targets(500)'
	kib=$(consumer_session "$whose" | "$PGBIN/psql" -XAtq -v ON_ERROR_STOP=1 -c 'SET plan_cache_mode = force_generic_plan' -f -)
	record consumer "$round" "$(consumer_name "500 targets" "$whose")" "a session's memory" KiB "$kib"
}

part_consumer()
{
	local round batch whose messages what
	messages=$(scaled 40 1)
	messages=$((messages * 1000))
	use_server pg
	for what in "${consumer_batches[@]/#/handle-}" project project-new idempotency; do
		compare consumer messages "$(consumer_name "$what" ours)" "$(consumer_name "$what" plain)" \
			"$([[ $what != project* ]] || echo '>=0.70')"
		compare consumer "server's processor time" "$(consumer_name "$what" ours)" "$(consumer_name "$what" plain)"
	done
	compare consumer "a session's memory" "$(consumer_name "500 targets" ours)" "$(consumer_name "500 targets" plain)"
	for round in $(seq "$rounds"); do
		for batch in "${consumer_batches[@]}"; do
			for whose in ours plain; do
				measure_consumer "handle-$batch" "$whose" "$round" $((messages / batch * batch)) "$batch"
			done
		done
		for what in project project-new idempotency; do
			for whose in ours plain; do
				measure_consumer "$what" "$whose" "$round" "$messages"
			done
		done
		for whose in ours plain; do
			measure_consumer_memory "$whose" "$round"
		done
	done
}
