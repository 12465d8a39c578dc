# The whole event stream of the trading platform, delivered once and in order to one database,
# and shuffled, doubled, late, early, cut into other batches, handled by either legal order of
# the inbox, replayed and, with the inbox forgotten, replayed as a whole to its twin: all tables
# of all services end up the same, and what the handlers published is the same but for ids.
# FAULT_SEED repeats an order.
use strict;
use warnings;

use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use AcmeOutbox::Platform;
use Digest::MD5 qw(md5_hex);
use IPC::Run ();
use JSON::PP qw(decode_json);
use List::Util qw(shuffle);
use Test::More;

my $stage = $ENV{ACME_STAGE} // '.';
my $seed = $ENV{FAULT_SEED} // int(rand(1e9));
srand($seed);
note "FAULT_SEED=$seed";

my @services = qw(trading inventory accounting commission reporting notification audit platform);
my @tenants = qw(acme globex);

# What may differ, and why. Anything else must not.
my $clock = 'the clock of whoever handled it';
my %ignored = (
	'*.processed_event' => { processed_at => $clock },
	'trading.deal'             => { changed_at => $clock },
	'inventory.stock_position' => { changed_at => $clock },
	'accounting.period'        => { changed_at => $clock },
	'accounting.invoice'       => { changed_at => $clock },
	'notification.delivery'    => { queued_at => $clock, delivered_at => $clock },
	'audit.audit_entry'        => { recorded_at => $clock, entry_id => 'the order of arrival' },
	# Journals of what was met on the way; at the end nothing in them is open.
	'*.parked_message'    => 'parked: what came too early',
	'*.parked_resolution' => 'what became of it',
	'*.consumer_attempt'  => 'redeliveries');

my $node = AcmeOutbox::Cluster->create_empty('main', 'acme_outbox.worker = off',
	"acme_outbox.lease_duration = '1h'", 'fsync = off');

# ---- databases and sessions

my (%session, %epoch);

# Thousands of statements are of no use in the log.
{
	no warnings qw(redefine once);
	*PostgreSQL::Test::BackgroundPsql::note = sub { };
}

sub session
{
	my ($db, $role) = @_;
	local $ENV{PGUSER} = $role;
	return $session{"$db $role"} //= $node->background_psql($db);
}

sub admin { my ($db, $sql) = @_; return session($db, 'postgres')->query_safe($sql); }

sub psql_file
{
	my ($db, $file) = @_;
	my $err = '';
	IPC::Run::run([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr($db),
			'-f', "$stage/examples/trading/$file" ], '<', \undef, '>', \my $out, '2>', \$err)
	  or die "$file: $err\n";
	return;
}

# Settings belong to a database, so a copy needs them again.
sub settle_in
{
	my ($db) = @_;
	psql_file($db, 'sql/00_roles.sql');
	$node->safe_psql($db, "ALTER DATABASE $db SET trading.hold_time = '1 hour'");
	return;
}

sub clone
{
	my ($db) = @_;
	$node->safe_psql('postgres', "CREATE DATABASE $db TEMPLATE base");
	settle_in($db);
	$node->safe_psql($db, 'SELECT acme_outbox.adopt()');
	return;
}

# A request: one transaction of a tenant's, in a trace that its text names.
sub app
{
	my ($db, $service, $tenant, $sql) = @_;
	my $trace = md5_hex("$tenant $sql");
	my $context = "'$tenant', '00-$trace-" . substr($trace, 0, 16) . "-01'";
	return session($db, "${service}_app")
	  ->query_safe("BEGIN;\nSELECT acme_outbox.context($context);\n$sql;\nCOMMIT");
}

sub job { my ($db, $service, $procedure) = @_; return session($db, "${service}_app")->query_safe("CALL $procedure()"); }

# ---- the platform before anything is delivered

$node->safe_psql('postgres', 'CREATE DATABASE base');
psql_file('base', "sql/$_") for map { m{([^/]+)$} } sort glob "$stage/examples/trading/sql/*.sql";
psql_file('base', 'faults/bonus.sql');
settle_in('base');
my $bindings = `'$stage/examples/trading/queues' bindings`;
$node->safe_psql('base', "COPY operation.binding FROM stdin;\n$bindings\\.\n");
$node->safe_psql('base', 'UPDATE notification.setting SET mail_host = NULL');

