/*
 * Projections guarded by last_event_at (docs/projections.md).  P 4.
 *
 * A target is a table of the application's with a column last_event_at timestamptz, a
 * unique index on its key, and better also last_event_id (uuid or text).  The functions
 * run with the caller's rights on it.
 */

/* By OID, so that tombstones follow a table that is renamed. */
CREATE TABLE acme_outbox.projection_tombstone (
	target        regclass NOT NULL,
	key_digest    bytea NOT NULL,
	key           jsonb NOT NULL,
	last_event_at timestamptz NOT NULL,
	last_event_id text,
	deleted_at    timestamptz NOT NULL,
	PRIMARY KEY (target, key_digest)
);
CREATE INDEX projection_tombstone_deleted ON acme_outbox.projection_tombstone (deleted_at);
COMMENT ON TABLE acme_outbox.projection_tombstone IS
	'what project_delete() deleted: older events do not bring it back';
COMMENT ON COLUMN acme_outbox.projection_tombstone.key_digest IS
	'SHA-256 of the key in its canonical form';

/*
 * project(target, key, fields, event_at, event_id) returns boolean
 *
 *	 Inserts or updates a row from an event, unless the row is at least as new.
 *
 *	 target    the table; needs INSERT, UPDATE and SELECT
 *	 key       JSON object: the columns of a unique index, and their values
 *	 fields    JSON object: other columns to set; absent ones stay, null sets NULL;
 *	           both as jsonb, as json, or as text
 *	 event_at  the event's own time
 *	 event_id  breaks ties where the table has last_event_id; NULL sorts first
 *
 *	 Values are taken as jsonb_populate_record takes them.
 *	 Returns false where the event was discarded: older, or seen before.
 *	 Errors: OX401-OX405 (docs/errors.md); those of the table's constraints and triggers.
 *	 Safe to repeat.
 */
CREATE FUNCTION acme_outbox.project(target regclass, key jsonb, fields jsonb,
	event_at timestamptz, event_id uuid DEFAULT NULL)
RETURNS boolean
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_project_jsonb_uuid';
COMMENT ON FUNCTION acme_outbox.project(regclass, jsonb, jsonb, timestamptz, uuid) IS
	'insert or update a row from an event, unless it is older than the row';

CREATE FUNCTION acme_outbox.project(target regclass, key jsonb, fields jsonb,
	event_at timestamptz, event_id text)
RETURNS boolean
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_project_jsonb_text';
COMMENT ON FUNCTION acme_outbox.project(regclass, jsonb, jsonb, timestamptz, text) IS
	'insert or update a row from an event, unless it is older than the row';

CREATE FUNCTION acme_outbox.project(target regclass, key json, fields json,
	event_at timestamptz, event_id uuid DEFAULT NULL)
RETURNS boolean
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_project_text_uuid';
COMMENT ON FUNCTION acme_outbox.project(regclass, json, json, timestamptz, uuid) IS
	'insert or update a row from an event, unless it is older than the row';

CREATE FUNCTION acme_outbox.project(target regclass, key json, fields json,
	event_at timestamptz, event_id text)
RETURNS boolean
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_project_text_text';
COMMENT ON FUNCTION acme_outbox.project(regclass, json, json, timestamptz, text) IS
	'insert or update a row from an event, unless it is older than the row';

CREATE FUNCTION acme_outbox.project(target regclass, key text, fields text,
	event_at timestamptz, event_id uuid DEFAULT NULL)
RETURNS boolean
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_project_text_uuid';
COMMENT ON FUNCTION acme_outbox.project(regclass, text, text, timestamptz, uuid) IS
	'insert or update a row from an event, unless it is older than the row';

CREATE FUNCTION acme_outbox.project(target regclass, key text, fields text,
	event_at timestamptz, event_id text)
RETURNS boolean
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_project_text_text';
COMMENT ON FUNCTION acme_outbox.project(regclass, text, text, timestamptz, text) IS
	'insert or update a row from an event, unless it is older than the row';

