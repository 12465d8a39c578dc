/*
 * Tables and types (docs/design.md section 3).
 */

CREATE TYPE acme_outbox.entry_status AS ENUM
	('PENDING', 'PUBLISHING', 'PUBLISHED', 'FAILED', 'ARCHIVED');
CREATE TYPE acme_outbox.entry_type AS ENUM ('DOMAIN_EVENT', 'JOB');
CREATE TYPE acme_outbox.hold_reason AS ENUM
	('RETRY', 'UNROUTABLE', 'NACKED', 'KEY', 'SCHEDULED', 'DUE', 'PAUSED');
CREATE TYPE acme_outbox.settle_outcome AS ENUM
	('PUBLISHED', 'REJECTED', 'UNROUTABLE', 'NACKED', 'RELEASED', 'ARCHIVED');
CREATE TYPE acme_outbox.failed_key_policy AS ENUM ('continue', 'block');
COMMENT ON TYPE acme_outbox.entry_status IS 'where an entry is on its way; docs/design.md section 1';
COMMENT ON TYPE acme_outbox.entry_type IS 'what was published: an event, or a job for a worker';
COMMENT ON TYPE acme_outbox.hold_reason IS 'why a PENDING entry waits';
COMMENT ON TYPE acme_outbox.settle_outcome IS 'what the broker did with an entry; docs/contract.md';
COMMENT ON TYPE acme_outbox.failed_key_policy IS
	'whether later entries of a FAILED entry''s key go on or wait';

/*
 * outbox_entry: every event and job, from the business transaction that wrote it to
 * its retention (P 1, G 4.2).
 *
 * Fixed-width columns that change come first; no index mentions a column that
 * changes on the normal path; a page is filled to 45 %, so that a second version of every
 * row on it fits beside the first (50 % would miss it by the page header).  Both updates of
 * an entry's life are HOT.  No CHECK: its error message would print the payload.
 */
CREATE TABLE acme_outbox.outbox_entry (
	xid             xid8 NOT NULL,
	id              bigint GENERATED ALWAYS AS IDENTITY,
	claim_id        bigint,
	published_at    timestamptz,
	next_attempt_at timestamptz,
	failed_at       timestamptz,
	created_at      timestamptz NOT NULL,
	event_id        uuid NOT NULL,
	status          acme_outbox.entry_status NOT NULL DEFAULT 'PENDING',
	hold_reason     acme_outbox.hold_reason,
	entry_type      acme_outbox.entry_type NOT NULL,
	attempts        smallint NOT NULL DEFAULT 0,
	holds           smallint NOT NULL DEFAULT 0,
	lanes_done      smallint NOT NULL DEFAULT 0,
	redacted        boolean NOT NULL DEFAULT false,
	origin          text NOT NULL,
	topic           text NOT NULL,
	routing_key     text,
	message_key     text,
	event_name      text NOT NULL,
	tenant_id       text,
	trace_id        text NOT NULL,
	traceparent     text,
	headers         jsonb,
	payload         text NOT NULL,
	payload_hash    bytea,
	last_error      text,
	CONSTRAINT outbox_entry_pkey PRIMARY KEY (origin, id)
) WITH (
	fillfactor = 45,
	autovacuum_vacuum_scale_factor = 0.05,
	autovacuum_analyze_scale_factor = 0.05
);

CREATE INDEX outbox_entry_xid ON acme_outbox.outbox_entry (origin, xid, id);
CREATE UNIQUE INDEX outbox_entry_event_id ON acme_outbox.outbox_entry (event_id, origin);
CREATE INDEX outbox_entry_due ON acme_outbox.outbox_entry (origin, next_attempt_at)
	WHERE next_attempt_at IS NOT NULL AND hold_reason IS DISTINCT FROM 'SCHEDULED';
CREATE INDEX outbox_entry_waiting_key ON acme_outbox.outbox_entry (origin, message_key, id)
	WHERE next_attempt_at IS NOT NULL AND hold_reason IS DISTINCT FROM 'SCHEDULED';
CREATE INDEX outbox_entry_scheduled ON acme_outbox.outbox_entry (origin, next_attempt_at)
	WHERE hold_reason = 'SCHEDULED';
CREATE INDEX outbox_entry_failed ON acme_outbox.outbox_entry (origin, failed_at)
	WHERE failed_at IS NOT NULL;

COMMENT ON TABLE acme_outbox.outbox_entry IS
	'events and jobs waiting for, or delivered to, the broker; written by publish() only';
