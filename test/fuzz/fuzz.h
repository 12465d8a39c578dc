#ifndef ACME_FUZZ_H
#define ACME_FUZZ_H

/* What libFuzzer calls. */
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>

int			LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif							/* ACME_FUZZ_H */
