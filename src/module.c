/*
 * module.c
 *		Loading of the extension's library, in order.
 *
 * Preloaded (shared_preload_libraries) it also reserves shared memory and registers
 * the launcher, which brings the instant wake-up, the reaper and retention.  Loaded
 * on demand by the first call in a session, everything else works the same.
 */
#include "acme_outbox.h"

#include "counters.h"
#include "drop.h"
#include "guc.h"
#include "launcher.h"
#include "miscadmin.h"
#include "shmem.h"
#include "wake.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(acme_outbox_contract_version);

void		_PG_init(void);

void
_PG_init(void)
{
	guc_define_all();
	wake_init();
	counters_init();
	drop_init();
	if (process_shared_preload_libraries_in_progress)
	{
		shmem_init();
		counter_sets_init();
		launcher_register();
	}
}

Datum
acme_outbox_contract_version(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32(ACME_OUTBOX_CONTRACT_VERSION);
}
