#ifndef ACME_UNIT_H
#define ACME_UNIT_H

/* What cmocka.h wants to have been included. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#endif							/* ACME_UNIT_H */
