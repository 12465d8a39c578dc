# The sql, python, js and java blocks of the consumers' pages run as printed, in order, a page
# in a database of its own, and print what the pages say.
use strict;
use warnings;

use AcmeOutbox::Cluster;
use FindBin;
use lib "$FindBin::RealBin/../docs";
use Driver;
use Page;
use PostgreSQL::Test::Utils;
use Test::More;

my $stage = $ENV{ACME_STAGE} // "$FindBin::RealBin/../..";
my $node = AcmeOutbox::Cluster->create_empty('docs', "listen_addresses = '127.0.0.1'",
	"acme_outbox.autocommit_publish = 'error'");
my $drivers = Driver->new($stage, PostgreSQL::Test::Utils::tempdir());

sub run_block
{
	my ($database, $block) = @_;
	my ($role) = $block->{mark} =~ /^run as (\w+)$/;
	my %env = ($node->libpq_env($role // 'postgres'), PGDATABASE => $database, PGTZ => 'UTC');

	return $drivers->run($block, %env) if $drivers->speaks($block->{language});
	local @ENV{ keys %env } = values %env;
	my $text = $block->{text};
	my $ok = IPC::Run::run([ 'psql', '-X', '-v', 'ON_ERROR_STOP=1', '-f', '-' ],
		'<', \$text, '>', \my $out, '2>', \my $err);
	return ($ok, $out, $err);
}

for my $name ('inbox', 'idempotency', 'projections', 'schema-versions')
{
	my $page = Page->read_page("$stage/docs/$name.md");
	my %ran;
	my $before;

	(my $database = $name) =~ tr/-/_/;
	$drivers->turn_page;
	$node->safe_psql('postgres', "CREATE DATABASE $database");
	$node->safe_psql($database, 'CREATE EXTENSION acme_outbox');
	for my $block ($page->blocks)
	{
		my ($first) = $block->{text} =~ /(\S.*)/;
		my $language = $block->{language};
		my $what = "$name.md, line $block->{line}: $first";
		if ($block->{mark} eq 'output')
		{
			is(Page::masked($before), Page::masked($block->{text}), "$what: printed as the page says");
			$ran{output}++;
		}
		elsif ($block->{mark} =~ /^not run/)
		{
			like($block->{mark}, qr/^not run: \S+/, "$what: left alone for a reason");
		}
		else
		{
			ok($language eq 'sql' || $drivers->speaks($language), "$what: is run, or says why not");
			die "$what: unknown comment \"$block->{mark}\"\n"
			  if $block->{mark} !~ /^(?:run as \w+|setup|)$/;
			(my $ok, $before, my $err) = run_block($database, $block);
			ok($ok, $what) or diag $before, $err;
			unlike($err, qr/WARNING|ERROR/, "$what: no warning");
			$ran{$language}++;
		}
	}
	cmp_ok($ran{sql}, '>', 4, "$name.md has sql blocks, and they ran");
	cmp_ok($ran{$_} // 0, '>=', 2, "$name.md has examples in $_, and they ran") for 'python', 'js';
	cmp_ok($ran{output}, '>', 3, "$name.md has outputs");
}

# What the pages did together.

sub value_of { return $node->safe_psql(@_); }
is(value_of('inbox', 'SELECT count(*) FROM acme_outbox.outbox_entry'), 2, 'both deals were published');
is(value_of('inbox', "SELECT count(*) FROM trading.deal WHERE status = 'INVOICED'"), 2, 'and invoiced');
is(value_of('idempotency', 'SELECT count(*) FROM payment'), 5, 'each payment was made once');

# The grants that the page gives suffice.

my (undef, $out, $err) = run_block('projections', { language => 'sql', mark => 'run as reporting_app', text => <<'SQL' });
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
	{ language => 'sql', mark => 'run as reporting_app', text => q{SELECT * FROM acme_outbox.projection_rebuild('reporting.deal', 'reporting.deal_seed')} }))[2];
like($out, qr/permission denied/, 'but does not rebuild');
done_testing();
