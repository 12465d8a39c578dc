/*
 * Duties and the worker (docs/design.md section 8).
 *
 * The planner is not asked here either: the settings below leave it nothing but the
 * indexes that the statements of reap.c and purge.c are written for.
 */

/* Where retention's walk over an origin's entries stopped; see purge.c. */
CREATE TABLE acme_outbox.purge_position (
	origin     text PRIMARY KEY,
	id         bigint NOT NULL DEFAULT '-9223372036854775808',
	started_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE acme_outbox.purge_position IS
	'where retention goes on; deleting a row only makes it start over';

INSERT INTO acme_outbox.duty_run (duty) VALUES ('reap'), ('purge');
COMMENT ON TABLE acme_outbox.duty_run IS
	'when each duty last ran, and with what result; its row is locked while it runs';

/*
 * reap()
 *		Warns about entries stuck in PUBLISHING, ends those that a dead relay left
 *		for good, and wakes keys that nothing else would wake.  P 1.1.
 *
 * Settings: reaper_warn_after; under stale_claim_policy = strand reaper_fail_after;
 * duty_batch_rows bounds one call, duty_lock_timeout its waits.
 * Returns one row.  result: done, contended (something was locked: call again
 * later) or more (stopped at its bound: call again).  warned, failed, woken:
 * entries.
 * Reports by WARNING, one per origin: how many, how old, whose, what next.
 * Changes outbox_entry, outbox_claim.  Safe to repeat.
 */
CREATE FUNCTION acme_outbox.reap(
	OUT result text, OUT warned bigint, OUT failed bigint, OUT woken bigint)
RETURNS SETOF record
LANGUAGE C VOLATILE STRICT
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_sort = off
SET jit = off
SET intervalstyle = 'postgres'
AS 'MODULE_PATHNAME', 'acme_outbox_reap';
COMMENT ON FUNCTION acme_outbox.reap() IS
	'warns about stuck entries; fails stranded ones under stale_claim_policy = strand';

/*
 * purge()
 *		Deletes what was kept long enough: published entries, the record of
 *		operators' actions, positions of cursors, and of every inbox the processed
 *		events and attempts and the expired idempotency keys; tombstones of projections.
 *		P 1, P 2.2, G 6, G 7.4.
 *
 * Settings: retention_published, retention_actions, retention_processed,
 * retention_attempts, retention_tombstones (0: for ever); duty_batch_rows times ten bounds
 * one call, per origin and inbox; duty_lock_timeout its waits.
 * Returns a row each for published, actions, cursors, processed, attempts, keys and
 * tombstones.
 * result: as reap().
 * affected: rows deleted.
 * Never deletes an undelivered entry; FAILED and ARCHIVED ones stay as well, and so do
 * parked messages.  Tables of a service are changed as their owner.
 * Safe to repeat, and to call from several sessions at once.
 */
CREATE FUNCTION acme_outbox.purge(
	OUT what text, OUT result text, OUT affected bigint)
RETURNS SETOF record
LANGUAGE C VOLATILE STRICT
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_sort = off
SET jit = off
SET intervalstyle = 'postgres'
AS 'MODULE_PATHNAME', 'acme_outbox_purge';
COMMENT ON FUNCTION acme_outbox.purge() IS
	'deletes published entries and other rows that are past their retention';

/*
 * run_due_duties()
 *		Runs the duties whose time has come; the worker and each relay call it.
 *
 * Settings: reaper_interval, retention_interval.  A duty that was contended or
 * failed is due again after a minute, one that has more to do at once.
 * Returns a row per duty that was due.  duty: reap, purge, consumed.  result: done, contended
 * (also: another session runs it right now), more, or failed (a WARNING says why).
 * affected: rows changed.
 * Each duty runs in a subtransaction; none makes the call fail.  Safe to repeat.
 */
CREATE FUNCTION acme_outbox.run_due_duties(
	OUT duty text, OUT result text, OUT affected bigint)
RETURNS SETOF record
LANGUAGE C VOLATILE STRICT
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_sort = off
SET jit = off
SET intervalstyle = 'postgres'
AS 'MODULE_PATHNAME', 'acme_outbox_run_due_duties';
COMMENT ON FUNCTION acme_outbox.run_due_duties() IS
	'runs the duties that are due; called by the worker and by relays';

/*
 * worker_start()
 *		Has the launcher start this database's worker when the transaction commits.
 *
 * Returns false where the library was not preloaded: nothing will start then.
 * Safe to repeat: a worker that runs is left alone.
 */
CREATE FUNCTION acme_outbox.worker_start() RETURNS boolean
LANGUAGE C VOLATILE STRICT
AS 'MODULE_PATHNAME', 'acme_outbox_worker_start';
COMMENT ON FUNCTION acme_outbox.worker_start() IS
	'starts this database''s worker at commit; false if the library was not preloaded';

/*
 * worker_preloaded()
 *		Is the library in shared_preload_libraries, so that there are workers?
 */
CREATE FUNCTION acme_outbox.worker_preloaded() RETURNS boolean
LANGUAGE C STABLE STRICT
AS 'MODULE_PATHNAME', 'acme_outbox_worker_preloaded';
COMMENT ON FUNCTION acme_outbox.worker_preloaded() IS
	'false: not in shared_preload_libraries, so no instant wake-up and no worker';

/*
 * worker_slots()
 *		The workers of all databases, as shared memory has them; see the view
 *		worker_status.
 */
CREATE FUNCTION acme_outbox.worker_slots(
	OUT database_oid oid, OUT pid integer, OUT state text,
	OUT started_at timestamptz, OUT last_wake_at timestamptz,
	OUT last_duty_at timestamptz, OUT wakes bigint, OUT notifies bigint)
RETURNS SETOF record
LANGUAGE C VOLATILE STRICT
AS 'MODULE_PATHNAME', 'acme_outbox_worker_slots';
COMMENT ON FUNCTION acme_outbox.worker_slots() IS
	'workers of all databases; no rows unless preloaded';

/* The worker starts when CREATE EXTENSION commits. */
SELECT acme_outbox.worker_start();
