/*
 * topics.c
 *		What is known about the exchanges that rows name.
 *
 * A publish to an exchange that does not exist, or that we may not write to,
 * closes the whole channel and makes every unconfirmed row unknown. So an
 * exchange at fault is remembered for a moment: its rows are held back at once,
 * and it is looked at again without disturbing the others.
 */
#include "topics.h"

#include <stdio.h>
#include <string.h>

struct topic *
topics_use(struct names *topics, const char *text)
{
	struct topic *topic = names_use(topics, text);

	if (topic->backoff.min == 0)
		backoff_init(&topic->backoff, TOPIC_HOLD_MIN, TOPIC_HOLD_MAX);
	return topic;
}

/* One use less; an unused entry that says nothing goes. */
void
topics_drop(struct names *topics, struct topic *topic)
{
	if (--topic->name.users == 0 && topic->state == TOPIC_GOOD && !topic->known)
		names_remove(topics, &topic->name);
}

/* Nothing is known against it. */
void
topics_trust(struct topic *topic)
{
	topic->state = TOPIC_GOOD;
}

void
topics_good(struct topic *topic)
{
	topic->state = TOPIC_GOOD;
	topic->known = true;
	backoff_reset(&topic->backoff);
}

void
topics_check(struct topic *topic)
{
	topic->state = TOPIC_CHECKING;
}

void
topics_hold(struct topic *topic, enum topic_state state, const char *reason,
			msec_t now, uint32_t random)
{
	topic->state = state;
	topic->known = false;
	topic->retry_at = now + backoff_next(&topic->backoff, random);
	snprintf(topic->reason, sizeof(topic->reason), "%s", reason);
}

struct topic *
topics_to_check(struct names *topics)
{
	struct topic *topic;

	for (topic = names_first(topics); topic;
		 topic = names_next(topics, &topic->name))
		if (topic->state == TOPIC_CHECKING)
			return topic;
	return NULL;
}

/* Forget what was at fault long ago, or was good, and is not asked for now. */
void
topics_sweep(struct names *topics, msec_t now)
{
	struct topic *topic = names_first(topics);

	while (topic)
	{
		struct topic *next = names_next(topics, &topic->name);

		if (topic->name.users == 0 && topic->state != TOPIC_CHECKING &&
			now - topic->retry_at > TOPIC_FORGET)
			names_remove(topics, &topic->name);
		topic = next;
	}
}
