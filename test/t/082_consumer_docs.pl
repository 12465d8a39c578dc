# The sql blocks of the pages on idempotency keys and projections run as printed, and print
# what the pages say; their links lead somewhere.
use strict;
use warnings;

use AcmeOutbox::Cluster;
use FindBin;
use lib "$FindBin::RealBin/../docs";
use Page;
use PostgreSQL::Test::Utils;
use Test::More;

my $stage = $ENV{ACME_STAGE} // "$FindBin::RealBin/../..";
my $node = AcmeOutbox::Cluster->create_empty('docs');

sub run_block
{
	my ($database, $block) = @_;
	my ($role) = $block->{mark} =~ /^run as (\w+)$/;
	my %env = ($node->libpq_env($role // 'postgres'), PGDATABASE => $database, PGTZ => 'UTC');
	local @ENV{ keys %env } = values %env;
	my $text = $block->{text};

	my $ok = IPC::Run::run([ 'psql', '-X', '-v', 'ON_ERROR_STOP=1', '-f', '-' ],
		'<', \$text, '>', \my $out, '2>', \my $err);
	return ($ok, $out, $err);
}

for my $name ('idempotency', 'projections')
{
	my $page = Page->read_page("$stage/docs/$name.md");
	my ($ran, $before) = (0);

	$node->safe_psql('postgres', "CREATE DATABASE $name");
	$node->safe_psql($name, 'CREATE EXTENSION acme_outbox');
	for my $block ($page->blocks)
	{
		my ($first) = $block->{text} =~ /(\S.*)/;
		my $what = "$name.md, line $block->{line}: $first";
		if ($block->{mark} eq 'output')
		{
			is(Page::masked($before), Page::masked($block->{text}), "$what: printed as the page says");
		}
		elsif ($block->{mark} =~ /^not run/)
		{
			like($block->{mark}, qr/^not run: \S+/, "$what: left alone for a reason");
		}
		else
		{
			is($block->{language}, 'sql', "$what: is run, or says why not");
			(my $ok, $before, my $err) = run_block($name, $block);
			ok($ok, $what) or diag $err;
			unlike($err, qr/WARNING|ERROR/, "$what: no warning");
			$ran++;
		}
	}
	cmp_ok($ran, '>', 4, "$name.md has blocks, and they ran");

	my @dead;
	for my $link ($page->links)
	{
		my ($file, $anchor) = @$link;
		my $target = length $file ? "$stage/docs/$file" : "$stage/docs/$name.md";
		push @dead, "$file#" . ($anchor // '')
		  unless -e $target && (!defined $anchor || Page->read_page($target)->anchors->{$anchor});
	}
	is(join(' ', @dead), '', "$name.md: links lead somewhere");
}

# The grants that the page gives suffice.

my (undef, $out, $err) = run_block('projections', { mark => 'run as reporting_app', text => <<'SQL' });
\pset format unaligned
\pset tuples_only on
SELECT acme_outbox.project('reporting.deal', '{"deal_id": 50}', '{"state": "NEW"}', '2026-01-01'),
	acme_outbox.project('reporting.deal', '{"deal_id": 50}', '{"state": "OLD"}', '2026-01-02'),
	acme_outbox.project_delete('reporting.deal', '{"deal_id": 50}', '2026-01-03'),
	acme_outbox.project('reporting.deal', '{"deal_id": 50}', '{"state": "LATE"}', '2026-01-02'),
	acme_outbox.project('reporting.deal', '{"deal_id": 50}', '{"state": "AGAIN"}', '2026-01-04');
SQL
like($out, qr/^t\|t\|t\|f\|t$/m, 'a consumer projects and deletes') or diag $err;
($out) = (run_block('projections',
	{ mark => 'run as reporting_app', text => q{SELECT * FROM acme_outbox.projection_rebuild('reporting.deal', 'reporting.deal_seed')} }))[2];
like($out, qr/permission denied/, 'but does not rebuild');
done_testing();
