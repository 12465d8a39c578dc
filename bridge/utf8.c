/*
 * utf8.c
 *		Is it text that PostgreSQL takes as UTF-8?
 *
 * Strict: no NUL, no surrogates, no longer form than needed, nothing beyond
 * U+10FFFF. One bad message would otherwise fail the statement of a whole batch.
 */
#include "utf8.h"

#include <stdint.h>
#include <string.h>

/* Bytes of the character at the start, or 0 if it is none. */
static size_t
character(const uint8_t *s, size_t length)
{
	size_t		n = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 :
		s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;

	if (n > length || s[0] == 0)
		return 0;
	for (size_t i = 1; i < n; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
		(s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
		return 0;
	return n;
}

bool
utf8_is_text(const void *data, size_t length)
{
	const uint8_t *s = data;

	for (size_t n; length > 0; s += n, length -= n)
	{
		/* eight letters of ASCII at a time: the usual case */
		while (length >= 8)
		{
			uint64_t	eight;

			memcpy(&eight, s, 8);
			if ((eight | (eight - 0x0101010101010101u)) & 0x8080808080808080u)
				break;
			s += 8;
			length -= 8;
		}
		if (length == 0)
			break;
		n = character(s, length);
		if (n == 0)
			return false;
	}
	return true;
}

/* How many bytes to keep so that there are at most that many, and whole ones. */
size_t
utf8_cut(const char *text, size_t most)
{
	size_t		length = strnlen(text, most + 1);

	if (length <= most)
		return length;
	while (most > 0 && ((uint8_t) text[most] & 0xc0) == 0x80)
		most--;
	return most;
}
