/*
 * fuzz_uri.c
 *		The broker's URI. An error text must not repeat what the URI says.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "uri.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct broker_uri uri;
	char	   *text = malloc(size + 1);
	const char *problem;

	memcpy(text, data, size);
	text[size] = '\0';
	memset(&uri, 0xAA, sizeof(uri));
	problem = uri_parse(text, &uri);
	if (problem == NULL)
	{
		assert(memchr(uri.user, 0, sizeof(uri.user)));
		assert(memchr(uri.password, 0, sizeof(uri.password)));
		assert(memchr(uri.vhost, 0, sizeof(uri.vhost)));
	}
	else
		assert(strlen(problem) < 200);
	free(text);
	return 0;
}
