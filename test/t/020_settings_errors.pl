# What can be wrong at the start: one clear line each, no secret in it, and an exit
# status of its own. Each command is brought to each exit status that its --help lists.
use strict;
use warnings;

use AcmeOutbox::Bridge;
use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use AcmeOutbox::Consumer;
use PostgreSQL::Test::Utils;
use Test::More;

use constant {
	USAGE         => 64,
	CONFIG_FILE   => 65,
	NO_QUEUE      => 66,
	DATABASE      => 69,
	BUSY          => 73,
	PUBLISHER     => 74,
	TEMPORARY     => 75,
	NOT_INSTALLED => 76,
	NOT_PERMITTED => 77,
	CHECK_FAILED  => 78
};

my $node = AcmeOutbox::Cluster->create('main');
my $broker = AcmeOutbox::Broker->new->standard_topology;

my %seen;

# Run it, expect a status.
sub ends
{
	my ($status, %opt) = @_;
	my $command = $opt{command} // 'relay';
	my $bridge = AcmeOutbox::Bridge->start($node, $broker, %opt);
	my $exit = $bridge->wait_exit(20);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($exit, $status, "$command: exit status $status") or diag $bridge->log_text;
	$seen{$command}{$exit} = 1;
	return;
}

# Run it, expect a status and a line that matches.
sub refuses
{
	my ($what, $status, $pattern, %opt) = @_;
	my $at = delete $opt{node} // $node;
	my $bridge = AcmeOutbox::Bridge->start($at, $broker, %opt);
	my $exit = $bridge->wait_exit(20);

	is($exit, $status, "$what: exit status $status");
	$seen{relay}{$exit} = 1;
	my @lines = grep { /level=error|^acme-outbox-bridge:/ } split /\n/, $bridge->log_text;
	is(scalar(grep { /$pattern/i } @lines), 1, "$what: one line says why")
	  or diag $bridge->log_text;
	unlike($bridge->log_text, qr/secret|hunter2/, "$what: no secret in the log");
	return;
}

refuses('unknown flag', USAGE, 'no-such-flag', args => ['--no-such-flag=1']);
refuses('number out of range', USAGE, 'claim-rows', args => [ '--claim-rows', '0' ]);
refuses('not a number', USAGE, 'window', env => { ACME_OUTBOX_WINDOW => 'many' });
refuses('not a duration', USAGE, 'poll-interval', args => [ '--poll-interval', 'soon' ]);
refuses('not a choice', USAGE, 'sink', args => [ '--sink', 'kafka' ]);
refuses('malformed URI', USAGE, 'broker-uri|RABBITMQ_URI', uri => 'http://u:hunter2@nowhere/');
refuses('secret on the command line', USAGE, 'broker-uri',
	args => [ '--broker-uri', $broker->uri ]);
refuses('missing file', CONFIG_FILE, 'none.conf',
	args => [ '--config', PostgreSQL::Test::Utils::tempdir() . '/none.conf' ]);
my $file = PostgreSQL::Test::Utils::tempdir() . '/bad.conf';
append_to_file($file, "poll-interval = 1s\nnonsense = 3\n");
refuses('unknown setting in the file', CONFIG_FILE, 'bad.conf.*nonsense|nonsense.*bad.conf',
	args => [ '--config', $file ]);

refuses('wrong broker password', PUBLISHER, 'ACCESS_REFUSED|login|password|authenticat',
	uri => $broker->uri(password => 'hunter2'));

