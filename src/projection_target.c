/*
 * projection_target.c
 *		Tables that events are projected into: what is known of them, and the kept
 *		statements.
 *
 * A target is looked at once: that it is a table with last_event_at, which type
 * last_event_id has.  For each set of key and field columns used with it there is a
 * *shape*: the columns, checked, and statements planned on first use.  A unique index on
 * exactly the key columns must exist, which ON CONFLICT can use.
 *
 * Both go by OID, and are forgotten when PostgreSQL invalidates the table (ALTER, DROP,
 * a rename, an index) or any schema's name; the table's lock is taken before the look-up,
 * so what was found stays true until the end of the transaction.  At most MAX_TARGETS and
 * MAX_SHAPES are kept, those used last.  A target in use by a call further up (a trigger
 * that projects) is pinned, and freed only when that call is over.
 */
#include "acme_outbox.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "plans.h"
#include "projection.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#define MAX_TARGETS 200
#define MAX_SHAPES 200

static dlist_head targets = DLIST_STATIC_INIT(targets);	/* used last: first */
static dlist_head shapes = DLIST_STATIC_INIT(shapes);
static int	ntargets;
static int	nshapes;

/*
 * Invalidation and limits
 */

static void
relation_changed(Datum arg, Oid relation)
{
	dlist_iter	iter;

	dlist_foreach(iter, &targets)
	{
		ProjectionTarget *target = dlist_container(ProjectionTarget, by_use, iter.cur);

		if (relation == InvalidOid || target->oid == relation)
			target->valid = false;
	}
}

/* The statements name the table's schema, whose renaming invalidates no table. */
static void
schema_changed(Datum arg, int cache_id, uint32 hash)
{
	relation_changed(arg, InvalidOid);
}

static void
register_callbacks(void)
{
	static bool registered = false;

	if (registered)
		return;
	CacheRegisterRelcacheCallback(relation_changed, (Datum) 0);
	CacheRegisterSyscacheCallback(NAMESPACEOID, schema_changed, (Datum) 0);
	registered = true;
}

static void
free_shape(ProjectionShape *shape)
{
	for (int i = 0; i < PLAN_COUNT; i++)
		if (shape->plans[i] != NULL)
			SPI_freeplan(shape->plans[i]);
	dlist_delete(&shape->of_target);
	dlist_delete(&shape->by_use);
	nshapes--;
	MemoryContextDelete(shape->context);
}

static void
free_target(ProjectionTarget *target)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &target->shapes)
		free_shape(dlist_container(ProjectionShape, of_target, iter.cur));
	dlist_delete(&target->by_use);
	ntargets--;
	MemoryContextDelete(target->context);
}

void
projection_pin(ProjectionTarget *target)
{
	target->pins++;
}

void
projection_unpin(ProjectionTarget *target)
{
	target->pins--;
	if (target->pins == 0 && !target->valid)
		free_target(target);
}

/* Room for one more of each, by dropping what was used longest ago. */
static void
make_room(void)
{
	dlist_node *node = dlist_is_empty(&targets) ? NULL : dlist_tail_node(&targets);

	while (ntargets >= MAX_TARGETS && node != NULL)
	{
		ProjectionTarget *target = dlist_container(ProjectionTarget, by_use, node);

		node = dlist_has_prev(&targets, node) ? dlist_prev_node(&targets, node) : NULL;
		if (target->pins == 0)
			free_target(target);
	}
	node = dlist_is_empty(&shapes) ? NULL : dlist_tail_node(&shapes);
	while (nshapes >= MAX_SHAPES && node != NULL)
	{
		ProjectionShape *shape = dlist_container(ProjectionShape, by_use, node);

		node = dlist_has_prev(&shapes, node) ? dlist_prev_node(&shapes, node) : NULL;
		if (shape->target->pins == 0)
			free_shape(shape);
	}
}

/*
 * The target
 */

