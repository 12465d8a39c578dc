/*
 * HTTP idempotency keys (docs/idempotency.md).  P 2.2.
 *
 * The table is one per inbox, in the schema that acme_outbox.inbox_schema names; the
 * functions run with the caller's rights on it.
 */

/*
 * create_idempotency_table(schema, tenancy) returns void
 *
 *	 Makes the table idempotency_key in a schema; create_inbox() calls it.
 *
 *	 schema   exists; the caller may create in it, and owns the table
 *	 tenancy  none, or required: then every row is visible to its own tenant only, and
 *	          a transaction without a tenant fails (OX207), the owner's too
 *
 *	 Errors: OX301 for another tenancy; 42P07 where there is one.
 */
CREATE FUNCTION acme_outbox.create_idempotency_table(schema name, tenancy text DEFAULT 'none')
RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF tenancy IS NULL OR tenancy NOT IN ('none', 'required') THEN
		RAISE EXCEPTION 'unknown tenancy'
			USING ERRCODE = 'OX301', HINT = 'Tenancy is none or required.';
	END IF;
	EXECUTE format($ddl$
		CREATE TABLE %1$I.idempotency_key (
			completed_at    timestamptz,
			created_at      timestamptz NOT NULL,
			in_flight_until timestamptz NOT NULL,
			expires_at      timestamptz NOT NULL,
			executions      integer NOT NULL DEFAULT 1,
			id              uuid PRIMARY KEY DEFAULT pg_catalog.gen_random_uuid(),
			tenant_id       text NOT NULL DEFAULT '',
			endpoint        text NOT NULL,
			key             text NOT NULL,
			payload_hash    text NOT NULL,
			stored_response jsonb,
			UNIQUE (tenant_id, endpoint, key)
		) WITH (fillfactor = 70);
		CREATE INDEX idempotency_key_expires ON %1$I.idempotency_key (expires_at);
		REVOKE ALL ON %1$I.idempotency_key FROM PUBLIC;
		COMMENT ON TABLE %1$I.idempotency_key IS
			'requests by their Idempotency-Key; written by idempotency_begin() and _complete()';
		COMMENT ON COLUMN %1$I.idempotency_key.id IS 'execution that the row stands for';
		COMMENT ON COLUMN %1$I.idempotency_key.tenant_id IS 'empty: none';
		COMMENT ON COLUMN %1$I.idempotency_key.payload_hash IS 'SHA-256 of the request';
		COMMENT ON COLUMN %1$I.idempotency_key.stored_response IS
			'{"status": ..., "body": ...}; no body where the response had none';
		COMMENT ON COLUMN %1$I.idempotency_key.in_flight_until IS
			'not completed and past it: the request may be executed again';
		COMMENT ON COLUMN %1$I.idempotency_key.executions IS
			'how often it was begun without having been completed'
		$ddl$, schema);
	IF tenancy = 'required' THEN
		EXECUTE format($ddl$
			ALTER TABLE %1$I.idempotency_key ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
			CREATE POLICY tenant ON %1$I.idempotency_key
				USING (acme_outbox.tenant_visible(tenant_id))
			$ddl$, schema);
	END IF;
END
$$;
COMMENT ON FUNCTION acme_outbox.create_idempotency_table(name, text) IS
	'make the table of idempotency keys in a schema';

SELECT acme_outbox.create_idempotency_table('acme_outbox', 'none');

/*
 * idempotency_begin(endpoint, key, request, ttl, in_flight_ttl, tenant_id)
 *	 returns (decision, code, status, response, execution)
 *
 *	 Decides what becomes of a request.  Never waits for another one.
 *
 *	 endpoint       what is called, 1-255 bytes: POST /v1/payments
 *	 key            the Idempotency-Key, 1-255 bytes; NULL: bypass
 *	 request        its body; text and bytea are compared by their bytes, json and jsonb
 *	                as jsonb (order and white space do not count); NULL: no body
 *	 ttl            how long the response is kept, from now on
 *	 in_flight_ttl  after which an unfinished request may be executed again
 *	 tenant_id      NULL: the transaction's (context()); '': none
 *
 *	 decision  execute    run it, then idempotency_complete() or _abandon()
 *	           replay     answer with status and response: it ran before
 *	           reuse      answer 409, code IDEMPOTENCY_KEY_REUSE: the key belongs to
 *	                      another request
 *	           in_flight  answer 409, code IDEMPOTENCY_KEY_IN_FLIGHT: it is running
 *	           bypass     run it: it has no key
 *	 execution  of execute: pass it to complete and abandon in another transaction
 *
 *	 Errors: OX301 arguments; OX201 no such table; OX207; 40001 at REPEATABLE READ.
 *	 Safe to repeat.
 */
