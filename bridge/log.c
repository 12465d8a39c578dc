/*
 * log.c
 *		One line per event on stderr, key=value or JSON.
 *
 * A message is a constant text, its variable parts are fields; so repeats can
 * be recognised. A message that repeats more than LOG_REPEATS times a minute is
 * counted instead of written, and the count goes with the next one: a broker
 * that is away all night must not fill a disk.
 *
 * Nothing here knows of rows: payloads, header values and passwords are never
 * passed in (design invariant 6).
 */
#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"

#define LOG_LINE_MAX	2048
#define LOG_REPEATS		8
#define LOG_PERIOD		60000
#define LOG_KNOWN		64

struct repeat
{
	const char *message;
	msec_t		since;
	int			written;
	int			suppressed;
};

struct line
{
	char		text[LOG_LINE_MAX];
	size_t		length;
};

static enum log_level log_threshold = LOG_INFO;
static enum log_format log_style = LOG_KV;
static struct repeat repeats[LOG_KNOWN];

static const char *const level_names[] = {"debug", "info", "warn", "error"};

void
log_setup(enum log_level level, enum log_format format)
{
	log_threshold = level;
	log_style = format;
}

struct log_field
log_text(const char *key, const char *text)
{
	return (struct log_field){key, text ? text : "", 0};
}

struct log_field
log_num(const char *key, int64_t number)
{
	return (struct log_field){key, NULL, number};
}

static void
put_char(struct line *line, char c)
{
	if (line->length < LOG_LINE_MAX - 2)
		line->text[line->length++] = c;
}

static void
put_raw(struct line *line, const char *text)
{
	while (*text)
		put_char(line, *text++);
}

/* Quoted for both formats; a control character cannot break a line. */
static void
put_quoted(struct line *line, const char *text)
{
	char		escape[8];

	put_char(line, '"');
	for (; *text; text++)
	{
		/* leave room for the closing quote and brace of a cut line */
		if (line->length > LOG_LINE_MAX - 16)
			break;
		if (*text == '"' || *text == '\\')
			put_char(line, '\\'), put_char(line, *text);
		else if (*text == '\n')
			put_raw(line, "\\n");
		else if ((unsigned char) *text < 0x20 || *text == 0x7f)
		{
			snprintf(escape, sizeof(escape), "\\u%04x",
					 (unsigned) (unsigned char) *text);
			put_raw(line, escape);
		}
		else
			put_char(line, *text);
	}
	put_char(line, '"');
}

static bool
is_plain(const char *text)
{
	if (*text == '\0')
		return false;
	for (; *text; text++)
		if ((unsigned char) *text <= ' ' || strchr("\"=\\", *text) ||
			*text == 0x7f)
			return false;
	return true;
}

static void
put_field(struct line *line, struct log_field field)
{
	char		number[32];

	if (line->length > LOG_LINE_MAX - 64)
		return;
	if (line->length > 1)
		put_char(line, log_style == LOG_JSON ? ',' : ' ');
	if (log_style == LOG_JSON)
	{
		put_quoted(line, field.key);
		put_char(line, ':');
	}
	else
	{
		put_raw(line, field.key);
		put_char(line, '=');
	}
	if (field.text == NULL)
	{
		snprintf(number, sizeof(number), "%lld", (long long) field.number);
		put_raw(line, number);
	}
	else if (log_style == LOG_KV && is_plain(field.text))
		put_raw(line, field.text);
	else
		put_quoted(line, field.text);
}

static void
put_time(struct line *line)
{
	struct timespec ts;
	struct tm	tm;
	char		text[40];
	size_t		length;

	clock_gettime(CLOCK_REALTIME, &ts);
	gmtime_r(&ts.tv_sec, &tm);
	length = strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(text + length, sizeof(text) - length, ".%03dZ",
			 (int) (ts.tv_nsec / 1000000));
	put_field(line, log_text("ts", text));
}

/* Which counter a message has; the oldest is given up when all are taken. */
static struct repeat *
repeat_of(const char *message)
{
	struct repeat *oldest = &repeats[0];

	for (int i = 0; i < LOG_KNOWN; i++)
	{
		if (repeats[i].message && strcmp(repeats[i].message, message) == 0)
			return &repeats[i];
		if (repeats[i].since < oldest->since)
			oldest = &repeats[i];
	}
	*oldest = (struct repeat){.message = message, .since = clock_now()};
	return oldest;
}

/* May it be written? If so, how many were not since the last one? */
static bool
repeat_allows(const char *message, int *suppressed)
{
	struct repeat *repeat = repeat_of(message);
	msec_t		now = clock_now();

	if (now - repeat->since >= LOG_PERIOD)
	{
		repeat->since = now;
		repeat->written = 0;
	}
	if (repeat->written >= LOG_REPEATS)
	{
		repeat->suppressed++;
		return false;
	}
	repeat->written++;
	*suppressed = repeat->suppressed;
	repeat->suppressed = 0;
	return true;
}

void
log_write(enum log_level level, const char *message, ...)
{
	struct line line = {.length = 0};
	struct log_field field;
	int			suppressed = 0;
	va_list		fields;

	if (level < log_threshold)
		return;
	if (level != LOG_DEBUG && !repeat_allows(message, &suppressed))
		return;
	if (log_style == LOG_JSON)
		put_char(&line, '{');
	put_time(&line);
	put_field(&line, log_text("level", level_names[level]));
	put_field(&line, log_text("msg", message));
	va_start(fields, message);
	while ((field = va_arg(fields, struct log_field)).key != NULL)
		put_field(&line, field);
	va_end(fields);
	if (suppressed > 0)
		put_field(&line, log_num("suppressed", suppressed));
	if (log_style == LOG_JSON)
		put_char(&line, '}');
	line.text[line.length++] = '\n';

	/* One write per line, so that lines of several processes do not mix. */
	if (write(STDERR_FILENO, line.text, line.length) < 0)
		return;
}