sub deal
{
	my ($db, $id, %opt) = @_;
	my $tenant = $opt{tenant} // 'acme';
	my $who = length($id) + ord(substr $id, -1);
	app($db, 'trading', $tenant, sprintf q{SELECT trading.create_deal('{"id": "%s", "traderId": "trader-%d",
		"customerId": "customer-%d", "currency": "%s"}')}, $id, $who % 3, $who % 4, $opt{currency} // 'EUR');
	return if $opt{buys_nothing};
	return app($db, 'trading', $tenant, qq{SELECT trading.create_purchase('{"id": "p-$id", "dealId": "$id",
		"supplierId": "s-1", "lines": [{"id": "$id-a", "product": "copper", "quantity": 10, "unitPrice": 80},
		{"id": "$id-b", "product": "tin", "quantity": 5, "unitPrice": 20}]}')});
}

sub lines
{
	my (%quantity) = @_;
	return join ', ', map { qq({"lineItemId": "$_", "quantity": $quantity{$_}, "unitPrice": 110}) } sort keys %quantity;
}

sub sale
{
	my ($db, $id, %quantity) = @_;
	my $tenant = delete $quantity{tenant} // 'acme';
	return app($db, 'trading', $tenant, qq{SELECT status FROM trading.create_sale_request('key-$id',
		'{"id": "s-$id", "dealId": "$id", "lines": [@{[lines(%quantity)]}]}')});
}

sub reserve
{
	my ($db, $saga, $deal, %quantity) = @_;
	my $tenant = delete $quantity{tenant} // 'acme';
	return app($db, 'trading', $tenant, qq{SELECT status FROM trading.try_step('reserve', '$saga',
		'{"dealId": "$deal", "lines": [@{[lines(%quantity)]}]}')});
}

sub finish { my ($db, $saga, $tenant) = @_; return app($db, 'trading', $tenant // 'acme', "SELECT status FROM trading.finish_saga('$saga')"); }
sub lock_deal { my ($db, $id, $version, $tenant) = @_; return app($db, 'trading', $tenant // 'acme', "SELECT trading.lock_deal('$id', '$version.0.0')"); }

my @many = map { "m$_" } 1 .. 16;

sub lock_many
{
	my ($db, $when) = @_;
	lock_deal($db, $many[$_], 1 + $_ % 2) for grep { int($_ / 4) == $when } 0 .. $#many;
	return;
}

deal('base', $_) for qw(d1 d2 d3 d4 d6 d7 d8 d9 d10 d11 d12), @many;
deal('base', 'd5', buys_nothing => 1);
deal('base', $_, tenant => 'globex', currency => 'USD') for qw(g1 g2);
sale('base', @$_) for [ 'd1', 'd1-a' => 4 ], [ 'd2', 'd2-a' => 10 ], [ 'd3', 'd3-a' => 5, 'd1-a' => 3 ],
  [ 'd5', 'd2-b' => 2 ], [ 'd6', 'd1-b' => 5, 'd6-a' => 1 ], [ 'd7', 'd7-a' => 2 ],
  [ 'g1', 'g1-a' => 1, tenant => 'globex' ], map { [ $_, "$_-a" => 7, "$_-b" => 1 ] } @many;
like(sale('base', 'd7', 'd2-a' => 1), qr/409/, 'what is not there is not sold');
reserve('base', @$_) for [ 'saga-sold', 'd8', 'd8-a' => 3, 'd1-a' => 1 ], [ 'saga-refused', 'd9', 'd8-a' => 9 ],
  [ 'saga-late', 'd10', 'd10-a' => 2 ], [ 'saga-left', 'd11', 'd11-a' => 4, 'd11-b' => 1 ],
  [ 'saga-expired', 'd12', 'd11-b' => 2 ], [ 'saga-globex', 'g2', 'g1-a' => 2, tenant => 'globex' ];
app('base', 'platform', 'acme', "SELECT platform.invite_user('$_\@acme.example')") for qw(ann bob);
app('base', 'platform', 'globex', q{SELECT platform.invite_user('ann@globex.example')});
app('base', 'commission', 'acme', q{INSERT INTO commission.trader_rate (trader_id, rate) VALUES ('trader-1', 0.03)});
lock_deal('base', "d$_", 1 + $_ % 2) for 1 .. 4;
lock_deal('base', 'd5', 2);
lock_deal('base', 'g1', 2, 'globex');
lock_many('base', 0);
$_->quit for values %session;
%session = ();
clone($_) for qw(once again);

# What people do between deliveries; the same in both.
my @phases = (
	sub { },
	sub {
		my ($db) = @_;
		psql_file($db, 'sql/41_bonus.sql');
		admin($db, q{UPDATE notification.setting SET mail_host = 'mail.acme.example'});
		app($db, 'accounting', $_, q{SELECT accounting.open_period('2026-01')}) for @tenants;
		admin($db, q{SELECT acme_outbox.replay_parked_where('accounting')});
		like(finish($db, 'saga-sold'), qr/201/, "$db: a saga is sold");
		like(finish($db, 'saga-globex', 'globex'), qr/201/, "$db: and another tenant's");
		like(finish($db, 'saga-refused'), qr/409/, "$db: a saga is refused");
		lock_deal($db, $_, 2) for qw(d6 d7 d8 d10);
		lock_deal($db, 'g2', 1, 'globex');
		like(finish($db, 'saga-late'), qr/409/, "$db: a saga's deal is locked");
		lock_many($db, 1);
	},
	sub {
		my ($db) = @_;
		app($db, 'accounting', $_, 'SELECT accounting.process_invoices()') for @tenants;
		admin($db, q{UPDATE trading.sale_saga SET expires_at = '2026-01-01' WHERE sale_id = 'saga-left';
			UPDATE inventory.stock_hold SET expires_at = '2026-01-01' WHERE sale_id = 'saga-expired'});
		is(job($db, 'trading', 'trading.release_overdue_sagas'), 1, "$db: a saga that was left is given up");
		is(job($db, 'inventory', 'inventory.expire_holds'), 1, "$db: a hold expires");
		lock_many($db, 2);
	},
	sub {
		my ($db) = @_;
		app($db, 'accounting', 'acme', q{SELECT accounting.close_period('2026-01'); SELECT accounting.open_period('2026-02')});
		admin($db, q{UPDATE trading.sale_saga SET expires_at = '2026-01-01' WHERE sale_id = 'saga-expired'});
		is(job($db, 'trading', 'trading.release_overdue_sagas'), 1, "$db: and its saga");
		lock_deal($db, $_, 1) for qw(d9 d11 d12);
		lock_many($db, 3);
	},
	sub {
		my ($db) = @_;
		app($db, 'accounting', $_, 'SELECT accounting.process_invoices()') for @tenants;
		app($db, 'accounting', 'acme', q{SELECT accounting.close_period('2026-02')});
	});

# ---- relay and consumers

# All that is due, by the relay's contract; settled as published.
sub send_all
{
	my ($db) = @_;
	my @sent;
	for my $origin (AcmeOutbox::Platform->publishers)
	{
		my $epoch = $epoch{"$db $origin"} //=
		  admin($db, "SELECT epoch FROM acme_outbox.relay_acquire('$origin', 'test')");
		while (my $rows = admin($db, "SELECT row_to_json(c) FROM acme_outbox.claim('$origin', $epoch, 1000, 100000000) c"))
		{
			my @claimed = map { decode_json($_) } split /\n/, $rows;
			my $ids = join ',', map { $_->{id} } @claimed;
			my $each = sub { join ',', ("'$_[0]'") x @claimed };
			is(admin($db, "SELECT * FROM acme_outbox.settle($epoch, $claimed[0]{claim_id}, ARRAY[$ids],
				ARRAY[@{[$each->('PUBLISHED')]}]::acme_outbox.settle_outcome[], ARRAY[@{[$each->(3)]}]::smallint[],
				array_fill(NULL::text, ARRAY[@{[scalar @claimed]}]))"), '', "$db: $origin has sent");
			push @sent, @claimed;
		}
	}
	return sort { $a->{created_at} cmp $b->{created_at} || $a->{event_id} cmp $b->{event_id} } @sent;
}

my @binding = map { [ split /\t/ ] } map { s/\\\\/\\/gr } split /\n/, $bindings;
my %handler = map { split /\|/ } split /\n/, $node->safe_psql('once', 'SELECT consumer, handler FROM acme_outbox.inbox_handler');

# A message's deliveries, one for each consumer that it is bound to.
sub deliveries
{
	my ($message) = @_;
	my %seen;
	return map { { message => $message, consumer => $_, attempt => 1 } } grep { !$seen{$_}++ }
	  map { $_->[0] } grep { $_->[1] eq 'acme.audit-feed'
		  || $_->[1] eq $message->{topic} && $message->{routing_key} =~ $_->[2] } @binding;
}

sub body_of
{
	my ($delivery) = @_;
	my $message = $delivery->{message};
	return $delivery->{consumer} eq 'audit.feed' ? $message->{audit_payload} // $message->{payload} : $message->{payload};
}

sub properties
{
	my ($delivery) = @_;
	my $message = $delivery->{message};
	return JSON::PP->new->canonical->encode({
		exchange    => $message->{topic},
		routing_key => $message->{routing_key},
		attempt     => $delivery->{attempt},
		redelivered => $delivery->{attempt} > 1 ? JSON::PP::true : JSON::PP::false,
		headers     => { traceparent => $message->{traceparent} } });
}

# One batch as the bridge runs it: each delivery's outcome.
sub deliver
{
	my ($db, $consumer, @batch) = @_;
	my ($service) = split /\./, $consumer;
	my $session = session($db, "${service}_app");
	my $again = join ', ', map { "'$_->{message}{event_id}'" } grep { $_->{attempt} > 1 } @batch;
	$session->query_safe("SELECT acme_outbox.inbox_attempt('$consumer', e) FROM unnest(ARRAY[$again]) e") if $again;
	my $bodies = join ', ', map { "\$env\$@{[body_of($_)]}\$env\$" } @batch;
	my $messages = join ', ', map { "\$env\$@{[properties($_)]}\$env\$" } @batch;
	return split /\n/, $session->query_safe("SELECT outcome FROM acme_outbox.inbox_try_process_batch('$consumer',
		ARRAY[$bodies], '$handler{$consumer}', ARRAY[$messages]::jsonb[])");
}

# The other legal order: apply, then record.
sub with_inbox
{
	my ($db, $delivery) = @_;
	return session($db, 'inventory_app')->query_safe("CALL inventory.with_inbox('inventory.trading',
		\$env\$@{[body_of($delivery)]}\$env\$, traceparent => '$delivery->{message}{traceparent}')");
}

# ---- once, and in order

my (@stream, %once);    # @stream: a list of messages for each phase

for my $phase (@phases)
{
	$phase->('once');
	push @stream, [];
	my @dead = @{ delete $once{dead} // [] };
	while (my @messages = send_all('once'))
	{
		push @{ $stream[-1] }, @messages;
		for my $delivery (splice(@dead), map { deliveries($_) } @messages)
		{
			my ($outcome) = deliver('once', $delivery->{consumer}, $delivery);
			$once{$outcome}++;
			push @{ $once{dead} }, { %$delivery, attempt => $delivery->{attempt} + 1 } if $outcome eq 'failed';
		}
	}
}
my @all = map { deliveries($_) } map { @$_ } @stream;
is_deeply([ sort keys %once ], [qw(applied failed parked)], 'once: nothing came twice');
is($once{applied} + $once{parked}, @all, 'and everything was applied, or parked') or diag explain \%once;
is(admin('once', 'SELECT page, line, one, other FROM operation.books WHERE NOT balanced'), '', 'the books balance');
my %kinds = map { $_->{event_name} => 1 } map { @$_ } @stream;
is(join(' ', sort keys %kinds), join(' ', sort qw(trading.deal.created trading.deal.locked trading.deal.invoiced
	trading.purchase.created trading.sale.created ReserveStock ReleaseStock inventory.stock.reserved
	inventory.stock.updated StockReserved StockInsufficient accounting.invoice.issued accounting.invoice.processed
	accounting.period.opened accounting.period.closed commission.commission.calculated platform.user.invited
	notification.mail.send)), 'every event of the platform is in the stream');

# ---- again, in disorder

my %stress = map { $_ => 0 } qw(duplicates out_of_order same_key replays early late failed redelivered parked
  apply_then_record batches big_batches);

sub chance { return rand() < $_[0]; }

# A command asks for a decision, and decides by what has come before: those that want the same
# line items keep their order, as their locks would see to.
my %lines_of;
for my $message (map { @$_ } @stream)
{
	my $lines = decode_json($message->{payload})->{body}{payload}{lines} // [];
	$lines_of{ $message->{event_id} } = { map { $_->{lineItemId} => 1 } @$lines };
}
for my $release (grep { $_->{event_name} eq 'ReleaseStock' } map { @$_ } @stream)
{
	my ($reserve) = grep { $_->{event_name} eq 'ReserveStock' && $_->{message_key} eq $release->{message_key} } map { @$_ } @stream;
	$lines_of{ $release->{event_id} } = $lines_of{ $reserve->{event_id} };
}

sub in_this_order
{
	my ($one, $other) = map { $_->{message} } @_;
	return 0 unless grep { $_->{routing_key} =~ /^inventory\.command\./ } $one, $other;
	return scalar grep { $lines_of{ $other->{event_id} }{$_} } keys %{ $lines_of{ $one->{event_id} } };
}

# A random order of first copies, given in the stream's, that keeps what must be kept.
sub any_order
{
	my ($consumer, @first) = @_;
	return shuffle @first if $consumer ne 'inventory.trading';
	my @order;
	while (@first)
	{
		my @free = grep { my $i = $_; !grep { in_this_order($first[$_], $first[$i]) } 0 .. $i - 1 } 0 .. $#first;
		push @order, splice @first, $free[ rand @free ], 1;
	}
	return @order;
}

# In which phase a first copy comes: its own mostly. What a person's next step does not depend
# on may be late; an invoice may come before its sale is known, or locked.
sub comes_in
{
	my ($phase, $delivery) = @_;
	my $consumer = $delivery->{consumer};
	if ($consumer eq 'trading.accounting')
	{
		my $always = $delivery->{message}{payload} =~ /"sourceId": "(?:s-d6|s-d7|saga-\w+)"/;
		return $phase unless $always || chance(0.5);
		$stress{early}++;
		return $always ? 0 : int rand $phase;
	}
	if ($phase < $#phases && chance(0.25)
		&& ($consumer =~ /^(?:reporting|audit|commission|notification)\./ || $consumer eq 'accounting.trading' && $phase == 0))
	{
		$stress{late}++;
		return $phase + 1;
	}
	return $phase;
}

my %position;    # of each message in the stream
$position{ $_->{event_id} } = keys %position for map { @$_ } @stream;

# The pairs of neighbours in the wrong order.
sub count_disorder
{
	my (@first) = @_;
	my %newest;
	for my $message (map { $_->{message} } @first)
	{
		my ($last, $key) = ($position{ $message->{event_id} }, $message->{message_key} // '');
		$stress{out_of_order}++ if $last < ($newest{any} // -1);
		$stress{same_key}++     if $last < ($newest{"key $key"} // -1);
		$newest{$_} = $last for grep { $last > ($newest{$_} // -1) } 'any', "key $key";
	}
	return;
}

# Put something anywhere behind what is there at that place.
sub insert { my ($list, $from, $item) = @_; splice @$list, $from + rand(@$list - $from + 1), 0, $item; return; }

# Deliver some lists, one for each consumer, a batch here and a batch there. What fails comes
# again, and again in the next phase.
sub deliver_all
{
	my ($lists, $carried) = @_;
	while (my @busy = grep { @{ $lists->{$_} } } sort keys %$lists)
	{
		my $consumer = $busy[ rand @busy ];
		my @batch = splice @{ $lists->{$consumer} }, 0, 1 + rand 9;
		$stress{batches}++;
		$stress{big_batches}++ if @batch > 4;
		my @outcomes;
		if ($consumer eq 'inventory.trading' && chance(0.5))
		{
			@outcomes = map { with_inbox('again', $_) } @batch;
			$stress{apply_then_record} += grep { $_ eq 'applied' } @outcomes;
		}
		else { @outcomes = deliver('again', $consumer, @batch); }
		is(scalar @outcomes, scalar @batch, 'each has an outcome') if @outcomes != @batch;
		for my $i (0 .. $#batch)
		{
			my $delivery = $batch[$i];
			$stress{duplicates}++  if $outcomes[$i] eq 'duplicate';
			$stress{parked}++      if $outcomes[$i] eq 'parked';
			$stress{redelivered}++ if $outcomes[$i] eq 'applied' && $delivery->{attempt} > 1;
			next if $outcomes[$i] !~ /^(?:failed|later)$/;
			my $again = { %$delivery, attempt => $delivery->{attempt} + ($outcomes[$i] eq 'failed') };
			$stress{failed}++ if $outcomes[$i] eq 'failed';
			die "$consumer, $delivery->{message}{event_name}: fails for ever\n" if $again->{attempt} > 30;
			if ($again->{attempt} % 4) { insert($lists->{$consumer}, 0, $again); }
			else                       { push @$carried, { %$again, attempt => $again->{attempt} + 1 }; }
		}
	}
	return;
}

my (@comes, @carried, @before);
for my $phase (0 .. $#phases)
{
	push @{ $comes[ comes_in($phase, $_) ]{ $_->{consumer} } }, $_ for map { deliveries($_) } @{ $stream[$phase] };
}
for my $phase (0 .. $#phases)
{
	$phases[$phase]->('again');
	my %lists;
	for my $consumer (sort keys %handler)
	{
		my @first = any_order($consumer, sort { $position{ $a->{message}{event_id} } <=> $position{ $b->{message}{event_id} } }
			  @{ $comes[$phase]{$consumer} // [] });
		count_disorder(@first);
		my @list = map { { %$_, attempt => chance(0.2) ? 2 : 1 } } @first;
		for my $copy (grep { chance(0.7) } @list)
		{
			my ($at) = grep { $list[$_] == $copy } 0 .. $#list;
			insert(\@list, $at + 1, { %$copy, attempt => 1 + int rand 3 });
		}
		$lists{$consumer} = \@list;
	}
	for my $replay (grep { chance(0.15) } @before)
	{
		insert($lists{ $replay->{consumer} }, 0, {%$replay});
		$stress{replays}++;
	}
	insert($lists{ $_->{consumer} }, 0, $_) for splice @carried;
	deliver_all(\%lists, \@carried);
	push @before, map { @$_ } values %{ $comes[$phase] };
	admin('again', q{SELECT acme_outbox.replay_parked_where('trading')}) if $phase % 2;
	send_all('again');
}

admin('again', q{SELECT acme_outbox.replay_parked_where('trading')});
is(admin('again', 'SELECT * FROM acme_outbox.parked_open'), '', 'nothing stays parked');
is("@carried", '', 'nothing stays dead');

# ---- compare

sub tables
{
	return split /\n/, admin('once', "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname = ANY ('{"
		  . join(',', @services) . "}') ORDER BY 1");
}

sub ignored_of { my ($table) = @_; return $ignored{$table} // $ignored{ $table =~ s/^\w+/*/r } // {}; }

# A table's rows as text, without what may differ.
sub rows
{
	my ($db, $table) = @_;
	my $but = join ',', sort keys %{ ignored_of($table) };
	return split /\n/, admin($db, "SELECT r FROM (SELECT (to_jsonb(t) - '{$but}'::text[])::text AS r FROM $table t) t ORDER BY r");
}

# What was published, without ids and times. How a position came to be what it is depends on who
# came first, so of its events count what for, and what the last one says.
sub published
{
	my ($db) = @_;
	return split /\n/, admin($db, <<'SQL');
SELECT jsonb_build_array(origin, entry_type, status, topic, routing_key, message_key, event_name, tenant_id,
	trace_id, headers, redacted, traceparent, CASE WHEN event_name <> 'inventory.stock.updated'
		THEN payload::jsonb #- '{header,eventId}' #- '{header,timestamp}' END)::text AS r
FROM acme_outbox.outbox_entry ORDER BY r
SQL
}

sub last_positions
{
	my ($db) = @_;
	return split /\n/, admin($db, <<'SQL');
SELECT DISTINCT ON (message_key) payload::jsonb #>> '{body,payload}' FROM acme_outbox.outbox_entry
WHERE event_name = 'inventory.stock.updated' ORDER BY message_key, id DESC
SQL
}

sub same
{
	my ($once, $again, $what) = @_;
	my %count;
	$count{$_}++ for @$once;
	$count{$_}-- for @$again;
	my @differ = map { ($count{$_} > 0 ? 'once:  ' : 'again: ') . substr $_, 0, 400 } grep { $count{$_} } sort keys %count;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is(scalar @differ, 0, $what) || diag join "\n", @differ[ 0 .. ($#differ > 5 ? 5 : $#differ) ];
}

my $compared = 0;

sub compare
{
	my ($when) = @_;
	for my $table (grep { ref ignored_of($_) } tables())
	{
		my @once = rows('once', $table);
		$compared++ if @once;
		same(\@once, [ rows('again', $table) ], "$when: $table is the same");
	}
	send_all('again');
	same([ published('once') ], [ published('again') ], "$when: the same was published");
	same([ last_positions('once') ], [ last_positions('again') ], "$when: positions were told the same in the end");
	is(admin('again', 'SELECT * FROM acme_outbox.parked_open'), '', "$when: nothing is parked");
	is(admin('again', 'TABLE trading.oversold; TABLE inventory.inconsistent; SELECT * FROM acme_outbox.verify()'), '',
		"$when: nothing is inconsistent");
	return;
}

compare('in disorder');

# The inbox is purged in the end, and somebody replays everything: what a handler knows of its
# own must be enough.

my %done = %stress;
admin('again', join ';', map { "DELETE FROM $_.processed_event" } @services);
my %lists;
insert($lists{ $_->{consumer} } //= [], 0, { %$_, attempt => 2 }) for @all;
deliver_all(\%lists, \@carried);
is($stress{failed}, $done{failed}, 'a replay of everything fails nowhere');
is($stress{parked}, $done{parked}, 'and parks nothing');
is(admin('again', 'SELECT ' . join ' + ', map { "(SELECT count(*) FROM $_.processed_event)" } @services), scalar @all,
	'everything was handled once more');
compare('the inbox forgotten');

# ---- it was a stress

my %least = (duplicates => 500, out_of_order => 400, same_key => 80, replays => 100, early => 15, late => 80,
	failed => 3, redelivered => 80, parked => 10, apply_then_record => 8, batches => 150, big_batches => 60);
cmp_ok($done{$_}, '>=', $least{$_}, "$_: at least $least{$_}") for sort keys %least;
for my $reason (qw(INVALID_STATE UNRESOLVABLE_ENTITY))
{
	cmp_ok(admin('again', "SELECT count(*) FROM trading.parked_message m JOIN trading.parked_resolution r
		ON r.parked_id = m.id WHERE m.reason = '$reason' AND r.outcome = 'applied'"), '>=', 2,
		"invoices were parked as $reason, and handled when they were replayed");
}
my $filled = () = map { my $table = $_; admin('once', "SELECT 1 FROM $table LIMIT 1") ? $table : () } grep { ref ignored_of($_) } tables();
is($compared, 2 * $filled, 'all tables that have rows were compared') and cmp_ok($filled, '>=', 35, 'and they are many');

$_->quit for values %session;
$node->stop;
done_testing();
