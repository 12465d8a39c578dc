/*
 * inbox.h
 *		A service's inbox: which one, its statements, whose rights.
 */
#ifndef ACME_OUTBOX_INBOX_H
#define ACME_OUTBOX_INBOX_H

#include "plans.h"
#include "utils/jsonb.h"

/* Statements of an inbox, planned once per session and inbox. */
typedef enum InboxStatement
{
	INBOX_ACCEPT,
	INBOX_ACCEPT_ALL,
	INBOX_FORGET,
	INBOX_ATTEMPT,
	INBOX_GUARD_TIME,
	INBOX_LOCK_GUARD,
	INBOX_PARK,
	INBOX_TAKE_PARKED,
	INBOX_IS_APPLIED,
	INBOX_RESOLVE,
	INBOX_RECORD,
	INBOX_FIND_PARKED,
	INBOX_LIST_PARKED,
	INBOX_COUNT_PARKED,
	INBOX_PURGE_PROCESSED,
	INBOX_PURGE_ATTEMPTS,
	INBOX_STATEMENTS
} InboxStatement;

typedef struct Inbox
{
	NameData	schema;
	Oid			processed_event;	/* the table it was checked with */
	KeptPlan	plans[INBOX_STATEMENTS];
} Inbox;

extern Inbox *inbox_current(void);
extern Inbox *inbox_find(const char *schema);
extern List *inbox_schemas(void);
extern Oid	inbox_table(const char *schema, const char *table);

extern uint64 inbox_run(Inbox *inbox, InboxStatement statement, Datum *values,
						const char *nulls, int expected);
extern bool inbox_accept(Inbox *inbox, const char *consumer, const char *event_id);
extern void inbox_check_names(const char *consumer, const char *event_id);
extern const char *inbox_arg(FunctionCallInfo fcinfo, int i);

/* src/inbox_rights.c */
typedef void (*InboxWork) (void *argument);
extern Oid	inbox_table_owner(const Inbox *inbox, const char *table);
extern void inbox_as_owner(Oid owner, InboxWork work, void *argument);
extern void inbox_as_role(Oid role, InboxWork work, void *argument);
extern bool inbox_protected(InboxWork work, void *argument, ErrorData **error);

#endif							/* ACME_OUTBOX_INBOX_H */
