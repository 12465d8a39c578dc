#ifndef ACME_UTF8_H
#define ACME_UTF8_H

#include <stdbool.h>
#include <stddef.h>

bool		utf8_is_text(const void *data, size_t length);
size_t		utf8_cut(const char *text, size_t most);

#endif							/* ACME_UTF8_H */
