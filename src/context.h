/*
 * context.h
 *		The transaction's context: tenant, trace, locale.
 */
#ifndef ACME_OUTBOX_CONTEXT_H
#define ACME_OUTBOX_CONTEXT_H

/* True while a duty or an operator's call reads a service's tables as their owner. */
extern bool context_all_tenants;

extern const char *context_tenant(void);
extern void context_tenant_missing(void) pg_attribute_noreturn();
extern void context_set(const char *name, const char *value);

#endif							/* ACME_OUTBOX_CONTEXT_H */
