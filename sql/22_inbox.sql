/*
 * The consumer's side: context, inbox guard, handlers (docs/inbox.md).  P 2, G 7.
 *
 * All of it but the administrator's functions runs with the caller's rights.
 */

/*
 * context(tenant_id, traceparent, locale, trace_id) returns void
 *
 *	 Sets what the transaction works for, until it ends: the tenant, the trace that
 *	 published events continue, their locale.  G 13.
 *	 traceparent  W3C trace context   trace_id  any correlation id; counts before the one
 *	 in traceparent
 *	 NULL leaves a part as it is, '' sets it to none.
 *	 Errors: OX204 longer than 255 bytes.  Safe to repeat.
 */
CREATE FUNCTION acme_outbox.context(tenant_id text DEFAULT NULL,
	traceparent text DEFAULT NULL, locale text DEFAULT NULL, trace_id text DEFAULT NULL)
RETURNS void
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_context';
COMMENT ON FUNCTION acme_outbox.context(text, text, text, text) IS
	'set tenant, trace and locale for the rest of the transaction';

/*
 * trace_id() returns text, traceparent() returns text
 *
 *	 The trace that events published now continue: the transaction's, else that of the
 *	 message being handled; where there is neither, one begins for the rest of the
 *	 transaction.  For what goes on elsewhere, another transaction, a job or a call over
 *	 HTTP: keep it, and set it there with context().  G 13.
 *	 traceparent() is NULL where the trace id is not a W3C one.
 *	 Errors: OX005 acme_outbox.traceparent or trace_id is malformed.  Safe to repeat.
 */
CREATE FUNCTION acme_outbox.trace_id() RETURNS text
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_trace_id';
COMMENT ON FUNCTION acme_outbox.trace_id() IS
	'trace id of events published now; one begins where there is none';
CREATE FUNCTION acme_outbox.traceparent() RETURNS text
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_traceparent';
COMMENT ON FUNCTION acme_outbox.traceparent() IS
	'W3C trace context of events published now; one begins where there is none';

/* tenant() returns text: the transaction's tenant; NULL: none. */
CREATE FUNCTION acme_outbox.tenant() RETURNS text
LANGUAGE C STABLE
AS 'MODULE_PATHNAME', 'acme_outbox_tenant';
COMMENT ON FUNCTION acme_outbox.tenant() IS 'tenant of the transaction; NULL: none';

/*
 * tenant_visible(tenant_id) returns boolean
 *
 *	 The policy of tables that require a tenant: is this the transaction's?
 *	 True for the duties and for operators' calls.
 *	 Errors: OX207 the transaction has no tenant.
 */
CREATE FUNCTION acme_outbox.tenant_visible(tenant_id text) RETURNS boolean
LANGUAGE C STABLE
AS 'MODULE_PATHNAME', 'acme_outbox_tenant_visible';
COMMENT ON FUNCTION acme_outbox.tenant_visible(text) IS
	'policy: does a row belong to the transaction''s tenant';

/*
 * Which schemas have an inbox.  By name, so that a dump can be restored anywhere.
 */
