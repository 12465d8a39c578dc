# "check" for a consumer: it names what would keep one from working, says what cannot be
# seen, and changes nothing. The commands of docs/consume.md work as printed, with the
# service that docs/inbox.md sets up.
use strict;
use warnings;

use AcmeOutbox::Broker;
use AcmeOutbox::Cluster;
use AcmeOutbox::Consumer;
use FindBin;
use JSON::PP;
use lib "$FindBin::RealBin/../docs";
use Page;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = AcmeOutbox::Cluster->create('main');
my $broker = AcmeOutbox::Broker->new;
my $consumer = AcmeOutbox::Consumer->new($node, $broker);

sub report
{
	my ($what, $status, $expected, @more) = @_;
	my %opt = ref $more[-1] eq 'HASH' ? %{ pop @more } : ();
	my $bridge = AcmeOutbox::Bridge->start($node, $broker, command => 'check', origin => '', user => 'eater', %opt,
		args => [ '--queue', 'work', '--consumer', 'eat', '--handler', 'public.handle', @more ]);

	is($bridge->wait_exit(20), $status, "$what: exit status $status");
	like($bridge->stdout_text, $_, "$what: $_") for @$expected;
	return;
}

$broker->fill('work', envelope('a'));
report('all is well', 0, [ qr/^OK +inbox +in schema "acme_outbox"/m, qr/^OK +privileges /m, qr/^OK +handler +public.handle may be executed/m,
		qr/^OK +queue +"work" exists, 1 messages/m, qr/"dlx"/, qr/only taking a message would tell/ ], '--dead-letter-exchange', 'dlx');
report('no exchange', 78, [qr/"nowhere" does not exist/], '--dead-letter-exchange', 'nowhere');
report('refused messages', 0, [qr/where refused messages go/]);
report('no queue', 78, [qr/^FAIL +queue +"none" does not exist/m], '--queue', 'none');
report('no handler', 78, [qr/^FAIL +handler +handler public.nobody\(jsonb\) does not exist.*\n +-> name it schema.function/m], '--handler', 'public.nobody');
$node->sql('REVOKE EXECUTE ON FUNCTION handle(jsonb) FROM PUBLIC');
report('no right to it', 78, [qr/^FAIL +handler +public.handle exists, and may not be executed/m]);
report('a stranger', 78, [ qr/^FAIL +privileges /m, qr/grant_consumer/ ], { user => 'relay' });
$node->sql("ALTER ROLE eater SET acme_outbox.inbox_schema = 'nowhere'");
report('no inbox', 78, [qr/^FAIL +inbox +schema "nowhere" has none/m]);
is($broker->count('work'), 1, 'no message was taken');
is($node->sql('SELECT count(*) FROM acme_outbox.processed_event'), 0, 'and nothing written');

# The page.

my $docs = ($ENV{ACME_STAGE} // "$FindBin::RealBin/../..") . '/docs';
my $page = Page->read_page("$docs/consume.md");
my @setup = grep { $_->{language} eq 'sql' } Page->read_page("$docs/inbox.md")->blocks;
$node->sql($_->{text}) for @setup[ 0, 1 ];

my ($topology) = map { $_->{text} } grep { $_->{language} eq 'json' } $page->blocks;
my $user = "trading-$broker->{vhost}";
$topology =~ s/"trading"/"$user"/g;
$topology =~ s/"shop"/"$broker->{vhost}"/g;
$broker->declare_exchange('accounting.events');
$broker->api('POST', 'definitions', decode_json($topology));
ok($broker->post('accounting.events', 'accounting.invoice.processed', $_), 'its queue hears invoices')
  for '{"header": {"eventId": "i-1"}, "body": {"payload": {"dealId": "d-1"}}}', 'no envelope';

my ($commands) = grep { $_->{language} eq 'sh' } $page->blocks;
$commands->{text} =~ s/\\\n\s*//g;
my @words = map { [ split ' ', $_ ] } split /\n/, $commands->{text};
is(join(' ', map { $_->[1] } @words), 'check consume', 'the page checks, then consumes');
my @run = map {
	my ($program, $command, @args) = @$_;
	AcmeOutbox::Bridge->start($node, $broker, command => $command, origin => '', user => 'trading_app',
		uri => $broker->uri(user => $user, password => 'change-me'), args => \@args);
} @words;
is($run[0]->wait_exit(20), 0, 'its check finds nothing wrong') or diag $run[0]->stdout_text;
ok($node->wait_sql("SELECT status = 'INVOICED' FROM trading.deal WHERE id = 'd-1'"), 'its consumer invoices the deal');
ok($broker->wait_count('trading.dlq', 1), 'what is no envelope is a dead letter');
is($run[1]->stop, 0, 'and stops');
is($broker->count('trading.invoices'), 0, 'the messages are acknowledged');
is(AcmeOutbox::Bridge->start(
		$node, $broker, command => 'reprocess', origin => '', uri => $broker->uri(user => $user, password => 'change-me'),
		args => [ '--dlq', 'trading.dlq', '--queue', 'trading.invoices' ])->wait_exit(20),
	0, 'its rights are those that reprocess takes');
is($broker->count('trading.invoices'), 1, 'and the dead letter is back');

$node->stop;
done_testing();
