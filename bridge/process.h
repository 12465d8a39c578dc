#ifndef ACME_PROCESS_H
#define ACME_PROCESS_H

#include <stddef.h>

#define PROCESS_NAME_MAX	512

const char *process_host(void);
void		process_make_name(char *name, size_t size, const char *what);

#endif							/* ACME_PROCESS_H */