COMMENT ON COLUMN acme_outbox.outbox_entry.xid IS
	'top-level transaction that published the entry; the claim finds late commits by it';
COMMENT ON COLUMN acme_outbox.outbox_entry.id IS 'publish order; not commit order';
COMMENT ON COLUMN acme_outbox.outbox_entry.claim_id IS 'open claim the entry is PUBLISHING in';
COMMENT ON COLUMN acme_outbox.outbox_entry.next_attempt_at IS
	'set while the entry waits; infinity: until its key is free';
COMMENT ON COLUMN acme_outbox.outbox_entry.hold_reason IS
	'why a PENDING entry waits; NULL: it does not; DUE: it was scheduled, and its time has come';
COMMENT ON COLUMN acme_outbox.outbox_entry.attempts IS
	'refusals for the message''s own fault';
COMMENT ON COLUMN acme_outbox.outbox_entry.holds IS
	'unroutable or nacked publishes in a row; not charged';
COMMENT ON COLUMN acme_outbox.outbox_entry.lanes_done IS
	'lanes already confirmed, as bits: 1 business, 2 audit';
COMMENT ON COLUMN acme_outbox.outbox_entry.redacted IS
	'what redaction_rule names was cut out of the payload: it cannot be sent again';
COMMENT ON COLUMN acme_outbox.outbox_entry.topic IS 'exchange';
COMMENT ON COLUMN acme_outbox.outbox_entry.message_key IS
	'aggregate id; entries of one key keep their order, NULL is unordered';
COMMENT ON COLUMN acme_outbox.outbox_entry.payload IS
	'the rendered envelope, byte-identical on every attempt';
COMMENT ON COLUMN acme_outbox.outbox_entry.payload_hash IS
	'SHA-256 of kind, schema version and payload, kept only where the caller gave the event_id';

/* What differs per topic from the settings of the same names (G 6.2). */
CREATE TABLE acme_outbox.topic_policy (
	topic             text PRIMARY KEY CHECK (topic <> ''),
	mandatory         boolean NOT NULL DEFAULT true,
	max_attempts      integer CHECK (max_attempts BETWEEN 1 AND 1000),
	backoff_base      interval CHECK (backoff_base > interval '0' AND backoff_base <= interval '1 year'),
	backoff_cap       interval CHECK (backoff_cap > interval '0' AND backoff_cap <= interval '1 year'),
	failed_key_policy acme_outbox.failed_key_policy
);
COMMENT ON TABLE acme_outbox.topic_policy IS
	'per topic: mandatory publishing and retry rules; NULL means the setting of that name';

/*
 * The clusters and databases that may send these entries.  CREATE EXTENSION writes
 * its own; a dump brings its source's along, so a copy shows as a second, foreign row
 * and stays silent until adopt().  No primary key, so that a restore can add it.
 */
