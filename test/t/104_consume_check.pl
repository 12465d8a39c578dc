# "check" for a consumer: it names what would keep one from working, says what cannot be
# seen, and changes nothing.
use strict;
use warnings;

use AcmeOutbox::Broker;
use AcmeOutbox::Cluster;
use AcmeOutbox::Consumer;
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
report('no handler', 78, [qr/^FAIL +handler +handler public.nobody\(jsonb\) does not exist/m], '--handler', 'public.nobody');
$node->sql('REVOKE EXECUTE ON FUNCTION handle(jsonb) FROM PUBLIC');
report('no right to it', 78, [qr/^FAIL +handler +public.handle exists, and may not be executed/m]);
report('a stranger', 78, [ qr/^FAIL +privileges /m, qr/grant_consumer/ ], { user => 'relay' });
$node->sql("ALTER ROLE eater SET acme_outbox.inbox_schema = 'nowhere'");
report('no inbox', 78, [qr/^FAIL +inbox +schema "nowhere" has none/m]);
is($broker->count('work'), 1, 'no message was taken');
is($node->sql('SELECT count(*) FROM acme_outbox.processed_event'), 0, 'and nothing written');

$node->stop;
done_testing();
