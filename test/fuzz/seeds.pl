# Writes the seed inputs: what a broker says in the situations that matter, headers,
# URIs and configurations of each kind.
use strict;
use warnings;

sub put
{
	my ($target, $name, $bytes) = @_;
	mkdir "corpus/$target";
	open(my $file, '>:raw', "corpus/$target/$name") or die "$name: $!\n";
	print $file $bytes;
	close $file;
	return;
}

sub frame { my ($type, $channel, $payload) = @_; return pack('CnN', $type, $channel, length $payload) . "$payload\xCE"; }
sub method { my ($channel, $class, $id, $arguments) = @_; return frame(1, $channel, pack('nn', $class, $id) . ($arguments // '')); }
sub short { return pack('C/a*', $_[0]); }
sub long { return pack('N/a*', $_[0]); }
sub table { return long(join '', @_); }
sub ack { return method(1, 60, 80, pack('Q>C', @_)); }
sub nack { return method(1, 60, 120, pack('Q>C', @_)); }
sub returned
{
	my ($event, $body, $headers) = @_;
	my $flags = 0x0080 | (defined $headers ? 0x2000 : 0);
	my $properties = pack('n', $flags) . ($headers // '') . short($event);
	return method(1, 60, 50, pack('n', 312) . short('NO_ROUTE') . short('ok') . short('key'))
	  . frame(2, 1, pack('nnQ>', 60, 0, length $body) . $properties)
	  . (length $body ? frame(3, 1, $body) : '');
}
sub channel_close { my ($channel, $code, $text) = @_; return method($channel, 20, 40, pack('n', $code) . short($text) . pack('nn', 60, 40)); }

my $nested = short('x') . 'F' . table(short('a') . 'A' . long('t' . "\1" . 'l' . pack('q>', -1) . 'S' . long('s')),
	short('v') . 'V', short('d') . 'd' . pack('d>', 1.5), short('D') . 'D' . "\2\0\0\0\1");
my $start = method(0, 10, 10, "\0\x09" . table(short('product') . 'S' . long('RabbitMQ'),
		short('capabilities') . 'F' . table(short('publisher_confirms') . "t\1", short('connection.blocked') . "t\1"),
		$nested) . long('AMQPLAIN PLAIN') . long('en_US'));
my $tune = method(0, 10, 30, pack('nNn', 2047, 131072, 60));
my $open = method(0, 10, 41, short(''));
my $channel = method(1, 20, 11, long('')) . method(1, 85, 11);
my $rows = "\x0D";    # the handshake is done, 15 rows

put('rabbit', 'handshake', "\x04$start$tune$open$channel" . ack(1, 0));
put('rabbit', 'handshake-single', "\x06$start$tune$open$channel" . ack(5, 1));
put('rabbit', 'refused', "\x04$start" . method(0, 10, 50, pack('n', 403) . short('ACCESS_REFUSED') . pack('nn', 0, 0)));
put('rabbit', 'other-version', "\x04AMQP\0\0\x09\1");
put('rabbit', 'acks', $rows . join '', map { ack($_, 0) } 3, 1, 2, 5, 4, 15, 14, 99, 3);
put('rabbit', 'multiple', $rows . ack(7, 1) . ack(0, 1) . ack(0, 0) . ack(2**63, 1) . ack(2**64 - 1, 0));
put('rabbit', 'nacks', $rows . nack(1, 0) . nack(9, 1) . ack(15, 1));
put('rabbit', 'returned', $rows . returned('event-1', 'payload') . ack(1, 0) . returned('event-3', '') . nack(3, 0) . ack(15, 1));
put('rabbit', 'returned-headers', $rows . returned('event-2', 'payload', table($nested)) . ack(15, 1));
put('rabbit', 'returned-unknown', $rows . returned('event-999', 'x') . ack(1, 0));
put('rabbit', 'returned-cut', $rows . method(1, 60, 50, pack('n', 312) . short('NO_ROUTE') . short('ok') . short('key')) . ack(1, 0));
put('rabbit', "close-$_", $rows . channel_close(1, $_, "REASON $_") . $channel . ack(3, 1)) for 403, 404, 406, 541;
put('rabbit', 'close-size', $rows . channel_close(1, 406, 'PRECONDITION_FAILED - message size 7 is larger than configured max size 3') . $channel);
put('rabbit', 'close-missing', $rows . channel_close(1, 404, 'NOT_FOUND') . $channel . method(2, 20, 11, long(''))
	  . method(2, 40, 11) . channel_close(2, 404, 'NOT_FOUND') . ack(1, 0));
put('rabbit', 'connection-close', $rows . method(0, 10, 50, pack('n', 320) . short('CONNECTION_FORCED') . pack('nn', 0, 0)));
put('rabbit', 'connection-close-501', $rows . method(0, 10, 50, pack('n', 501) . short('FRAME_ERROR') . pack('nn', 60, 40)));
put('rabbit', 'blocked', $rows . method(0, 10, 60, short('low on memory')) . ack(1, 0) . method(0, 10, 61) . ack(15, 1));
put('rabbit', 'flow', $rows . method(1, 20, 20, "\0") . method(1, 20, 20, "\1") . ack(15, 1));
put('rabbit', 'heartbeat', $rows . frame(8, 0, '') . frame(8, 1, '') . ack(1, 0));
put('rabbit', 'content-out-of-place', $rows . frame(3, 1, 'body'));
put('rabbit', 'deep-table', "\x04" . method(0, 10, 10, "\0\x09" . deep(40) . long('PLAIN') . long('en_US')));

sub deep { my ($depth) = @_; my $t = table(); $t = table(short('x') . "F$t") for 1 .. $depth; return $t; }

my @headers = ('{}', '{"a":1}', '{"a":-1.5e10,"b":true,"c":null,"d":"text"}', '{"a":{"b":{"c":[1,[2,{"d":"e"}]]}}}',
	'{"n":9223372036854775807,"m":-9223372036854775808,"u":18446744073709551615,"h":99999999999999999999999}',
	'{"traceparent":"x","a":"\u00e4\ud83d\ude00\\\\"}', '[]', '"x"', '{', '{"a":1}trailing', '{"":0}',
	'{"' . 'n' x 256 . '":1}', '{"' . 'n' x 255 . '":"' . 'v' x 4000 . '"}', '[' x 40 . ']' x 40,
	'{"a":' x 33 . '1' . '}' x 33, '{"a":NaN,"b":Infinity,"c":1e999}', '{"a":"\u0000"}', '{"a":1,"a":2}');
put('headers', sprintf('%02d', $_), pack('C', $_ % 4) . $headers[$_]) for 0 .. $#headers;

my @uris = ('amqp://', 'amqp://localhost', 'amqp://user:pass@host:5672/vhost', 'amqp://u%40x:p%2Fw@[::1]:5671/%2F',
	'amqps://host', 'amqp://host/', 'amqp://host//', 'amqp://a:b@c@d', 'amqp://:@:/', 'amqp://h:99999', 'amqp://h:-1',
	'amqp://%', 'amqp://%0', 'amqp://%00@h', 'http://h', '', 'amqp://u@h?x=y', 'amqp://a,b:5673,c/v',
	'amqps://h?auth_mechanism=external', 'amqp://' . 'h' x 300, 'amqp://u:' . 'p' x 1100 . '@h');
put('uri', sprintf('%02d', $_), $uris[$_]) for 0 .. $#uris;

my @configs = ("# comment\n\norigin = shop\nwindow = 10\n", "poll-interval = 1.5 s\nclaim-bytes=8MiB\n",
	"log-format = \"json\"\nonce = yes\n", "window = 99999999999999999999\n", "nonsense\n", "= x\n", "origin =\n",
	"origin = a\norigin = b\n", 'x' x 5000, "broker-uri = amqp://u:p\@h/v\n", "claim-rows = 0x10\nwindow = 1e3\n",
	"window =\t7\r\n", "config = /dev/null\n");
put('config', sprintf('file-%02d', $_), "\1$configs[$_]") for 0 .. $#configs;
my @lines = ("--origin=shop\n--window=5", "--origin\nshop\n--once", "--no-such=1", "--window", "--dsn=secret",
	"--once=maybe\n--origin=x", "--log-level=debug\n--confirm-timeout=1h", "--", "word", "--=1", "--origin=");
put('config', sprintf('line-%02d', $_), "\2$lines[$_]") for 0 .. $#lines;

# Dead letters: property lists with the headers that tell of a death.
sub string { my ($name, $value) = @_; return short($name) . 'S' . long($value); }
sub death
{
	my ($queue, $reason, $key) = @_;
	return 'F' . table(short('count') . 'l' . pack('q>', 1), string('reason', $reason), string('queue', $queue),
		short('time') . 'T' . pack('Q>', 1_700_000_000), string('exchange', 'events'),
		short('routing-keys') . 'A' . long(join '', map { 'S' . long($_) } $key, 'cc'));
}
sub letter { my ($headers, $flags, $rest) = @_; return pack('n', 0x2000 | ($flags // 0)) . $headers . ($rest // ''); }
my @first = (string('x-first-death-queue', 'q'), string('x-first-death-reason', 'rejected'));

put('dead_letter', 'rejected', letter(table(short('x-death') . 'A' . long(death('q', 'rejected', 'a.b')), @first)));
put('dead_letter', 'thrice', letter(table(short('x-death') . 'A' . long(death('q', 'expired', 'c')
	  . death('q', 'rejected', 'a') . death('wait', 'expired', 'b')), @first)));
put('dead_letter', 'reprocessed', letter(table(short('x-death') . 'A' . long(death('q', 'rejected', 'reprocess')),
	string('x-original-routing-key', 'a.b'), string('x-original-exchange', 'events'))));
put('dead_letter', 'consumer', letter(table(map { string("x-error-$_", $_) } qw(service sqlstate message context))));
put('dead_letter', 'nested', letter(table($nested, string('BCC', 'x'))));
put('dead_letter', 'no-array', letter(table(string('x-death', 'text'), short('x-death') . 'A' . long("V" . 'F' . table()))));
put('dead_letter', 'properties', letter(table(@first), 0x00b0, short('id') . short('Sold') . short('guest')));
