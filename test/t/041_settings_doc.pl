# docs/settings.md lists every setting of the extension and of the bridge, and no
# other, with the default, range and context it has; the README's short tables and
# its exit statuses say the same.
use strict;
use warnings;

use AcmeOutbox::Cluster;
use FindBin;
use lib "$FindBin::RealBin/../docs";
use Page;
use PostgreSQL::Test::Utils;
use Test::More;

my $stage = $ENV{ACME_STAGE} // "$FindBin::RealBin/../..";
my $settings = Page->read_page("$stage/docs/settings.md");
my $readme = Page->read_page("$stage/README.md");
my $bridge = "$stage/bridge/acme-outbox-bridge";

# A server with nothing set: the defaults as SHOW prints them.
my $node = PostgreSQL::Test::Cluster->new('defaults');
$node->init(extra => [ '-U', 'postgres' ], auth_extra => [ '--user', 'postgres' ]);
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
my %extension_default = map { $_->[0] => $_->[1] } @rows;

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

# The README's tables are part of these.
for my $row ($readme->table('extension'))
{
	is($row->[1], $extension_default{ $row->[0] }, "README: $row->[0]");
}
my %bridge_default = map { $_->[0] => $_->[2] } @rows;
for my $row ($readme->table('bridge'))
{
	my $name = $row->[0] =~ s/^--//r;
	is($row->[1], $bridge_default{$name}, "README: --$name");
}

# Columns of topic_policy.
my $columns = $node->safe_psql('postgres', <<'SQL');
CREATE EXTENSION acme_outbox;
SELECT attname FROM pg_attribute
 WHERE attrelid = 'acme_outbox.topic_policy'::regclass AND attnum > 0 ORDER BY attnum
SQL
is(join("\n", map { $_->[0] } $settings->table('column')), $columns, 'topic_policy: its columns');

# Exit statuses.
my ($statuses) = $help =~ /^Exit status:\n(.*)\z/ms;
%real = $statuses =~ /^ +(\d+)  (.*)$/mg;
%written = map { @{$_}[ 0, 1 ] } grep { $_->[0] =~ /^\d+$/ } $readme->table('status');
same_rows('exit status', \%real, \%written);

$node->stop;
done_testing();
