# A dead-letter queue that is full refuses some copies and takes others, in whatever order the
# broker says so: each leaves once, as soon as there is room.
use strict;
use warnings;

use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use AcmeOutbox::Consumer;
use JSON::PP qw(decode_json);
use Test::More;

my $node = AcmeOutbox::Cluster->create('main', 'fsync = off');
my $broker = AcmeOutbox::Broker->new;
my $consumer = AcmeOutbox::Consumer->new($node, $broker);

$broker->declare_queue('small', 'x-queue-type' => 'classic', 'x-max-length' => 20, 'x-overflow' => 'reject-publish');
$broker->declare_exchange('small', 'direct');
$broker->bind('small', 'small', 'dead-letter');
my @full = map { "full-$_" } 1 .. 100;
$broker->fill('work', map { envelope($_, 'fail', secret => 's') } @full);
my $eater = $consumer->start('--dead-letter-exchange', 'small', '--max-attempts', 1, '--prefetch', 100);
my %copies;
for (1 .. 40)
{
	$broker->wait_count('small', 1) or last;
	$copies{ decode_json($_->{body})->{header}{eventId} }++ for $broker->drain('small', count => 15, timeout => 0.2);
	last if keys %copies == @full && $broker->count('work') == 0 && $broker->count('small') == 0;
}
like($eater->log_text, qr/dead letters are not taken.*basic\.nack/, 'full: the stress happened');
$consumer->stop_empty($eater, 'full');
$copies{ decode_json($_->{body})->{header}{eventId} }++ for $broker->drain('small', timeout => 0.2);
is(join(' ', sort keys %copies), join(' ', sort @full), 'full: all left in the end');
is(join(' ', sort grep { $copies{$_} > 1 } keys %copies), '', 'full: and each once');

$node->stop;
done_testing();
