# The blocks of docs/selling-stock.md run as printed, in order, and print what the
# page says.
use strict;
use warnings;

use AcmeOutbox::Cluster;
use FindBin;
use lib "$FindBin::RealBin/../docs";
use Page;
use PostgreSQL::Test::Utils;
use Test::More;

my $stage = $ENV{ACME_STAGE} // "$FindBin::RealBin/../..";
my $page = Page->read_page("$stage/docs/selling-stock.md");
my $node = AcmeOutbox::Cluster->create_empty('main');
my $file = PostgreSQL::Test::Utils::tempdir() . '/block.sql';
my ($out, $err, $ran, $compared) = ('', '', 0, 0);

sub command_of
{
	my ($block) = @_;
	my ($role) = $block->{mark} =~ /^run as (\w+)$/;
	my %env = ($node->libpq_env($role // 'postgres'), PGDATABASE => 'platform');

	$ENV{$_} = $env{$_} for keys %env;
	return [ 'bash', '-euc', "cd '$stage'; $block->{text}" ] if $block->{language} eq 'sh';
	unlink $file;
	append_to_file($file, $block->{text});
	return [ 'psql', '-qX', '-v', 'ON_ERROR_STOP=1', '-f', $file ];
}

for my $block ($page->blocks)
{
	my ($first) = $block->{text} =~ /(\S.*)/;
	my $name = "line $block->{line}: $first";

	if ($block->{mark} eq 'output')
	{
		is(Page::masked($out), Page::masked($block->{text}), "$name: what the page says");
		$compared++;
	}
	elsif ($block->{language} =~ /^(?:sql|sh)$/ && $block->{mark} !~ /^not run: \S/)
	{
		die "$name: unknown comment \"$block->{mark}\"\n"
		  unless $block->{mark} =~ /^(?:run as \w+)?$/;
		local %ENV = %ENV;
		IPC::Run::run(command_of($block), '<', \undef, '>', \$out, '2>', \$err);
		is($?, 0, $name) or diag $err;
		is($err, '', "$name: no warning") unless $block->{text} =~ /ON_ERROR_STOP off/;
		$ran++;
	}
}
cmp_ok($ran, '>', 20, 'the page has blocks, and they ran');
cmp_ok($compared, '>', 18, 'and outputs');

$node->stop;
done_testing();
