#ifndef ACME_DEAD_LETTER_H
#define ACME_DEAD_LETTER_H

#include "amqp_frame.h"
#include "header_names.h"
#include "properties.h"

/* A routing key or exchange name, its end included. */
#define SHORT_TEXT_MAX	256

/* What can be asked of a dead letter; the names are those of --match. */
enum letter_field
{
	LETTER_EVENT_NAME,			/* property type */
	LETTER_EVENT_ID,			/* property message_id */
	LETTER_ORIGIN,				/* property app_id */
	LETTER_ROUTING_KEY,			/* the original one */
	LETTER_QUEUE,				/* where it died first */
	LETTER_CONSUMER,			/* HEADER_ERROR_SERVICE */
	LETTER_SQLSTATE,			/* HEADER_ERROR_SQLSTATE */
	LETTER_HEADER				/* any other header, by its name */
};

/* One message of a dead-letter queue, as it was received. */
struct dead_letter
{
	struct buffer list;			/* its encoded properties */
	struct buffer body;
	struct properties properties;	/* parts of the list */
	uint64_t	missing;		/* bytes of the body to come */
	bool		has_header;
	bool		unreadable;		/* its properties are, and none are kept */
};

void		dead_letter_clear(struct dead_letter *letter);
void		dead_letter_free(struct dead_letter *letter);
bool		dead_letter_add(struct dead_letter *letter,
							const struct frame *frame);
bool		dead_letter_is_whole(const struct dead_letter *letter);

bool		dead_letter_text(const struct dead_letter *letter,
							 enum letter_field field, const char *header,
							 char text[FIELD_TEXT_MAX]);
bool		dead_letter_original_key(const struct dead_letter *letter,
									 char key[SHORT_TEXT_MAX]);
bool		dead_letter_death_time(const struct dead_letter *letter,
								   int64_t *seconds);
void		dead_letter_reason(const struct dead_letter *letter,
							   char text[FIELD_TEXT_MAX]);
void		dead_letter_put_fresh(struct buffer *out,
								  const struct dead_letter *letter,
								  const char *user, const char *also_to);

#endif							/* ACME_DEAD_LETTER_H */
