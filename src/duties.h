/*
 * duties.h
 *		What must be done from time to time: reaper, retention.
 */
#ifndef ACME_OUTBOX_DUTIES_H
#define ACME_OUTBOX_DUTIES_H

/* batches of duty_batch_rows that one call deletes of an origin or a table at most */
#define DUTY_BATCHES 10

/* Of several outcomes the last in this order counts. */
typedef enum DutyResult
{
	DUTY_DONE,
	DUTY_CONTENDED,				/* something was locked by another session */
	DUTY_MORE,					/* stopped at its bound: call again */
	DUTY_FAILED
} DutyResult;

typedef struct DutyReport
{
	DutyResult	result;
	int64		affected;
} DutyReport;

extern const char *duty_result_name(DutyResult result);
extern int	duty_begin(void);
extern void duty_end(int guc_level);
extern bool duty_lock_tables(const char *const *tables, int n);
extern List *duty_origins(void);

extern DutyReport reap_duty(void);
extern DutyReport purge_duty(void);

#endif							/* ACME_OUTBOX_DUTIES_H */
