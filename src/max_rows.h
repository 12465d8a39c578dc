/*
 * max_rows.h
 *		The bound that a call is given on how many rows it takes.
 */
#ifndef ACME_OUTBOX_MAX_ROWS_H
#define ACME_OUTBOX_MAX_ROWS_H

extern int32 max_rows_check(int32 max_rows, int32 most);

#endif							/* ACME_OUTBOX_MAX_ROWS_H */
