/*
 * guc.c
 *		All settings of the extension: name, range, default, text.
 *
 * Contexts: what decides who an event comes from is PGC_SUSET, so that only an
 * administrator sets it, per role or per database; so is what relays and duties read.
 * What a session may decide for itself (trace, tenant, locale) is PGC_USERSET.  What the
 * worker's own loop reads is PGC_SIGHUP, what sizes shared memory PGC_POSTMASTER.
 */
#include "acme_outbox.h"

#include <limits.h>

#include "guc.h"
#include "miscadmin.h"
#include "utils/guc.h"

char	   *guc_origin;
bool		guc_require_origin;
char	   *guc_traceparent;
char	   *guc_trace_id;
int			guc_max_payload_bytes;
int			guc_max_headers_bytes;
int			guc_autocommit_publish;

int			guc_lease_duration;
int			guc_stale_claim_policy;
int			guc_failed_key_policy;
int			guc_max_attempts;
int			guc_backoff_base;
int			guc_backoff_cap;
int			guc_hold_backoff_base;
int			guc_hold_backoff_cap;
int			guc_skipped_rows;

char	   *guc_inbox_schema;
char	   *guc_tenant_id;
char	   *guc_locale;

bool		guc_worker;
int			guc_max_workers;
int			guc_wake_delay_ms;
int			guc_duty_interval;
int			guc_duty_lock_timeout_ms;
int			guc_duty_batch_rows;
int			guc_reaper_first_delay;
int			guc_reaper_interval;
int			guc_reaper_warn_after;
int			guc_reaper_fail_after;
int			guc_retention_interval;
int			guc_retention_published;
int			guc_retention_actions;
int			guc_retention_processed;
int			guc_retention_attempts;
int			guc_retention_tombstones;

bool		guc_allow_drop;
int			guc_counter_sets;

static const struct config_enum_entry autocommit_options[] = {
	{"off", AUTOCOMMIT_OFF, false},
	{"warn", AUTOCOMMIT_WARN, false},
	{"error", AUTOCOMMIT_ERROR, false},
	{NULL, 0, false}
};

static const struct config_enum_entry stale_claim_options[] = {
	{"reclaim", STALE_CLAIM_RECLAIM, false},
	{"strand", STALE_CLAIM_STRAND, false},
	{NULL, 0, false}
};

static const struct config_enum_entry failed_key_options[] = {
	{"continue", FAILED_KEY_CONTINUE, false},
	{"block", FAILED_KEY_BLOCK, false},
	{NULL, 0, false}
};

/* One line a setting: the long texts say what a user needs to decide. */
static void
define_int(const char *name, const char *text, int *variable, int boot,
		   int min, int max, GucContext context, int unit)
{
	DefineCustomIntVariable(name, text, NULL, variable, boot, min, max,
							context, unit, NULL, NULL, NULL);
}

static void
define_publish_settings(void)
{
	DefineCustomStringVariable("acme_outbox.origin",
							   "Sets the service that published events come from.",
							   "Empty means the name of the session's user.",
							   &guc_origin, "", PGC_SUSET, 0,
							   NULL, NULL, NULL);
	DefineCustomBoolVariable("acme_outbox.require_origin",
							 "Refuses to publish while acme_outbox.origin is empty.",
							 NULL, &guc_require_origin, false, PGC_SUSET, 0,
							 NULL, NULL, NULL);
	DefineCustomStringVariable("acme_outbox.traceparent",
							   "Sets the W3C trace context that published events continue.",
							   NULL, &guc_traceparent, "", PGC_USERSET, 0,
							   NULL, NULL, NULL);
	DefineCustomStringVariable("acme_outbox.trace_id",
							   "Sets the trace id that published events have.",
							   "Empty means that of acme_outbox.traceparent.",
							   &guc_trace_id, "", PGC_USERSET, 0,
							   NULL, NULL, NULL);
	define_int("acme_outbox.max_payload_bytes",
			   "Sets the largest payload that can be published.",
			   &guc_max_payload_bytes, 1024 * 1024, 1, 128 * 1024 * 1024,
			   PGC_SUSET, GUC_UNIT_BYTE);
	define_int("acme_outbox.max_headers_bytes",
			   "Sets the largest encoded size of an event's headers.",
			   &guc_max_headers_bytes, 64 * 1024, 1, 120 * 1024,
			   PGC_SUSET, GUC_UNIT_BYTE);
	DefineCustomEnumVariable("acme_outbox.autocommit_publish",
							 "Decides what happens when a statement outside a transaction block does nothing but publish.",
							 "Such an event is not bound to any business change.",
							 &guc_autocommit_publish, AUTOCOMMIT_WARN,
							 autocommit_options, PGC_USERSET, 0,
							 NULL, NULL, NULL);
}