static void
target_error(Relation relation, const char *problem, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_OX_PROJECTION_TARGET),
			 errmsg("cannot project into \"%s\"", RelationGetRelationName(relation)),
			 errdetail("%s", problem),
			 hint ? errhint("%s", hint) : 0));
}

static Form_pg_attribute
find_attribute(Relation relation, const char *name, int len)
{
	TupleDesc	desc = RelationGetDescr(relation);

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(desc, i);

		if (!attribute->attisdropped && strlen(NameStr(attribute->attname)) == len &&
			memcmp(NameStr(attribute->attname), name, len) == 0)
			return attribute;
	}
	return NULL;
}

static void
check_event_at(Relation relation)
{
	Form_pg_attribute attribute = find_attribute(relation, COLUMN_EVENT_AT,
												 strlen(COLUMN_EVENT_AT));

	if (attribute == NULL)
		target_error(relation, "It has no column " COLUMN_EVENT_AT ".",
					 "ALTER TABLE ... ADD COLUMN " COLUMN_EVENT_AT " timestamptz");
	if (attribute->atttypid != TIMESTAMPTZOID)
		target_error(relation, psprintf("Its column " COLUMN_EVENT_AT " has type %s.",
										format_type_be(attribute->atttypid)),
					 "It must be timestamptz.");
	if (attribute->atttypmod >= 0 && attribute->atttypmod < MAX_TIMESTAMP_PRECISION)
		target_error(relation, "Its column " COLUMN_EVENT_AT " has a reduced precision.",
					 "It must be timestamptz: an event's time must come back as it was stored.");
}

static Oid
event_id_type(Relation relation)
{
	Form_pg_attribute attribute = find_attribute(relation, COLUMN_EVENT_ID,
												 strlen(COLUMN_EVENT_ID));

	if (attribute == NULL)
		return InvalidOid;
	if (attribute->atttypid != UUIDOID && attribute->atttypid != TEXTOID)
		target_error(relation, psprintf("Its column " COLUMN_EVENT_ID " has type %s.",
										format_type_be(attribute->atttypid)),
					 "It must be uuid or text.");
	return attribute->atttypid;
}

static void
dropped_error(Oid oid)
{
	ereport(ERROR,
			(errcode(ERRCODE_OX_PROJECTION_TARGET),
			 errmsg("table with OID %u does not exist", oid),
			 errdetail("It was dropped, or the OID was never a table's.")));
}

static void
check_target(Relation relation)
{
	if (relation->rd_rel->relkind != RELKIND_RELATION &&
		relation->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
		target_error(relation, "It is not a table.", "Views and foreign tables are not supported.");
	check_event_at(relation);
}

static ProjectionTarget *
make_target(Relation relation)
{
	ProjectionTarget *target;
	MemoryContext context;
	Oid			id_type;

	check_target(relation);
	id_type = event_id_type(relation);

	make_room();
	context = AllocSetContextCreate(TopMemoryContext, "projection target",
									ALLOCSET_SMALL_SIZES);
	target = MemoryContextAllocZero(context, sizeof(ProjectionTarget));
	target->oid = RelationGetRelid(relation);
	target->context = context;
	target->event_id_type = id_type;
	target->name = MemoryContextStrdup(context,
									   quote_qualified_identifier(get_namespace_name(RelationGetNamespace(relation)),
																  RelationGetRelationName(relation)));
	dlist_init(&target->shapes);
	target->valid = true;
	dlist_push_head(&targets, &target->by_use);
	ntargets++;
	return target;
}

static ProjectionTarget *
known_target(Oid oid)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &targets)
	{
		ProjectionTarget *target = dlist_container(ProjectionTarget, by_use, iter.cur);

		if (!target->valid && target->pins == 0)
			free_target(target);
		else if (target->valid && target->oid == oid)
		{
			dlist_move_head(&targets, &target->by_use);
			return target;
		}
	}
	return NULL;
}