$node->sql("ALTER ROLE relay PASSWORD 'right'");
$node->sql('CREATE ROLE stranger LOGIN');
my $hba = $node->data_dir . '/pg_hba.conf';
my $trust = PostgreSQL::Test::Utils::slurp_file($hba);
open(my $out, '>', $hba) or die;
print $out "local all relay scram-sha-256\n$trust";
close $out;
$node->reload;
refuses('wrong database password', DATABASE, 'password', env => { PGPASSWORD => 'hunter2' });
open($out, '>', $hba) or die;
print $out $trust;
close $out;
$node->reload;
refuses('missing database', DATABASE, 'does not exist', env => { PGDATABASE => 'nowhere' });
refuses('role without a grant', NOT_PERMITTED, 'stranger|grant_relay|permi', user => 'stranger');
refuses('another origin', NOT_PERMITTED, 'origin|grant_relay|permi', origin => 'warehouse');

$node->sql('CREATE DATABASE empty');
refuses('missing extension', NOT_INSTALLED, 'extension', env => { PGDATABASE => 'empty' });

# ---- the other statuses, and the other commands ----

my %nobody = (uri => 'amqp://127.0.0.1:1');
ends(0, args => ['--once']);
my $epoch = $node->sql("SELECT epoch FROM acme_outbox.relay_acquire('shop', 'another one')");
ends(TEMPORARY, args => ['--once']);
$node->sql("SELECT acme_outbox.relay_release('shop', $epoch)");

AcmeOutbox::Consumer->new($node, $broker);
my %consume = (command => 'consume', user => 'eater');
my @consume = ('--queue', 'work', '--consumer', 'eat', '--handler', 'public.handle', '--once');
ends(0, %consume, args => \@consume);
ends(USAGE, %consume, args => ['--queue', 'work']);
ends(CONFIG_FILE, %consume, args => [ @consume, '--config', $file ]);
ends(DATABASE, %consume, args => \@consume, env => { PGPORT => 1 });
ends(PUBLISHER, %consume, args => \@consume, uri => $broker->uri(password => 'hunter2'));
ends(TEMPORARY, %consume, args => [ @consume, '--queue', 'nowhere' ]);
ends(NOT_INSTALLED, %consume, args => [ @consume, '--handler', 'public.nobody' ]);
ends(NOT_PERMITTED, %consume, args => \@consume, user => 'stranger');

my %reprocess = (command => 'reprocess');
my @reprocess = ('--queue', 'work', '--dlq', 'dead');
ends(0, %reprocess, args => \@reprocess);
ends(USAGE, %reprocess, args => [ '--queue', 'work' ]);
ends(CONFIG_FILE, %reprocess, args => [ @reprocess, '--config', $file ]);
ends(NO_QUEUE, %reprocess, args => [ @reprocess, '--dlq', 'nowhere' ]);
ends(PUBLISHER, %reprocess, args => \@reprocess, uri => $broker->uri(password => 'hunter2'));
ends(TEMPORARY, %reprocess, args => \@reprocess, %nobody);
my $held = AcmeOutbox::Bridge->start($node, $broker, %reprocess, args => \@reprocess,
	env => { ACME_OUTBOX_STOP_AT => 'reprocess-bound' });
$held->wait_for_log('stop point reprocess-bound hit');
ends(BUSY, %reprocess, args => \@reprocess);
$held->kill9;

my %check = (command => 'check');
ends(0, %check);
ends(USAGE, %check, args => ['--no-such-flag']);
ends(CONFIG_FILE, %check, args => [ '--config', $file ]);
ends(CHECK_FAILED, %check, %nobody);

for my $command (sort keys %seen)
{
	my ($help) = run_command([ AcmeOutbox::Bridge->binary, $command, '--help' ]);
	$help =~ s/\A.*^Exit status:\n//ms or fail("$command --help lists its statuses");
	is(join(' ', sort { $a <=> $b } keys %{ $seen{$command} }), join(' ', $help =~ /^ +(\d+)  /mg),
		"$command --help lists the statuses it has, and no other");
}

$node->sql(<<'SQL');
CREATE OR REPLACE FUNCTION acme_outbox.contract_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS 'SELECT 99'
SQL
refuses('contract of another age', NOT_INSTALLED, 'contract|version');

is($broker->count, 0, 'nothing was sent');
done_testing();
