# The bridge's /metrics, /healthz and /readyz: what they count is what was sent; ready
# while it works and while it stands by, not without a database or a broker; healthy
# until its loop hangs, and then they still answer, as they do beside silent clients.
use strict;
use warnings;

use AcmeOutbox::Bridge;
use AcmeOutbox::Broker;
use AcmeOutbox::Check;
use AcmeOutbox::Cluster;
use AcmeOutbox::Consumer;
use IO::Socket::INET;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $node = AcmeOutbox::Cluster->create('main');
my $broker = AcmeOutbox::Broker->new->standard_topology;

# A bridge that listens on a port of the system's choice.
sub start_bridge
{
	my (%opt) = @_;
	my $bridge = AcmeOutbox::Bridge->start($opt{node} // $node, $broker, %opt,
		args => [ '--http', '127.0.0.1:0', @{ $opt{args} // [] } ]);

	return find_port($bridge);
}

sub find_port
{
	my ($bridge) = @_;
	$bridge->wait_for_log(qr/msg="http listening".*port=\d+/) or die "no port\n";
	($bridge->{http}) = $bridge->log_text =~ /http listening".*port=(\d+)/;
	return $bridge;
}

# Status and body of a request.
sub request
{
	my ($bridge, $path, @options) = @_;
	my ($out) = run_command([ 'curl', '-s', '-m', '10', '-w', '\n%{http_code}', @options,
		"http://127.0.0.1:$bridge->{http}$path" ]);

	my ($body, $status) = $out =~ /\A(.*?)\n(\d+)\z/s;
	return ($status, $body);
}

sub status { my ($status) = request(@_); return $status; }

sub wait_status
{
	my ($bridge, $path, $wanted, $pattern) = @_;
	my $until = time() + $PostgreSQL::Test::Utils::timeout_default;
	my ($status, $body);

	while (time() < $until)
	{
		($status, $body) = request($bridge, $path);
		return $body if $status == $wanted && $body =~ ($pattern // qr/./);
		sleep 0.05;
	}
	diag "$path is still $status: $body";
	return '';
}

sub metric
{
	my ($bridge, $name) = @_;
	my ($status, $body) = request($bridge, '/metrics');
	return $body =~ /^acme_outbox_bridge_\Q$name\E (\S+)$/m ? $1 : 'none';
}

$broker->declare_exchange('feed', 'fanout');
$broker->declare_queue('feed');
$broker->bind('feed', 'feed');
my $bridge = start_bridge(args => [ '--audit-exchange', 'feed' ]);
like(wait_status($bridge, '/readyz', 200), qr/^ok/, 'ready once it works');
is(status($bridge, '/healthz'), 200, 'and healthy');
$node->publish(30);
$node->sql("SELECT acme_outbox.publish('nowhere', 'k', 'x', 'OrderPlaced', '{}'::text)");
ok($node->wait_sql("SELECT count(*) = 30 FROM acme_outbox.outbox_entry WHERE status = 'PUBLISHED'"), 'sent');
ok($node->wait_sql("SELECT count(*) = 1 FROM acme_outbox.outbox_entry WHERE hold_reason = 'UNROUTABLE'"),
	'but one');

my ($status, $text) = request($bridge, '/metrics');
is($status, 200, 'metrics');
is(metric($bridge, 'messages_total{outcome="PUBLISHED"}'), 30, 'what was confirmed');
cmp_ok(metric($bridge, 'messages_total{outcome="UNROUTABLE"}'), '>=', 1, 'what came back');
is(metric($bridge, 'state{state="active"}'), 1, 'its state');
is(metric($bridge, 'state{state="standby"}'), 0, 'and no other');
is(metric($bridge, 'database_connected') . metric($bridge, 'broker_ready'), 11, 'both sides are there');
is(metric($bridge, 'publish_to_confirm_seconds_count'), 30, 'each confirm is timed');
is(metric($bridge, 'publish_to_confirm_seconds_bucket{le="+Inf"}'), 30, 'in some bucket');
cmp_ok(metric($bridge, 'publish_to_confirm_seconds_sum'), '<', 30 * 120, 'in seconds');
cmp_ok(metric($bridge, 'claim_seconds_count'), '>=', 1, 'so are claims');
cmp_ok(metric($bridge, 'settle_seconds_count'), '>=', 1, 'and settles');
is(metric($bridge, 'in_flight_messages'), 0, 'nothing is in flight');
is(metric($bridge, 'copies_total{lane="business",outcome="PUBLISHED"}'), 30, 'each copy is counted');
is(metric($bridge, 'copies_total{lane="audit",outcome="PUBLISHED"}'), 31, 'those of the audit lane too');
$broker->unbind('feed', 'feed');
$node->publish(1, first => 31);
ok($node->wait_sql('SELECT audit_only = 1 FROM acme_outbox.outbox_backlog'), 'one has arrived but for its audit copy');
is(metric($bridge, 'copies_total{lane="business",outcome="PUBLISHED"}'), 31, 'that shows: the business lane has it');
cmp_ok(metric($bridge, 'copies_total{lane="audit",outcome="UNROUTABLE"}'), '>=', 1, 'the audit lane has not');

# A consumer tells the same of itself.
my $consumer = AcmeOutbox::Consumer->new($node, $broker);
my $eater = $consumer->start('--http', '127.0.0.1:0', '--dead-letter-exchange', 'dlx');
find_port($eater);
wait_status($eater, '/readyz', 200);
$broker->fill('work', envelope('a'), envelope('a'), envelope('p', 'park'));
ok($node->wait_sql("SELECT count(*) = 2 FROM acme_outbox.processed_event"), 'handled');
my $until = time() + $PostgreSQL::Test::Utils::timeout_default;
sleep 0.05 while metric($eater, 'messages_total{outcome="duplicate"}') ne '1' && time() < $until;
is(metric($eater, qq{messages_total{outcome="$_"}}), 1, "one $_") for qw(applied duplicate parked);
cmp_ok(metric($eater, 'handle_seconds_count'), '>=', 1, 'batches are timed');
is(metric($eater, 'state{state="running"}'), 1, 'its state');
like((request($eater, '/metrics'))[1], qr/info\{version="[0-9.]+",command="consume",name="eat"\} 1/, 'who it is');
my $eaten = (request($eater, '/metrics'))[1];
is($eater->stop, 0, 'the consumer stops');

# Each line is one of the format's, each name has its help and type once, before it.
my %all;
for my $page ($text, $eaten)
{
	my %head;
	my @odd = grep {
		/^# (HELP|TYPE) (\w+) / ? $head{"$1 $2"}++
		  : !/^(acme_outbox_bridge_\w+?)(?:_bucket|_sum|_count)?(?:\{(?:\w+="(?:[^"\\]|\\.)*",?)+\})? \S+$/
		  || !($head{"TYPE $1"} || $head{'TYPE ' . (/^(\w+)/)[0]})
	} split /\n/, $page;
	is(join("\n", @odd), '', 'Prometheus can read it');
	%all = (%all, %head);
}
my $last = -1;
my @buckets = $text =~ /^acme_outbox_bridge_claim_seconds_bucket\{.*\} (\d+)$/mg;
is(scalar(grep { my $less = $_ < $last; $last = $_; $less } @buckets), 0, 'buckets are cumulative');

# The page names what there is.
my $page = slurp_file("$ENV{ACME_STAGE}/docs/metrics.md");
is( join(' ', sort keys %{ { map { $_ => 1 } $page =~ /^\| `(acme_outbox_bridge_\w+)`/mg } }),
	join(' ', sort map { /^TYPE (.*)/ ? $1 : () } keys %all), 'docs/metrics.md has the same metrics');

# Clients that say nothing, or half a request: as many as like. The probe is answered, and
# the silent ones are cut off.
my @silent = map { IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $bridge->{http}) } 1 .. 80;
$_->syswrite("GET /healthz HTTP/1.1\r\nX: ") for @silent[ 0 .. 39 ];
is(scalar(grep { defined } @silent), 80, 'the stress happened: eighty connections are open');
my $began = time();
is(status($bridge, $_), 200, "beside eighty silent clients: $_") for '/healthz', '/metrics', '/readyz';
cmp_ok(time() - $began, '<', 3, 'and at once');
$silent[-1]->blocking(0);
my $cut = sub { my $read = sysread($_[0], my $byte, 1); return defined $read && $read == 0 || !defined $read && !$!{EAGAIN}; };
ok($cut->($silent[0]), 'the oldest one is cut off');
ok(wait_until(sub { $cut->($silent[-1]) }, 10), 'the newest one, too, after a few seconds');

is(status($bridge, '/other'), 404, 'other paths are not there');
is(status($bridge, '/metrics', '-X', 'POST', '-d', 'x'), 405, 'nor other methods');
is(status($bridge, '/healthz', '-I'), 200, 'but HEAD');

# A second one stands by, and is ready to.
my $second = start_bridge();
ok($second->wait_for_log(qr/standing by|standby/), 'the second stands by');
wait_status($second, '/readyz', 200);
is(metric($second, 'state{state="standby"}'), 1, 'ready as standby');
is($second->stop, 0, 'it stops as ever');

# A port that is taken; a bad address.
my $clash = AcmeOutbox::Bridge->start($node, $broker, args => [ '--http', "127.0.0.1:$bridge->{http}" ]);
is($clash->wait_exit, 64, 'a port that is taken ends the start');
like($clash->log_text, qr/no HTTP there.*in use/, 'and says so');
for my $bad ('8080', 'host:', '::1:80', '127.0.0.1:70000')
{
	my $refused = AcmeOutbox::Bridge->start($node, $broker, args => [ '--http', $bad ]);
	is($refused->wait_exit, 64, "$bad is no address");
}

# Without the database it is not ready, and alive.
$node->stop('fast');
like(wait_status($bridge, '/readyz', 503), qr/database/, 'not ready without a database');
is(status($bridge, '/healthz'), 200, 'that is no reason to restart it');
$node->start;
wait_status($bridge, '/readyz', 200);
is($bridge->stop, 0, 'it ends');

# Neither without a broker.
my $cut_off = start_bridge(uri => 'amqp://127.0.0.1:1');
ok($cut_off->wait_for_log(qr/broker not reachable/), 'the broker is away');
like(wait_status($cut_off, '/readyz', 503, qr/broker/), qr/broker/, 'nor without a broker');
is(status($cut_off, '/healthz'), 200, 'that is none either');
is($cut_off->stop, 0, 'it ends, too');

# The loop hangs: the thread tells.
my $hung = start_bridge(env => { ACME_OUTBOX_HANG_AT => 'claim-committed' });
$node->publish(1);
like(wait_status($hung, '/healthz', 503), qr/stuck/, 'a loop that hangs is seen');
is(status($hung, '/metrics'), 200, 'while the metrics still answer');
$hung->kill9;
done_testing();