/* The table's name without locking it for long: a rebuild locks it in its own way. */
char *
projection_name(Oid oid)
{
	Relation	relation = try_relation_open(oid, AccessShareLock);
	char	   *name;

	if (relation == NULL)
		dropped_error(oid);
	check_target(relation);
	name = quote_qualified_identifier(get_namespace_name(RelationGetNamespace(relation)),
									  RelationGetRelationName(relation));
	relation_close(relation, AccessShareLock);
	return pstrdup(name);
}

/* Locks the table for writing; what is returned stays true while the lock is held. */
ProjectionTarget *
projection_target(Oid oid)
{
	ProjectionTarget *target;
	Relation	relation;

	register_callbacks();
	LockRelationOid(oid, RowExclusiveLock);
	target = known_target(oid);
	if (target != NULL)
		return target;

	relation = try_relation_open(oid, NoLock);
	if (relation == NULL)
		dropped_error(oid);
	target = make_target(relation);
	relation_close(relation, NoLock);
	return target;
}

/*
 * The shape
 */

static bool
same_names(const ProjectionColumn *columns, const JsonPair *pairs, int n)
{
	for (int i = 0; i < n; i++)
		if (strncmp(columns[i].name, pairs[i].name, pairs[i].len) != 0 ||
			columns[i].name[pairs[i].len] != '\0')
			return false;
	return true;
}

static void
column_error(Relation relation, const JsonPair *pair, const char *problem)
{
	ereport(ERROR,
			(errcode(ERRCODE_OX_PROJECTION_COLUMN),
			 errmsg("column \"%.*s\" of \"%s\" %s", pg_mbcliplen(pair->name, pair->len, NAMEDATALEN),
					pair->name, RelationGetRelationName(relation), problem)));
}

static void
init_column(ProjectionShape *shape, Relation relation, int i, const JsonPair *pair)
{
	Form_pg_attribute attribute = find_attribute(relation, pair->name, pair->len);
	ProjectionColumn *column = &shape->columns[i];

	if (attribute == NULL)
		column_error(relation, pair, "does not exist");
	if (attribute->attgenerated != '\0')
		column_error(relation, pair, "is generated");
	if (attribute->attidentity == ATTRIBUTE_IDENTITY_ALWAYS && i >= shape->nkeys)
		column_error(relation, pair, "is an identity column");
	if (strcmp(NameStr(attribute->attname), COLUMN_EVENT_AT) == 0 ||
		strcmp(NameStr(attribute->attname), COLUMN_EVENT_ID) == 0)
		column_error(relation, pair, "is set by the guard");
	column->name = MemoryContextStrdup(shape->context, NameStr(attribute->attname));
	column->attnum = attribute->attnum;
	projection_column_init(column, attribute->atttypid, attribute->atttypmod, shape->context);
}

/* Place of a column in the key, or -1. */
static int
key_place(const ProjectionShape *shape, AttrNumber attnum)
{
	for (int i = 0; i < shape->nkeys; i++)
		if (shape->columns[i].attnum == attnum)
			return i;
	return -1;
}

static char *
qualified_operator(Oid operator, MemoryContext context)
{
	HeapTuple	tuple = SearchSysCache1(OPEROID, ObjectIdGetDatum(operator));
	Form_pg_operator form;
	char	   *name;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for operator %u", operator);
	form = (Form_pg_operator) GETSTRUCT(tuple);
	name = psprintf("OPERATOR(%s.%s)", quote_identifier(get_namespace_name(form->oprnamespace)),
					NameStr(form->oprname));
	ReleaseSysCache(tuple);
	return MemoryContextStrdup(context, name);
}

/* If the index is a plain unique one on exactly the key's columns, its operators. */
static bool
take_index(ProjectionShape *shape, Relation index)
{
	Form_pg_index form = index->rd_index;

	if (!form->indisunique || !form->indimmediate || !form->indisvalid ||
		form->indnkeyatts != shape->nkeys || index->rd_rel->relam != BTREE_AM_OID ||
		!heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL) ||
		!heap_attisnull(index->rd_indextuple, Anum_pg_index_indexprs, NULL))
		return false;
	for (int i = 0; i < form->indnkeyatts; i++)
	{
		int			place = key_place(shape, form->indkey.values[i]);
		Oid			operator = get_opfamily_member(index->rd_opfamily[i], index->rd_opcintype[i],
												   index->rd_opcintype[i], BTEqualStrategyNumber);

		if (place < 0 || !OidIsValid(operator))
			return false;
		shape->equals[place] = qualified_operator(operator, shape->context);
	}
	return true;
}

