/*
 * Parked messages: delivered fine, but the domain cannot accept them (P 2; docs/inbox.md).
 */

/*
 * park(reason, entity_type, entity_id) returns uuid
 *
 *	 In a handler: parks the message being handled.  Return from the handler after it;
 *	 its outcome is parked, and what it did so far stays.
 *	 reason  UNRESOLVABLE_ENTITY, INVALID_STATE, or another one of A-Z and _
 *	 entity_type, entity_id  what the message is about
 *	 Result: the parked message's id.
 *	 Errors: OX205 not in a handler, parked already, bad reason; OX207 no tenant.
 */
CREATE FUNCTION acme_outbox.park(reason text, entity_type text DEFAULT NULL,
	entity_id text DEFAULT NULL) RETURNS uuid
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_park';
COMMENT ON FUNCTION acme_outbox.park(text, text, text) IS
	'in a handler: park the message being handled; returns its id';

/*
 * park_message(consumer, envelope, reason, entity_type, entity_id) returns uuid
 *
 *	 The same outside a handler, in the caller's transaction.  Records the event as
 *	 processed unless it is, so that a redelivery is a duplicate.
 *	 Errors: OX201, OX203-OX205, OX207.
 */
CREATE FUNCTION acme_outbox.park_message(consumer text, envelope text, reason text,
	entity_type text DEFAULT NULL, entity_id text DEFAULT NULL) RETURNS uuid
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_park_message';
CREATE FUNCTION acme_outbox.park_message(consumer text, envelope json, reason text,
	entity_type text DEFAULT NULL, entity_id text DEFAULT NULL) RETURNS uuid
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_park_message';
CREATE FUNCTION acme_outbox.park_message(consumer text, envelope jsonb, reason text,
	entity_type text DEFAULT NULL, entity_id text DEFAULT NULL) RETURNS uuid
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_park_message_jsonb';
COMMENT ON FUNCTION acme_outbox.park_message(text, text, text, text, text) IS
	'park a message outside a handler; returns its id';
COMMENT ON FUNCTION acme_outbox.park_message(text, json, text, text, text) IS
	'park a message outside a handler; returns its id';
COMMENT ON FUNCTION acme_outbox.park_message(text, jsonb, text, text, text) IS
	'park a message outside a handler; returns its id';

/*
 * Which handler a consumer's parked messages are replayed with, and whose rights it has.
 */
CREATE TABLE acme_outbox.inbox_handler (
	schema    name NOT NULL REFERENCES acme_outbox.inbox,
	consumer  text NOT NULL,
	handler   text NOT NULL,
	role_name name NOT NULL,
	PRIMARY KEY (schema, consumer)
);
COMMENT ON TABLE acme_outbox.inbox_handler IS
	'handlers for replays, and the roles they run as; see register_handler()';

/*
 * register_handler(consumer, handler, role_name, inbox) returns void
 *
 *	 For the administrator: names what replays a consumer's parked messages.
 *	 handler  schema.function   role_name  the consumer's role, whose rights it has
 *	 Errors: OX201 no such inbox; OX208 the role is a superuser; 42704 no such role.
 *	 Safe to repeat: the last one counts.
 */
CREATE FUNCTION acme_outbox.register_handler(consumer text, handler text, role_name name,
	inbox name DEFAULT 'acme_outbox') RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	is_superuser boolean;
BEGIN
	IF NOT EXISTS (SELECT FROM acme_outbox.inbox i WHERE i.schema = register_handler.inbox) THEN
		RAISE EXCEPTION 'schema "%" has no inbox', inbox USING ERRCODE = 'OX201';
	END IF;
	SELECT r.rolsuper INTO is_superuser FROM pg_roles r
		WHERE r.rolname = register_handler.role_name;
	IF is_superuser IS NULL THEN
		RAISE EXCEPTION 'role "%" does not exist', role_name USING ERRCODE = 'undefined_object';
	ELSIF is_superuser THEN
		RAISE EXCEPTION 'role "%" is a superuser', role_name
			USING ERRCODE = 'OX208',
				  DETAIL = 'A replay runs the handler with the rights of this role.',
				  HINT = 'Register the role that the consumer logs in with.';
	END IF;
	INSERT INTO acme_outbox.inbox_handler AS h (schema, consumer, handler, role_name)
		VALUES (inbox, register_handler.consumer, register_handler.handler,
				register_handler.role_name)
		ON CONFLICT ON CONSTRAINT inbox_handler_pkey DO UPDATE
		SET handler = excluded.handler, role_name = excluded.role_name;
END
$$;
COMMENT ON FUNCTION acme_outbox.register_handler(text, text, name, name) IS
	'name the handler and role that replay a consumer''s parked messages';

/*
 * drop_inbox(schema) returns void
 *
 *	 For the administrator: forgets a schema's inbox, its handlers and grants.  The tables
 *	 are the service's: whoever owns them drops them.
 *	 Errors: OX201 no such inbox, or the extension's own.
 */
CREATE FUNCTION acme_outbox.drop_inbox(schema name) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	consumer  name;
	was_owner name;
