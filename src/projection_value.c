/*
 * projection_value.c
 *		JSON values of a projection's keys and fields as values of their columns.
 *
 * The result is jsonb_populate_record's.  Plain types take the short way through their
 * input function, prepared once per column; arrays and rows go through
 * jsonb_populate_record itself, one column at a time.  So it is always known which
 * column a value does not fit, and the error can name it without printing the value.
 *
 * A key also has a form of its own, independent of how JSON spelled it and of the
 * session's settings: tombstones and locks go by that.
 */
#include "acme_outbox.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_type.h"
#include "common/cryptohash.h"
#include "common/sha2.h"
#include "executor/executor.h"
#include "nodes/makefuncs.h"
#include "projection.h"
#include "utils/builtins.h"
#include "utils/date.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/numeric.h"
#include "utils/rel.h"
#include "utils/typcache.h"

static ColumnKind
kind_of(Oid base_type, bool domain)
{
	if (base_type == JSONBOID && !domain)
		return COLUMN_JSONB;
	if (base_type == JSONOID || base_type == JSONBOID)
		return COLUMN_JSON;
	if (OidIsValid(get_element_type(base_type)) || type_is_rowtype(base_type))
		return COLUMN_NESTED;
	return COLUMN_SCALAR;
}

/* Everything but name and number; lives in the given context. */
void
projection_column_init(ProjectionColumn *column, Oid type, int32 typmod,
					   MemoryContext context)
{
	Oid			input;

	column->type = type;
	column->typmod = typmod;
	column->base_type = getBaseType(type);
	column->domain = column->base_type != type;
	column->kind = kind_of(column->base_type, column->domain);
	column->type_name = MemoryContextStrdup(context, format_type_with_typemod(type, typmod));
	getTypeInputInfo(type, &input, &column->ioparam);
	fmgr_info_cxt(input, &column->input, context);
	column->key = -1;
}

/*
 * Conversion
 */

static char *
scalar_text(JsonbValue *value)
{
	switch (value->type)
	{
		case jbvString:
			return pnstrdup(value->val.string.val, value->val.string.len);
		case jbvNumeric:
			return DatumGetCString(DirectFunctionCall1(numeric_out,
													   NumericGetDatum(value->val.numeric)));
		case jbvBool:
			return pstrdup(value->val.boolean ? "true" : "false");
		default:
			return JsonbToCString(NULL, value->val.binary.data, value->val.binary.len);
	}
}

static char *
json_text(JsonbValue *value)
{
	Jsonb	   *json = JsonbValueToJsonb(value);

	return JsonbToCString(NULL, &json->root, VARSIZE(json));
}

/* jsonb_populate_record over a row of NULLs, so that absent columns are not looked at */
static void
prepare_populate(ProjectionTarget *target)
{
	Relation	relation = table_open(target->oid, NoLock);
	TupleDesc	desc = RelationGetDescr(relation);
	Oid			row_type = relation->rd_rel->reltype;
	MemoryContext caller = MemoryContextSwitchTo(target->context);
	bool	   *nulls = palloc(sizeof(bool) * desc->natts);
	Datum	   *values = palloc0(sizeof(Datum) * desc->natts);
	FmgrInfo   *populate = palloc0(sizeof(FmgrInfo));

	memset(nulls, true, sizeof(bool) * desc->natts);
	target->empty_row = heap_copy_tuple_as_datum(heap_form_tuple(desc, values, nulls), desc);
	fmgr_info_cxt(F_JSONB_POPULATE_RECORD, populate, target->context);
	fmgr_info_set_expr((Node *) makeFuncExpr(F_JSONB_POPULATE_RECORD, row_type,
											 list_make1(makeNullConst(row_type, -1, InvalidOid)),
											 InvalidOid, InvalidOid, COERCE_EXPLICIT_CALL),
					   populate);
	target->populate = populate;
	MemoryContextSwitchTo(caller);
	table_close(relation, NoLock);
}