static void
define_relay_settings(void)
{
	define_int("acme_outbox.lease_duration",
			   "Sets how long a relay may be silent before another takes over.",
			   &guc_lease_duration, 30000, 1000, 3600000, PGC_SUSET, GUC_UNIT_MS);
	DefineCustomEnumVariable("acme_outbox.stale_claim_policy",
							 "Decides what happens to entries that a dead relay left in flight.",
							 "reclaim sends them again; strand leaves them to the reaper, which fails them.",
							 &guc_stale_claim_policy, STALE_CLAIM_RECLAIM,
							 stale_claim_options, PGC_SUSET, 0,
							 NULL, NULL, NULL);
	DefineCustomEnumVariable("acme_outbox.failed_key_policy",
							 "Decides whether later entries of a failed entry's key go on.",
							 "A topic_policy row overrides it for its topic.",
							 &guc_failed_key_policy, FAILED_KEY_CONTINUE,
							 failed_key_options, PGC_SUSET, 0,
							 NULL, NULL, NULL);
	define_int("acme_outbox.max_attempts",
			   "Sets after how many refusals for its own fault an entry is FAILED.",
			   &guc_max_attempts, 5, 1, 1000, PGC_SUSET, 0);
	define_int("acme_outbox.backoff_base",
			   "Sets the wait after the first refusal; it doubles with each further one.",
			   &guc_backoff_base, 30000, 1, INT_MAX, PGC_SUSET, GUC_UNIT_MS);
	define_int("acme_outbox.backoff_cap",
			   "Sets the longest wait between attempts.",
			   &guc_backoff_cap, 3600000, 1, INT_MAX, PGC_SUSET, GUC_UNIT_MS);
	define_int("acme_outbox.hold_backoff_base",
			   "Sets the wait after an unroutable or nacked publish; it doubles each time.",
			   &guc_hold_backoff_base, 1000, 1, INT_MAX, PGC_SUSET, GUC_UNIT_MS);
	define_int("acme_outbox.hold_backoff_cap",
			   "Sets the longest wait after an unroutable or nacked publish.",
			   &guc_hold_backoff_cap, 60000, 1, INT_MAX, PGC_SUSET, GUC_UNIT_MS);
	define_int("acme_outbox.skipped_rows",
			   "Sets how many entries locked by other sessions a cursor remembers.",
			   &guc_skipped_rows, 500, 1, 10000, PGC_SUSET, 0);
}

/*
 * Which inbox a session uses decides whose triggers its calls run, so an administrator
 * sets it, as he does the origin.
 */
static void
define_consumer_settings(void)
{
	DefineCustomStringVariable("acme_outbox.inbox_schema",
							   "Sets the schema whose inbox the session's consumers use.",
							   "It is one that create_inbox made.",
							   &guc_inbox_schema, ACME_OUTBOX_SCHEMA, PGC_SUSET, 0,
							   NULL, NULL, NULL);
	DefineCustomStringVariable("acme_outbox.tenant_id",
							   "Sets the tenant that the transaction works for.",
							   "Empty means none; set it with acme_outbox.context().",
							   &guc_tenant_id, "", PGC_USERSET, 0,
							   NULL, NULL, NULL);
	DefineCustomStringVariable("acme_outbox.locale",
							   "Sets the language tag that published events carry.",
							   "Empty means none; set it with acme_outbox.context().",
							   &guc_locale, "", PGC_USERSET, 0,
							   NULL, NULL, NULL);
}

