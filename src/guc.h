/*
 * guc.h
 *		Settings of the extension, each named acme_outbox.<variable>.
 */
#ifndef ACME_OUTBOX_GUC_H
#define ACME_OUTBOX_GUC_H

typedef enum AutocommitPublish
{
	AUTOCOMMIT_OFF,
	AUTOCOMMIT_WARN,
	AUTOCOMMIT_ERROR
} AutocommitPublish;

typedef enum StaleClaimPolicy
{
	STALE_CLAIM_RECLAIM,		/* G 5.1: the next relay sends them again */
	STALE_CLAIM_STRAND			/* P 1.1: the reaper fails them */
} StaleClaimPolicy;

typedef enum FailedKeyPolicy
{
	FAILED_KEY_CONTINUE,
	FAILED_KEY_BLOCK
} FailedKeyPolicy;

/* publish */
extern char *guc_origin;
extern bool guc_require_origin;
extern char *guc_traceparent;
extern char *guc_trace_id;
extern int	guc_max_payload_bytes;
extern int	guc_max_headers_bytes;
extern int	guc_autocommit_publish;

/* relay; times in milliseconds */
extern int	guc_lease_duration;
extern int	guc_stale_claim_policy;
extern int	guc_failed_key_policy;
extern int	guc_max_attempts;
extern int	guc_backoff_base;
extern int	guc_backoff_cap;
extern int	guc_hold_backoff_base;
extern int	guc_hold_backoff_cap;
extern int	guc_skipped_rows;

/* consumers */
extern char *guc_inbox_schema;
extern char *guc_tenant_id;
extern char *guc_locale;

/* worker and duties; times in seconds unless named otherwise */
extern bool guc_worker;
extern int	guc_max_workers;
extern int	guc_wake_delay_ms;
extern int	guc_duty_interval;
extern int	guc_duty_lock_timeout_ms;
extern int	guc_duty_batch_rows;
extern int	guc_reaper_first_delay;
extern int	guc_reaper_interval;
extern int	guc_reaper_warn_after;
extern int	guc_reaper_fail_after;
extern int	guc_retention_interval;
extern int	guc_retention_published;
extern int	guc_retention_actions;
extern int	guc_retention_processed;
extern int	guc_retention_attempts;
extern int	guc_retention_tombstones;

/* the extension itself */
extern bool guc_allow_drop;
extern int	guc_counter_sets;

extern void guc_define_all(void);

#endif							/* ACME_OUTBOX_GUC_H */
