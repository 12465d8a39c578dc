# docs/settings.md lists every setting of the extension and of the bridge, and no
# other, with the default, range and context it has; docs/consume.md repeats the defaults it
# names; docs/bridge.md has the exit statuses, docs/design.md the tables. No page names an
# option, a setting or an object that is not there. docs/metrics.md lists every metric; the
# alert rules and the collector in etc use these and no others.
use strict;
use warnings;

use AcmeOutbox::Cluster;
use CPAN::Meta::YAML;
use FindBin;
use lib "$FindBin::RealBin/../docs";
use Page;
use PostgreSQL::Test::Utils;
use Test::More;

my $stage = $ENV{ACME_STAGE} // "$FindBin::RealBin/../..";
my $settings = Page->read_page("$stage/docs/settings.md");
my $bridge = "$stage/bridge/acme-outbox-bridge";

# A server with nothing set: the defaults as SHOW prints them.
my $node = PostgreSQL::Test::Cluster->new('defaults');
$node->init(extra => [ '-U', 'postgres', '-E', 'UTF8', '--no-locale' ],
	auth_extra => [ '--user', 'postgres' ]);
$node->append_conf('postgresql.conf', 'shared_preload_libraries = acme_outbox');
$ENV{PGUSER} = 'postgres';
$node->start;

# Both ways, row by row: the tables' cells as far as they can be checked.
sub same_rows
{
	my ($what, $real, $written) = @_;

	is(join("\n", sort keys %$written), join("\n", sort keys %$real), "$what: the same names");
	for my $name (sort keys %$real)
	{
		is($written->{$name}, $real->{$name}, "$what: $name") if exists $written->{$name};
	}
	return;
}

my %real = map { my ($name, @rest) = split /\t/, $_, -1; $name => join ' | ', @rest }
  split /\n/, $node->safe_psql('postgres', <<'SQL');
SELECT concat_ws(E'\t', name, current_setting(name), coalesce(unit, ''),
	CASE WHEN vartype = 'enum' THEN array_to_string(enumvals, ', ')
		 WHEN min_val IS NOT NULL THEN min_val || ' to ' || max_val
		 ELSE '' END,
	context)
  FROM pg_settings WHERE name LIKE 'acme\_outbox.%'
SQL
my @rows = $settings->table('setting | default | unit');
my %written = map { $_->[0] => join ' | ', @{$_}[ 1 .. 4 ] } @rows;
is(scalar @rows, scalar keys %written, 'extension: no name twice');
same_rows('extension', \%real, \%written);
is(scalar(grep { length $_->[5] < 20 } @rows), 0, 'extension: each is explained');

