# A consumer under test: a queue "work" with a dead-letter queue "dead", the role
# "eater" that may use the default inbox, a handler that does what the message
# says, and bridge processes that consume.
#
#	{"header": {"eventId": ...}, "body": {"payload": {"do": ...}}}
#
# what it did is in the table "done" (event_id, message).
package AcmeOutbox::Consumer;

use strict;
use warnings;

use AcmeOutbox::Bridge;
use AcmeOutbox::Check;
use Exporter 'import';
use JSON::PP qw(encode_json);
use Test::More;

our @EXPORT = qw(envelope);

# The body of a message; further payload members as pairs.
sub envelope
{
	my ($id, $do, %payload) = @_;
	return JSON::PP->new->canonical->utf8->encode({
		header => { eventId => "$id" },
		body   => {
			eventName => 'ThingDone',
			eventType => 'EVENT',
			payload   => { (defined $do ? (do => $do) : ()), %payload }
		}
	});
}

# AcmeOutbox::Consumer->new($node, $broker, queue arguments)
sub new
{
	my ($class, $node, $broker, %arguments) = @_;
	my $self = bless { node => $node, broker => $broker }, $class;

	$self->make_handler;
	$broker->declare_exchange('dlx', 'direct');
	$broker->declare_queue('dead', 'x-queue-type' => 'quorum');
	$broker->bind('dead', 'dlx', 'dead-letter');
	$broker->declare_queue('work', 'x-queue-type' => 'quorum', %arguments);
	return $self;
}

sub make_handler
{
	my ($self) = @_;

	$self->{node}->sql(<<'SQL');
CREATE ROLE eater LOGIN;
SELECT acme_outbox.grant_consumer('eater', 'acme_outbox');
CREATE TABLE done (n bigserial, event_id text, message jsonb);
-- a violation that shows only at COMMIT: a transaction's first check does not find it
CREATE TABLE late (id int);
CREATE SEQUENCE late_checks;	-- the transaction checked last; not rolled back
CREATE FUNCTION late_check() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF (SELECT last_value FROM late_checks) = pg_current_xact_id()::text::bigint THEN
		RAISE EXCEPTION 'too late' USING ERRCODE = '23514';
	END IF;
	PERFORM setval('late_checks', pg_current_xact_id()::text::bigint);
	RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION late_check();
-- how often a kind was begun: a sequence is not rolled back
CREATE SEQUENCE begun_end;
CREATE SEQUENCE begun_cancel;
CREATE SEQUENCE begun_deadlock;
CREATE SEQUENCE begun_crash;
CREATE SEQUENCE begun_late;
CREATE FUNCTION crash() RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
	COPY (SELECT 1) TO PROGRAM 'kill -9 $PPID';
END $$;
CREATE TABLE early (id int UNIQUE DEFERRABLE INITIALLY DEFERRED);
GRANT INSERT, SELECT ON done, late, early TO eater;
GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO eater;
CREATE FUNCTION handle(message jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	payload jsonb := message #> '{body,payload}';
BEGIN
	INSERT INTO done (event_id, message)
		VALUES (message #>> '{header,eventId}', acme_outbox.message());
	CASE coalesce(payload ->> 'do', '')
		WHEN 'fail' THEN RAISE EXCEPTION 'no, not %', payload ->> 'secret'
			USING ERRCODE = 'P0123', DETAIL = 'detail of ' || (payload ->> 'secret');
		WHEN 'fail until' THEN
			IF (acme_outbox.message() ->> 'attempt')::int < (payload ->> 'until')::int THEN
				RAISE EXCEPTION 'not yet';
			END IF;
		WHEN 'warn' THEN SET LOCAL client_min_messages = notice;
			RAISE WARNING 'beware of %', payload ->> 'secret';
			RAISE NOTICE 'note %', payload ->> 'secret';
		WHEN 'park' THEN PERFORM acme_outbox.park('INVALID_STATE', 'thing', '1');
		WHEN 'end session' THEN PERFORM nextval('begun_end'), pg_terminate_backend(pg_backend_pid());
		WHEN 'crash' THEN PERFORM nextval('begun_crash'), crash();
		WHEN 'cancel' THEN PERFORM nextval('begun_cancel'), pg_cancel_backend(pg_backend_pid());
			PERFORM pg_sleep(10);
		WHEN 'sleep' THEN PERFORM pg_sleep((payload ->> 'seconds')::float);
		WHEN 'late' THEN PERFORM nextval('begun_late');
			INSERT INTO late VALUES (1);
		WHEN 'early' THEN INSERT INTO early VALUES (1), (1);
		WHEN 'no memory' THEN RAISE EXCEPTION 'no room for %', payload ->> 'secret' USING ERRCODE = '53200';
		WHEN 'deadlock' THEN PERFORM nextval('begun_deadlock');
			RAISE EXCEPTION 'deadlock' USING ERRCODE = '40P01';
		ELSE NULL;
	END CASE;
END $$;
SQL
	return;
}

# A consumer's process; args beyond the usual ones.
sub start
{
	my ($self, @args) = @_;
	my %opt = ref $args[-1] eq 'HASH' ? %{ pop @args } : ();

	return AcmeOutbox::Bridge->start($self->{node}, $self->{broker},
		command => 'consume',
		user    => 'eater',
		%opt,
		args => [
			'--queue', 'work', '--consumer', 'eat', '--handler', 'public.handle',
			'--retry-backoff', '50ms', @args ]);
}

# Stop a consumer that is the only one: it exits well, and has left nothing in the
# queue, neither ready nor unacknowledged (that would be ready now).
sub stop_empty
{
	my ($self, $bridge, $what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($bridge->stop, 0, "$what: the consumer stops");
	is($self->{broker}->count('work'), 0, "$what: the queue is empty");
	return;
}

# Wait until each was kept once.
sub wait_once { my ($self, @ids) = @_; return wait_until(sub { $self->not_once(@ids) eq '' }); }

# How often the handler's change of each event was kept: "id|times" lines of
# those that are not in it once.
sub not_once
{
	my ($self, @ids) = @_;
	my $list = join ',', map { "'$_'" } @ids;
	return $self->{node}->sql(<<"SQL");
SELECT id, count(d.event_id) FROM unnest(ARRAY[$list]::text[]) id
	LEFT JOIN done d ON d.event_id = id GROUP BY id HAVING count(d.event_id) <> 1 ORDER BY id
SQL
}

1;
