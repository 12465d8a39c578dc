/*
 * headers.c
 *		Checks an event's headers before they are stored.
 *
 * Headers become an AMQP table in one frame.  What the broker or its client library
 * could not take is refused here, where the caller still can do something about it:
 * names of 1 to 255 bytes, nesting of at most MAX_HEADER_DEPTH, numbers that fit
 * a 64-bit integer or a double, and an encoded size (AMQP 0-9-1, 4.2.5.5) of at most
 * acme_outbox.max_headers_bytes.  Names that the broker and the bridge write
 * themselves are reserved.
 */
#include "acme_outbox.h"

#include <math.h>

#include "guc.h"
#include "headers.h"
#include "utils/builtins.h"
#include "utils/numeric.h"

/* encoded sizes: a value's type octet, then its body */
#define SIZE_TYPE 1
#define SIZE_LENGTH 4
#define SIZE_NUMBER 8
#define SIZE_BOOLEAN 1

static const char *const reserved_names[] = {
	"traceparent", "x-death", "x-delivery-count", NULL
};

static const char *const reserved_prefixes[] = {
	"x-error-", "x-original-", "x-first-death-", "x-last-death-", NULL
};

static void
headers_error(const char *problem, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_OX_HEADERS),
			 errmsg("invalid headers"),
			 errdetail("%s", problem),
			 hint ? errhint("%s", hint) : 0));
}

static bool
is_reserved(const char *name, int len)
{
	for (int i = 0; reserved_names[i]; i++)
		if ((int) strlen(reserved_names[i]) == len &&
			pg_strncasecmp(name, reserved_names[i], len) == 0)
			return true;
	for (int i = 0; reserved_prefixes[i]; i++)
		if ((int) strlen(reserved_prefixes[i]) <= len &&
			pg_strncasecmp(name, reserved_prefixes[i], strlen(reserved_prefixes[i])) == 0)
			return true;
	return false;
}

static int
name_size(JsonbValue *name, int depth)
{
	int			len = name->val.string.len;

	if (len == 0 || len > MAX_SHORT_STRING)
		headers_error(psprintf("A header's name has 1 to %d bytes.", MAX_SHORT_STRING), NULL);
	if (depth == 1 && is_reserved(name->val.string.val, len))
		headers_error(psprintf("The name \"%.*s\" is reserved.", len, name->val.string.val),
					  "Pass traceparent as an argument of its own; names beginning with x-error-, x-original-, x-death and the like belong to the broker and the bridge.");
	return 1 + len;
}

static bool
is_integer(Numeric number)
{
	Datum		value = NumericGetDatum(number);
	Datum		truncated = DirectFunctionCall2(numeric_trunc, value, Int32GetDatum(0));

	return DatumGetBool(DirectFunctionCall2(numeric_eq, value, truncated));
}

static bool
fits_int64(Numeric number)
{
	Datum		value = NumericGetDatum(number);
	Datum		least = NumericGetDatum(int64_to_numeric(PG_INT64_MIN));
	Datum		most = NumericGetDatum(int64_to_numeric(PG_INT64_MAX));

	return DatumGetBool(DirectFunctionCall2(numeric_ge, value, least)) &&
		DatumGetBool(DirectFunctionCall2(numeric_le, value, most));
}

static int
number_size(Numeric number)
{
	Datum		as_double = DirectFunctionCall1(numeric_float8_no_overflow,
												NumericGetDatum(number));

	if (isinf(DatumGetFloat8(as_double)) || isnan(DatumGetFloat8(as_double)))
		headers_error("A number does not fit a double.", "Pass it as a string.");
	if (is_integer(number) && !fits_int64(number))
		headers_error("An integer does not fit 64 bits.", "Pass it as a string.");
	return SIZE_NUMBER;
}

static int
scalar_size(JsonbValue *value)
{
	switch (value->type)
	{
		case jbvNull:
			return SIZE_TYPE;
		case jbvBool:
			return SIZE_TYPE + SIZE_BOOLEAN;
		case jbvNumeric:
			return SIZE_TYPE + number_size(value->val.numeric);
		case jbvString:
			return SIZE_TYPE + SIZE_LENGTH + value->val.string.len;
		default:
			elog(ERROR, "unrecognized jsonb value type: %d", (int) value->type);
	}
	return 0;
}

void
headers_check(Jsonb *headers)
{
	JsonbIterator *it;
	JsonbValue	value;
	JsonbIteratorToken token;
	int			depth = 0;
	int64		size = 0;

	if (!JB_ROOT_IS_OBJECT(headers))
		headers_error("Headers are a JSON object.",
					  "For example: headers => '{\"priority\": 5}'");

	it = JsonbIteratorInit(&headers->root);
	while ((token = JsonbIteratorNext(&it, &value, false)) != WJB_DONE)
	{
		if (token == WJB_BEGIN_OBJECT || token == WJB_BEGIN_ARRAY)
		{
			size += SIZE_TYPE + SIZE_LENGTH;
			if (++depth > MAX_HEADER_DEPTH)
				headers_error(psprintf("They are nested deeper than %d levels.",
									   MAX_HEADER_DEPTH), NULL);
		}
		else if (token == WJB_END_OBJECT || token == WJB_END_ARRAY)
			depth--;
		else if (token == WJB_KEY)
			size += name_size(&value, depth);
		else
			size += scalar_size(&value);
	}
	if (size > guc_max_headers_bytes)
		headers_error(psprintf("They need " INT64_FORMAT " bytes; acme_outbox.max_headers_bytes is %d.",
							   size, guc_max_headers_bytes),
					  "Put large values into the payload.");
}
