/*
 * entry_insert.h
 *		Inserts a row into outbox_entry.
 */
#ifndef ACME_OUTBOX_ENTRY_INSERT_H
#define ACME_OUTBOX_ENTRY_INSERT_H

/* what publish decides of a new entry; the rest is the same for all */
enum
{
	NEW_XID, NEW_CREATED_AT, NEW_EVENT_ID, NEW_JOB, NEW_ORIGIN, NEW_TOPIC, NEW_ROUTING_KEY,
	NEW_MESSAGE_KEY, NEW_EVENT_NAME, NEW_TENANT_ID, NEW_TRACE_ID, NEW_TRACEPARENT, NEW_HEADERS,
	NEW_PAYLOAD, NEW_PAYLOAD_HASH, NEW_NOT_BEFORE, NEW_COUNT
};

/* As SPI has it: 'n' is null, a space is not. */
typedef struct NewEntry
{
	Datum		values[NEW_COUNT];
	char		nulls[NEW_COUNT];
} NewEntry;

extern void entry_insert(NewEntry *entry);

/* False if the event id is taken.  Needs an SPI connection. */
extern bool entry_insert_once(NewEntry *entry);

#endif							/* ACME_OUTBOX_ENTRY_INSERT_H */
