# A Markdown page under test: its code blocks, tables, links and headings.
#
# What a block is for stands in a comment right above its fence:
#
#   <!-- not run: REASON -->   left alone
#   <!-- run as ROLE -->       as that role instead of the superuser
#   <!-- setup -->             python or js: comes before the later blocks of its language
#   <!-- run in background --> a bridge, stopped after the last block
#   <!-- run last -->          after all others, the bridge stopped
#   <!-- output -->            what the block before must print
#
# An sh, sql, python, js or java block without a comment is run; test/docs/Driver.pm says how.
package Page;

use strict;
use warnings;

use PostgreSQL::Test::Utils qw(slurp_file);

sub read_page
{
	my ($class, $path) = @_;
	my $self = bless { path => $path, text => slurp_file($path), blocks => [] }, $class;
	my ($mark, $block) = ('');
	my $line = 0;

	for my $text (split /\n/, $self->{text})
	{
		$line++;
		if ($block)
		{
			if ($text =~ /^```\s*$/) { $block = undef; }
			else { $block->{text} .= "$text\n"; }
		}
		elsif ($text =~ /^```(\w*)/)
		{
			$block = { language => $1, mark => $mark, line => $line, text => '' };
			push @{ $self->{blocks} }, $block;
			$mark = '';
		}
		elsif ($text =~ /^<!-- (.*?) -->$/) { $mark = $1; }
		elsif ($text =~ /\S/) { $mark = ''; }
	}
	die "$path: a block is not closed\n" if $block;
	return $self;
}

sub blocks { my ($self) = @_; return @{ $self->{blocks} }; }

# Rows of the tables whose header line begins so, as lists of cells.
sub table
{
	my ($self, $header) = @_;
	my (@rows, $inside);

	for my $line (split /\n/, $self->{text})
	{
		if ($line !~ /^\|/) { $inside = 0; next; }
		if (index($line, "| $header ") == 0) { $inside = 1; next; }
		next if !$inside || $line =~ /^\|[-|: ]+\|$/;
		my $cells = $line =~ s/^\|\s*|\s*\|\s*$//gr;
		push @rows, [ map { s/^\s+|\s+$|`//gr =~ s/\\\|/|/gr } split /(?<!\\)\|/, $cells, -1 ];
	}
	return @rows;
}

# Level-four headings made of a code span: [text, comment below].
sub error_texts
{
	my ($self) = @_;
	my @found;
	push @found, [ $1, $2 // '' ]
	  while $self->{text} =~ /^#### `(.+)`\n(?:<!-- (.*?) -->\n)?/mg;
	return @found;
}

# Relative links: [file or '', anchor or ''].
sub links
{
	my ($self) = @_;
	my @found;
	while ($self->{text} =~ /\]\(([^)\s]+)\)/g)
	{
		my $target = $1;
		next if $target =~ /^\w+:/;
		push @found, [ $target =~ /^([^#]*)(?:#(.*))?$/ ];
	}
	return @found;
}

# Names that a link's anchor can have.
sub anchors
{
	my ($self) = @_;
	my %anchor = map { $_ => 1 } $self->{text} =~ /<a name="([^"]+)">/g;
	while ($self->{text} =~ /^#+ (.+)$/mg)
	{
		my $anchor = lc $1;
		$anchor =~ s/[^\w\- ]//g;
		$anchor =~ s/ /-/g;
		$anchor{$anchor} = 1;
	}
	return \%anchor;
}

# What differs from run to run, masked; widths of columns, evened out.
sub masked
{
	my ($text) = @_;
	my $date = qr/\d{4}-\d\d-\d\d/;
	my $time = qr/\d\d:\d\d:\d\d(?:\.\d+)?/;

	$text =~ s/\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b/UUID/g;
	$text =~ s/\b[0-9a-f]{32}\b/HEX/g;
	$text =~ s/${date}[ T]${time}(?:Z|[+-]\d\d)?/TIME/g;
	$text =~ s/\b$time\b/AGE/g;
	$text =~ s/[\w.-]+:\d+:[0-9a-f]{16}/RELAY/g;
	my @lines;
	for my $line (split /\n/, $text)
	{
		$line =~ s/-{2,}/--/g;
		$line =~ s/\s+/ /g;
		$line =~ s/^ | $//g;
		push @lines, $line if length $line;
	}
	return join "\n", @lines;
}

1;
