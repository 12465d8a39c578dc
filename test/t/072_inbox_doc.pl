# The SQL of docs/inbox.md runs as printed, in order, and prints what the page says; its
# links lead somewhere.
use strict;
use warnings;

use AcmeOutbox::Cluster;
use FindBin;
use lib "$FindBin::RealBin/../docs";
use Page;
use PostgreSQL::Test::Utils;
use Test::More;

my $stage = $ENV{ACME_STAGE} // "$FindBin::RealBin/../..";
my $page = Page->read_page("$stage/docs/inbox.md");
my $node = AcmeOutbox::Cluster->create('main', "acme_outbox.autocommit_publish = 'error'");
my $file = PostgreSQL::Test::Utils::tempdir() . '/block.sql';
my ($out, $err, $ran, $compared) = ('', '', 0, 0);

for my $block ($page->blocks)
{
	my ($first) = $block->{text} =~ /(\S.*)/;
	my $name = "line $block->{line}: $first";

	if ($block->{mark} eq 'output')
	{
		is(Page::masked($out), Page::masked($block->{text}), "$name: what the page says");
		$compared++;
	}
	elsif ($block->{language} eq 'sql')
	{
		my ($role) = $block->{mark} =~ /^run as (\w+)$/;
		die "$name: unknown comment \"$block->{mark}\"\n" if $block->{mark} ne '' && !$role;
		open(my $sql, '>', $file) or die "$file: $!\n";
		print $sql $block->{text};
		close $sql;
		IPC::Run::run(
			[   'psql', '-X', '-v', 'ON_ERROR_STOP=1', '-f', $file, '-d',
				$node->connstr('postgres') . ' user=' . ($role // 'postgres')
			],
			'<', \undef, '>', \$out, '2>', \$err);
		is($?, 0, $name);
		is($err, '', "$name: no warning");
		$ran++;
	}
}
cmp_ok($ran, '>', 10, 'the page has blocks, and they ran');
cmp_ok($compared, '>', 3, 'and outputs');
is($node->sql('SELECT count(*) FROM acme_outbox.outbox_entry'), 2, 'both deals were published');
is($node->sql("SELECT count(*) FROM trading.deal WHERE status = 'INVOICED'"), 2, 'and invoiced');

my @dead = grep {
	my ($target, $anchor) = @$_;
	my $path = length $target ? "$stage/docs/$target" : "$stage/docs/inbox.md";
	!-e $path || (defined $anchor && !Page->read_page($path)->anchors->{$anchor})
} $page->links;
is(join(' ', map { join '#', map { $_ // '' } @$_ } @dead), '', 'links lead somewhere');

$node->stop;
done_testing();
