/*
 * An operator's plain UPDATE or DELETE must work (docs/design.md 4.2).
 *
 * AFTER triggers with a WHEN that is false on the normal path: claim, settle and
 * retention never call them.
 */

CREATE FUNCTION acme_outbox.entry_requeued() RETURNS trigger
LANGUAGE C VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'acme_outbox_entry_requeued';
COMMENT ON FUNCTION acme_outbox.entry_requeued() IS
	'trigger: an entry set to PENDING by hand becomes due';

CREATE FUNCTION acme_outbox.entry_finished() RETURNS trigger
LANGUAGE C VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'acme_outbox_entry_finished';
COMMENT ON FUNCTION acme_outbox.entry_finished() IS
	'trigger: an entry finished or deleted by hand lets the next of its key go';

CREATE FUNCTION acme_outbox.entry_given_up() RETURNS trigger
LANGUAGE C VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'acme_outbox_entry_given_up';
COMMENT ON FUNCTION acme_outbox.entry_given_up() IS
	'trigger: an entry finished by hand waits for nothing any more; a failed one is found as such';

/*
 * The cursor has passed the row; only the due lane finds it again.  A FAILED one may
 * still have the time it waited for, or infinity where it blocked its key.  A row that
 * no claim has reached yet needs nothing: it keeps its place.
 */
CREATE TRIGGER entry_requeued AFTER UPDATE ON acme_outbox.outbox_entry
	FOR EACH ROW WHEN (NEW.status = 'PENDING'
		AND (NEW.next_attempt_at IS NULL OR NEW.failed_at IS NOT NULL)
		AND NOT (OLD.status = 'PENDING' AND OLD.next_attempt_at IS NULL
				 AND OLD.origin = NEW.origin AND OLD.id = NEW.id AND OLD.xid = NEW.xid))
	EXECUTE FUNCTION acme_outbox.entry_requeued();

CREATE TRIGGER entry_given_up AFTER UPDATE ON acme_outbox.outbox_entry
	FOR EACH ROW WHEN ((NEW.status = 'FAILED' AND NEW.failed_at IS NULL)
		OR (NEW.status IN ('PUBLISHED', 'ARCHIVED') AND NEW.next_attempt_at IS NOT NULL))
	EXECUTE FUNCTION acme_outbox.entry_given_up();

CREATE FUNCTION acme_outbox.entry_over() RETURNS trigger
LANGUAGE C VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'acme_outbox_entry_over';
COMMENT ON FUNCTION acme_outbox.entry_over() IS
	'trigger: an entry published or archived by hand is redacted';

/* settle() redacts by itself; who sets PUBLISHED by hand hardly changes all it does. */
CREATE TRIGGER entry_over AFTER UPDATE ON acme_outbox.outbox_entry
	FOR EACH ROW WHEN (NEW.status IN ('PUBLISHED', 'ARCHIVED') AND NOT NEW.redacted
		AND OLD.status <> NEW.status
		AND NOT (OLD.status = 'PUBLISHING' AND NEW.status = 'PUBLISHED' AND NEW.claim_id IS NULL
				 AND OLD.published_at IS NULL AND NEW.published_at IS NOT NULL))
	EXECUTE FUNCTION acme_outbox.entry_over();

/*
 * At commit: what a claim held back meanwhile is woken too.  settle() clears claim_id;
 * who sets PUBLISHED by hand hardly does.
 */
CREATE CONSTRAINT TRIGGER entry_finished AFTER UPDATE ON acme_outbox.outbox_entry
	DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
	WHEN (NEW.status IN ('PUBLISHED', 'FAILED', 'ARCHIVED')
		AND NEW.message_key IS NOT NULL
		AND (OLD.status = 'PENDING' OR NEW.status <> 'PUBLISHED' OR NEW.claim_id IS NOT NULL))
	EXECUTE FUNCTION acme_outbox.entry_finished();

CREATE CONSTRAINT TRIGGER entry_deleted AFTER DELETE ON acme_outbox.outbox_entry
	DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (OLD.message_key IS NOT NULL
		AND OLD.status IN ('PENDING', 'PUBLISHING', 'FAILED'))
	EXECUTE FUNCTION acme_outbox.entry_finished();
