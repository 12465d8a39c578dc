/*
 * entry_insert.c
 *		Inserts a row into outbox_entry.
 *
 * The usual insert goes to the table and its indexes directly: preparing and
 * forgetting an executor for one row costs more than the row.  That is safe only
 * for the table as the extension made it.  If an administrator gave it a trigger,
 * a rule, a policy, a check, a column, a NOT NULL or a default that is not a constant, the
 * executor does the insert, with all that belongs to it; so it does where the event id is
 * the caller's, because ON CONFLICT is the executor's.  Both ways write the same row
 * (test/sql/entry_insert).
 *
 * A partial index whose predicate asks for a column that the new row has not is not even
 * opened: four of the extension's own are about entries that wait or have failed.
 */
#include "acme_outbox.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/sequence.h"
#include "compat.h"
#include "entries.h"
#include "entry_insert.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "optimizer/optimizer.h"
#include "plans.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#define INSERT_ENTRY \
	"INSERT INTO acme_outbox.outbox_entry (xid, created_at, event_id, entry_type," \
	" origin, topic, routing_key, message_key, event_name, tenant_id, trace_id," \
	" traceparent, headers, payload, payload_hash, next_attempt_at, hold_reason)" \
	" VALUES ($1, $2, $3, CASE WHEN $4 THEN 'JOB'::acme_outbox.entry_type" \
	" ELSE 'DOMAIN_EVENT'::acme_outbox.entry_type END," \
	" $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16," \
	" CASE WHEN $16 IS NOT NULL THEN 'SCHEDULED'::acme_outbox.hold_reason END)"

#define ENTRY_TYPES \
	{XID8OID, TIMESTAMPTZOID, UUIDOID, BOOLOID, TEXTOID, TEXTOID, TEXTOID, \
	 TEXTOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, JSONBOID, TEXTOID, BYTEAOID, \
	 TIMESTAMPTZOID}

static KeptPlan insert_plan = {
	INSERT_ENTRY, NEW_COUNT, ENTRY_TYPES
};

static KeptPlan insert_once_plan = {
	INSERT_ENTRY " ON CONFLICT (event_id, origin) DO NOTHING", NEW_COUNT, ENTRY_TYPES
};

/* where each of them goes; NEW_JOB as the entry type */
static const AttrNumber column_of[NEW_COUNT] = {
	[NEW_XID] = ENTRY_XID,
	[NEW_CREATED_AT] = ENTRY_CREATED_AT,
	[NEW_EVENT_ID] = ENTRY_EVENT_ID,
	[NEW_JOB] = ENTRY_TYPE,
	[NEW_ORIGIN] = ENTRY_ORIGIN,
	[NEW_TOPIC] = ENTRY_TOPIC,
	[NEW_ROUTING_KEY] = ENTRY_ROUTING_KEY,
	[NEW_MESSAGE_KEY] = ENTRY_MESSAGE_KEY,
	[NEW_EVENT_NAME] = ENTRY_EVENT_NAME,
	[NEW_TENANT_ID] = ENTRY_TENANT_ID,
	[NEW_TRACE_ID] = ENTRY_TRACE_ID,
	[NEW_TRACEPARENT] = ENTRY_TRACEPARENT,
	[NEW_HEADERS] = ENTRY_HEADERS,
	[NEW_PAYLOAD] = ENTRY_PAYLOAD,
	[NEW_PAYLOAD_HASH] = ENTRY_PAYLOAD_HASH,
	[NEW_NOT_BEFORE] = ENTRY_NEXT_ATTEMPT_AT,
};

/* What the catalog says of the table, until the catalog says otherwise. */
typedef struct EntryCatalog
{
	Oid			table;			/* invalid: look it up */
	Oid			sequence;		/* of the id */
	Oid			scheduled;
	Oid			job;
	Oid			domain_event;
	bool		defaults_read;
	bool		constant_defaults;	/* all that the table needs */
	bool		has_default[ENTRY_LAST_ERROR];
	Datum		defaults[ENTRY_LAST_ERROR];
} EntryCatalog;

static EntryCatalog catalog;

/* Which column of the row an index's predicate asks for; an index's never changes. */
typedef struct KnownIndex
{
	Oid			index;
	AttrNumber	needs;			/* 0: none */
} KnownIndex;

