/*
 * worker.h
 *		A database's worker: notifies relays, runs duties.
 */
#ifndef ACME_OUTBOX_WORKER_H
#define ACME_OUTBOX_WORKER_H

/* what the launcher tells a worker, by value in bgw_extra */
typedef struct WorkerArgument
{
	int			slot;
	uint32		generation;
	Oid			dboid;
} WorkerArgument;

extern PGDLLEXPORT void acme_outbox_worker_main(Datum main_arg);

#endif							/* ACME_OUTBOX_WORKER_H */
