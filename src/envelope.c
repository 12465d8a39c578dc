/*
 * envelope.c
 *		Renders the canonical message and checks what goes into it (G 3).
 *
 * The envelope is rendered once, when the event is published, and stored as text:
 * every attempt sends the same bytes.  The payload is embedded byte by byte, so
 * a hash or a signature over it survives; jsonb would reorder its keys.  Keys come
 * in a fixed order, and the timestamp is UTC in microseconds ending in Z.
 *
 * Errors name a byte position in the payload and never the payload itself: it may
 * carry a secret, and error messages travel to logs.
 */
#include "acme_outbox.h"

#include "compat.h"
#include "envelope.h"
#include "guc.h"
#include "random_bytes.h"
#include "utils/builtins.h"
#include "utils/json.h"

#define MAX_LOCALE 35
#define MAX_SCHEMA_VERSION 64
#define MAX_SHOWN_NAME 64

static void
append_string(StringInfo out, const char *name, const char *value)
{
	appendStringInfoChar(out, '"');
	appendStringInfoString(out, name);
	appendStringInfoString(out, "\":");
	if (value == NULL)
		appendStringInfoString(out, "null");
	else
		escape_json(out, value);
}

static void
append_timestamp(StringInfo out, TimestampTz at)
{
	struct pg_tm tm;
	fsec_t		fsec;

	if (timestamp2tm(at, NULL, &tm, &fsec, NULL, NULL) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_DATETIME_VALUE_OUT_OF_RANGE),
				 errmsg("timestamp out of range")));
	appendStringInfo(out, "\"timestamp\":\"%04d-%02d-%02dT%02d:%02d:%02d.%06dZ\"",
					 tm.tm_year, tm.tm_mon, tm.tm_mday,
					 tm.tm_hour, tm.tm_min, tm.tm_sec, (int) fsec);
}

static void
append_header(StringInfo out, const Envelope *envelope)
{
	Datum		id = UUIDPGetDatum(&envelope->event_id);

	appendStringInfoString(out, "\"header\":{\"eventId\":\"");
	appendStringInfoString(out, DatumGetCString(DirectFunctionCall1(uuid_out, id)));
	appendStringInfoString(out, "\",");
	append_string(out, "traceId", envelope->trace_id);
	appendStringInfoString(out, ",\"version\":\"" ENVELOPE_VERSION "\",");
	append_string(out, "schemaVersion", envelope->schema_version);
	appendStringInfoChar(out, ',');
	append_string(out, "origin", envelope->origin);
	appendStringInfoChar(out, ',');
	append_timestamp(out, envelope->created_at);
	if (envelope->locale != NULL)
	{
		appendStringInfoChar(out, ',');
		append_string(out, "locale", envelope->locale);
	}
	appendStringInfoChar(out, '}');
}

static void
append_body(StringInfo out, const Envelope *envelope)
{
	appendStringInfoString(out, "\"body\":{");
	append_string(out, "aggregate", envelope->aggregate);
	appendStringInfoChar(out, ',');
	append_string(out, "eventName", envelope->event_name);
	appendStringInfoChar(out, ',');
	append_string(out, "eventType", envelope->kind);
	appendStringInfoString(out, ",\"payload\":");
	appendBinaryStringInfo(out, envelope->payload, envelope->payload_len);
	appendStringInfoChar(out, '}');
}

void
envelope_render(StringInfo out, const Envelope *envelope)
{
	enlargeStringInfo(out, envelope->payload_len + 512);
	appendStringInfoChar(out, '{');
	append_header(out, envelope);
	appendStringInfoChar(out, ',');
	append_body(out, envelope);
	appendStringInfoChar(out, '}');
}

/*
 * UUID version 7: 48 bits of milliseconds, 12 bits of the microseconds within, 62
 * random bits.  Ids made one after the other land side by side in the index.
 */
