#ifndef ACME_REPROCESS_INTERNAL_H
#define ACME_REPROCESS_INTERNAL_H

/* What the files of a reprocessing share. */
#include "amqp_text.h"
#include "broker.h"
#include "dead_letter.h"
#include "exits.h"
#include "match.h"
#include "process.h"
#include "reprocess_names.h"

#define REPROCESS_TEXT_MAX	768
#define REPROCESS_CHANNEL	1

/* What the run waits for. */
enum step
{
	STEP_CONNECTING,
	STEP_OPENING,				/* channel.open and confirm.select sent */
	STEP_FINDING_QUEUE,
	STEP_FINDING_DLQ,			/* and counting it */
	STEP_LOCKING,				/* the exclusive queue declared */
	STEP_SEEKING,				/* the exchange of a run that was killed */
	STEP_DECLARING,				/* the exchange */
	STEP_BINDING,
	STEP_GETTING,				/* the next dead letter, with nothing else to do */
	STEP_PUBLISHING,			/* the confirm of its copy */
	STEP_UNBINDING,
	STEP_DELETING,				/* the exchange */
	STEP_CLOSING,				/* the connection */
	STEP_DONE
};

/* The dead letter after the one in hand. */
enum ahead
{
	AHEAD_NONE,					/* not asked for */
	AHEAD_ASKED,				/* basic.get sent */
	AHEAD_COMING,				/* its content is on the way */
	AHEAD_READY,
	AHEAD_EMPTY					/* there is none */
};

struct reprocess_options
{
	const char *dlq;
	const char *queue;
	const char *user;			/* who publishes; "" if only the broker knows */
	int64_t		limit;			/* 0: none */
	bool		original_key;
	bool		dry_run;
	struct match match;
	msec_t		answer_timeout;
	msec_t		stop_timeout;
	msec_t		connect_timeout;
};

struct tally
{
	uint64_t	at_start;		/* ready in the dead-letter queue */
	uint64_t	taken;
	uint64_t	looked;			/* those that were decided about */
	uint64_t	done;			/* republished, or listed by a dry run */
	uint64_t	unmatched;
	uint64_t	unreadable;		/* their properties are */
	uint64_t	keyless;
	uint64_t	behind;			/* ready there after the last one taken */
};

struct reprocess
{
	struct reprocess_options options;
	char		exchange[REPROCESS_NAME_MAX];
	char		lock[REPROCESS_NAME_MAX];
	char		name[PROCESS_NAME_MAX];	/* of the connection */
	struct broker broker;
	enum step	step;
	enum step	resume;			/* where to go once the channel is open */
	msec_t		deadline;		/* of the answer that is awaited */
	bool		channel_open;
	bool		may_exist;		/* the exchange, and we have to remove it */
	bool		recovering;		/* connected again, only to remove it */
	bool		stopping;		/* asked to */
	msec_t		stop_deadline;
	struct dead_letter letter;	/* the one in hand */
	uint64_t	tag;			/* its delivery tag */
	struct dead_letter next;	/* the one ahead */
	uint64_t	next_tag;
	enum ahead	ahead;
	uint64_t	last_tag;		/* the highest on this channel */
	uint64_t	unsettled;		/* deliveries neither acked nor given back */
	uint64_t	sent;			/* the publishing tag on this channel */
	bool		returned;
	uint64_t	returned_missing;	/* of the returned content */
	bool		returned_header;
	struct tally tally;
	bool		ended;			/* the outcome is known */
	enum exit_status status;
	char		reason[REPROCESS_TEXT_MAX];
	char		next_step[REPROCESS_TEXT_MAX];
	msec_t		started_at;		/* with the first dead letter; or 0 */
};

/* reprocess_connection.c */
void		reprocess_connect(struct reprocess *r,
							  const struct broker_settings *settings);
void		reprocess_turn(struct reprocess *r, short revents, msec_t now);
void		reprocess_stop(struct reprocess *r, msec_t now);
msec_t		reprocess_deadline(struct reprocess *r);

/* reprocess_steps.c */
void		reprocess_enter(struct reprocess *r, enum step step);
const char *reprocess_step_name(const struct reprocess *r);
void		reprocess_send(struct reprocess *r, amqp_method_number_t id,
						   void *method);
bool		reprocess_answered(struct reprocess *r, amqp_method_number_t id,
							   void *method);
void		reprocess_channel_closed(struct reprocess *r,
									 const amqp_channel_close_t *close);
void		reprocess_forget_channel(struct reprocess *r);
void		reprocess_finish(struct reprocess *r, enum exit_status status,
							 const char *next_step, const char *format, ...)
			__attribute__((format(printf, 4, 5)));
void		reprocess_note_outcome(struct reprocess *r, enum exit_status status,
								   const char *next_step,
								   const char *format, ...)
			__attribute__((format(printf, 4, 5)));
void		reprocess_wind_up(struct reprocess *r);

/* reprocess_letters.c */
bool		letters_coming(const struct reprocess *r);
void		letters_ask(struct reprocess *r);
void		letters_sent(struct reprocess *r);
void		letters_go_on(struct reprocess *r);
bool		letters_method(struct reprocess *r, amqp_method_number_t id,
						   void *method);
void		letters_content(struct reprocess *r, const struct frame *frame,
							msec_t now);

/* reprocess_report.c */
void		report_letter(const struct reprocess *r);
void		report_progress(const struct reprocess *r, msec_t now,
							uint64_t in_last_second);
void		report_summary(const struct reprocess *r, msec_t now);

#endif							/* ACME_REPROCESS_INTERNAL_H */
