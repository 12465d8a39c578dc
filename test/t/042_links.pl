# Every link of every page leads somewhere, and every file that a page or a comment names is
# there.
use strict;
use warnings;

use File::Find;
use FindBin;
use lib "$FindBin::RealBin/../docs";
use Page;
use PostgreSQL::Test::Utils qw(slurp_file);
use Test::More;

my $stage = $ENV{ACME_STAGE} // "$FindBin::RealBin/../..";

# Files by their name, and the pages among them.
my (%named, @pages, @sources);
find(
	{ no_chdir => 1, wanted => sub {
		return if !-f;
		my $path = $File::Find::name =~ s{^\Q$stage\E/}{}r;
		return if $path =~ m{^(?:\.git|results|test/env/node)/};
		push @{ $named{ $path =~ s{.*/}{}r } }, $path;
		push @pages, $path if $path =~ /\.md$/;
		push @sources, $path if $path =~ m{^(?:src|bridge|sql|test|etc|examples)/.*\.(?:c|h|sql|pl|pm|sh|spec|yml)$};
	} },
	$stage);

sub dead_links
{
	my ($path) = @_;
	my $page = Page->read_page("$stage/$path");
	my ($folder) = $path =~ m{^(.*/)?};
	my @dead;

	for my $link ($page->links)
	{
		my ($file, $anchor) = @$link;
		my $target = length $file ? "$stage/" . ($folder // '') . $file : "$stage/$path";
		push @dead, "$file#" . ($anchor // '')
		  unless -e $target
		  && (!defined $anchor || Page->read_page($target)->anchors->{$anchor});
	}
	return @dead;
}

# Paths in backquotes, from the top or the page's folder; a * stands for several. NN_NAME is a
# pattern for a reader.
sub missing_files
{
	my ($path) = @_;
	my ($folder) = $path =~ m{^(.*/)?};
	my @named = slurp_file("$stage/$path") =~ m{`((?:[\w*.-]+/)+[\w*.-]+\.[a-z]+)`}g;

	return grep {
		my $name = $_;
		!/NN|NAME|OLD/ && !grep { -e } map { glob "$stage/$_$name" } '', $folder // '';
	} @named;
}

cmp_ok(scalar @pages, '>', 20, 'there are pages');
for my $path (sort @pages)
{
	is(join(' ', dead_links($path)), '', "$path: its links lead somewhere");
	is(join(' ', missing_files($path)), '', "$path: the files it names are there");
}

# What a source says of another file is checked by that file's name.
cmp_ok(scalar @sources, '>', 300, 'there are sources');
for my $path (sort @sources)
{
	my @missing = grep { !$named{$_} }
	  slurp_file("$stage/$path") =~ m{(?:\bsee |\bin |\bof |\bby |docs/|src/|bridge/|\()([a-z][a-z0-9_-]+\.(?:c|h|md|pl|pm))\b}g;
	is(join(' ', @missing), '', "$path: the files it names are there") if @missing;
}
done_testing();
