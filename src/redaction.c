/*
 * redaction.c
 *		Cuts the ruled parts out of an envelope (P 5.1; docs/design.md 6.1).
 *
 * The text is walked once and copied but for what is cut: every other byte stays as it
 * was published, the order of keys, duplicate keys and the spelling of numbers
 * included, which jsonb would not keep.  Only containers on a path are entered, so the
 * recursion is as deep as a path is long; whatever else is nested, however deep, is
 * passed over by counting brackets.  A message that could be published can be redacted:
 * no claim fails for the depth or the escapes of a payload.
 *
 * What is stored is JSON, because publish() parsed it.  Text that the walk cannot follow,
 * which only a change by hand can leave, is replaced as a whole: a secret is not let
 * through because something else is wrong.
 */
#include "acme_outbox.h"

#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "redaction.h"
#include "utils/builtins.h"

#define NOT_JSON "{\"body\":{}}"

typedef struct Walk
{
	const char *at;
	const char *end;
	const char *copied;			/* what is before it was copied or cut */
	StringInfoData out;
	bool		cut;
	bool		broken;			/* not JSON */
} Walk;

/* A member of an object, or an element of an array (key is NULL). */
typedef struct Member
{
	const char *key;			/* between the quotes, as written */
	const char *key_end;
	int64		index;
} Member;

/* ---- keys ---- */

static bool
hex4(const char *p, const char *end, pg_wchar *value)
{

	*value = 0;
	if (end - p < 4)
		return false;
	for (int i = 0; i < 4; i++)
	{
		if (!isxdigit((unsigned char) p[i]))
			return false;
		*value = *value * 16 + (isdigit((unsigned char) p[i]) ? p[i] - '0' :
								(p[i] | 0x20) - 'a' + 10);
	}
	return true;
}

/* One \uXXXX, or two that are a pair; returns what follows, NULL if it is no letter. */
static const char *
decode_unicode(const char *p, const char *end, char *letter, int *len)
{
	pg_wchar	value;
	pg_wchar	low;

	if (!hex4(p, end, &value))
		return NULL;
	p += 4;
	if (is_utf16_surrogate_first(value))
	{
		if (end - p < 6 || p[0] != '\\' || p[1] != 'u' || !hex4(p + 2, end, &low) ||
			!is_utf16_surrogate_second(low))
			return NULL;
		value = surrogate_pair_to_codepoint(value, low);
		p += 6;
	}
	else if (is_utf16_surrogate_second(value))
		return NULL;
	unicode_to_utf8(value, (unsigned char *) letter);
	*len = pg_utf_mblen((unsigned char *) letter);
	return p;
}

/* One letter of a key as its bytes; returns what follows, NULL if it is none. */
static const char *
decode_letter(const char *p, const char *end, char *letter, int *len)
{
	static const char escapes[] = "\"\\/bfnrt";
	static const char meant[] = "\"\\/\b\f\n\r\t";
	const char *found;

	*len = 1;
	*letter = *p++;
	if (*letter != '\\')
		return p;
	if (p >= end)
		return NULL;
	if (*p == 'u')
		return decode_unicode(p + 1, end, letter, len);
	found = strchr(escapes, *p);
	if (found == NULL)
		return NULL;
	*letter = meant[found - escapes];
	return p + 1;
}

static bool
key_is(const Member *member, const RedactionStep *step)
{
	const char *p = member->key;
	int			matched = 0;

	while (p != NULL && p < member->key_end)
	{
		char		letter[8];
		int			len;

		p = decode_letter(p, member->key_end, letter, &len);
		if (p == NULL || len > step->name_len - matched ||
			memcmp(letter, step->name + matched, len) != 0)
			return false;
		matched += len;
	}
	return matched == step->name_len;
}

static bool
step_matches(const RedactionStep *step, const Member *member)
{
	if (step->any)
		return true;
	return member->key ? key_is(member, step) : step->index == member->index;
}

/* ---- walking ---- */

static void
skip_space(Walk *walk)
{
	while (walk->at < walk->end && strchr(" \t\n\r", *walk->at) != NULL)
		walk->at++;
}

static bool
take(Walk *walk, char wanted)
{
	if (walk->at < walk->end && *walk->at == wanted)
	{
		walk->at++;
		return true;
	}
	return false;
}

static void
expect(Walk *walk, char wanted)
{
	if (!take(walk, wanted))
		walk->broken = true;
}

static void
skip_string(Walk *walk)
{
	expect(walk, '"');
	while (walk->at < walk->end && *walk->at != '"')
		walk->at += *walk->at == '\\' ? 2 : 1;
	walk->at = Min(walk->at, walk->end);
	expect(walk, '"');
}

static void
skip_scalar(Walk *walk)
{
	const char *start = walk->at;

	while (walk->at < walk->end && strchr(",]}:\"[{ \t\n\r", *walk->at) == NULL)
		walk->at++;
	if (walk->at == start)
		walk->broken = true;
}

static void
skip_value(Walk *walk)
{
	int			depth = 0;

	do
	{
		skip_space(walk);
		if (walk->at >= walk->end)
			walk->broken = true;
		else if (*walk->at == '"')
			skip_string(walk);
		else if (strchr("[{", *walk->at) != NULL)
		{
			depth++;
			walk->at++;
		}
		else if (strchr("]}", *walk->at) != NULL)
		{
			depth--;
			walk->at++;
		}
		else if (strchr(",:", *walk->at) != NULL)
			walk->at++;
		else
			skip_scalar(walk);
	} while (depth > 0 && !walk->broken);
}

