/*
 * random_bytes.h
 *		Random bytes for ids.
 */
#ifndef ACME_OUTBOX_RANDOM_BYTES_H
#define ACME_OUTBOX_RANDOM_BYTES_H

/* Each n is at most this. */
#define RANDOM_BYTES_MAX 64

extern void random_bytes(void *out, Size n);

#endif							/* ACME_OUTBOX_RANDOM_BYTES_H */
