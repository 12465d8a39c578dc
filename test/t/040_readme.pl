# The README's blocks run as printed, in order, against a PostgreSQL and a RabbitMQ, and print
# what the README says; so do those of docs/publish.md, bridge.md, operations.md and
# administration.md after it. docs/troubleshooting.md has texts of the code and no others, and
# all of the bridge's warnings and errors.
use strict;
use warnings;

use AcmeOutbox::Bridge;
use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use FindBin;
use lib "$FindBin::RealBin/../docs";
use Driver;
use Page;
use PostgreSQL::Test::Utils;
use Test::More;

my $stage = $ENV{ACME_STAGE} // "$FindBin::RealBin/../..";
my $readme = Page->read_page("$stage/README.md");

my $node = AcmeOutbox::Cluster->create_empty('readme', "acme_outbox.autocommit_publish = 'warn'",
	"listen_addresses = '127.0.0.1'");
my $broker = AcmeOutbox::Broker->new;
eval { $broker->api('DELETE', 'vhosts/shop') };    # of a run that was killed
my $broker_dir = $broker->{dir} // $ENV{RABBITMQ_DIR};
my $work = PostgreSQL::Test::Utils::tempdir();

# The places: what a reader has in the path and in the environment.

append_to_file("$work/rabbitmqctl", <<"SH");
#!/bin/bash
# relative paths are the caller's; the control script changes its folder
exec '$stage/test/env/rabbitmq' ctl '$broker_dir' "\${\@/#shop.json/\$PWD/shop.json}"
SH
chmod 0755, "$work/rabbitmqctl", $work;

my %place = (
	PATH         => "$work:$stage/bridge:$ENV{PATH}",
	PGHOST       => $node->host,
	PGPORT       => $node->port,
	PGUSER       => 'postgres',
	RABBITMQ_URI => "amqp://shop_bridge:change-me\@127.0.0.1:$broker->{port}/shop");
append_to_file("$work/state", '');
my $drivers = Driver->new($stage, $work);

my @background;

# Run a script in one shell that remembers what was exported: (status, stdout, stderr).
sub run_sh
{
	my ($script) = @_;
	my ($out, $err) = ('', '');
	local @ENV{ keys %place } = values %place;
	my $wrapped = "cd '$work'; . ./state\n$script\nexport -p >state\n";

	IPC::Run::run([ 'bash', '-euo', 'pipefail', '-c', $wrapped ],
		'<', \undef, '>', \$out, '2>', \$err);
	return ($? >> 8, $out, $err);
}

sub run_sql
{
	my ($text, $role) = @_;
	$role //= 'postgres';
	open(my $file, '>', "$work/block.sql") or die "block.sql: $!\n";
	print $file $text;
	close $file;
	return run_sh("PGUSER=$role psql -X -v ON_ERROR_STOP=1 -f block.sql");
}