/*
 * project_delete(target, key, event_at, event_id) returns boolean
 *
 *	 Deletes a row because of an event, unless the row is at least as new, and remembers
 *	 that: an older event does not bring the row back, a newer one does.
 *
 *	 target, key, event_at, event_id  as project(); needs DELETE and SELECT
 *
 *	 Returns false where the event was discarded.  True also where there was no row:
 *	 the delete came before what it deletes.
 *	 Errors: OX401-OX405; 40001 at REPEATABLE READ.  Safe to repeat.
 */
CREATE FUNCTION acme_outbox.project_delete(target regclass, key jsonb,
	event_at timestamptz, event_id uuid DEFAULT NULL)
RETURNS boolean
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_project_delete_jsonb_uuid';
COMMENT ON FUNCTION acme_outbox.project_delete(regclass, jsonb, timestamptz, uuid) IS
	'delete a row because of an event, unless the row is newer';

CREATE FUNCTION acme_outbox.project_delete(target regclass, key jsonb,
	event_at timestamptz, event_id text)
RETURNS boolean
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_project_delete_jsonb_text';
COMMENT ON FUNCTION acme_outbox.project_delete(regclass, jsonb, timestamptz, text) IS
	'delete a row because of an event, unless the row is newer';

CREATE FUNCTION acme_outbox.project_delete(target regclass, key json,
	event_at timestamptz, event_id uuid DEFAULT NULL)
RETURNS boolean
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_project_delete_text_uuid';
COMMENT ON FUNCTION acme_outbox.project_delete(regclass, json, timestamptz, uuid) IS
	'delete a row because of an event, unless the row is newer';

CREATE FUNCTION acme_outbox.project_delete(target regclass, key json,
	event_at timestamptz, event_id text)
RETURNS boolean
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_project_delete_text_text';
COMMENT ON FUNCTION acme_outbox.project_delete(regclass, json, timestamptz, text) IS
	'delete a row because of an event, unless the row is newer';

CREATE FUNCTION acme_outbox.project_delete(target regclass, key text,
	event_at timestamptz, event_id uuid DEFAULT NULL)
RETURNS boolean
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_project_delete_text_uuid';
COMMENT ON FUNCTION acme_outbox.project_delete(regclass, text, timestamptz, uuid) IS
	'delete a row because of an event, unless the row is newer';

CREATE FUNCTION acme_outbox.project_delete(target regclass, key text,
	event_at timestamptz, event_id text)
RETURNS boolean
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_project_delete_text_text';
COMMENT ON FUNCTION acme_outbox.project_delete(regclass, text, timestamptz, text) IS
	'delete a row because of an event, unless the row is newer';

/*
 * projection_rebuild(target, seed, as_of) returns (seeded, removed)
 *
 *	 Rebuilds a projection from its source: mends rows that are wrong, adds those that are
 *	 missing, removes those that the source does not have.  Writers of the target wait
 *	 until it commits, readers do not.
 *
 *	 target  the table; needs INSERT, UPDATE, DELETE and SELECT
 *	 seed    name of a function without arguments.  It calls project() for each row of
 *	         the source, or returns rows (key jsonb, fields jsonb, event_at timestamptz
 *	         [, event_id]); event_at is when the source's row changed last
 *	 as_of   up to when the source is complete; rows with newer events stay even if the
 *	         seed does not have them.  NULL: now
 *
 *	 seeded: rows the seed had; removed: rows it did not have.
 *	 For the administrator, in a transaction of its own.
 *	 Errors: OX401-OX406.  Safe to repeat.
 */
CREATE FUNCTION acme_outbox.projection_rebuild(target regclass, seed text,
	as_of timestamptz DEFAULT NULL, OUT seeded bigint, OUT removed bigint)
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_projection_rebuild';
COMMENT ON FUNCTION acme_outbox.projection_rebuild(regclass, text, timestamptz) IS
	'rebuild a projection from its source';

/* projection_seen(xmin) returns boolean: the part of a rebuild that is SQL. */
CREATE FUNCTION acme_outbox.projection_seen(xmin xid) RETURNS boolean
LANGUAGE C STABLE STRICT
AS 'MODULE_PATHNAME', 'acme_outbox_projection_seen';
COMMENT ON FUNCTION acme_outbox.projection_seen(xid) IS
	'was the row version written by this transaction';