static void
define_worker_settings(void)
{
	/* Postmaster settings exist only while the postmaster preloads us. */
	DefineCustomBoolVariable("acme_outbox.worker",
							 "Runs background workers: instant wake-up, reaper, retention.",
							 NULL, &guc_worker, true, PGC_SIGHUP, 0,
							 NULL, NULL, NULL);
	define_int("acme_outbox.wake_delay",
			   "Sets how long wake-ups are collected into one notification.",
			   &guc_wake_delay_ms, 1, 0, 1000, PGC_SIGHUP, GUC_UNIT_MS);
	define_int("acme_outbox.duty_interval",
			   "Sets how often the worker looks for duties that are due.",
			   &guc_duty_interval, 5, 1, 3600, PGC_SIGHUP, GUC_UNIT_S);
	define_int("acme_outbox.duty_lock_timeout",
			   "Sets how long a duty waits for a lock before it reports contention.",
			   &guc_duty_lock_timeout_ms, 1000, 1, 60000, PGC_SUSET, GUC_UNIT_MS);
	define_int("acme_outbox.duty_batch_rows",
			   "Sets how many rows a duty changes in one batch.",
			   &guc_duty_batch_rows, 1000, 1, 100000, PGC_SUSET, 0);
	define_int("acme_outbox.reaper_first_delay",
			   "Sets how long after its start the worker runs the reaper first.",
			   &guc_reaper_first_delay, 5, 0, 3600, PGC_SIGHUP, GUC_UNIT_S);
	define_int("acme_outbox.reaper_interval",
			   "Sets how often entries stuck in PUBLISHING are looked for.",
			   &guc_reaper_interval, 900, 1, 86400, PGC_SUSET, GUC_UNIT_S);
	define_int("acme_outbox.reaper_warn_after",
			   "Sets after how long in PUBLISHING an entry is warned about.",
			   &guc_reaper_warn_after, 900, 1, INT_MAX, PGC_SUSET, GUC_UNIT_S);
	define_int("acme_outbox.reaper_fail_after",
			   "Sets after how long a stranded entry is FAILED; 0 only warns.",
			   &guc_reaper_fail_after, 14400, 0, INT_MAX, PGC_SUSET, GUC_UNIT_S);
	define_int("acme_outbox.retention_interval",
			   "Sets how often rows past their retention are looked for.",
			   &guc_retention_interval, 60, 1, 86400, PGC_SUSET, GUC_UNIT_S);
	define_int("acme_outbox.retention_published",
			   "Sets how long published entries are kept; 0 keeps them for ever.",
			   &guc_retention_published, 7 * 86400, 0, INT_MAX, PGC_SUSET, GUC_UNIT_S);
	define_int("acme_outbox.retention_actions",
			   "Sets how long the record of operators' actions is kept; 0 keeps it for ever.",
			   &guc_retention_actions, 90 * 86400, 0, INT_MAX, PGC_SUSET, GUC_UNIT_S);
	define_int("acme_outbox.retention_processed",
			   "Sets how long inboxes remember processed events; 0 remembers them for ever.",
			   &guc_retention_processed, 30 * 86400, 0, INT_MAX, PGC_SUSET, GUC_UNIT_S);
	define_int("acme_outbox.retention_attempts",
			   "Sets how long inboxes remember attempts; 0 remembers them for ever.",
			   &guc_retention_attempts, 30 * 86400, 0, INT_MAX, PGC_SUSET, GUC_UNIT_S);
	define_int("acme_outbox.retention_tombstones",
			   "Sets how long projections remember deleted rows; 0 remembers them for ever.",
			   &guc_retention_tombstones, 30 * 86400, 0, INT_MAX, PGC_SUSET, GUC_UNIT_S);
}

void
guc_define_all(void)
{
	define_publish_settings();
	define_relay_settings();
	define_consumer_settings();
	define_worker_settings();
	DefineCustomBoolVariable("acme_outbox.allow_drop",
							 "Lets the extension be dropped with entries that were not delivered.",
							 NULL, &guc_allow_drop, false, PGC_USERSET, 0,
							 NULL, NULL, NULL);
	if (process_shared_preload_libraries_in_progress)
	{
		define_int("acme_outbox.max_workers",
				   "Sets how many databases can have a worker.",
				   &guc_max_workers, 8, 1, 100, PGC_POSTMASTER, 0);
		define_int("acme_outbox.counter_sets",
				   "Sets how many label sets the counters of all databases can have.",
				   &guc_counter_sets, 1000, 100, 100000, PGC_POSTMASTER, 0);
	}
	MarkGUCPrefixReserved("acme_outbox");
}