CREATE FUNCTION acme_outbox.idempotency_begin(endpoint text, key text, request text,
	ttl interval DEFAULT '24 hours', in_flight_ttl interval DEFAULT '60 seconds',
	tenant_id text DEFAULT NULL,
	OUT decision text, OUT code text, OUT status integer, OUT response jsonb,
	OUT execution uuid)
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_idempotency_begin';
COMMENT ON FUNCTION acme_outbox.idempotency_begin(text, text, text, interval, interval, text) IS
	'decide whether a request runs, is answered again, or is refused (body as text)';

CREATE FUNCTION acme_outbox.idempotency_begin(endpoint text, key text, request bytea,
	ttl interval DEFAULT '24 hours', in_flight_ttl interval DEFAULT '60 seconds',
	tenant_id text DEFAULT NULL,
	OUT decision text, OUT code text, OUT status integer, OUT response jsonb,
	OUT execution uuid)
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_idempotency_begin';
COMMENT ON FUNCTION acme_outbox.idempotency_begin(text, text, bytea, interval, interval, text) IS
	'decide whether a request runs, is answered again, or is refused (body as bytes)';

CREATE FUNCTION acme_outbox.idempotency_begin(endpoint text, key text, request json,
	ttl interval DEFAULT '24 hours', in_flight_ttl interval DEFAULT '60 seconds',
	tenant_id text DEFAULT NULL,
	OUT decision text, OUT code text, OUT status integer, OUT response jsonb,
	OUT execution uuid)
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_idempotency_begin_json';
COMMENT ON FUNCTION acme_outbox.idempotency_begin(text, text, json, interval, interval, text) IS
	'decide whether a request runs, is answered again, or is refused (body as json)';

CREATE FUNCTION acme_outbox.idempotency_begin(endpoint text, key text, request jsonb,
	ttl interval DEFAULT '24 hours', in_flight_ttl interval DEFAULT '60 seconds',
	tenant_id text DEFAULT NULL,
	OUT decision text, OUT code text, OUT status integer, OUT response jsonb,
	OUT execution uuid)
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_idempotency_begin_jsonb';
COMMENT ON FUNCTION acme_outbox.idempotency_begin(text, text, jsonb, interval, interval, text) IS
	'decide whether a request runs, is answered again, or is refused (body as jsonb)';

/*
 * idempotency_complete(endpoint, key, status, response, tenant_id, execution) returns void
 *
 *	 Keeps the response of a request that idempotency_begin() had executed.
 *
 *	 endpoint, key, tenant_id  as to idempotency_begin; a NULL key: nothing is done
 *	 status                    HTTP status, 100 to 599
 *	 response                  body, as jsonb, json or text that is JSON; NULL: none
 *	 execution                 what idempotency_begin returned; needed in a transaction
 *	                           of its own once the request was begun a second time
 *
 *	 Errors: OX301 arguments; OX302 not in flight; OX303 another execution began;
 *	 OX201; OX207.
 *	 Safe to repeat: the same response again is no error.
 */
CREATE FUNCTION acme_outbox.idempotency_complete(endpoint text, key text, status integer,
	response jsonb DEFAULT NULL, tenant_id text DEFAULT NULL, execution uuid DEFAULT NULL)
RETURNS void
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_idempotency_complete';
COMMENT ON FUNCTION acme_outbox.idempotency_complete(text, text, integer, jsonb, text, uuid) IS
	'keep the response of an executed request for those that come again';

CREATE FUNCTION acme_outbox.idempotency_complete(endpoint text, key text, status integer,
	response json, tenant_id text DEFAULT NULL, execution uuid DEFAULT NULL)
RETURNS void
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_idempotency_complete_text';
COMMENT ON FUNCTION acme_outbox.idempotency_complete(text, text, integer, json, text, uuid) IS
	'keep the response of an executed request for those that come again (body as json)';

CREATE FUNCTION acme_outbox.idempotency_complete(endpoint text, key text, status integer,
	response text, tenant_id text DEFAULT NULL, execution uuid DEFAULT NULL)
RETURNS void
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_idempotency_complete_text';
COMMENT ON FUNCTION acme_outbox.idempotency_complete(text, text, integer, text, text, uuid) IS
	'keep the response of an executed request for those that come again (body as text)';

/*
 * idempotency_abandon(endpoint, key, tenant_id, execution) returns boolean
 *
 *	 Gives a request up that was begun in another transaction: it may be executed again
 *	 at once.  A rollback of the transaction that began it does the same.
 *	 Returns false where this execution is not in flight.
 *	 Errors: OX301 arguments; OX201; OX207.  Safe to repeat.
 */
CREATE FUNCTION acme_outbox.idempotency_abandon(endpoint text, key text,
	tenant_id text DEFAULT NULL, execution uuid DEFAULT NULL)
RETURNS boolean
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_idempotency_abandon';
COMMENT ON FUNCTION acme_outbox.idempotency_abandon(text, text, text, uuid) IS
	'give a request up that was begun: it may be executed again';
