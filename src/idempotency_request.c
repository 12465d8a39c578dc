/*
 * idempotency_request.c
 *		What a request is known by: the arguments of the idempotency functions, checked.
 *
 * A request is the same if endpoint, key and tenant are, and its body hashes the same.
 * Text and bytes count as they are; json and jsonb by what they say, so that a client
 * may spell them differently.
 */
#include "acme_outbox.h"

#include "common/cryptohash.h"
#include "common/hashfn.h"
#include "idempotency_internal.h"
#include "jsontext.h"
#include "utils/builtins.h"
#include "utils/guc.h"

static void
argument_error(const char *name, const char *problem, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_OX_IDEMPOTENCY_ARGUMENT),
			 errmsg("%s is %s", name, problem),
			 hint ? errhint("%s", hint) : 0));
}

static void
check_name(const char *name, const char *value)
{
	if (value == NULL || value[0] == '\0')
		argument_error(name, value == NULL ? "null" : "empty",
					   strcmp(name, "key") == 0 ?
					   "A request without an Idempotency-Key has the key NULL." : NULL);
	if (strlen(value) > MAX_SHORT_STRING)
		argument_error(name, psprintf("longer than %d bytes", MAX_SHORT_STRING), NULL);
}

static const char *
arg_string(FunctionCallInfo fcinfo, int i)
{
	return PG_ARGISNULL(i) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(i));
}

/* The argument, else the transaction's tenant; '' is none. */
static const char *
tenant_of(FunctionCallInfo fcinfo, int i)
{
	const char *tenant = arg_string(fcinfo, i);

	if (tenant == NULL)
		tenant = GetConfigOption("acme_outbox.tenant_id", true, false);
	if (tenant != NULL && strlen(tenant) > MAX_SHORT_STRING)
		argument_error("tenant_id", psprintf("longer than %d bytes", MAX_SHORT_STRING), NULL);
	return tenant != NULL ? tenant : "";
}

/*
 * idempotency_lock_hash
 *		Of the key's lock.  Only the table's own names go in; NUL ends each, so no two
 *		keys read the same.
 */
uint64
idempotency_lock_hash(const char *schema, const IdempotencyRequest *request)
{
	StringInfoData name;

	initStringInfo(&name);
	appendBinaryStringInfo(&name, schema, strlen(schema) + 1);
	appendBinaryStringInfo(&name, request->tenant, strlen(request->tenant) + 1);
	appendBinaryStringInfo(&name, request->endpoint, strlen(request->endpoint) + 1);
	appendBinaryStringInfo(&name, request->key, strlen(request->key));
	return hash_bytes_extended((unsigned char *) name.data, name.len, 0);
}

/* idempotency_read_key: the arguments that say which request it is. */
void
idempotency_read_key(FunctionCallInfo fcinfo, int tenant_arg, IdempotencyRequest *request)
{
	request->endpoint = arg_string(fcinfo, 0);
	request->key = arg_string(fcinfo, 1);
	request->tenant = tenant_of(fcinfo, tenant_arg);
	check_name("endpoint", request->endpoint);
	check_name("key", request->key);
}

/* idempotency_time_after: now and the interval of an argument, which is positive. */
TimestampTz
idempotency_time_after(TimestampTz now, FunctionCallInfo fcinfo, int i, const char *name)
{
	TimestampTz at;

	if (PG_ARGISNULL(i))
		argument_error(name, "null", NULL);
	at = DatumGetTimestampTz(DirectFunctionCall2(timestamptz_pl_interval,
												 TimestampTzGetDatum(now),
												 PG_GETARG_DATUM(i)));
	if (at <= now)
		argument_error(name, "not positive", NULL);
	return at;
}

/* SHA-256 in hexadecimal: the table's payload_hash. */
static void
hash_bytes_hex(const char *bytes, int len, char *hex)
{
	static const char digits[] = "0123456789abcdef";
	uint8		digest[PG_SHA256_DIGEST_LENGTH];
	pg_cryptohash_ctx *ctx = pg_cryptohash_create(PG_SHA256);

	if (pg_cryptohash_init(ctx) < 0 ||
		pg_cryptohash_update(ctx, (const uint8 *) bytes, len) < 0 ||
		pg_cryptohash_final(ctx, digest, sizeof(digest)) < 0)
		elog(ERROR, "could not compute SHA-256: %s", pg_cryptohash_error(ctx));
	pg_cryptohash_free(ctx);
	for (int i = 0; i < PG_SHA256_DIGEST_LENGTH; i++)
	{
		hex[i * 2] = digits[digest[i] >> 4];
		hex[i * 2 + 1] = digits[digest[i] & 15];
	}
	hex[HASH_HEX_LENGTH] = '\0';
}

static void
hash_jsonb(Jsonb *value, char *hex)
{
	char	   *text = JsonbToCString(NULL, &value->root, VARSIZE(value));

	hash_bytes_hex(text, strlen(text), hex);
}

/* idempotency_arg_json: NULL: the argument is. */
Jsonb *
idempotency_arg_json(FunctionCallInfo fcinfo, int i, bool is_jsonb, const char *name)
{
	bool		invalid;
	Jsonb	   *value = jsontext_arg(fcinfo, i, is_jsonb, &invalid);

	if (invalid)
		argument_error(name, "not JSON", NULL);
	return value;
}

/* idempotency_hash_request: a request without a body hashes as no bytes. */
void
idempotency_hash_request(FunctionCallInfo fcinfo, int i, BodyKind kind, char *hex)
{
	if (PG_ARGISNULL(i))
		hash_bytes_hex("", 0, hex);
	else if (kind == BODY_BYTES)
	{
		text	   *bytes = PG_GETARG_TEXT_PP(i);

		hash_bytes_hex(VARDATA_ANY(bytes), VARSIZE_ANY_EXHDR(bytes), hex);
	}
	else
		hash_jsonb(idempotency_arg_json(fcinfo, i, kind == BODY_JSONB, "request"), hex);
}

/* idempotency_arg_status: an HTTP status. */
int
idempotency_arg_status(FunctionCallInfo fcinfo, int i)
{
	if (PG_ARGISNULL(i))
		argument_error("status", "null", NULL);
	if (PG_GETARG_INT32(i) < 100 || PG_GETARG_INT32(i) > 599)
		argument_error("status", "not an HTTP status", "It is from 100 to 599.");
	return PG_GETARG_INT32(i);
}
