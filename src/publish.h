/*
 * publish.h
 *		Writes an event or job into the outbox, in the caller's transaction.
 */
#ifndef ACME_OUTBOX_PUBLISH_H
#define ACME_OUTBOX_PUBLISH_H

#include "utils/jsonb.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

/* What a caller gave; NULL means not given. */
typedef struct PublishRequest
{
	bool		job;			/* JOB, else DOMAIN_EVENT */
	const char *topic;
	const char *routing_key;
	const char *aggregate;
	const char *event_name;
	const char *payload;
	int			payload_len;
	const char *kind;
	const char *trace_id;
	const char *traceparent;
	const char *schema_version;
	const char *locale;
	Jsonb	   *headers;
	const char *tenant_id;
	bool		has_not_before;
	TimestampTz not_before;
	pg_uuid_t  *event_id;
	Jsonb	   *options;
} PublishRequest;

extern pg_uuid_t *publish_entry(PublishRequest *request);
extern const char *publish_origin(void);

#endif							/* ACME_OUTBOX_PUBLISH_H */