CREATE TABLE acme_outbox.inbox (
	schema     name PRIMARY KEY,
	tenancy    text NOT NULL CHECK (tenancy IN ('none', 'required')),
	owner      name NOT NULL,
	created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE acme_outbox.inbox IS 'schemas with an inbox; written by create_inbox()';

/*
 * create_inbox_tables(schema, tenancy) returns void: the tables that are not there, in P's
 * shapes.
 */
CREATE FUNCTION acme_outbox.create_inbox_tables(schema name, tenancy text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF to_regclass(format('%I.processed_event', schema)) IS NULL THEN
		/* A scan by processed_at is what retention does. */
		EXECUTE format('CREATE TABLE %I.processed_event (
			consumer     text NOT NULL,
			event_id     text NOT NULL,
			processed_at timestamptz NOT NULL DEFAULT now(),
			CONSTRAINT processed_event_pkey PRIMARY KEY (consumer, event_id))', schema);
		EXECUTE format('CREATE INDEX processed_event_processed_at
			ON %I.processed_event (processed_at)', schema);
		EXECUTE format('COMMENT ON TABLE %I.processed_event IS %L', schema,
			'which consumer has processed which event');
	END IF;
	IF to_regclass(format('%I.parked_message', schema)) IS NULL THEN
		/* No CHECK: its error message would print the payload. */
		EXECUTE format('CREATE TABLE %I.parked_message (
			id                 uuid PRIMARY KEY DEFAULT gen_random_uuid(),
			tenant_id          text,
			consumer           text NOT NULL,
			event_id           text NOT NULL,
			event_type         text,
			source_entity_type text,
			source_entity_id   text,
			reason             text NOT NULL,
			payload            jsonb NOT NULL,
			message            jsonb,
			guarded            boolean NOT NULL DEFAULT false,
			parked_at          timestamptz NOT NULL DEFAULT now(),
			resolved_at        timestamptz)', schema);
		EXECUTE format('CREATE INDEX parked_message_event_id
			ON %I.parked_message (event_id)', schema);
		EXECUTE format('CREATE INDEX parked_message_open
			ON %I.parked_message (parked_at) WHERE resolved_at IS NULL', schema);
		EXECUTE format('COMMENT ON TABLE %I.parked_message IS %L', schema,
			'messages delivered fine that the domain cannot accept; append-only');
		EXECUTE format('COMMENT ON COLUMN %I.parked_message.guarded IS %L', schema,
			'its own transaction recorded the event as processed');
		IF tenancy = 'required' THEN
			EXECUTE format('ALTER TABLE %I.parked_message
				ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', schema);
			EXECUTE format('CREATE POLICY tenant ON %I.parked_message
				USING (acme_outbox.tenant_visible(tenant_id))
				WITH CHECK (acme_outbox.tenant_visible(tenant_id))', schema);
		END IF;
	END IF;
	IF to_regclass(format('%I.parked_resolution', schema)) IS NULL THEN
		EXECUTE format('CREATE TABLE %I.parked_resolution (
			id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
			parked_id   uuid NOT NULL,
			action      text NOT NULL,
			outcome     text NOT NULL,
			why         text,
			actor       name NOT NULL,
			role_name   name,
			resolved_at timestamptz NOT NULL DEFAULT clock_timestamp())', schema);
		EXECUTE format('CREATE INDEX parked_resolution_parked_id
			ON %I.parked_resolution (parked_id)', schema);
		EXECUTE format('COMMENT ON TABLE %I.parked_resolution IS %L', schema,
			'what became of parked messages; append-only');
	END IF;
	IF to_regclass(format('%I.consumer_attempt', schema)) IS NULL THEN
		EXECUTE format('CREATE TABLE %I.consumer_attempt (
			consumer text NOT NULL,
			event_id text NOT NULL,
			attempts integer NOT NULL DEFAULT 1,
			first_at timestamptz NOT NULL DEFAULT clock_timestamp(),
			last_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
			CONSTRAINT consumer_attempt_pkey PRIMARY KEY (consumer, event_id))', schema);
		EXECUTE format('CREATE INDEX consumer_attempt_last_at
			ON %I.consumer_attempt (last_at)', schema);
		EXECUTE format('COMMENT ON TABLE %I.consumer_attempt IS %L', schema,
			'attempts at redelivered messages, counted before each is run');
	END IF;
END
$$;
COMMENT ON FUNCTION acme_outbox.create_inbox_tables(name, text) IS
	'what create_inbox makes in a schema, without registering it';

/* inbox_is_whole(schema) returns boolean: has it all tables of an inbox? */
CREATE FUNCTION acme_outbox.inbox_is_whole(schema name) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
	SELECT bool_and(to_regclass(format('%I.%I', schema, t.name)) IS NOT NULL)
	FROM unnest(ARRAY['processed_event', 'parked_message', 'parked_resolution',
					  'consumer_attempt', 'idempotency_key']) AS t (name)
$$;
COMMENT ON FUNCTION acme_outbox.inbox_is_whole(name) IS
	'has a schema all tables of an inbox';

/* inbox_own(schema, owner) returns void: hands new tables over to the schema's owner. */
CREATE FUNCTION acme_outbox.inbox_own(schema name, owner name) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	table_name text;
BEGIN
	FOREACH table_name IN ARRAY ARRAY['processed_event', 'parked_message',
		'parked_resolution', 'consumer_attempt', 'idempotency_key'] LOOP
		IF to_regclass(format('%I.%I', schema, table_name)) IS NOT NULL THEN
			EXECUTE format('ALTER TABLE %I.%I OWNER TO %I', schema, table_name, owner);
		END IF;
	END LOOP;
END
$$;
COMMENT ON FUNCTION acme_outbox.inbox_own(name, name) IS
	'make a role the owner of an inbox''s tables';

/*
 * create_inbox(schema, tenancy) returns void
 *
 *	 Makes a service's inbox in its schema: processed_event, parked_message,
 *	 parked_resolution, consumer_attempt, idempotency_key.  P 2: in the service's own
 *	 schema.  A schema that does not exist is made; the tables belong to its owner.  Of an
 *	 inbox that exists, what was dropped is made again, with its consumers' grants.
 *	 tenancy  none; required: parked messages are seen by their tenant only
 *	 Errors: OX201 the inbox exists with another tenancy, or a table of that name does;
 *	 OX204 unknown tenancy.
 *	 For the administrator.  Safe to repeat.
 */
CREATE FUNCTION acme_outbox.create_inbox(schema name, tenancy text DEFAULT 'none')
RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	registered    acme_outbox.inbox;
	owner         name;
	consumer      name;
	foreign_table name;
BEGIN
	IF schema IS NULL OR tenancy IS NULL OR tenancy NOT IN ('none', 'required') THEN
		RAISE EXCEPTION 'schema is null, or tenancy is not none or required'
			USING ERRCODE = 'OX204';
	END IF;
	SELECT * INTO registered FROM acme_outbox.inbox i WHERE i.schema = create_inbox.schema;
	IF registered.tenancy <> tenancy THEN
		RAISE EXCEPTION 'schema "%" has an inbox with tenancy %', schema, registered.tenancy
			USING ERRCODE = 'OX201',
				  HINT = 'The tenancy of an inbox cannot be changed.';
	END IF;
	IF registered.schema IS NOT NULL AND acme_outbox.inbox_is_whole(schema) THEN
		RETURN;
	END IF;
	SELECT t.name INTO foreign_table
		FROM unnest(ARRAY['processed_event', 'parked_message', 'parked_resolution',
						  'consumer_attempt']) AS t (name)
		WHERE to_regclass(format('%I.%I', schema, t.name)) IS NOT NULL LIMIT 1;
	IF registered.schema IS NULL AND foreign_table IS NOT NULL THEN
		RAISE EXCEPTION 'schema "%" has a table "%" that is no inbox''s', schema, foreign_table
			USING ERRCODE = 'OX201',
				  HINT = 'Rename it, or give the inbox a schema of its own.';
	END IF;
	IF to_regnamespace(quote_ident(schema)) IS NULL THEN
		EXECUTE format('CREATE SCHEMA %I', schema);
	END IF;
	SELECT pg_get_userbyid(n.nspowner) INTO owner
		FROM pg_namespace n WHERE n.nspname = schema;
	PERFORM acme_outbox.create_inbox_tables(schema, tenancy);
	IF to_regprocedure('acme_outbox.create_idempotency_table(name, text)') IS NOT NULL
			AND to_regclass(format('%I.idempotency_key', schema)) IS NULL THEN
		EXECUTE 'SELECT acme_outbox.create_idempotency_table($1, $2)' USING schema, tenancy;
	END IF;
	PERFORM acme_outbox.inbox_own(schema, owner);
	IF tenancy = 'required' THEN
		PERFORM acme_outbox.apply_privileges(owner, 'owner', true);
	END IF;
	INSERT INTO acme_outbox.inbox AS i (schema, tenancy, owner)
		VALUES (create_inbox.schema, create_inbox.tenancy, owner)
		ON CONFLICT ON CONSTRAINT inbox_pkey DO UPDATE SET owner = excluded.owner;
	IF registered.schema IS NOT NULL THEN
		FOR consumer IN SELECT g.role_name FROM acme_outbox.consumer_grant g
				JOIN pg_roles r ON r.rolname = g.role_name
				WHERE g.schema = create_inbox.schema LOOP
			PERFORM acme_outbox.grant_consumer(consumer, schema);
		END LOOP;
	END IF;
END
$$;
COMMENT ON FUNCTION acme_outbox.create_inbox(name, text) IS
	'make a service''s inbox in its schema';

/* The default inbox, without tenants. */
SELECT acme_outbox.create_inbox('acme_outbox');

/*
 * inbox_accept(consumer, event_id) returns boolean
 *
 *	 The guard of record-then-apply (P 2.1): records that the consumer processes the
 *	 event, in the transaction that makes the change.
 *	 consumer  who; each has its own   event_id  text or uuid, 1 to 255 bytes; one per
 *	 change where an event makes several: eventId:lineItemId
 *	 Result: true, the first: make the change; false, a duplicate: make none.
 *	 Waits for another transaction that has just recorded the same.
 *	 Errors: OX201, OX204; 40001 at REPEATABLE READ: try again.
 */
CREATE FUNCTION acme_outbox.inbox_accept(consumer text, event_id text) RETURNS boolean
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_inbox_accept';
CREATE FUNCTION acme_outbox.inbox_accept(consumer text, event_id uuid) RETURNS boolean
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_inbox_accept_uuid';
COMMENT ON FUNCTION acme_outbox.inbox_accept(text, text) IS
	'record an event as processed in this transaction; false: it was before';
COMMENT ON FUNCTION acme_outbox.inbox_accept(text, uuid) IS
	'record an event as processed in this transaction; false: it was before';

/*
 * inbox_record(consumer, event_id) returns void
 *
 *	 The other legal order, apply-then-record (P 2.1): for a consumer whose changes are
 *	 idempotent by themselves and span more than this transaction.
 *	 Errors: OX201, OX204.  Safe to repeat.
 */
CREATE FUNCTION acme_outbox.inbox_record(consumer text, event_id text) RETURNS void
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_inbox_record';
CREATE FUNCTION acme_outbox.inbox_record(consumer text, event_id uuid) RETURNS void
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_inbox_record_uuid';
COMMENT ON FUNCTION acme_outbox.inbox_record(text, text) IS
	'record an event as processed after its change was made';
COMMENT ON FUNCTION acme_outbox.inbox_record(text, uuid) IS
	'record an event as processed after its change was made';

/*
 * inbox_attempt(consumer, event_id, max_attempts) returns (attempts, allowed)
 *
 *	 Counts an attempt at a message.  Call and commit it before a redelivered message
 *	 is run, so that one that ends its backend is counted too.
 *	 Result: attempts so far, this one included; allowed: not more than max_attempts.
 *	 Errors: OX201, OX204.
 */
CREATE FUNCTION acme_outbox.inbox_attempt(consumer text, event_id text,
	max_attempts integer DEFAULT 5, OUT attempts integer, OUT allowed boolean)
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_inbox_attempt';
CREATE FUNCTION acme_outbox.inbox_attempt(consumer text, event_id uuid,
	max_attempts integer DEFAULT 5, OUT attempts integer, OUT allowed boolean)
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_inbox_attempt_uuid';
COMMENT ON FUNCTION acme_outbox.inbox_attempt(text, text, integer) IS
	'count an attempt at a message before it is run; is it one too many?';
COMMENT ON FUNCTION acme_outbox.inbox_attempt(text, uuid, integer) IS
	'count an attempt at a message before it is run; is it one too many?';

/*
 * message() returns jsonb
 *
 *	 What is being handled: what the transport said (routing_key, exchange, headers,
 *	 queue, attempt, redelivered), and consumer and event_id.
 *	 Result: NULL outside a handler.
 */
CREATE FUNCTION acme_outbox.message() RETURNS jsonb
LANGUAGE C STABLE
AS 'MODULE_PATHNAME', 'acme_outbox_message';
COMMENT ON FUNCTION acme_outbox.message() IS
	'the message being handled, as the transport sees it; NULL outside a handler';

/*
 * inbox_process(consumer, envelope, handler, message) returns text
 *
 *	 Guard, handler and parking in one.  The handler runs with the caller's rights;
 *	 settings that it changes end with it.
 *	 envelope  the message: header and body   handler  schema.function, a function of
 *	 one jsonb (the envelope) that returns void   message  what message() shows: jsonb,
 *	 or text or json where the envelope is, too
 *	 Result: applied, duplicate or parked.
 *	 Errors: the handler's own; OX201-OX204.  Then nothing is left of it.
 *	 Safe to repeat: that is what it is for.
 */
CREATE FUNCTION acme_outbox.inbox_process(consumer text, envelope text, handler text,
	message jsonb DEFAULT NULL) RETURNS text
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_inbox_process';
CREATE FUNCTION acme_outbox.inbox_process(consumer text, envelope json, handler text,
	message jsonb DEFAULT NULL) RETURNS text
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_inbox_process';
CREATE FUNCTION acme_outbox.inbox_process(consumer text, envelope text, handler text,
	message text) RETURNS text
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_inbox_process_text';
CREATE FUNCTION acme_outbox.inbox_process(consumer text, envelope json, handler text,
	message json) RETURNS text
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_inbox_process_text';
CREATE FUNCTION acme_outbox.inbox_process(consumer text, envelope json, handler text,
	message text) RETURNS text
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_inbox_process_text';
CREATE FUNCTION acme_outbox.inbox_process(consumer text, envelope jsonb, handler text,
	message jsonb DEFAULT NULL) RETURNS text
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_inbox_process_jsonb';
COMMENT ON FUNCTION acme_outbox.inbox_process(text, text, text, jsonb) IS
	'handle a message once; a failing handler raises';
COMMENT ON FUNCTION acme_outbox.inbox_process(text, json, text, jsonb) IS
	'handle a message once; a failing handler raises';
COMMENT ON FUNCTION acme_outbox.inbox_process(text, text, text, text) IS
	'handle a message once; a failing handler raises';
COMMENT ON FUNCTION acme_outbox.inbox_process(text, json, text, json) IS
	'handle a message once; a failing handler raises';
COMMENT ON FUNCTION acme_outbox.inbox_process(text, json, text, text) IS
	'handle a message once; a failing handler raises';
COMMENT ON FUNCTION acme_outbox.inbox_process(text, jsonb, text, jsonb) IS
	'handle a message once; a failing handler raises';

/*
 * inbox_try_process(consumer, envelope, handler, message)
 *		returns (outcome, sqlstate, error, context)
 *
 *	 The same, but reports a failing handler: outcome failed, and of its error SQLSTATE,
 *	 message and context.  invalid: no envelope.  A deferred constraint fails here, too.
 *	 Errors: what is not the message's fault is raised: cancel and shutdown (57014,
 *	 57P0x), 40001 and 40P01 (try again), classes 53 and 58; OX201, OX202, OX204.
 */
CREATE FUNCTION acme_outbox.inbox_try_process(consumer text, envelope text, handler text,
	message jsonb DEFAULT NULL,
	OUT outcome text, OUT sqlstate text, OUT error text, OUT context text)
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_inbox_try_process';
CREATE FUNCTION acme_outbox.inbox_try_process(consumer text, envelope json, handler text,
	message jsonb DEFAULT NULL,
	OUT outcome text, OUT sqlstate text, OUT error text, OUT context text)
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_inbox_try_process';
CREATE FUNCTION acme_outbox.inbox_try_process(consumer text, envelope text, handler text,
	message text, OUT outcome text, OUT sqlstate text, OUT error text, OUT context text)
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_inbox_try_process_text';
CREATE FUNCTION acme_outbox.inbox_try_process(consumer text, envelope json, handler text,
	message json, OUT outcome text, OUT sqlstate text, OUT error text, OUT context text)
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_inbox_try_process_text';
CREATE FUNCTION acme_outbox.inbox_try_process(consumer text, envelope json, handler text,
	message text, OUT outcome text, OUT sqlstate text, OUT error text, OUT context text)
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_inbox_try_process_text';
CREATE FUNCTION acme_outbox.inbox_try_process(consumer text, envelope jsonb, handler text,
	message jsonb DEFAULT NULL,
	OUT outcome text, OUT sqlstate text, OUT error text, OUT context text)
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_inbox_try_process_jsonb';
COMMENT ON FUNCTION acme_outbox.inbox_try_process(text, text, text, jsonb) IS
	'handle a message once; a failing handler is reported';
COMMENT ON FUNCTION acme_outbox.inbox_try_process(text, json, text, jsonb) IS
	'handle a message once; a failing handler is reported';
COMMENT ON FUNCTION acme_outbox.inbox_try_process(text, text, text, text) IS
	'handle a message once; a failing handler is reported';
COMMENT ON FUNCTION acme_outbox.inbox_try_process(text, json, text, json) IS
	'handle a message once; a failing handler is reported';
COMMENT ON FUNCTION acme_outbox.inbox_try_process(text, json, text, text) IS
	'handle a message once; a failing handler is reported';
COMMENT ON FUNCTION acme_outbox.inbox_try_process(text, jsonb, text, jsonb) IS
	'handle a message once; a failing handler is reported';

/*
 * inbox_try_process_batch(consumer, envelopes, handler, messages)
 *		returns (ordinal, outcome, sqlstate, message, context)
 *
 *	 The same for many messages in one transaction: one row per envelope, in the order
 *	 given, which is also the order they are handled in.  What fails leaves nothing, and
 *	 the others are applied.  A second copy of an event id is a duplicate.
 *	 envelopes  an array of text, json or jsonb; or an array's text '{...}', which is what
 *	 a literal and an array of a driver that sends no types are taken for
 *	 messages  as many as envelopes, or NULL
 *	 Outcome later: not handled, 32 subtransactions are enough; deliver it again.
 *	 Commit, then acknowledge.
 */
CREATE FUNCTION acme_outbox.inbox_try_process_batch(consumer text, envelopes text[],
	handler text, messages jsonb[] DEFAULT NULL)
RETURNS TABLE (ordinal integer, outcome text, sqlstate text, message text, context text)
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_inbox_try_process_batch';
CREATE FUNCTION acme_outbox.inbox_try_process_batch(consumer text, envelopes json[],
	handler text, messages jsonb[] DEFAULT NULL)
RETURNS TABLE (ordinal integer, outcome text, sqlstate text, message text, context text)
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_inbox_try_process_batch_json';
CREATE FUNCTION acme_outbox.inbox_try_process_batch(consumer text, envelopes text,
	handler text, messages jsonb[] DEFAULT NULL)
RETURNS TABLE (ordinal integer, outcome text, sqlstate text, message text, context text)
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_inbox_try_process_batch_literal';
CREATE FUNCTION acme_outbox.inbox_try_process_batch(consumer text, envelopes jsonb[],
	handler text, messages jsonb[] DEFAULT NULL)
RETURNS TABLE (ordinal integer, outcome text, sqlstate text, message text, context text)
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_inbox_try_process_batch_jsonb';
COMMENT ON FUNCTION acme_outbox.inbox_try_process_batch(text, text[], text, jsonb[]) IS
	'handle many messages once each in one transaction; one outcome per message';
COMMENT ON FUNCTION acme_outbox.inbox_try_process_batch(text, json[], text, jsonb[]) IS
	'handle many messages once each in one transaction; one outcome per message';
COMMENT ON FUNCTION acme_outbox.inbox_try_process_batch(text, text, text, jsonb[]) IS
	'handle many messages once each in one transaction; one outcome per message';
COMMENT ON FUNCTION acme_outbox.inbox_try_process_batch(text, jsonb[], text, jsonb[]) IS
	'handle many messages once each in one transaction; one outcome per message';