static Datum
nested_value(ProjectionTarget *target, ProjectionColumn *column, JsonbValue *value,
			 bool *isnull)
{
	JsonbParseState *state = NULL;
	JsonbValue	name = {.type = jbvString};
	Datum		row;

	if (target->populate == NULL)
		prepare_populate(target);
	name.val.string.val = column->name;
	name.val.string.len = strlen(column->name);
	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	pushJsonbValue(&state, WJB_KEY, &name);
	pushJsonbValue(&state, WJB_VALUE, value);
	row = FunctionCall2(target->populate, target->empty_row,
						JsonbPGetDatum(JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, NULL))));
	return GetAttributeByNum(DatumGetHeapTupleHeader(row), column->attnum, isnull);
}

static Datum
column_value(ProjectionTarget *target, ProjectionColumn *column, JsonbValue *value,
			 bool *isnull)
{
	char	   *text;

	*isnull = value->type == jbvNull;
	if (*isnull)
	{
		if (column->domain)
			(void) InputFunctionCall(&column->input, NULL, column->ioparam, column->typmod);
		return (Datum) 0;
	}
	if (column->kind == COLUMN_JSONB)
		return JsonbPGetDatum(JsonbValueToJsonb(value));
	if (column->kind == COLUMN_NESTED && value->type != jbvString)
		return nested_value(target, column, value, isnull);
	text = column->kind == COLUMN_JSON ? json_text(value) : scalar_text(value);
	return InputFunctionCall(&column->input, text, column->ioparam, column->typmod);
}

/* The type's own message would print the value; only its SQLSTATE is kept. */
static void
value_error(const ProjectionColumn *column, ErrorData *error)
{
	int			category = ERRCODE_TO_CATEGORY(error->sqlerrcode);

	if (category != ERRCODE_DATA_EXCEPTION &&
		category != ERRCODE_INTEGRITY_CONSTRAINT_VIOLATION &&
		error->sqlerrcode != ERRCODE_DATATYPE_MISMATCH)
		ReThrowError(error);
	ereport(ERROR,
			(errcode(ERRCODE_OX_PROJECTION_VALUE),
			 errmsg("value of column \"%s\" does not fit type %s", column->name,
					column->type_name),
			 errdetail("The type's input failed with SQLSTATE %s.",
					   unpack_sql_state(error->sqlerrcode))));
}

static void
convert(ProjectionEvent *event, const JsonPair *pairs, int n, int first)
{
	MemoryContext context = CurrentMemoryContext;
	volatile int at = first;

	PG_TRY();
	{
		for (; at < first + n; at++)
		{
			JsonbValue	value = pairs[at - first].value;
			bool		isnull;

			event->values[at] = column_value(event->target, &event->shape->columns[at],
											 &value, &isnull);
			event->nulls[at] = isnull ? 'n' : ' ';
		}
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		value_error(&event->shape->columns[at], error);
	}
	PG_END_TRY();
}

static bool
same_value(const JsonPair *a, const JsonPair *b)
{
	JsonbValue	left = a->value;
	JsonbValue	right = b->value;

	return compareJsonbContainers(&JsonbValueToJsonb(&left)->root,
								  &JsonbValueToJsonb(&right)->root) == 0;
}

/* A null key never meets its row; a field may repeat the key, but not contradict it. */
static void
check_key_values(const ProjectionShape *shape, const JsonPair *keys, const JsonPair *fields)
{
	for (int i = 0; i < shape->nkeys; i++)
		if (keys[i].value.type == jbvNull)
			ereport(ERROR,
					(errcode(ERRCODE_OX_PROJECTION_KEY),
					 errmsg("key column \"%s\" is null", shape->columns[i].name)));
	for (int i = 0; i < shape->nfields; i++)
	{
		const ProjectionColumn *column = &shape->columns[shape->nkeys + i];

		if (column->key >= 0 && !same_value(&keys[column->key], &fields[i]))
			ereport(ERROR,
					(errcode(ERRCODE_OX_PROJECTION_KEY),
					 errmsg("field \"%s\" contradicts the key", column->name),
					 errhint("Leave key columns out of the fields.")));
	}
}