BEGIN
	IF schema = 'acme_outbox' OR NOT EXISTS (
			SELECT FROM acme_outbox.inbox i WHERE i.schema = drop_inbox.schema) THEN
		RAISE EXCEPTION 'schema "%" has no inbox that can be dropped', schema
			USING ERRCODE = 'OX201';
	END IF;
	FOR consumer IN SELECT g.role_name FROM acme_outbox.consumer_grant g
			WHERE g.schema = drop_inbox.schema LOOP
		PERFORM acme_outbox.revoke_consumer(consumer, schema);
	END LOOP;
	DELETE FROM acme_outbox.inbox_handler h WHERE h.schema = drop_inbox.schema;
	DELETE FROM acme_outbox.inbox i WHERE i.schema = drop_inbox.schema
		RETURNING i.owner INTO was_owner;
	IF EXISTS (SELECT FROM pg_roles r WHERE r.rolname = was_owner AND NOT r.rolsuper)
			AND NOT 'owner' = ANY (acme_outbox.held_kinds(was_owner)) THEN
		PERFORM acme_outbox.revoke_kind(was_owner, 'owner');
	END IF;
END
$$;
COMMENT ON FUNCTION acme_outbox.drop_inbox(name) IS
	'forget a schema''s inbox; its tables stay';

/*
 * replay_parked(inbox, id) returns text
 *
 *	 Runs the consumer's handler on a parked message again, with the rights of the role
 *	 registered for it, in this transaction.
 *	 Result: applied; parked, again, as another row; duplicate: resolved before, or the
 *	 event was processed otherwise, so nothing was changed.
 *	 Errors: the handler's own, then the message stays open; OX201, OX206, OX208.
 *	 A constraint that is deferrable is checked at once, unless the session itself is
 *	 that role.
 *	 Safe to repeat, and from several sessions at once: the change is made once.
 */
CREATE FUNCTION acme_outbox.replay_parked(inbox name, id uuid) RETURNS text
LANGUAGE C VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'acme_outbox_replay_parked';
COMMENT ON FUNCTION acme_outbox.replay_parked(name, uuid) IS
	'handle a parked message again; returns the outcome';

/*
 * replay_parked_where(inbox, consumer, event_type, reason, max_rows)
 *		returns (id, outcome, sqlstate, error)
 *
 *	 Replays open messages, oldest first, each in a subtransaction; NULL matches all.
 *	 max_rows  messages at most; NULL: all
 *	 Result: a row per message; outcome as replay_parked(), or failed and its error.
 *	 Errors: OX201, 22023 max_rows below 1.
 */
CREATE FUNCTION acme_outbox.replay_parked_where(inbox name, consumer text DEFAULT NULL,
	event_type text DEFAULT NULL, reason text DEFAULT NULL, max_rows integer DEFAULT 100)
RETURNS TABLE (id uuid, outcome text, sqlstate text, error text)
LANGUAGE C VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'acme_outbox_replay_parked_where';
COMMENT ON FUNCTION acme_outbox.replay_parked_where(name, text, text, text, integer) IS
	'handle parked messages again, oldest first; one outcome each';

/*
 * discard_parked(inbox, id, why) returns text
 *
 *	 Closes a parked message without handling it; it stays in the journal.
 *	 Result: discarded, or resolved: it was before.
 *	 Errors: OX201, OX206.  Safe to repeat.
 */
CREATE FUNCTION acme_outbox.discard_parked(inbox name, id uuid, why text) RETURNS text
LANGUAGE C VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'acme_outbox_discard_parked';
COMMENT ON FUNCTION acme_outbox.discard_parked(name, uuid, text) IS
	'close a parked message without handling it';

/* The same in the session's inbox. */
CREATE FUNCTION acme_outbox.replay_parked(id uuid) RETURNS text
LANGUAGE sql VOLATILE
AS $$ SELECT acme_outbox.replay_parked(
	coalesce(pg_catalog.current_setting('acme_outbox.inbox_schema', true), 'acme_outbox')::name, id) $$;
COMMENT ON FUNCTION acme_outbox.replay_parked(uuid) IS
	'handle a parked message of the session''s inbox again';
CREATE FUNCTION acme_outbox.discard_parked(id uuid, why text) RETURNS text
LANGUAGE sql VOLATILE
AS $$ SELECT acme_outbox.discard_parked(
	coalesce(pg_catalog.current_setting('acme_outbox.inbox_schema', true), 'acme_outbox')::name, id, why) $$;
COMMENT ON FUNCTION acme_outbox.discard_parked(uuid, text) IS
	'close a parked message of the session''s inbox';

/* parked_rows() returns what parked_open shows; no payload. */
CREATE FUNCTION acme_outbox.parked_rows()
RETURNS TABLE (inbox name, id uuid, tenant_id text, consumer text, event_id text,
	event_type text, source_entity_type text, source_entity_id text, reason text,
	parked_at timestamptz, trace_id text)
LANGUAGE C VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'acme_outbox_parked_rows';
COMMENT ON FUNCTION acme_outbox.parked_rows() IS 'what the view parked_open shows';

/* parked_counts() returns what is behind acme_trading_parked_messages_total in P. */
CREATE FUNCTION acme_outbox.parked_counts()
RETURNS TABLE (inbox name, consumer text, event_type text, reason text,
	parked bigint, still_open bigint, last_parked_at timestamptz)
LANGUAGE C VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'acme_outbox_parked_counts';
COMMENT ON FUNCTION acme_outbox.parked_counts() IS
	'parked messages of all inboxes by consumer, event type and reason';

CREATE VIEW acme_outbox.parked_open AS SELECT * FROM acme_outbox.parked_rows();
COMMENT ON VIEW acme_outbox.parked_open IS
	'parked messages of all inboxes that nobody has replayed or discarded yet';
COMMENT ON COLUMN acme_outbox.parked_open.trace_id IS
	'the message''s header.traceId: what came before is in the outboxes under the same one';
