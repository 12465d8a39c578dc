/*
 * envelope.h
 *		The canonical message: header and body (G 3).
 */
#ifndef ACME_OUTBOX_ENVELOPE_H
#define ACME_OUTBOX_ENVELOPE_H

#include "lib/stringinfo.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

typedef struct Envelope
{
	pg_uuid_t	event_id;
	const char *trace_id;
	const char *schema_version;
	const char *origin;
	TimestampTz created_at;
	const char *locale;			/* NULL: left out */
	const char *aggregate;		/* NULL: rendered as null */
	const char *event_name;
	const char *kind;			/* EVENT or COMMAND */
	const char *payload;		/* valid JSON, kept byte by byte */
	int			payload_len;
} Envelope;

extern void envelope_render(StringInfo out, const Envelope *envelope);
extern void envelope_new_event_id(pg_uuid_t *id, TimestampTz now);
extern void envelope_check(const Envelope *envelope);
extern void envelope_check_event_name(const char *name);

#endif							/* ACME_OUTBOX_ENVELOPE_H */
