# shellcheck shell=bash
# claim: claiming entries and marking them published, in the database alone.
#
# Batches of 500 by one worker, nothing sent. Each contender without and with an
# old snapshot held by another session, which keeps dead rows from being cleaned.

claim_contenders=(acme_outbox guidelines guidelines-bulk)
claim_batch=500
claim_limit=60		# seconds; who is slower is measured over what was done by then

claim_table()
{
	case $1 in
	acme_outbox) echo acme_outbox.outbox_entry ;;
	*) echo public.outbox_message ;;
	esac
}

updates_counted()
{
	[ "$(query "SELECT n_tup_upd FROM pg_stat_user_tables
		WHERE relid = '$(claim_table "$1")'::regclass")" -ge "$2" ]
}

measure_claim()
{
	local contender=$1 held=$2 round=$3 entries=$4 name before after finished seconds claiming server left
	name=$contender$([ "$held" = 0 ] || echo " (old snapshot)")
	fresh_database "${contender%-bulk}"
	fill "${contender%-bulk}" "$entries"
	[ "$held" = 0 ] || hold_snapshot
	before=$(wal_position)
	PGUSER=bench_relay "$bin/claim_loop" "$contender" shop "$claim_batch" "$entries" \
		"$claim_limit" >"$work/claim.out"
	after=$(wal_position)
	read -r finished seconds claiming server <"$work/claim.out"
	[ "$held" = 0 ] || end_snapshot $((finished / claim_batch))

	left=$(query "SELECT count(*) FROM $(claim_table "$contender") WHERE status <> 'PUBLISHED'")
	[ "$left" = $((entries - finished)) ] || die "$left of $entries are left after $finished"
	wait_until 30 updates_counted "$contender" $((2 * finished)) \
		|| die "the server did not count the updates"
	record claim "$round" "$name" entries 1/s "$(calc "$finished / $seconds")"
	record claim "$round" "$name" "time in claims" % "$(calc "100 * $claiming / $seconds")"
	record claim "$round" "$name" "server's processor time" us/entry \
		"$(calc "1000000 * $server / $finished")"
	record claim "$round" "$name" WAL B/entry "$(calc "($after - $before) / $finished")"
	record claim "$round" "$name" "HOT updates" % "$(query "
		SELECT 100.0 * n_tup_hot_upd / n_tup_upd FROM pg_stat_user_tables
		WHERE relid = '$(claim_table "$contender")'::regclass")"
	record claim "$round" "$name" "done of the backlog" % "$(calc "100 * $finished / $entries")"
}

part_claim()
{
	local round contender entries held
	entries=$(scaled 200000 2000)
	use_server pg
	compare claim entries acme_outbox guidelines '>=10'
	compare claim entries acme_outbox guidelines-bulk
	compare claim entries "acme_outbox (old snapshot)" acme_outbox '>=0.6'
	compare claim entries "acme_outbox (old snapshot)" "guidelines (old snapshot)"
	compare claim entries "acme_outbox (old snapshot)" "guidelines-bulk (old snapshot)"
	compare claim "server's processor time" acme_outbox guidelines
	compare claim "server's processor time" acme_outbox guidelines-bulk
	compare claim "server's processor time" "acme_outbox (old snapshot)" acme_outbox
	for round in $(seq "$rounds"); do
		for held in 0 1; do
			for contender in "${claim_contenders[@]}"; do
				measure_claim "$contender" "$held" "$round" "$entries"
			done
		done
	done
}
