/*
 * The relay's contract (docs/contract.md; design sections 4-6).  SECURITY DEFINER with
 * a check of relay_grant inside.  claim and settle pin the planner settings that could
 * touch how they find rows by ctid.  They wait for a row's lock for less than
 * deadlock_timeout: should they and somebody's UPDATE of several entries wait for each
 * other, it is the relay that tries again.
 */

CREATE TYPE acme_outbox.claimed_entry AS (
	claim_id     bigint,
	id           bigint,
	event_id     uuid,
	entry_type   acme_outbox.entry_type,
	event_name   text,
	topic        text,
	routing_key  text,
	message_key  text,
	tenant_id    text,
	trace_id     text,
	traceparent  text,
	headers      text,
	payload      text,
	created_at   timestamptz,
	attempts     integer,
	lanes_done   smallint,
	mandatory    boolean,
	last_error   text,
	audit_payload text
);
COMMENT ON TYPE acme_outbox.claimed_entry IS 'an entry handed to the relay';

/* contract_version() returns integer: what a relay must know to work with this. */
CREATE FUNCTION acme_outbox.contract_version() RETURNS integer
LANGUAGE C IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'acme_outbox_contract_version';
COMMENT ON FUNCTION acme_outbox.contract_version() IS
	'version of the relay''s contract; a relay works with its own and its neighbours';

/*
 * relay_acquire(origin, relay) returns (epoch, lease_ms)
 *
 *	 Asks to be the active relay of an origin.  P 1 (lock per service), G 5.4.
 *	 origin  the service; relay  this process, unique: host:pid:random
 *	 Result: epoch and lease in milliseconds; no row: another relay is active.
 *	 Errors: OX102 not granted, OX103 database is a copy, OX009 names, 22004 null.
 *	 Safe to repeat: asking again under the same name gives a new epoch.
 */
CREATE FUNCTION acme_outbox.relay_acquire(origin text, relay text)
RETURNS TABLE (epoch bigint, lease_ms integer)
LANGUAGE C VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'acme_outbox_relay_acquire';
COMMENT ON FUNCTION acme_outbox.relay_acquire(text, text) IS
	'ask to be the active relay of an origin; no row: stand by';

/*
 * relay_renew(origin, epoch) returns boolean: extends the lease; false: it is lost, to
 * another relay or because this one released it.
 */
CREATE FUNCTION acme_outbox.relay_renew(origin text, epoch bigint) RETURNS boolean
LANGUAGE C VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'acme_outbox_relay_renew';
COMMENT ON FUNCTION acme_outbox.relay_renew(text, bigint) IS
	'extend the lease; false: another relay has taken over, or it was released';

/*
 * relay_release(origin, epoch) returns boolean: hands over at once and notifies those
 * who stand by; false: the lease was not ours any more.
 */
CREATE FUNCTION acme_outbox.relay_release(origin text, epoch bigint) RETURNS boolean
LANGUAGE C VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'acme_outbox_relay_release';
COMMENT ON FUNCTION acme_outbox.relay_release(text, bigint) IS 'hand the lease over at once';

/*
 * claim(origin, epoch, max_rows, max_bytes) returns setof claimed_entry
 *
 *	 Marks the next entries PUBLISHING and returns them in id order.  P 1 phase 1,
 *	 G 5.2.  Run it as a statement of its own: send only after it committed.
 *	 max_rows   1 to 10000; max_bytes  payload bytes at most (one entry always fits)
 *	 audit_payload is what the audit lane is to get; NULL: the payload itself.  P 5.1.
 *	 Result: no rows when there is nothing to send, or another session of the origin
 *	 is claiming.
 *	 Errors: OX101 fenced, OX102 not granted, OX104 not READ COMMITTED, 22004 null.
 *	 Not to be repeated on doubt: acquire again instead, which releases the claim.
 */
CREATE FUNCTION acme_outbox.claim(origin text, epoch bigint, max_rows integer, max_bytes bigint)
RETURNS SETOF acme_outbox.claimed_entry
LANGUAGE C VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_tidscan = on SET jit = off
SET lock_timeout = '500ms'
AS 'MODULE_PATHNAME', 'acme_outbox_claim';
COMMENT ON FUNCTION acme_outbox.claim(text, bigint, integer, bigint) IS
	'hand out the next entries of an origin; commit, then send';

/*
 * claim_failed(origin, epoch, max_rows) returns setof claimed_entry
 *
 *	 The same for FAILED entries, oldest failure first, for a dead-letter copy
 *	 (G 6.3); settled ARCHIVED they are done, settled otherwise they are FAILED again.
 *	 The payload of an event with a redaction rule comes redacted.
 */
CREATE FUNCTION acme_outbox.claim_failed(origin text, epoch bigint, max_rows integer)
RETURNS SETOF acme_outbox.claimed_entry
LANGUAGE C VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_tidscan = on SET jit = off
SET lock_timeout = '500ms'
AS 'MODULE_PATHNAME', 'acme_outbox_claim_failed';
COMMENT ON FUNCTION acme_outbox.claim_failed(text, bigint, integer) IS
	'hand out failed entries for a dead-letter copy';

/*
 * settle(epoch, claim_id, ids, outcomes, lanes, errors) returns (id, expected, found)
 *
 *	 Records what became of entries of a claim.  P 1 phase 3, G 6.
 *	 ids, outcomes, lanes, errors  aligned arrays; lanes and errors may hold nulls;
 *	 lanes are bits that are done now: 1 business, 2 audit
 *	 Result: only entries that were not settled: found is the status someone else
 *	 gave them, GONE, or LOCKED by someone, or just changed (still in the claim: settle again).
 *	 Errors: OX101 fenced, OX102 not granted, OX105 arguments.
 *	 Safe to repeat.
 */
CREATE FUNCTION acme_outbox.settle(epoch bigint, claim_id bigint, ids bigint[],
	outcomes acme_outbox.settle_outcome[], lanes smallint[], errors text[])
RETURNS TABLE (id bigint, expected text, found text)
LANGUAGE C VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_tidscan = on SET jit = off
SET lock_timeout = '500ms'
AS 'MODULE_PATHNAME', 'acme_outbox_settle';
COMMENT ON FUNCTION acme_outbox.settle(bigint, bigint, bigint[], acme_outbox.settle_outcome[], smallint[], text[]) IS
	'record what the broker did with entries of a claim';
