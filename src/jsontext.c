/*
 * jsontext.c
 *		JSON that arrives as text.
 *
 * Functions take their JSON as jsonb, json or text, because drivers send either.  A type's
 * input function that fails shows a piece of what it read, in its detail or context; here
 * a payload must not get into an error, so it is told only that it failed, and the caller
 * says of what.  Input functions are pure computation and hold nothing but memory, so
 * their errors can be caught without a subtransaction.
 */
#include "acme_outbox.h"

#include "jsontext.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"

/* Runs an input function; false: the value is not of its type. */
bool
jsontext_quietly(Datum (*parse) (Datum argument), Datum argument, Datum *result)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool done = false;

	PG_TRY();
	{
		*result = parse(argument);
		done = true;
	}
	PG_CATCH();
	{
		int			category = ERRCODE_TO_CATEGORY(geterrcode());

		if (category != ERRCODE_DATA_EXCEPTION &&
			category != ERRCODE_PROGRAM_LIMIT_EXCEEDED)
			PG_RE_THROW();
		MemoryContextSwitchTo(context);
		FlushErrorState();
	}
	PG_END_TRY();
	return done;
}

static Datum
parse_jsonb(Datum argument)
{
	return DirectFunctionCall1(jsonb_in, argument);
}

/* As jsonb, or NULL if it is not JSON that jsonb can hold. */
Jsonb *
jsontext_parse(text *bytes)
{
	Datum		parsed;

	if (!jsontext_quietly(parse_jsonb, CStringGetDatum(text_to_cstring(bytes)), &parsed))
		return NULL;
	return DatumGetJsonbP(parsed);
}

/* An argument that is jsonb, or json or text; NULL where it is null or no JSON. */
Jsonb *
jsontext_arg(FunctionCallInfo fcinfo, int i, bool is_jsonb, bool *invalid)
{
	Jsonb	   *parsed;

	*invalid = false;
	if (PG_ARGISNULL(i))
		return NULL;
	if (is_jsonb)
		return PG_GETARG_JSONB_P(i);
	parsed = jsontext_parse(PG_GETARG_TEXT_PP(i));
	*invalid = parsed == NULL;
	return parsed;
}
