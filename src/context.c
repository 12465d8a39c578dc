/*
 * context.c
 *		The transaction's context: tenant, trace, locale.
 *
 * The context is kept in settings with the life of SET LOCAL, so that it ends with the
 * transaction whatever a pooler does with the connection; '' means none.
 *
 * Tables of an inbox that requires a tenant have one policy, which calls
 * tenant_visible(): rows of the transaction's tenant.  Without a tenant it raises
 * rather than showing nothing.  Duties and operators' calls work for all tenants: they
 * set a flag that no SQL can reach, for as long as they act as the tables' owner.
 */
#include "acme_outbox.h"

#include "context.h"
#include "guc.h"
#include "trace.h"
#include "utils/builtins.h"
#include "utils/guc.h"

PG_FUNCTION_INFO_V1(acme_outbox_context);
PG_FUNCTION_INFO_V1(acme_outbox_trace_id);
PG_FUNCTION_INFO_V1(acme_outbox_traceparent);
PG_FUNCTION_INFO_V1(acme_outbox_tenant);
PG_FUNCTION_INFO_V1(acme_outbox_tenant_visible);

bool		context_all_tenants = false;

/* The transaction's tenant; NULL: none. */
const char *
context_tenant(void)
{
	return guc_tenant_id[0] == '\0' ? NULL : guc_tenant_id;
}

/* Sets one of the user's own settings, as SET LOCAL does. */
void
context_set(const char *name, const char *value)
{
	(void) set_config_option(name, value, PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_LOCAL, true, 0, false);
}

static void
set_from_argument(FunctionCallInfo fcinfo, int i, const char *name)
{
	const char *value;

	if (PG_ARGISNULL(i))
		return;
	value = text_to_cstring(PG_GETARG_TEXT_PP(i));
	if (strlen(value) > MAX_SHORT_STRING)
		ereport(ERROR,
				(errcode(ERRCODE_OX_INBOX_ARGUMENT),
				 errmsg("%s is longer than %d bytes", name, MAX_SHORT_STRING)));
	context_set(name, value);
}

/* context(tenant_id text, traceparent text, locale text, trace_id text) RETURNS void */
Datum
acme_outbox_context(PG_FUNCTION_ARGS)
{
	set_from_argument(fcinfo, 0, "acme_outbox.tenant_id");
	set_from_argument(fcinfo, 1, "acme_outbox.traceparent");
	set_from_argument(fcinfo, 2, "acme_outbox.locale");
	set_from_argument(fcinfo, 3, "acme_outbox.trace_id");
	PG_RETURN_VOID();
}

/* trace_id() RETURNS text */
Datum
acme_outbox_trace_id(PG_FUNCTION_ARGS)
{
	Trace		trace;

	trace_continue(&trace);
	PG_RETURN_TEXT_P(cstring_to_text(trace.trace_id));
}

/* traceparent() RETURNS text */
Datum
acme_outbox_traceparent(PG_FUNCTION_ARGS)
{
	Trace		trace;

	trace_continue(&trace);
	if (trace.traceparent == NULL)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(trace.traceparent));
}

/* tenant() RETURNS text */
Datum
acme_outbox_tenant(PG_FUNCTION_ARGS)
{
	const char *tenant = context_tenant();

	if (tenant == NULL)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(tenant));
}

void
context_tenant_missing(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_OX_TENANT),
			 errmsg("no tenant is set"),
			 errdetail("This inbox requires a tenant, and the transaction has none."),
			 errhint("Set it in the same transaction: SELECT acme_outbox.context('tenant')")));
}

/* tenant_visible(tenant_id text) RETURNS boolean: the policy of tenants' tables */
Datum
acme_outbox_tenant_visible(PG_FUNCTION_ARGS)
{
	const char *tenant = context_tenant();

	if (context_all_tenants)
		PG_RETURN_BOOL(true);
	if (tenant == NULL)
		context_tenant_missing();
	if (PG_ARGISNULL(0))
		PG_RETURN_BOOL(false);
	PG_RETURN_BOOL(strcmp(text_to_cstring(PG_GETARG_TEXT_PP(0)), tenant) == 0);
}