# Does running it twice change nothing?
sub only_reads
{
	my ($block) = @_;
	return $block->{text} =~ /^rabbitmqctl -q list/
	  if $block->{language} eq 'sh';
	return $block->{text} !~ /^(?!SELECT|FROM|\s)/m && $block->{text} !~ /publish\(|retry|adopt|grant/;
}

sub run_driver
{
	my ($block, $role) = @_;
	my ($ok, $out, $err) = $drivers->run($block, %place, PGDATABASE => 'shop',
		PGUSER => $role // 'postgres');
	return ($ok ? 0 : 1, $out, $err);
}

sub run_block
{
	my ($block) = @_;
	my ($role) = $block->{mark} =~ /^run as (\w+)$/;
	return run_driver($block, $role) if $drivers->speaks($block->{language});
	return $block->{language} eq 'sql' ? run_sql($block->{text}, $role) : run_sh($block->{text});
}

sub run_in_background
{
	my ($block) = @_;
	my $log = "$work/background.log";
	my $script = $block->{text} =~ s/^((?:\w+=\S+ )*)(?=acme-outbox-bridge)/exec env $1/mr;
	local @ENV{ keys %place } = values %place;

	my $pid = fork() // die "fork: $!\n";
	if ($pid == 0)
	{
		open(STDERR, '>', $log);
		exec('bash', '-euc', "cd '$work'; . ./state\n$script") or POSIX::_exit(127);
	}
	push @background, $pid;
	return wait_until(sub { -e $log && slurp_file($log) =~ /lease acquired/ }, 60);
}

sub stop_background
{
	for my $pid (@background)
	{
		kill 'TERM', $pid;
		waitpid $pid, 0;
		is($?, 0, 'the bridge in the background stops orderly');
	}
	@background = ();
	return;
}

END
{
	my $status = $?;
	for my $pid (@background)
	{
		kill 'KILL', $pid;
		waitpid $pid, 0;
	}
	if ($broker)
	{
		eval { $broker->api('DELETE', 'vhosts/shop'); $broker->api('DELETE', 'users/shop_bridge'); };
	}
	$? = $status;
}

sub name_of
{
	my ($block) = @_;
	my ($first) = $block->{text} =~ /(\S.*)/;
	return "line $block->{line}: $first";
}

# The blocks of a page, in order of appearance; returns how many ran, and those to run last.
sub run_page
{
	my ($page, $label) = @_;
	my ($ran, $before, @last) = (0);

	$drivers->turn_page;

	for my $block ($page->blocks)
	{
		my ($language, $mark) = @{$block}{qw(language mark)};
		my $name = $label . name_of($block);

		if ($mark eq 'output')
		{
			my $deadline = time() + 30;
			while (masked($before->{out}) ne masked($block->{text})
				&& only_reads($before) && time() < $deadline)
			{
				select undef, undef, undef, 0.2;
				(undef, $before->{out}, undef) = run_block($before);
			}
			is( masked($before->{out}), masked($block->{text}),
				$label . name_of($before) . ': prints what the page says');
		}
		elsif ($mark =~ /^not run/)
		{
			like($mark, qr/^not run: \S+/, "$name: left alone for a reason");
		}
		elsif ($mark eq 'run in background')
		{
			ok(run_in_background($block), "$name: runs")
			  or diag slurp_file("$work/background.log");
			$ran++;
		}
		elsif ($mark eq 'run last') { push @last, $block; }
		elsif ($language eq 'sh' || $language eq 'sql' || $drivers->speaks($language))
		{
			die "$name: unknown comment \"$mark\"\n" if $mark !~ /^(?:run as \w+|setup|)$/;
			my ($status, $out, $err) = run_block($block);
			is($status, 0, $name) or diag $out, $err;
			unlike($err, qr/\b(WARNING|ERROR):/, "$name: no warning");
			$block->{out} = $out;
			$before = $block;
			$ran++;
		}
		else
		{
			is($language, 'text', "$name: is run, or says why not");
		}
	}
	return ($ran, @last);
}

sub run_doc { my ($name) = @_; return run_page(Page->read_page("$stage/docs/$name.md"), "$name.md, "); }

my ($ran) = run_page($readme, '');
cmp_ok($ran, '>', 12, 'the page has blocks, and they ran');
run_doc('publish');

# What they did together: the README's insert, update and Python, then what publish.md ships
# and places, the last three from drivers. Nothing is bound for its stock, and a job has time.

my $db = 'shop';
ok($node->poll_query_until($db, <<'SQL'), 'all that the pages publish is sent');
SELECT count(*) = 10 FROM acme_outbox.outbox WHERE status = 'PUBLISHED'
SQL
$broker->api('PUT', 'permissions/shop/guest', { configure => '.*', write => '.*', read => '.*' });
{
	local $broker->{vhost} = 'shop';
	my @messages = $broker->drain('fulfilment');
	is_deeply(
		[ map { "$_->{type} $_->{app_id}" } @messages ],
		[ map { "$_ shop" } 'OrderPlaced', 'OrderPaid', 'OrderPaid',
			'OrderShipped', 'OrderPaid', 'OrderPaid', 'OrderPlaced', ('OrderShipped') x 3 ],
		'and arrived, in order, from the origin "shop"');
}
is($node->safe_psql($db, 'SELECT * FROM acme_outbox.verify()'), '', 'verify() finds nothing');
stop_background();

# The operator's pages run in the same database, and end it all.

run_doc($_) for qw(bridge operations);
(undef, my @last) = run_doc('administration');
is( join(' ', map { $_->[0] }
		Page->read_page("$stage/docs/publish.md")->table('parameter | type | limit')),
	$node->safe_psql($db, <<'SQL'), 'publish.md: the parameters of publish');
SELECT DISTINCT array_to_string(proargnames, ' ') FROM pg_proc WHERE proname = 'publish'
SQL
like((run_sql("BEGIN; SELECT blocking_pid IS NULL FROM acme_outbox.outbox_backlog;\n", 'watcher'))[1],
	qr/^ t$/m, 'a role for monitoring may read the backlog');
like((run_sql("SELECT count(*) >= 0 FROM acme_outbox.outbox_stuck;\n", 'watcher'))[1],
	qr/^ t$/m, 'and, where it was granted, what is stuck');

# Error texts: each stands in the code, and those that can be are provoked.

my $code = '';
for my $file (glob("$stage/src/*.c $stage/bridge/*.c $stage/sql/[0-9]*.sql"))
{
	my $text = slurp_file($file);
	$text =~ s/''/'/g if $file =~ /\.sql$/;
	$text =~ s/"\s*\n\s*"//g;
	$text =~ s/\\"/"/g;
	$code .= $text;
}

sub pattern_of
{
	my ($text, $gap) = @_;
	my $pattern = join $gap, map { quotemeta } split /\.\.\./, $text, -1;
	return qr/$pattern/;
}

my @texts = Page->read_page("$stage/docs/troubleshooting.md")->error_texts;
cmp_ok(scalar @texts, '>', 20, 'the page has error texts');
for my $entry (@texts)
{
	my ($text, $comment) = @$entry;
	next if $comment eq 'text of PostgreSQL';
	ok($code =~ pattern_of($text, '%[-.0-9]*l*[a-zA-Z]'), "in the code: $text");
}

# And the other way: whatever the bridge warns of or fails with is explained.
my $troubleshooting = slurp_file("$stage/docs/troubleshooting.md");
my $n_lines = 0;
for my $file (glob "$stage/bridge/*.c")
{
	my $source = slurp_file($file) =~ s/"\s*\n\s*"//gr;
	for my $call ($source =~ /\blog_(?:warn|error)\((.*?)(?:LOG_|\);)/gs)
	{
		for my $line ($call =~ /"([^"]+)"/g)
		{
			my $said = $line =~ s/^impossible state change of \K.*/.../r;
			ok(index($troubleshooting, $said) >= 0, "troubleshooting.md has: $said");
			$n_lines++;
		}
	}
}
cmp_ok($n_lines, '>', 50, 'and these are its warnings and errors');

my $publish = q{acme_outbox.publish('shop.orders', 'order.paid', '1'};
my %sql_of = (
	'acme_outbox needs a database in UTF8 encoding' =>
	  [ 'postgres', "\\c latin\nCREATE EXTENSION acme_outbox" ],
	"schema acme_outbox is in use or not a superuser's alone" =>
	  [ 'postgres', "\\c squat\nCREATE EXTENSION acme_outbox" ],
	'dropping extension "acme_outbox" would lose what was not delivered' =>
	  [ 'postgres', "BEGIN; SELECT $publish, 'OrderPaid', '{}');\nDROP EXTENSION acme_outbox CASCADE" ],
	'permission denied for schema acme_outbox' =>
	  [ 'stranger', "BEGIN; SELECT $publish, 'OrderPaid', '{}')" ],
	'permission denied for table outbox_entry' =>
	  [ 'shop_app', 'INSERT INTO acme_outbox.outbox_entry DEFAULT VALUES' ],
	'event published outside a transaction block' =>
	  [ 'shop_app', "SELECT $publish, 'OrderPaid', '{}')" ],
	'function acme_outbox.publish(unknown, unknown, integer, ...) does not exist' =>
	  [ 'shop_app', "SELECT acme_outbox.publish('shop.orders', 'order.paid', 1, 'OrderPaid', '{}')" ],
	'payload is not valid JSON' => [ 'shop_app', "BEGIN; SELECT $publish, 'OrderPaid', '{')" ],
	'payload of ... bytes is too large' =>
	  [ 'shop_app', "BEGIN; SELECT $publish, 'OrderPaid', to_json(repeat('x', 1048577)))" ],
	'invalid event name' => [ 'shop_app', "BEGIN; SELECT $publish, 'order paid', '{}')" ],
	'event id ... is in use by another event' => [
		'shop_app',
		"BEGIN; SELECT $publish, 'OrderPaid', '{}', event_id => '018f0000-0000-7000-8000-000000000001');"
		  . "SELECT $publish, 'OrderLost', '{}', event_id => '018f0000-0000-7000-8000-000000000001')"
	],
	'acme_outbox.origin is not set' => [
		'postgres', "SET acme_outbox.origin = ''; BEGIN; SELECT $publish, 'OrderPaid', '{}')"
	],
	'permission denied to set parameter "acme_outbox.origin"' =>
	  [ 'shop_app', q{SET acme_outbox.origin = 'warehouse'} ]);

$node->safe_psql('postgres', 'CREATE ROLE stranger LOGIN');
$node->safe_psql('postgres', 'CREATE DATABASE squat');
$node->safe_psql('squat', 'CREATE SCHEMA acme_outbox AUTHORIZATION stranger');
$node->safe_psql('postgres', q{CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0});
for my $text (sort keys %sql_of)
{
	ok((grep { $_->[0] eq $text } @texts), "on the page: $text");
	my (undef, $out, $err) = run_sql($sql_of{$text}[1] . ";\n", $sql_of{$text}[0]);
	ok($err =~ pattern_of($text, '.*?'), "provoked: $text") or diag $out, $err;
}

sub bridge_says
{
	my ($status, $text, $command) = @_;
	my ($got, undef, $err) = run_sh("PGUSER=shop_relay $command");
	my $logged = $text =~ s/"/\\"/gr;

	ok((grep { $_->[0] eq $text } @texts), "on the page: $text");
	is($got, $status, "exit status $status: $text");
	ok($err =~ pattern_of($text, '.*?') || $err =~ pattern_of($logged, '.*?'), "provoked: $text")
	  or diag $err;
	return $err;
}

my $relay = 'acme-outbox-bridge relay --origin shop --once';
$node->safe_psql('postgres', 'CREATE DATABASE copy TEMPLATE shop');
bridge_says(69, 'cannot start: the database is not usable', "PGDATABASE=nowhere $relay");
bridge_says(76, 'cannot start: the database is not usable', "PGDATABASE=postgres $relay");
bridge_says(77, 'cannot start: the database is not usable',
	"env PGUSER=stranger $relay");
like(
	bridge_says(77, 'cannot start: the database is not usable', "env PGUSER=shop_app $relay"),
	qr/permission denied for function contract_version/, 'a publisher is no relay');
bridge_says(77, 'role "..." may not relay origin "..."', 'acme-outbox-bridge relay --origin warehouse');
bridge_says(77, 'this database is a copy whose outbox was not adopted', "PGDATABASE=copy $relay");
$node->safe_psql('copy', 'SELECT acme_outbox.adopt(); DELETE FROM acme_outbox.installation');
bridge_says(77, 'this database is a copy whose outbox was not adopted', "PGDATABASE=copy $relay");
bridge_says(74, 'cannot start: the broker refused the login',
	"RABBITMQ_URI=amqp://shop_bridge:wrong\@127.0.0.1:$broker->{port}/shop $relay");
bridge_says(75, 'broker not reachable',
	"RABBITMQ_URI=amqp://127.0.0.1:1 $relay --connect-timeout 1s");
bridge_says(64, '--broker-uri holds a password', "$relay --broker-uri amqp://a:b\@localhost");
bridge_says(74, 'cannot start: no TLS with the broker',
	"RABBITMQ_URI=amqps://127.0.0.1:$broker->{port} $relay");

# What ends it all.

for my $block (@last)
{
	my ($status, $out, $err) = run_block($block);
	is($status, 0, name_of($block)) or diag $out, $err;
}
is( $node->safe_psql($db, q{SELECT count(*) FROM pg_namespace WHERE nspname = 'acme_outbox'}),
	0, 'nothing is left in the database');

sub masked { return Page::masked(@_); }

done_testing();
