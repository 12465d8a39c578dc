/*
 * fuzz_config.c
 *		Settings: with an odd first byte the rest is a configuration file, else it is
 *		the command line, one word a line.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "config.h"
#include "fuzz.h"

#define WORDS_MAX	64

static int
words_of(char *text, char **words)
{
	int			count = 2;

	words[0] = "acme-outbox-bridge";
	words[1] = "relay";
	for (char *word = strtok(text, "\n"); word && count < WORDS_MAX; word = strtok(NULL, "\n"))
	{
		/* no file but ours is read */
		if (strstr(word, "file") || strncmp(word, "--con", 5) == 0)
			continue;
		words[count++] = word;
	}
	words[count] = NULL;
	return count;
}

static int
file_of(const char *text, char **words, char path[32])
{
	static int	fd = -1;
	size_t		length = strlen(text);

	if (fd < 0)
		fd = memfd_create("config", 0);
	if (ftruncate(fd, 0) != 0 || pwrite(fd, text, length, 0) != (ssize_t) length)
		abort();
	snprintf(path, 32, "--config=/proc/self/fd/%d", fd);
	words[0] = "acme-outbox-bridge";
	words[1] = "relay";
	words[2] = path;
	words[3] = "--origin=shop";
	words[4] = NULL;
	return 4;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct config config;
	char	   *words[WORDS_MAX + 1];
	struct command_line line = {COMMAND_RELAY, 0, words + 2, "fuzz"};
	char		path[32];
	char	   *text;
	int			count;

	if (size < 1)
		return 0;
	text = malloc(size);
	memcpy(text, data + 1, size - 1);
	text[size - 1] = '\0';
	count = data[0] & 1 ? file_of(text, words, path) : words_of(text, words);
	/* the program and the command are main()'s */
	line.argc = count - 2;
	if (config_load(&config, &line) == EXIT_OK)
		for (int i = 0; i < SETTINGS; i++)
		{
			(void) config_text(&config, (enum setting) i);
			(void) config_number(&config, (enum setting) i);
		}
	else
		assert(memchr(config.error, 0, sizeof(config.error)) && config.error[0]);
	config_free(&config);
	free(text);
	return 0;
}