#define KNOWN_INDEXES 16

static KnownIndex known_indexes[KNOWN_INDEXES];
static int	next_known_index;

static void
forget_catalog(Datum arg, Oid relation)
{
	if (relation == InvalidOid || relation == catalog.table)
	{
		catalog.table = InvalidOid;
		memset(known_indexes, 0, sizeof(known_indexes));
	}
}

static void
read_catalog(void)
{
	static bool registered = false;
	EntryCatalog fresh = {0};

	if (!registered)
		CacheRegisterRelcacheCallback(forget_catalog, (Datum) 0);
	registered = true;
	fresh.table = entries_relation("outbox_entry");
	fresh.sequence = getIdentitySequence(fresh.table, ENTRY_ID, false);
	fresh.scheduled = entries_enum_value("hold_reason", "SCHEDULED");
	fresh.job = entries_enum_value("entry_type", "JOB");
	fresh.domain_event = entries_enum_value("entry_type", "DOMAIN_EVENT");
	catalog = fresh;
}

/*
 * The table.  Its lock may bring the news that it is another one, or has changed; what is
 * read under the lock stays true, whatever else is invalidated meanwhile.
 */
static Relation
open_table(void)
{
	for (;;)
	{
		Relation	table;

		if (!OidIsValid(catalog.table))
			read_catalog();
		table = try_table_open(catalog.table, RowExclusiveLock);
		if (!OidIsValid(catalog.table))
			read_catalog();
		if (table != NULL && RelationGetRelid(table) == catalog.table)
			return table;
		if (table != NULL)
			table_close(table, NoLock);
		catalog.table = InvalidOid;
	}
}

static bool
is_given(AttrNumber column)
{
	for (int i = 0; i < NEW_COUNT; i++)
		if (column_of[i] == column)
			return true;
	return column == ENTRY_ID || column == ENTRY_HOLD_REASON;
}

static const char *
default_of(const TupleConstr *constraints, AttrNumber column)
{
	for (int i = 0; constraints != NULL && i < constraints->num_defval; i++)
		if (constraints->defval[i].adnum == column)
			return constraints->defval[i].adbin;
	return NULL;
}

/* A column's default, if it is one value; none at all will do for a column that may be null. */
static bool
read_default(Relation table, AttrNumber column)
{
	Form_pg_attribute attribute = TupleDescAttr(RelationGetDescr(table), column - 1);
	const char *text = default_of(RelationGetDescr(table)->constr, column);
	Const	   *value;

	if (text == NULL)
		return !attribute->attnotnull;
	value = (Const *) eval_const_expressions(NULL, stringToNode(text));
	if (!IsA(value, Const) || !attribute->attbyval || value->constisnull)
		return false;
	catalog.has_default[column - 1] = true;
	catalog.defaults[column - 1] = value->constvalue;
	return true;
}

/* The defaults of all columns that publish does not give, the table being locked. */
static bool
has_constant_defaults(Relation table)
{
	bool		constant = true;

	if (catalog.defaults_read)
		return catalog.constant_defaults;
	for (AttrNumber i = 1; i <= ENTRY_LAST_ERROR; i++)
		if (!is_given(i) && !read_default(table, i))
			constant = false;
	catalog.constant_defaults = constant;
	catalog.defaults_read = true;
	return constant;
}

static void
set_column(TupleTableSlot *slot, AttrNumber column, Datum value)
{
	slot->tts_values[column - 1] = value;
	slot->tts_isnull[column - 1] = false;
}

static void
fill_slot(TupleTableSlot *slot, const NewEntry *entry)
{
	memset(slot->tts_isnull, true, sizeof(bool) * slot->tts_tupleDescriptor->natts);
	for (int i = 0; i < NEW_COUNT; i++)
		if (entry->nulls[i] != 'n')
			set_column(slot, column_of[i], entry->values[i]);
	set_column(slot, ENTRY_TYPE, ObjectIdGetDatum(DatumGetBool(entry->values[NEW_JOB]) ?
												  catalog.job : catalog.domain_event));
	if (entry->nulls[NEW_NOT_BEFORE] != 'n')
		set_column(slot, ENTRY_HOLD_REASON, ObjectIdGetDatum(catalog.scheduled));
	set_column(slot, ENTRY_ID, Int64GetDatum(nextval_internal(catalog.sequence, false)));
	for (AttrNumber i = 1; i <= ENTRY_LAST_ERROR; i++)
		if (catalog.has_default[i - 1])
			set_column(slot, i, catalog.defaults[i - 1]);
	ExecStoreVirtualTuple(slot);
}

