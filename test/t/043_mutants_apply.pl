# Each fault that test/mutants plants still finds the text that it changes, once: a rule whose
# code was moved or rewritten keeps its mutant.
use strict;
use warnings;

use FindBin;
use PostgreSQL::Test::Utils qw(slurp_file);
use Test::More;

my $stage = $ENV{ACME_STAGE} // "$FindBin::RealBin/../..";
my ($name, $file, %text, %changes, $mark);

for my $line (split /\n/, slurp_file("$stage/test/mutants/list"))
{
	if ($line =~ /^\[(.+)\]$/) { ($name, $mark) = ($1, ''); }
	elsif ($line =~ /^file: (\S+)$/) { $file = $1; }
	elsif ($line =~ /^-\t?(.*)$/)
	{
		push @{ $changes{$name} }, [ $file, '' ] if $mark ne '-';
		$changes{$name}[-1][1] .= "$1\n";
		$mark = '-';
	}
	elsif ($line =~ /^\+/) { $mark = '+'; }
}
cmp_ok(scalar keys %changes, '>', 90, 'there are mutants');

for my $mutant (sort keys %changes)
{
	for my $change (@{ $changes{$mutant} })
	{
		my ($path, $old) = @$change;
		chomp $old;
		$text{$path} //= slurp_file("$stage/$path");
		is(scalar(() = $text{$path} =~ /\Q$old\E/g), 1, "$mutant: its text is in $path");
	}
}
done_testing();