static char *
key_names(const ProjectionShape *shape)
{
	StringInfoData names;

	initStringInfo(&names);
	for (int i = 0; i < shape->nkeys; i++)
		appendStringInfo(&names, "%s%s", i > 0 ? ", " : "",
						 quote_identifier(shape->columns[i].name));
	return names.data;
}

static void
find_unique_index(ProjectionShape *shape, Relation relation)
{
	List	   *indexes = RelationGetIndexList(relation);
	ListCell   *cell;
	bool		found = false;

	foreach(cell, indexes)
	{
		Relation	index = index_open(lfirst_oid(cell), AccessShareLock);

		found = take_index(shape, index);
		index_close(index, AccessShareLock);
		if (found)
			return;
	}
	ereport(ERROR,
			(errcode(ERRCODE_OX_PROJECTION_KEY),
			 errmsg("\"%s\" has no unique index on exactly the key columns (%s)",
					RelationGetRelationName(relation), key_names(shape)),
			 errdetail("Partial, expression and deferrable indexes do not count."),
			 errhint("CREATE UNIQUE INDEX ON %s (%s)", shape->target->name, key_names(shape))));
}

static void
fill_shape(ProjectionShape *shape, const JsonPair *keys, const JsonPair *fields)
{
	Relation	relation = table_open(shape->target->oid, NoLock);
	int			n = shape->nkeys + shape->nfields;

	shape->columns = MemoryContextAllocZero(shape->context, sizeof(ProjectionColumn) * Max(n, 1));
	shape->equals = MemoryContextAllocZero(shape->context, sizeof(char *) * shape->nkeys);
	for (int i = 0; i < n; i++)
		init_column(shape, relation, i, i < shape->nkeys ? &keys[i] : &fields[i - shape->nkeys]);
	for (int i = shape->nkeys; i < n; i++)
		shape->columns[i].key = key_place(shape, shape->columns[i].attnum);
	find_unique_index(shape, relation);
	table_close(relation, NoLock);
}

/* The target's statements for these columns; errors name what is wrong with them. */
ProjectionShape *
projection_shape(ProjectionTarget *target, const JsonPair *keys, int nkeys,
				 const JsonPair *fields, int nfields)
{
	ProjectionShape *shape;
	MemoryContext context;
	dlist_iter	iter;

	dlist_foreach(iter, &target->shapes)
	{
		shape = dlist_container(ProjectionShape, of_target, iter.cur);
		if (shape->nkeys == nkeys && shape->nfields == nfields &&
			same_names(shape->columns, keys, nkeys) &&
			same_names(shape->columns + nkeys, fields, nfields))
		{
			dlist_move_head(&target->shapes, &shape->of_target);
			dlist_move_head(&shapes, &shape->by_use);
			return shape;
		}
	}

	/* Below the current context until it is complete: an error leaves nothing. */
	context = AllocSetContextCreate(CurrentMemoryContext, "projection shape",
									ALLOCSET_SMALL_SIZES);
	shape = MemoryContextAllocZero(context, sizeof(ProjectionShape));
	shape->context = context;
	shape->target = target;
	shape->nkeys = nkeys;
	shape->nfields = nfields;
	fill_shape(shape, keys, fields);
	projection_pin(target);
	make_room();
	target->pins--;
	MemoryContextSetParent(context, target->context);
	dlist_push_head(&target->shapes, &shape->of_target);
	dlist_push_head(&shapes, &shape->by_use);
	nshapes++;
	return shape;
}

/*
 * The statements.  Parameters: keys, fields, the event's time, its id.
 */