CREATE TABLE acme_outbox.installation (
	system_identifier bigint NOT NULL,
	database_oid      oid NOT NULL,
	installed_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO acme_outbox.installation (system_identifier, database_oid)
	SELECT s.system_identifier, d.oid
	FROM pg_catalog.pg_control_system() s, pg_catalog.pg_database d
	WHERE d.datname = pg_catalog.current_database();
COMMENT ON TABLE acme_outbox.installation IS
	'the database that may send these entries; a copy''s does not match until adopt()';

/* Roles by name, so that a dump can be restored where they do not exist yet. */
CREATE TABLE acme_outbox.relay_grant (
	role_name name NOT NULL,
	origin    text NOT NULL,
	PRIMARY KEY (role_name, origin)
);
COMMENT ON TABLE acme_outbox.relay_grant IS 'which role may relay which origin; see grant_relay()';

CREATE TABLE acme_outbox.operator_action (
	id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	acted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
	actor    name NOT NULL DEFAULT session_user,
	action   text NOT NULL,
	detail   jsonb NOT NULL,
	affected bigint NOT NULL
);
COMMENT ON TABLE acme_outbox.operator_action IS 'what operators'' calls did';

/*
 * What is paused: topic NULL is the whole origin.  A resumed topic stays until its entries
 * are let go; see src/pause.c.
 */
CREATE TABLE acme_outbox.outbox_pause (
	origin    text NOT NULL CHECK (origin <> ''),
	topic     text CHECK (topic <> ''),
	paused_at timestamptz NOT NULL DEFAULT clock_timestamp(),
	paused_by name NOT NULL DEFAULT session_user,
	why       text,
	resumed   boolean NOT NULL DEFAULT false,
	CONSTRAINT outbox_pause_key UNIQUE NULLS NOT DISTINCT (origin, topic)
);
COMMENT ON TABLE acme_outbox.outbox_pause IS 'what operators have paused; see pause() and resume()';
COMMENT ON COLUMN acme_outbox.outbox_pause.topic IS 'NULL: the whole origin';
COMMENT ON COLUMN acme_outbox.outbox_pause.resumed IS
	'the pause is over; the row goes when the entries it held were let go';

/*
 * Relay state.  None of it is dumped: it means nothing in another cluster.
 */

/*
 * One row per origin.  Claim locks its number in the lock table, not the row: a row
 * lock is a write, and a claim that finds nothing must write nothing.
 */
CREATE TABLE acme_outbox.outbox_origin (
	origin    text PRIMARY KEY CHECK (origin <> ''),
	origin_no integer GENERATED ALWAYS AS IDENTITY
);
COMMENT ON TABLE acme_outbox.outbox_origin IS 'origins that published or relayed; leave it alone';

/* Insert-only; the newest position counts.  See design 4. */
CREATE TABLE acme_outbox.outbox_cursor (
	origin    text NOT NULL,
	position  bigint NOT NULL,
	last_id   bigint NOT NULL,
	seen      pg_snapshot NOT NULL,
	pass      pg_snapshot,
	pass_id   bigint,
	skipped   bigint[] NOT NULL,
	orphans_to bigint,
	moved_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
	PRIMARY KEY (origin, position)
);
COMMENT ON TABLE acme_outbox.outbox_cursor IS
	'how far each origin''s entries were claimed; leave it alone';
COMMENT ON COLUMN acme_outbox.outbox_cursor.seen IS
	'every row visible in it with id <= last_id was claimed, waits, or is in skipped';
COMMENT ON COLUMN acme_outbox.outbox_cursor.pass IS
	'snapshot of the late pass under way; NULL: none';
COMMENT ON COLUMN acme_outbox.outbox_cursor.pass_id IS
	'late ids up to this one were handled by the pass under way';
COMMENT ON COLUMN acme_outbox.outbox_cursor.orphans_to IS
	'before anything is claimed, entries in flight without a claim are released: done up to this id; NULL: done';

CREATE TABLE acme_outbox.relay_lease (
	origin      text PRIMARY KEY,
	epoch       bigint NOT NULL,
	relay       text NOT NULL,
	acquired_at timestamptz NOT NULL,
	renewed_at  timestamptz NOT NULL,
	expires_at  timestamptz NOT NULL,
	takeover_pending boolean NOT NULL,
	released    boolean NOT NULL DEFAULT false
);
CREATE UNIQUE INDEX relay_lease_epoch ON acme_outbox.relay_lease (epoch);
COMMENT ON TABLE acme_outbox.relay_lease IS
	'who relays each origin, and until when; shown by outbox_backlog; leave it alone';
COMMENT ON COLUMN acme_outbox.relay_lease.takeover_pending IS
	'older epochs may have left claims open; the next claim looks';
COMMENT ON COLUMN acme_outbox.relay_lease.released IS
	'handed over by its relay: it can settle what it knows, and neither claim nor renew';
CREATE SEQUENCE acme_outbox.relay_epoch_seq;
/* From the clock: a relay of an extension that was dropped must not share an epoch. */
SELECT pg_catalog.setval('acme_outbox.relay_epoch_seq',
	(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000)::bigint);

CREATE TABLE acme_outbox.outbox_claim (
	claim_id   bigint PRIMARY KEY,
	origin     text NOT NULL,
	epoch      bigint NOT NULL,
	claimed_by text NOT NULL,
	claimed_at timestamptz NOT NULL,
	ids        bigint[] NOT NULL
);
/* Compressing 500 ids takes longer than writing them. */
ALTER TABLE acme_outbox.outbox_claim ALTER COLUMN ids SET STORAGE EXTERNAL;
CREATE INDEX outbox_claim_origin ON acme_outbox.outbox_claim (origin, epoch);
COMMENT ON TABLE acme_outbox.outbox_claim IS 'batches handed to a relay and not settled yet';

/* When each duty last ran; a row's lock keeps two from running it at once. */
CREATE TABLE acme_outbox.duty_run (
	duty       text PRIMARY KEY,
	started_at timestamptz NOT NULL DEFAULT '-infinity',
	result     text,
	affected   bigint
);
