# Reads the list of mutants.
#
#   plant.pl LIST names                 their names
#   plant.pl LIST field NAME FIELD      "file", "test" or "rule" of one
#   plant.pl LIST plant NAME TREE       change the file of the tree; fails unless each
#                                       text to be replaced is there exactly once
#   plant.pl LIST check TREE            a line for each that could not be planted
use strict;
use warnings;

my ($list, $action, $name, $argument) = @ARGV;
my (%mutants, @names, $current);

open(my $in, '<', $list) or die "$list: $!\n";
while (my $line = <$in>)
{
	chomp $line;
	next if $line =~ /^\s*(#|$)/;
	if ($line =~ /^\[(.+)\]$/)
	{
		$current = $mutants{$1} = { changes => [] };
		push @names, $1;
	}
	elsif ($line =~ /^(rule|file|test): (.+)$/) { $current->{$1} = $2; }
	# a change, or one more line of it; a tab follows the mark
	elsif ($line =~ /^-\t?(.*)$/)
	{
		push @{ $current->{changes} }, [ '', '' ]
		  if !@{ $current->{changes} } || length $current->{changes}[-1][1] || $current->{closed};
		$current->{closed} = 0;
		$current->{changes}[-1][0] .= "$1\n";
	}
	elsif ($line =~ /^\+\t?(.*)$/)
	{
		$current->{changes}[-1][1] .= "$1\n";
		$current->{closed} = 1;
	}
	else { die "$list line $.: what is this?\n"; }
}
close $in;

sub slurp
{
	my ($path) = @_;
	open(my $file, '<', $path) or die "$path: $!\n";
	local $/;
	return scalar <$file>;
}

# The text of the mutant's file in the tree, changed.
sub planted
{
	my ($mutant, $tree) = @_;
	my $text = slurp("$tree/$mutant->{file}");
	for my $change (@{ $mutant->{changes} })
	{
		my ($from, $to) = map { s/\n\z//r } @$change;
		my $count = () = $text =~ /\Q$from\E/g;
		die "found $count times in $mutant->{file}: $from\n" if $count != 1;
		$text =~ s/\Q$from\E/$to/;
	}
	return $text;
}

if ($action eq 'names') { print "$_\n" for @names; exit; }
if ($action eq 'check')
{
	for my $each (@names) { eval { planted($mutants{$each}, $name); 1 } or print "$each: $@"; }
	exit;
}
my $mutant = $mutants{$name} or die "no mutant \"$name\"\n";
if ($action eq 'field') { print "$mutant->{$argument}\n"; exit; }

my $text = planted($mutant, $argument);
my $path = "$argument/$mutant->{file}";
open(my $file, '>', $path) or die "$path: $!\n";
print $file $text;
close $file or die "$path: $!\n";