/* Which rows an event may change. */
typedef enum Guard
{
	GUARD_LATER,				/* whose time is earlier: nearly all, and quickly said */
	GUARD_NEWER,				/* all that are older */
	GUARD_SEED					/* all but newer ones */
} Guard;

static void
append_key_condition(StringInfo sql, const ProjectionShape *shape)
{
	for (int i = 0; i < shape->nkeys; i++)
		appendStringInfo(sql, "%s t.%s %s $%d", i > 0 ? " AND" : " WHERE",
						 quote_identifier(shape->columns[i].name), shape->equals[i], i + 1);
}

/* Is the event newer than the row?  An id that is NULL sorts first. */
static void
append_newer(StringInfo sql, const ProjectionShape *shape)
{
	int			at = shape->nkeys + shape->nfields + 1;
	const char *collate = shape->target->event_id_type == TEXTOID ?
		" COLLATE pg_catalog.\"C\"" : "";

	appendStringInfo(sql, "(t." COLUMN_EVENT_AT " IS NULL"
					 " OR t." COLUMN_EVENT_AT " OPERATOR(pg_catalog.<) $%d", at);
	if (OidIsValid(shape->target->event_id_type))
		appendStringInfo(sql, " OR (t." COLUMN_EVENT_AT " OPERATOR(pg_catalog.=) $%d"
						 " AND CASE WHEN $%d IS NULL THEN false"
						 " WHEN t." COLUMN_EVENT_ID " IS NULL THEN true"
						 " ELSE t." COLUMN_EVENT_ID "%s OPERATOR(pg_catalog.<) $%d%s END)",
						 at, at + 1, collate, at + 1, collate);
	appendStringInfoChar(sql, ')');
}

static void
append_guard(StringInfo sql, const ProjectionShape *shape, Guard guard)
{
	int			at = shape->nkeys + shape->nfields + 1;

	switch (guard)
	{
		case GUARD_LATER:
			appendStringInfo(sql, "t." COLUMN_EVENT_AT " OPERATOR(pg_catalog.<) $%d", at);
			break;
		case GUARD_NEWER:
			append_newer(sql, shape);
			break;
		case GUARD_SEED:
			appendStringInfo(sql, "(t." COLUMN_EVENT_AT " IS NULL"
							 " OR t." COLUMN_EVENT_AT " OPERATOR(pg_catalog.<=) $%d)", at);
			break;
	}
}

/* "name = $n" for fields and guard columns; a seed without an id keeps the row's. */
static void
append_assignments(StringInfo sql, const ProjectionShape *shape, Guard guard)
{
	int			n = shape->nkeys + shape->nfields;

	for (int i = shape->nkeys; i < n; i++)
		if (shape->columns[i].key < 0)
			appendStringInfo(sql, "%s = $%d, ", quote_identifier(shape->columns[i].name), i + 1);
	appendStringInfo(sql, COLUMN_EVENT_AT " = $%d", n + 1);
	if (!OidIsValid(shape->target->event_id_type))
		return;
	if (guard == GUARD_SEED)
		appendStringInfo(sql, ", " COLUMN_EVENT_ID " = CASE WHEN $%d IS NULL AND t."
						 COLUMN_EVENT_AT " OPERATOR(pg_catalog.=) $%d THEN t."
						 COLUMN_EVENT_ID " ELSE $%d END", n + 2, n + 1, n + 2);
	else
		appendStringInfo(sql, ", " COLUMN_EVENT_ID " = $%d", n + 2);
}

static void
append_update(StringInfo sql, const ProjectionShape *shape, Guard guard)
{
	appendStringInfo(sql, "UPDATE %s AS t SET ", shape->target->name);
	append_assignments(sql, shape, guard);
	append_key_condition(sql, shape);
	appendStringInfoString(sql, " AND ");
	append_guard(sql, shape, guard);
}

