/*
 * The consumer's side: context, inbox guard, handlers (docs/inbox.md).  P 2, G 7.
 *
 * All of it but the administrator's functions runs with the caller's rights.
 */

/*
 * context(tenant_id, traceparent, locale) returns void
 *
 *	 Sets what the transaction works for, until it ends: the tenant, the trace that
 *	 published events continue, their locale.
 *	 NULL leaves a part as it is, '' sets it to none.
 *	 Errors: OX204 longer than 255 bytes.  Safe to repeat.
 */
CREATE FUNCTION acme_outbox.context(tenant_id text DEFAULT NULL,
	traceparent text DEFAULT NULL, locale text DEFAULT NULL)
RETURNS void
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'acme_outbox_context';
COMMENT ON FUNCTION acme_outbox.context(text, text, text) IS
	'set tenant, trace and locale for the rest of the transaction';

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