/* Fills in the parameters of the shape's statements. */
void
projection_values(ProjectionEvent *event, const JsonPair *keys, const JsonPair *fields)
{
	ProjectionShape *shape = event->shape;
	int			n = shape->nkeys + shape->nfields;

	check_key_values(shape, keys, fields);
	event->values = palloc(sizeof(Datum) * (n + 2));
	event->nulls = palloc(n + 2);
	convert(event, keys, shape->nkeys, 0);
	convert(event, fields, shape->nfields, shape->nkeys);
	event->values[n] = TimestampTzGetDatum(event->at);
	event->nulls[n] = ' ';
	event->nulls[n + 1] = event->id == NULL ? 'n' : ' ';
	if (event->id == NULL)
		event->values[n + 1] = (Datum) 0;
	else if (event->target->event_id_type == UUIDOID)
		event->values[n + 1] = UUIDPGetDatum(&event->uuid);
	else
		event->values[n + 1] = CStringGetTextDatum(event->id);
}

/*
 * The canonical key
 */

static Numeric
normal_numeric(Numeric number)
{
	return DatumGetNumeric(DirectFunctionCall3(numeric_in,
											   CStringGetDatum(numeric_normalize(number)),
											   ObjectIdGetDatum(InvalidOid),
											   Int32GetDatum(-1)));
}

/* Numbers and times as numbers, everything else as its text. */
static void
canonical_value(const ProjectionColumn *column, Datum value, JsonbValue *json)
{
	Oid			output;
	bool		is_varlena;

	json->type = jbvNumeric;
	switch (column->base_type)
	{
		case INT2OID:
			json->val.numeric = int64_to_numeric(DatumGetInt16(value));
			return;
		case INT4OID:
			json->val.numeric = int64_to_numeric(DatumGetInt32(value));
			return;
		case INT8OID:
			json->val.numeric = int64_to_numeric(DatumGetInt64(value));
			return;
		case NUMERICOID:
			if (numeric_is_nan(DatumGetNumeric(value)) || numeric_is_inf(DatumGetNumeric(value)))
				break;
			json->val.numeric = normal_numeric(DatumGetNumeric(value));
			return;
		case DATEOID:
			json->val.numeric = int64_to_numeric(DatumGetDateADT(value));
			return;
		case TIMESTAMPOID:
		case TIMESTAMPTZOID:
			json->val.numeric = int64_to_numeric(DatumGetTimestamp(value));
			return;
		default:
			break;
	}
	getTypeOutputInfo(column->type, &output, &is_varlena);
	json->type = jbvString;
	json->val.string.val = OidOutputFunctionCall(output, value);
	json->val.string.len = strlen(json->val.string.val);
}

static bytea *
sha256(const char *bytes)
{
	bytea	   *digest = palloc(VARHDRSZ + PG_SHA256_DIGEST_LENGTH);
	pg_cryptohash_ctx *ctx = pg_cryptohash_create(PG_SHA256);

	if (pg_cryptohash_init(ctx) < 0 ||
		pg_cryptohash_update(ctx, (const uint8 *) bytes, strlen(bytes)) < 0 ||
		pg_cryptohash_final(ctx, (uint8 *) VARDATA(digest), PG_SHA256_DIGEST_LENGTH) < 0)
		elog(ERROR, "could not compute SHA-256: %s", pg_cryptohash_error(ctx));
	pg_cryptohash_free(ctx);
	SET_VARSIZE(digest, VARHDRSZ + PG_SHA256_DIGEST_LENGTH);
	return digest;
}

void
projection_key(const ProjectionEvent *event, ProjectionKey *key)
{
	ProjectionShape *shape = event->shape;
	JsonbParseState *state = NULL;
	JsonbValue	value;

	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	for (int i = 0; i < shape->nkeys; i++)
	{
		value.type = jbvString;
		value.val.string.val = shape->columns[i].name;
		value.val.string.len = strlen(shape->columns[i].name);
		pushJsonbValue(&state, WJB_KEY, &value);
		canonical_value(&shape->columns[i], event->values[i], &value);
		pushJsonbValue(&state, WJB_VALUE, &value);
	}
	key->json = JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, NULL));
	key->text = JsonbToCString(NULL, &key->json->root, VARSIZE(key->json));
	key->digest = NULL;
}

/* What tombstones know the key by. */
bytea *
projection_digest(ProjectionKey *key)
{
	if (key->digest == NULL)
		key->digest = sha256(key->text);
	return key->digest;
}

/* The event's id in its canonical form, in which ids compare as text. */
const char *
projection_id(const ProjectionEvent *event)
{
	if (event->id == NULL || event->target->event_id_type != UUIDOID)
		return event->id;
	return DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&event->uuid)));
}
