# What every test of a fault asks of the relay that lives through it.
package AcmeOutbox::Fault;

use strict;
use warnings;

use AcmeOutbox::Check;
use Exporter 'import';
use PostgreSQL::Test::Utils ();
use Test::More;
use Time::HiRes qw(time);

our @EXPORT = qw(
  log_mark log_rate_ok stop_within_ok survived_ok uncharged_ok last_id entries_after
  wait_in_flight
);

# Lines that a change of state may take at once, whatever the time.
use constant LINES_AT_ONCE => 15;
use constant LINES_A_MINUTE => 50;

# Where a bridge's log is now, to be measured from later.
sub log_mark
{
	my ($bridge) = @_;
	return { bridge => $bridge, at => time(), lines => lines_of($bridge) };
}

# Lines but for the summaries, whose interval some tests shorten.
sub lines_of
{
	my ($bridge) = @_;
	return scalar grep { !/msg="?summary\b/ } split /\n/, $bridge->log_text;
}

# Since the mark: fewer than 50 lines a minute.
sub log_rate_ok
{
	my ($mark, $what) = @_;
	my $seconds = time() - $mark->{at};
	my $lines = lines_of($mark->{bridge}) - $mark->{lines};
	my $allowed = LINES_AT_ONCE + LINES_A_MINUTE * $seconds / 60;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	cmp_ok($lines, '<=', $allowed,
		sprintf '%s: the log stays short (%d lines in %.1f s)', $what, $lines, $seconds);
	return;
}

# SIGTERM ends it within its bound; the last two seconds are for a broker that does
# not answer to the end of the connection. The exit status is returned.
sub stop_within_ok
{
	my ($bridge, $bound, $what) = @_;
	my $at = time();
	my $status = $bridge->stop($bound + 30);
	my $took = time() - $at;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	cmp_ok($took, '<=', $bound + 3, sprintf '%s: SIGTERM is obeyed in its bound (%.1f s, status %s)',
		$what, $took, $status // 'none');
	return $status;
}

# The same process, nothing lost, nothing charged, keys in order, verify() clean.
sub survived_ok
{
	my ($node, $bridge, $entries, $messages, $what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($bridge->running, 1, "$what: no restart was needed");
	delivered_ok($entries, $messages, $what);
	order_ok($entries, $messages, $what);
	uncharged_ok($entries, $what);
	$node->verify_ok($what);
	return;
}

sub uncharged_ok
{
	my ($entries, $what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(scalar(grep { $_->{attempts} > 0 || $_->{status} ne 'PUBLISHED' } @$entries), 0,
		"$what: all PUBLISHED, no attempt charged");
	return;
}

sub last_id
{
	my ($node) = @_;
	return $node->sql('SELECT coalesce(max(id), 0) FROM acme_outbox.outbox_entry');
}

sub entries_after
{
	my ($node, $id) = @_;
	return grep { $_->{id} > $id } $node->entries;
}

# Until so many messages are sent and unconfirmed; the bridge must have been started
# with --summary-interval 1s.
sub wait_in_flight
{
	my ($bridge, $count) = @_;
	my $from = length $bridge->log_text;

	return wait_until(sub {
		my $text = substr($bridge->log_text, $from);
		for ($text =~ /\bin_flight=(\d+)/g) { return 1 if $_ >= $count; }
		return 0;
	});
}

1;