void
envelope_new_event_id(pg_uuid_t *id, TimestampTz now)
{
	uint64		unix_us = (uint64) now +
	(uint64) (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY;
	uint64		ms = unix_us / 1000;
	uint32		fraction = (uint32) (unix_us % 1000) * 4096 / 1000;

	random_bytes(id->data + 8, 8);
	for (int i = 0; i < 6; i++)
		id->data[i] = (unsigned char) (ms >> (8 * (5 - i)));
	id->data[6] = (unsigned char) (0x70 | (fraction >> 8));
	id->data[7] = (unsigned char) (fraction & 0xFF);
	id->data[8] = (id->data[8] & 0x3F) | 0x80;
}

/* PascalCase as in G: [A-Z][A-Za-z0-9]* */
static bool
is_pascal_case(const char *name)
{
	const char *p;

	if (*name < 'A' || *name > 'Z')
		return false;
	for (p = name; *p; p++)
		if (!isalnum((unsigned char) *p) || IS_HIGHBIT_SET(*p))
			return false;
	return true;
}

static bool
is_dotted_char(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
		c == '_' || c == '-';
}

/* Dotted as in P: [a-z0-9_-]+(\.[a-z0-9_-]+)+ */
static bool
is_dotted(const char *name)
{
	const char *p;
	int			run = 0;
	int			dots = 0;

	for (p = name; *p; p++)
	{
		if (*p == '.' && run > 0)
		{
			dots++;
			run = 0;
		}
		else if (is_dotted_char(*p))
			run++;
		else
			return false;
	}
	return dots > 0 && run > 0;
}

/* A payload passed in a name's place must not be shown: JSON does not look so. */
static bool
may_show_name(const char *name)
{
	const char *p = name;

	if (!((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z')) ||
		strlen(name) > MAX_SHOWN_NAME)
		return false;
	while (is_dotted_char(*p) || (*p >= 'A' && *p <= 'Z') || *p == '.')
		p++;
	return *p == '\0';
}

void
envelope_check_event_name(const char *name)
{
	if (name == NULL || strlen(name) > MAX_SHORT_STRING ||
		!(is_pascal_case(name) || is_dotted(name)))
		ereport(ERROR,
				(errcode(ERRCODE_OX_EVENT_NAME),
				 name == NULL ? errmsg("event name is null") :
				 may_show_name(name) ? errmsg("invalid event name \"%s\"", name) :
				 errmsg("invalid event name"),
				 errdetail("An event name is PascalCase or dotted lower case, of at most %d bytes.",
						   MAX_SHORT_STRING),
				 errhint("Use a name in the past tense, for example OrderPlaced or trading.sale.created.")));
}

static void
check_kind(const char *kind)
{
	if (kind == NULL || (strcmp(kind, "EVENT") != 0 && strcmp(kind, "COMMAND") != 0))
		ereport(ERROR,
				(errcode(ERRCODE_OX_ARGUMENT),
				 errmsg("invalid kind"),
				 errdetail("The kind of a message is EVENT or COMMAND.")));
}

static void
check_aggregate(const char *aggregate)
{
	if (aggregate != NULL && strlen(aggregate) > MAX_SHORT_STRING)
		ereport(ERROR,
				(errcode(ERRCODE_OX_ARGUMENT),
				 errmsg("aggregate is longer than %d bytes", MAX_SHORT_STRING)));
}

/* What may follow the numbers: nothing, or a pre-release or build in semver's letters. */
static bool
is_version_suffix(const char *p)
{
	static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz.+-";

	if (*p == '\0')
		return true;
	return (*p == '-' || *p == '+') && p[1] != '\0' && p[strspn(p, letters)] == '\0';
}

static void
check_schema_version(const char *version)
{
	int			numbers = 0;
	const char *p = version;

	while (p != NULL && isdigit((unsigned char) *p))
	{
		while (isdigit((unsigned char) *p))
			p++;
		numbers++;
		if (numbers == 3 || *p != '.')
			break;
		p++;
	}
	if (numbers != 3 || !is_version_suffix(p) || strlen(version) > MAX_SCHEMA_VERSION)
		ereport(ERROR,
				(errcode(ERRCODE_OX_ARGUMENT),
				 errmsg("invalid schema_version"),
				 errdetail("It is a semantic version such as 1.0.0, of at most %d bytes.",
						   MAX_SCHEMA_VERSION)));
}

static void
check_locale(const char *locale)
{
	const char *p;
	bool		valid = locale[0] != '\0' && strlen(locale) <= MAX_LOCALE;

	for (p = locale; valid && *p; p++)
		valid = !IS_HIGHBIT_SET(*p) &&
			(isalnum((unsigned char) *p) || *p == '-' || *p == '_');
	if (!valid)
		ereport(ERROR,
				(errcode(ERRCODE_OX_ARGUMENT),
				 errmsg("invalid locale"),
				 errdetail("A locale is a language tag such as es or en-US, of at most %d bytes.",
						   MAX_LOCALE)));
}

/* Any JSON value is a payload; the message's meaning is the callers' contract. */
static void
check_payload(const char *payload, int len)
{
	JsonLexContext *lex;

	if (payload == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OX_PAYLOAD),
				 errmsg("payload is null"),
				 errhint("An event without data has the payload {}.")));
	if (len == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OX_PAYLOAD),
				 errmsg("payload is empty"),
				 errhint("An event without data has the payload {}.")));
	if (len > guc_max_payload_bytes)
		ereport(ERROR,
				(errcode(ERRCODE_OX_PAYLOAD_SIZE),
				 errmsg("payload of %d bytes is too large", len),
				 errdetail("acme_outbox.max_payload_bytes is %d.", guc_max_payload_bytes),
				 errhint("Store the large part elsewhere and publish a reference to it.")));

	lex = compat_json_lexer(payload, len);
	if (pg_parse_json(lex, &nullSemAction) != JSON_SUCCESS)
		ereport(ERROR,
				(errcode(ERRCODE_OX_PAYLOAD),
				 errmsg("payload is not valid JSON"),
				 errdetail("Parsing stopped at byte %d of %d.",
						   (int) (lex->token_terminator - payload), len),
				 errhint("Check it with: SELECT your_payload::json")));
}

/* Everything that the caller had a say in. */
void
envelope_check(const Envelope *envelope)
{
	envelope_check_event_name(envelope->event_name);
	check_kind(envelope->kind);
	check_aggregate(envelope->aggregate);
	check_schema_version(envelope->schema_version);
	if (envelope->locale != NULL)
		check_locale(envelope->locale);
	check_payload(envelope->payload, envelope->payload_len);
}