/* A column without which the clause is never true; 0: none that is plain to see. */
static AttrNumber
needed_by_clause(Node *clause)
{
	Node	   *argument = NULL;

	if (IsA(clause, NullTest) && ((NullTest *) clause)->nulltesttype == IS_NOT_NULL)
		argument = (Node *) ((NullTest *) clause)->arg;
	else if (IsA(clause, OpExpr) && op_strict(((OpExpr *) clause)->opno))
		argument = linitial(((OpExpr *) clause)->args);
	return argument != NULL && IsA(argument, Var) ? ((Var *) argument)->varattno : 0;
}

static AttrNumber
needed_by_index(Oid oid)
{
	Relation	index = index_open(oid, AccessShareLock);
	AttrNumber	needs = 0;
	ListCell   *cell;

	foreach(cell, RelationGetIndexPredicate(index))
		if (needs == 0)
			needs = needed_by_clause(lfirst(cell));
	index_close(index, AccessShareLock);
	return needs;
}

static bool
may_take(Oid index, TupleTableSlot *slot)
{
	KnownIndex *known = NULL;

	for (int i = 0; i < KNOWN_INDEXES && known == NULL; i++)
		if (known_indexes[i].index == index)
			known = &known_indexes[i];
	if (known == NULL)
	{
		AttrNumber	needs = needed_by_index(index);

		known = &known_indexes[next_known_index++ % KNOWN_INDEXES];
		known->index = index;
		known->needs = needs;
	}
	return known->needs <= 0 || !slot->tts_isnull[known->needs - 1];
}

/* ExecOpenIndices() of those that can have an entry for the row. */
static void
open_indexes(ResultRelInfo *target, TupleTableSlot *slot)
{
	List	   *indexes = RelationGetIndexList(target->ri_RelationDesc);
	ListCell   *cell;
	int			n = 0;

	target->ri_IndexRelationDescs = palloc(sizeof(Relation) * list_length(indexes));
	target->ri_IndexRelationInfo = palloc(sizeof(IndexInfo *) * list_length(indexes));
	foreach(cell, indexes)
	{
		if (!may_take(lfirst_oid(cell), slot))
			continue;
		target->ri_IndexRelationDescs[n] = index_open(lfirst_oid(cell), RowExclusiveLock);
		target->ri_IndexRelationInfo[n] = BuildIndexInfo(target->ri_IndexRelationDescs[n]);
		n++;
	}
	target->ri_NumIndices = n;
}

/* The row and its index entries; of an index with a predicate if it holds. */
static void
insert_row(Relation table, const NewEntry *entry)
{
	EState	   *estate = CreateExecutorState();
	MemoryContext before = MemoryContextSwitchTo(estate->es_query_cxt);
	TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(table), &TTSOpsVirtual);
	ResultRelInfo *target = makeNode(ResultRelInfo);

	fill_slot(slot, entry);
	target->ri_RelationDesc = table;
	open_indexes(target, slot);
	simple_table_tuple_insert(table, slot);
	compat_insert_index_tuples(target, slot, estate);
	ExecCloseIndices(target);
	ExecDropSingleTupleTableSlot(slot);
	MemoryContextSwitchTo(before);
	FreeExecutorState(estate);
	CommandCounterIncrement();
}

void
entry_insert(NewEntry *entry)
{
	Relation	table;
	bool		plain;

	PreventCommandIfReadOnly("INSERT");
	table = open_table();
	plain = entries_plain(table, TRIGGER_TYPE_INSERT) && has_constant_defaults(table);
	if (plain)
		insert_row(table, entry);
	table_close(table, NoLock);
	if (plain)
		return;
	SPI_connect();
	plan_run(&insert_plan, entry->values, entry->nulls, SPI_OK_INSERT);
	SPI_finish();
}

bool
entry_insert_once(NewEntry *entry)
{
	return plan_run(&insert_once_plan, entry->values, entry->nulls, SPI_OK_INSERT) == 1;
}
