# docs/reprocess.md: its commands run as printed and print what the page says, with a
# service's rights; its exit statuses are the program's.
use strict;
use warnings;

use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use FindBin;
use lib "$FindBin::RealBin/../docs";
use Page;
use PostgreSQL::Test::Utils;
use IPC::Run ();
use Test::More;

my $stage = $ENV{ACME_STAGE} // "$FindBin::RealBin/../..";
my $page = Page->read_page("$stage/docs/reprocess.md");
my $broker = AcmeOutbox::Broker->new;
my $user = "trading-$$";

$broker->api('PUT', "users/$user", { password => 'trading-secret', tags => '' });
$broker->api('PUT', "permissions/$broker->{vhost}/$user",
	{ map { $_ => '^trading\..*' } qw(configure write read) });
$broker->declare_exchange('acme.sales');
$broker->declare_exchange('trading.dlx', 'direct');
$broker->declare_queue('trading.dlq', 'x-queue-type' => 'quorum');
$broker->bind('trading.dlq', 'trading.dlx', 'dead-letter');
$broker->declare_queue('trading.sales', 'x-dead-letter-exchange' => 'trading.dlx',
	'x-dead-letter-routing-key' => 'dead-letter');
$broker->bind('trading.sales', 'acme.sales');
my $number = 0;
for my $name ('trading.sale.created', 'trading.sale.created', 'trading.sale.closed')
{
	$number++;
	$broker->api('POST', "exchanges/$broker->{vhost}/acme.sales/publish",
		{ routing_key => $name, payload => '{}', payload_encoding => 'string',
			properties => { message_id => "018f0000-0000-7000-8000-00000000000$number", type => $name } });
}
$broker->probe('drain', '--queue', 'trading.sales', '--count', 3, '--reject');
wait_until(sub { $broker->count('trading.dlq') == 3 }) or die "they do not die\n";

# What differs from place to place, too.
sub masked
{
	my ($text) = @_;
	$text =~ s/in \d+\.\d s \(\d+\/s\)/in SECONDS/g;
	$text =~ s/RabbitMQ \S+ at \S+ port \d+/RabbitMQ/;
	$text =~ s/^(OK +login +as) \S+|^(OK +vhost) .*/($1 \/\/ $2) . ' HERE'/gme;
	return Page::masked($text);
}

my ($before, $err, %ran);
for my $block ($page->blocks)
{
	my ($first) = $block->{text} =~ /(\S.*)/;
	my $what = "line $block->{line}: $first";
	if ($block->{mark} eq 'output')
	{
		is(masked($before), masked($block->{text}), "$what: printed as the page says");
		$ran{output}++;
		next;
	}
	is($block->{language}, 'sh', "$what: is run");
	local $ENV{PATH} = "$stage/bridge:$ENV{PATH}";
	local $ENV{RABBITMQ_URI} = $broker->uri(user => $user, password => 'trading-secret');
	ok(IPC::Run::run([ 'sh', '-e' ], '<', \$block->{text}, '>', \$before, '2>', \$err), $what)
	  or diag $before, $err;
	$ran{sh}++;
}
is_deeply(\%ran, { sh => 4, output => 4 }, 'the page has its commands and outputs');
is($broker->count('trading.sales'), 3, 'and all are back');

my $help = qx{'$stage/bridge/acme-outbox-bridge' reprocess --help};
my %status = map { $_ => 1 } $help =~ /^ +(\d+)  /mg;
my @named = map { split /, /, $_->[0] } $page->table('exit status');
cmp_ok(scalar @named, '>=', 7, 'the exit statuses are there');
is(join(' ', grep { !$status{$_} } @named), '', 'and the program knows each');
my %field = map { $_ => 1 } map { split /, /, $_->[0] } $page->table('field');
my $fields = qx{'$stage/bridge/acme-outbox-bridge' reprocess --dlq d --queue q --match =x 2>&1};
($fields) = $fields =~ /there are (.*)/;
is(join(' ', sort split /, | and /, $fields), join(' ', sort keys %field), 'the fields of --match');
done_testing();
