# docs/trading.md runs as printed, with every relay and consumer of the platform, and
# prints what the page says; its links and those of examples/trading lead somewhere.
use strict;
use warnings;

use AcmeOutbox::Check;
use AcmeOutbox::Platform;
use FindBin;
use lib "$FindBin::RealBin/../docs";
use Page;
use PostgreSQL::Test::Utils;
use Test::More;

my $stage = $ENV{ACME_STAGE} // "$FindBin::RealBin/../..";
my $page = Page->read_page("$stage/docs/trading.md");
my $platform = AcmeOutbox::Platform->create('doc');
my $work = PostgreSQL::Test::Utils::tempdir();

# Run a block: (success, output, errors). A role's sessions have the tenant "acme".
sub run_sql
{
	my ($text, $role) = @_;
	my ($out, $err) = ('', '');
	local $ENV{PGOPTIONS} = '-c acme_outbox.tenant_id=acme' if $role;
	my @command = ('psql', '-X', '-v', 'ON_ERROR_STOP=1', '-f', '-', '-d',
		$platform->{node}->connstr(AcmeOutbox::Platform::DATABASE) . ' user=' . ($role // 'postgres'));

	my $ok = IPC::Run::run(\@command, '<', \$text, '>', \$out, '2>', \$err, init => sub { chdir $stage });
	return ($ok, $out, $err);
}

sub run_sh
{
	my ($text, $user) = @_;
	my ($out, $err) = ('', '');
	local $ENV{PATH} = "$stage/bridge:$ENV{PATH}";
	local $ENV{RABBITMQ_URI} = $platform->uri($user);

	my $ok = IPC::Run::run([ 'bash', '-euo', 'pipefail', '-c', $text ],
		'<', \undef, '>', \$out, '2>', \$err);
	return ($ok, $out, $err);
}

sub run_block
{
	my ($block) = @_;
	my ($who) = $block->{mark} =~ /^run as (\w+)$/;
	return $block->{language} eq 'sql' ? run_sql($block->{text}, $who) : run_sh($block->{text}, $who);
}

# Can it be run again until what it waits for is there?
sub only_reads
{
	my ($block) = @_;
	return $block->{text} !~ /^(?!SELECT|FROM|WHERE|  |$)/m
	  && $block->{text} !~ /replay|rebuild|process_invoices/
	  || $block->{text} =~ /--dry-run/;
}

sub same
{
	my ($one, $other) = @_;
	return Page::masked($one) eq Page::masked($other);
}

$platform->start_all;

my @blocks = $page->blocks;
my ($ran, $compared) = (0, 0);
while (my $block = shift @blocks)
{
	my ($first) = $block->{text} =~ /(\S.*)/;
	my $name = "line $block->{line}: $first";
	next if $block->{language} eq 'mermaid';
	if ($block->{mark} =~ /^not run/)
	{
		like($block->{mark}, qr/^not run: \S+/, "$name: left alone for a reason");
		next;
	}
	die "$name: unknown comment \"$block->{mark}\"\n" if $block->{mark} !~ /^(?:run as \w+)?$/;
	my $expected = @blocks && $blocks[0]{mark} eq 'output' ? shift @blocks : undef;
	my ($ok, $out, $err);
	wait_until(
		sub {
			($ok, $out, $err) = run_block($block);
			return !only_reads($block) || ($ok && (!$expected || same($out, $expected->{text})));
		},
		60);
	ok($ok, $name) or diag $out, $err;
	unlike($err, qr/\b(WARNING|ERROR):/, "$name: no warning");
	$ran++;
	next unless $expected;
	is(Page::masked($out), Page::masked($expected->{text}), "$name: prints what the page says");
	$compared++;
}
cmp_ok($ran, '>', 15, 'the page has blocks, and they ran');
cmp_ok($compared, '>', 10, 'and outputs');
$platform->stop_bridges;

my @dead;
for my $path ('docs/trading.md', 'examples/trading/README.md', 'examples/trading/EVENTS.md')
{
	my ($folder) = $path =~ m{^(.*/)};
	for my $link (Page->read_page("$stage/$path")->links)
	{
		my ($file, $anchor) = @$link;
		my $target = length $file ? "$stage/$folder$file" : "$stage/$path";
		push @dead, "$path: $file#" . ($anchor // '')
		  unless -e $target
		  && (!defined $anchor || Page->read_page($target)->anchors->{$anchor});
	}
}
is(join(' ', @dead), '', 'links lead somewhere');

done_testing();
