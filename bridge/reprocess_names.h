#ifndef ACME_REPROCESS_NAMES_H
#define ACME_REPROCESS_NAMES_H

/* What a reprocessing makes at the broker, by the name of its queue. */
#define REPROCESS_SUFFIX	".reprocess"			/* the exchange */
#define LOCK_SUFFIX			".reprocess.lock"		/* an exclusive queue */
#define REPROCESS_NAME_MAX	256

/* The routing key by which a reprocessed message finds its queue. */
#define REPROCESS_KEY		"reprocess"

#endif							/* ACME_REPROCESS_NAMES_H */
