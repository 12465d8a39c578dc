# The planned faults ("make mutants") still fit the source they are planted into, and each
# names a test that is there.
use strict;
use warnings;

use FindBin;
use Test::More;

my $stage = $ENV{ACME_STAGE} // "$FindBin::RealBin/../..";
my @plant = ($^X, "$stage/test/mutants/plant.pl", "$stage/test/mutants/list");

sub plant
{
	open(my $out, '-|', @plant, @_) or die "plant.pl: $!\n";
	chomp(my @lines = <$out>);
	close $out or die "plant.pl @_: status $?\n";
	return @lines;
}

# Where each kind of test is.
my %file_of = (
	unit => sub { "test/unit/$_[0].c" },
	regress => sub { "test/sql/$_[0].sql" },
	isolation => sub { "test/specs/$_[0].spec" },
	tap => sub { "test/$_[0]" });

sub missing_tests
{
	my ($kind, @tests) = split ' ', $_[0];
	my $file = $file_of{$kind} or return "no kind of test: $kind";
	return grep { !-e "$stage/$_" } map { $file->($_) } @tests;
}

my @names = plant('names');
cmp_ok(scalar @names, '>', 80, scalar(@names) . ' faults are planned');
is_deeply([ plant('check', $stage) ], [], 'each can be planted');

open(my $list, '<', "$stage/test/mutants/list") or die "list: $!\n";
my @tests = map { /^test: (.+)/ ? $1 : () } <$list>;
is(scalar @tests, scalar @names, 'each has a test');
is_deeply([ map { missing_tests($_) } @tests ], [], 'and the test is there');

done_testing();
