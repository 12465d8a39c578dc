# What every delivery test asks of the messages that arrived.
package AcmeOutbox::Check;

use strict;
use warnings;

use Exporter 'import';
use PostgreSQL::Test::Utils ();
use Test::More;
use Time::HiRes ();

our @EXPORT = qw(delivered_ok order_ok duplicates distinct wait_until);

# Wait until a sub returns true.
sub wait_until
{
	my ($sub, $seconds) = @_;
	my $deadline = Time::HiRes::time()
	  + ($seconds // $PostgreSQL::Test::Utils::timeout_default);

	while (1)
	{
		return 1 if $sub->();
		return 0 if Time::HiRes::time() > $deadline;
		Time::HiRes::sleep(0.05);
	}
}

sub distinct
{
	my (@messages) = @_;
	my %seen = map { $_->{message_id} => 1 } @messages;
	return scalar keys %seen;
}

sub duplicates
{
	my (@messages) = @_;
	return @messages - distinct(@messages);
}

# Every entry arrived at least once, and nothing else did.
sub delivered_ok
{
	my ($entries, $messages, $what) = @_;
	my %arrived = map { $_->{message_id} => 1 } @$messages;
	my %stored = map { $_->{event_id} => 1 } @$entries;
	my @lost = grep { !$arrived{ $_->{event_id} } } @$entries;
	my @foreign = grep { !$stored{$_} } keys %arrived;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(scalar @lost, 0, "$what: no event is lost")
	  or diag "of @{[scalar @$entries]}, lost ids: "
	  . join(' ', map { $_->{id} } @lost[ 0 .. ($#lost > 19 ? 19 : $#lost) ]);
	is(scalar @foreign, 0, "$what: no event without its row");
	return;
}

# First copies of each key came in the order of ids.
sub order_ok
{
	my ($entries, $messages, $what) = @_;
	my %entry = map { $_->{event_id} => $_ } @$entries;
	my (%seen, %last, @wrong);

	for my $message (@$messages)
	{
		my $entry = $entry{ $message->{message_id} } or next;
		next if $seen{ $entry->{id} }++;
		next unless length $entry->{key};
		my $last = $last{ $entry->{key} } // 0;
		push @wrong, "$entry->{key}: $entry->{id} after $last" if $entry->{id} < $last;
		$last{ $entry->{key} } = $entry->{id} if $entry->{id} > $last;
	}
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(scalar @wrong, 0, "$what: first copies of a key are in order")
	  or diag join("\n", @wrong[ 0 .. ($#wrong > 9 ? 9 : $#wrong) ]);
	return;
}

1;