static void
append_insert(StringInfo sql, const ProjectionShape *shape, Guard guard)
{
	int			n = shape->nkeys + shape->nfields;
	StringInfoData values;

	initStringInfo(&values);
	appendStringInfo(sql, "INSERT INTO %s AS t (", shape->target->name);
	for (int i = 0; i < n; i++)
	{
		if (i >= shape->nkeys && shape->columns[i].key >= 0)
			continue;
		appendStringInfo(sql, "%s, ", quote_identifier(shape->columns[i].name));
		appendStringInfo(&values, "$%d, ", i + 1);
	}
	appendStringInfoString(sql, COLUMN_EVENT_AT);
	appendStringInfo(&values, "$%d", n + 1);
	if (OidIsValid(shape->target->event_id_type))
	{
		appendStringInfoString(sql, ", " COLUMN_EVENT_ID);
		appendStringInfo(&values, ", $%d", n + 2);
	}
	appendStringInfo(sql, ") OVERRIDING SYSTEM VALUE VALUES (%s) ON CONFLICT (%s) DO UPDATE SET ",
					 values.data, key_names(shape));
	append_assignments(sql, shape, guard);
	appendStringInfoString(sql, " WHERE ");
	append_guard(sql, shape, guard);
}

static void
append_statement(StringInfo sql, const ProjectionShape *shape, ProjectionPlan plan)
{
	switch (plan)
	{
		case PLAN_UPDATE_LATER:
			append_update(sql, shape, GUARD_LATER);
			break;
		case PLAN_UPDATE:
			append_update(sql, shape, GUARD_NEWER);
			break;
		case PLAN_SEED_UPDATE:
			append_update(sql, shape, GUARD_SEED);
			break;
		case PLAN_INSERT_LATER:
			append_insert(sql, shape, GUARD_LATER);
			break;
		case PLAN_INSERT:
			append_insert(sql, shape, GUARD_NEWER);
			break;
		case PLAN_SEED_INSERT:
			append_insert(sql, shape, GUARD_SEED);
			break;
		case PLAN_REFUSES:
			appendStringInfoString(sql, "SELECT NOT ");
			append_guard(sql, shape, GUARD_NEWER);
			appendStringInfo(sql, " FROM %s AS t", shape->target->name);
			append_key_condition(sql, shape);
			break;
		case PLAN_DELETE:
			appendStringInfo(sql, "DELETE FROM %s AS t", shape->target->name);
			append_key_condition(sql, shape);
			appendStringInfoString(sql, " AND ");
			append_guard(sql, shape, GUARD_NEWER);
			break;
		case PLAN_TOUCH:
			appendStringInfo(sql, "UPDATE %s AS t SET " COLUMN_EVENT_AT " = t." COLUMN_EVENT_AT,
							 shape->target->name);
			append_key_condition(sql, shape);
			break;
		case PLAN_COUNT:
			break;
	}
}

static SPIPlanPtr
prepare(ProjectionShape *shape, ProjectionPlan plan)
{
	int			n = shape->nkeys + shape->nfields;
	StringInfoData sql;
	Oid		   *types = palloc(sizeof(Oid) * (n + 2));
	SPIPlanPtr	prepared;

	for (int i = 0; i < n; i++)
		types[i] = shape->columns[i].type;
	types[n] = TIMESTAMPTZOID;
	types[n + 1] = OidIsValid(shape->target->event_id_type) ?
		shape->target->event_id_type : TEXTOID;
	initStringInfo(&sql);
	append_statement(&sql, shape, plan);
	prepared = SPI_prepare_cursor(sql.data, n + 2, types, CURSOR_OPT_GENERIC_PLAN);
	if (prepared == NULL || SPI_keepplan(prepared) != 0)
		elog(ERROR, "could not prepare \"%s\": %s", sql.data, SPI_result_code_string(SPI_result));
	return prepared;
}

/* To be asked for before each execution; inside an SPI connection. */
SPIPlanPtr
projection_plan(ProjectionShape *shape, ProjectionPlan plan)
{
	if (shape->plans[plan] == NULL)
		shape->plans[plan] = prepare(shape, plan);
	plan_by_index(shape->plans[plan]);
	return shape->plans[plan];
}