# The range and SIGHUP come from the commands' --help, the rest from --list-settings.
my ($list, $help) = map { scalar qx{'$bridge' $_} } '--list-settings', '--help';
is($?, 0, 'the bridge prints its settings');
my (%more, %helped_by);
for my $command ($help =~ /^(?:Usage:|      ) acme-outbox-bridge ([a-z]+) \[options\]/mg)
{
	my $text = qx{'$bridge' $command --help};
	while ($text =~ /^  --([a-z-]+) .*\n +default: [^\n(,]*(?: \(([^)]*)\))?(, reloaded by SIGHUP)?$/mg)
	{
		my ($name, $range, $reload) = ($1, $2 // '', $3 ? 'yes' : '');
		$more{$name} = $range =~ s/\|/, /gr . " | $reload";
		push @{ $helped_by{$name} }, $command;
	}
}
%real = map {
	my ($name, $variable, $default, $commands) = split /\t/, $_, -1;
	$name => "$variable | $default | " . ($more{$name} // '?') . " | $commands"
} split /\n/, $list;
@rows = $settings->table('setting | variable');
%written = map { $_->[0] => join ' | ', @{$_}[ 1 .. 5 ] } @rows;
is(scalar @rows, scalar keys %written, 'bridge: no name twice');
same_rows('bridge', \%real, \%written);
is(scalar(grep { length $_->[6] < 20 } @rows), 0, 'bridge: each is explained');

# A page that repeats defaults repeats these.
my %bridge_default = map { $_->[0] => $_->[2] } @rows;
for my $row (grep { length $_->[1] } Page->read_page("$stage/docs/consume.md")->table('setting'))
{
	is($row->[1], $bridge_default{ $row->[0] =~ s/^--//r }, "consume.md: $row->[0]");
}

# Columns of topic_policy.
my $columns = $node->safe_psql('postgres', <<'SQL');
CREATE EXTENSION acme_outbox;
SELECT attname FROM pg_attribute
 WHERE attrelid = 'acme_outbox.topic_policy'::regclass AND attnum > 0 ORDER BY attnum
SQL
is(join("\n", map { $_->[0] } $settings->table('column')), $columns, 'topic_policy: its columns');

# Whatever a page names exists: options of the bridge in its commands, and what is qualified.
my %option = map { $_ => 1 } ($list =~ /^([a-z-]+)\t/mg), qw(config dump-config help topic);
my %name = map { $_ => 1 } qw(control h rules), split /\n/, $node->safe_psql('postgres', <<'SQL');
SELECT proname FROM pg_proc WHERE pronamespace = 'acme_outbox'::regnamespace
UNION SELECT relname FROM pg_class WHERE relnamespace = 'acme_outbox'::regnamespace
UNION SELECT typname FROM pg_type WHERE typnamespace = 'acme_outbox'::regnamespace
UNION SELECT split_part(name, '.', 2) FROM pg_settings WHERE name LIKE 'acme\_outbox.%'
SQL
my $n_options = 0;
for my $path (map { s{^\Q$stage\E/}{}r } glob "$stage/*.md $stage/docs/*.md $stage/examples/trading/*.md")
{
	my $text = slurp_file("$stage/$path");
	my @options = map { /--([a-z][a-z-]+)/g } $text =~ /acme-outbox-bridge [a-z]+ ((?:\\\n|[^\n`|])*)/g;
	$n_options += @options;
	my @names = $text =~ /\bacme_outbox\.([a-z_]+)/g;
	is(join(' ', grep { !$option{$_} } @options), '', "$path: its options exist");
	is(join(' ', grep { !$name{$_} } @names), '', "$path: the names it qualifies exist");
}
cmp_ok($n_options, '>', 60, 'the pages have options');

# docs/design.md: the tables, whether they are dumped, and the entries' indexes.
my $design = Page->read_page("$stage/docs/design.md");
is( join("\n", sort map { "$_->[0] $_->[3]" } $design->table('table | one row is')),
	$node->safe_psql('postgres', <<'SQL'), 'design.md: the tables');
SELECT relname || CASE WHEN c.oid = ANY (extconfig) THEN ' yes' ELSE ' no' END
  FROM pg_class c, pg_extension
 WHERE extname = 'acme_outbox' AND relnamespace = 'acme_outbox'::regnamespace AND relkind = 'r'
   AND relname NOT IN ('processed_event', 'parked_message', 'parked_resolution', 'consumer_attempt',
		'idempotency_key') ORDER BY relname COLLATE "C"
SQL
is( join("\n", sort map { $_->[0] } $design->table('name | columns')),
	$node->safe_psql('postgres', <<'SQL'), 'design.md: the indexes of outbox_entry');
SELECT indexname FROM pg_indexes WHERE tablename = 'outbox_entry' ORDER BY indexname COLLATE "C"
SQL

# Exit statuses.
my ($statuses) = $help =~ /^Exit status:\n(.*)\z/ms;
%real = map { /^ +(\d+)  (.+?)  +(.*)$/ ? ("$1 $2" => $3) : () } split /\n/, $statuses;
%written = map { ("$_->[0] $_->[1]" => $_->[2]) } grep { $_->[0] =~ /^\d+$/ } Page->read_page("$stage/docs/bridge.md")->table('status');
same_rows('exit status', \%real, \%written);

# Metrics: the page and the catalogue.
my $metrics = Page->read_page("$stage/docs/metrics.md");
%real = map { my ($name, @rest) = split /\t/, $_, -1; $name => join ' | ', @rest }
  split /\n/, $node->safe_psql('postgres', <<'SQL');
SELECT concat_ws(E'\t', name, kind, array_to_string(labels, ', ')) FROM acme_outbox.metric_catalog()
SQL
my @metric_rows = $metrics->table('metric | type');
%written = map { $_->[0] => join ' | ', @{$_}[ 1, 2 ] } @metric_rows;
is(scalar @metric_rows, scalar keys %written, 'metrics: no name twice');
same_rows('metrics', \%real, \%written);
is(scalar(grep { length $_->[3] < 5 || length $_->[4] < 15 } @metric_rows),
	0, 'metrics: each has a unit and a meaning');
for my $block (grep { $_->{language} eq 'sql' } $metrics->blocks)
{
	my ($status, undef, $stderr) = $node->psql('postgres', $block->{text});
	is($status, 0, "docs/metrics.md:$block->{line}: runs") or diag $stderr;
}

# The rules speak of metrics there are, with labels they have.
my ($rules) = @{ CPAN::Meta::YAML->read("$stage/etc/acme_outbox.rules.yml") };
my %recorded;
my $alerts = 0;
for my $rule (map { @{ $_->{rules} } } @{ $rules->{groups} })
{
	my $what = $rule->{alert} // $rule->{record};
	my @used = $rule->{expr} =~ /(acme_outbox_[a-z_]+)/g;
	my $labels = join ', ', map { $real{$_} // '' } @used;

	is(join(' ', grep { !exists $real{$_} } @used), '', "$what: its metrics exist");
	cmp_ok(scalar @used, '>', 0, "$what: it has some");
	if ($rule->{record}) { $recorded{ $rule->{record} } = $used[0]; next; }
	$alerts++;
	my $text = join ' ', $rule->{expr}, values %{ $rule->{annotations} };
	my @named = ($text =~ /\$labels\.(\w+)/g, $rule->{expr} =~ /[{,](\w+)=/g);
	is(join(' ', grep { $labels !~ /\b$_\b/ } @named), '', "$what: its labels exist");
	like($rule->{labels}{severity}, qr/^(page|ticket)$/, "$what: how urgent");
}
cmp_ok($alerts, '>', 5, 'there are alert rules');
is_deeply(\%recorded, { map { $_->[6] => $_->[0] } grep { $_->[6] ne '' } @metric_rows },
	'each alias of the page is recorded');

# The collector's queries run as a monitor and have the columns it names.
my ($collector) = @{ CPAN::Meta::YAML->read("$stage/etc/sql_exporter.collector.yml") };
$node->safe_psql('postgres',
	q{CREATE ROLE watcher LOGIN; SELECT acme_outbox.grant_monitor('watcher')});
my %columns;
for my $query (@{ $collector->{queries} })
{
	my $found = $node->safe_psql('postgres', "SET ROLE watcher; $query->{query}\n\\gdesc");
	$columns{ $query->{query_name} } = join ' ', map { (split /\|/)[0] } split /\n/, $found;
	my ($status) = $node->psql('postgres', "SET ROLE watcher; $query->{query}");
	is($status, 0, "collector: $query->{query_name} runs");
}
for my $metric (@{ $collector->{metrics} })
{
	my @labels = @{ $metric->{key_labels} };
	is("$metric->{type} | " . join(', ', @labels), $real{ $metric->{metric_name} },
		"collector: $metric->{metric_name}");
	is($columns{ $metric->{query_ref} } =~ /^@labels .*\b$metric->{values}[0]\b/ ? 'has' : $columns{ $metric->{query_ref} },
		'has', 'its query has the columns');
}

$node->stop;
done_testing();