static void
cut(Walk *walk, const char *from, const char *to)
{
	appendBinaryStringInfo(&walk->out, walk->copied, from - walk->copied);
	walk->copied = to;
	walk->cut = true;
}

/* Paths that lead into the member; *whole: one ends here. */
static List *
paths_into(List *paths, int depth, const Member *member, bool *whole)
{
	List	   *into = NIL;
	ListCell   *cell;

	*whole = false;
	foreach(cell, paths)
	{
		RedactionPath *path = lfirst(cell);

		if (!step_matches(&path->steps[depth], member))
			continue;
		if (path->nsteps == depth + 1)
			*whole = true;
		else
			into = lappend(into, path);
	}
	return into;
}

static void
read_key(Walk *walk, Member *member)
{
	member->key = walk->at + 1;
	skip_string(walk);
	member->key_end = walk->at - 1;
	skip_space(walk);
	expect(walk, ':');
	skip_space(walk);
}

static void walk_container(Walk *walk, List *paths, int depth);

static void
walk_value(Walk *walk, List *paths, int depth)
{
	if (paths != NIL && walk->at < walk->end && strchr("[{", *walk->at) != NULL)
		walk_container(walk, paths, depth);
	else
		skip_value(walk);
}

/*
 * A member is cut together with the comma before it; of the first one that stays, the
 * comma alone.
 */
static void
walk_container(Walk *walk, List *paths, int depth)
{
	bool		is_object = *walk->at == '{';
	bool		kept = false;
	Member		member = {NULL, NULL, 0};
	const char *before = ++walk->at;

	for (;; member.index++, before = walk->at)
	{
		const char *comma_end;
		List	   *into;
		bool		whole;

		CHECK_FOR_INTERRUPTS();
		skip_space(walk);
		if (walk->broken || take(walk, is_object ? '}' : ']'))
			return;
		if (member.index > 0)
			expect(walk, ',');
		comma_end = walk->at;
		skip_space(walk);
		if (is_object)
			read_key(walk, &member);
		if (walk->broken)
			return;

		into = paths_into(paths, depth, &member, &whole);
		if (!whole && !kept && member.index > 0)
			cut(walk, before, comma_end);
		walk_value(walk, whole ? NIL : into, depth + 1);
		if (whole)
			cut(walk, before, walk->at);
		else
			kept = true;
		list_free(into);
	}
}

/* The envelope without what the paths name; NULL when there is none of it. */
text *
redaction_apply(List *paths, text *envelope)
{
	Walk		walk = {0};

	walk.at = walk.copied = VARDATA_ANY(envelope);
	walk.end = walk.at + VARSIZE_ANY_EXHDR(envelope);
	initStringInfo(&walk.out);
	appendStringInfoSpaces(&walk.out, VARHDRSZ);
	skip_space(&walk);
	if (walk.at < walk.end && *walk.at == '{')
		walk_container(&walk, paths, 0);
	else
		walk.broken = true;
	skip_space(&walk);
	if (walk.broken || walk.at < walk.end)
		return cstring_to_text(NOT_JSON);
	if (!walk.cut)
	{
		pfree(walk.out.data);
		return NULL;
	}
	cut(&walk, walk.end, walk.end);
	SET_VARSIZE(walk.out.data, walk.out.len);
	return (text *) walk.out.data;
}

/* ---- error texts ---- */

/* names of AMQP 0-9-1 reply codes, with which RabbitMQ's texts begin */
static const char *const amqp_replies[] = {
	"ACCESS_REFUSED", "CHANNEL_ERROR", "COMMAND_INVALID", "CONNECTION_FORCED",
	"CONTENT_TOO_LARGE", "FRAME_ERROR", "INTERNAL_ERROR", "NOT_ALLOWED", "NOT_FOUND",
	"NOT_IMPLEMENTED", "NO_CONSUMERS", "NO_ROUTE", "PRECONDITION_FAILED",
	"RESOURCE_ERROR", "RESOURCE_LOCKED", "SYNTAX_ERROR", "UNEXPECTED_FRAME"
};

/* Three digits, or five of an SQLSTATE, of which one is a digit. */
static bool
is_code(const char *word, int len)
{
	if (len == 3)
		return strspn(word, "0123456789") >= 3;
	return len == 5 && strcspn(word, "0123456789") < 5 &&
		strspn(word, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") >= 5;
}

static bool
is_amqp_reply(const char *word, int len)
{
	for (int i = 0; i < lengthof(amqp_replies); i++)
		if (strlen(amqp_replies[i]) == len && strncmp(word, amqp_replies[i], len) == 0)
			return true;
	return false;
}

/*
 * What of an error may be kept for an event with a rule: the code it begins with.  The
 * text may quote the message.
 */
const char *
redaction_error(const char *error)
{
	int			len;

	if (error == NULL)
		return NULL;
	len = strcspn(error, " :,-");
	if (is_code(error, len) || is_amqp_reply(error, len))
		return psprintf("%.*s (text withheld: the event has a redaction rule)", len, error);
	return "text withheld: the event has a redaction rule";
}
