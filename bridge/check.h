#ifndef ACME_CHECK_H
#define ACME_CHECK_H

#include "config.h"
#include "report.h"

#define CHECK_TOPICS_MAX	64
#define CHECK_TOPIC_MAX		256

/* Exchanges to ask the broker about, each once. */
struct check_topics
{
	int			count;
	char		names[CHECK_TOPICS_MAX][CHECK_TOPIC_MAX];
	bool		too_many;		/* or one is too long */
};

void		check_add_topic(struct check_topics *topics, const char *name,
							size_t length);
void		check_database(struct report *report, const struct config *config,
						   struct check_topics *topics);
void		check_broker(struct report *report, const struct config *config,
						 const struct check_topics *topics,
						 const char *version);
struct asking;
struct session;
bool		check_queue(struct report *report, struct asking *asking,
						const char *check, const char *name);
void		check_consumer_database(struct report *report,
									const struct config *config,
									struct session *session);
void		check_consumer_broker(struct report *report,
								  const struct config *config,
								  struct asking *asking);
void		check_reprocess(struct report *report, const struct config *config,
							struct asking *asking);
enum exit_status check_run(const struct command_line *line);

#endif							/* ACME_CHECK_H */
