/*
 * projection.h
 *		Projections guarded by last_event_at: what their parts share.
 */
#ifndef ACME_OUTBOX_PROJECTION_H
#define ACME_OUTBOX_PROJECTION_H

#include "duties.h"
#include "executor/spi.h"
#include "lib/ilist.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#define COLUMN_EVENT_AT "last_event_at"
#define COLUMN_EVENT_ID "last_event_id"

/* How a JSON value becomes one of the column's type. */
typedef enum ColumnKind
{
	COLUMN_SCALAR,				/* its text through the type's input function */
	COLUMN_JSON,				/* its JSON text */
	COLUMN_JSONB,				/* as it is */
	COLUMN_NESTED				/* array or row: as jsonb_populate_record does */
} ColumnKind;

typedef struct ProjectionColumn
{
	char	   *name;
	AttrNumber	attnum;
	Oid			type;
	Oid			base_type;
	int32		typmod;
	char	   *type_name;
	ColumnKind	kind;
	bool		domain;
	Oid			ioparam;
	FmgrInfo	input;
	int			key;			/* of a field that is in the key: its place there, else -1 */
} ProjectionColumn;

/* A member of a JSON object. */
typedef struct JsonPair
{
	const char *name;
	int			len;
	JsonbValue	value;
} JsonPair;

/* What a statement does with a row. */
typedef enum ProjectionPlan
{
	PLAN_UPDATE_LATER,			/* the row, if the event's time is later */
	PLAN_UPDATE,				/* the row, if the event is newer */
	PLAN_REFUSES,				/* is there a row, and is it as new as the event? */
	PLAN_INSERT_LATER,			/* a row, or else update it if the time is later */
	PLAN_INSERT,				/* a row, or else update it if the event is newer */
	PLAN_DELETE,				/* the row, if the event is newer */
	PLAN_SEED_UPDATE,			/* the row, unless it is newer: rebuild */
	PLAN_SEED_INSERT,
	PLAN_TOUCH,					/* mark a row as seen: rebuild */
	PLAN_COUNT
} ProjectionPlan;

struct ProjectionTarget;

/* Statements for one set of key and field columns. */
typedef struct ProjectionShape
{
	dlist_node	of_target;
	dlist_node	by_use;
	struct ProjectionTarget *target;
	MemoryContext context;
	int			nkeys;
	int			nfields;
	ProjectionColumn *columns;	/* keys, then fields, in the order of jsonb */
	char	  **equals;			/* per key column: its index's operator, qualified */
	SPIPlanPtr	plans[PLAN_COUNT];
	bool		inserting;		/* the last row it was used for was new */
	unsigned	calls;
} ProjectionShape;

/* A table that events are projected into. */
typedef struct ProjectionTarget
{
	dlist_node	by_use;
	Oid			oid;
	bool		valid;			/* cleared by invalidation */
	int			pins;			/* calls that use it right now */
	MemoryContext context;
	char	   *name;			/* qualified and quoted */
	Oid			event_id_type;	/* uuid or text; InvalidOid: no such column */
	dlist_head	shapes;
	/* jsonb_populate_record for this row type, made when first needed */
	FmgrInfo   *populate;
	Datum		empty_row;
} ProjectionTarget;

/* One event for one row. */
typedef struct ProjectionEvent
{
	ProjectionTarget *target;
	ProjectionShape *shape;
	TimestampTz at;
	const char *id;				/* as given; NULL: none, or no column for it */
	pg_uuid_t	uuid;			/* the same, where the column is a uuid */
	Datum	   *values;			/* keys, fields, time, id: the statements' parameters */
	char	   *nulls;
} ProjectionEvent;

/* A row's key, the same whoever wrote it. */
typedef struct ProjectionKey
{
	Jsonb	   *json;
	char	   *text;
	bytea	   *digest;			/* of the text; NULL: not needed yet */
} ProjectionKey;

/* projection_target.c */
extern ProjectionTarget *projection_target(Oid oid);
extern char *projection_name(Oid oid);
extern void projection_pin(ProjectionTarget *target);
extern void projection_unpin(ProjectionTarget *target);
extern ProjectionShape *projection_shape(ProjectionTarget *target,
										 const JsonPair *keys, int nkeys,
										 const JsonPair *fields, int nfields);
extern SPIPlanPtr projection_plan(ProjectionShape *shape, ProjectionPlan plan);

/* projection_value.c */
extern void projection_column_init(ProjectionColumn *column, Oid type, int32 typmod,
								   MemoryContext context);
extern void projection_values(ProjectionEvent *event, const JsonPair *keys,
							  const JsonPair *fields);
extern const char *projection_id(const ProjectionEvent *event);
extern void projection_key(const ProjectionEvent *event, ProjectionKey *key);
extern bytea *projection_digest(ProjectionKey *key);

/* projection_tombstone.c */
extern void projection_lock_key(Oid target, const ProjectionKey *key, bool deleting);
extern bool tombstone_find(Oid target, ProjectionKey *key, TimestampTz *at, char **id);
extern void tombstone_put(const ProjectionEvent *event, ProjectionKey *key);
extern void tombstone_remove(Oid target, ProjectionKey *key);
extern DutyReport tombstone_purge(void);

/* projection.c */
extern Oid	projection_rebuilding;	/* target whose seed runs; InvalidOid: none */
extern int64 projection_seeded;	/* rows it has projected */
extern bool project_row(Oid target, Jsonb *key, Jsonb *fields, TimestampTz at, const char *id);

#endif							/* ACME_OUTBOX_PROJECTION_H */
