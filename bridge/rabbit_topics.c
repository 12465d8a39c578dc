/*
 * rabbit_topics.c
 *		Which exchanges may be published to now.
 *
 * A passive declare asks whether an exchange exists, and needs no permission. It
 * goes over a channel that is thrown away whenever the broker closes it.
 *
 * An exchange that refused us (403) cannot be asked about: when its hold is
 * over, the lane's window is emptied and one copy is sent alone. Those that the
 * settings name for a lane are asked about before they are first used, so that
 * a missing one closes no channel.
 */
#include "rabbit_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"

static void
ask(struct rabbit *r, struct topic *topic, msec_t now)
{
	amqp_exchange_declare_t declare = {
		.exchange = {strlen(topic->name.text), topic->name.text},
		.type = {6, "direct"},
		.passive = 1,
	};

	if (r->check_channel == CHANNEL_CLOSED)
		broker_open_channel(&r->broker, CHECK_CHANNEL);
	broker_send_method(&r->broker, CHECK_CHANNEL, AMQP_EXCHANGE_DECLARE_METHOD,
					   &declare);
	r->check_channel = CHANNEL_OPEN;
	r->checking = topic;
	topic->name.users++;		/* ours, until the answer came */
	r->check_deadline = now + r->broker.settings.connect_timeout;
}

void
rabbit_check_topics(struct rabbit *r, msec_t now)
{
	struct topic *topic;

	if (r->checking || !broker_is_open(&r->broker))
		return;
	topic = topics_to_check(&r->topics);
	if (topic)
	{
		ask(r, topic, now);
		return;
	}
	for (int lane = 0; lane < LANES; lane++)
		channel_verified(&r->channels[lane]);
}

static void
handle_ok(struct rabbit *r)
{
	if (r->checking == NULL)
		return;
	topics_good(r->checking);
	topics_drop(&r->topics, r->checking);
	r->checking = NULL;
}

static void
handle_close(struct rabbit *r, const amqp_channel_close_t *close, msec_t now)
{
	struct topic *topic = r->checking;
	char		text[TEXT_MAX];
	char		reason[TOPIC_REASON_MAX];

	broker_answer_close(&r->broker, CHECK_CHANNEL);
	r->check_channel = CHANNEL_CLOSED;
	r->checking = NULL;
	if (topic == NULL)
		return;
	bytes_to_text(text, sizeof(text), close->reply_text);
	if (close->reply_code == AMQP_NOT_FOUND)
		snprintf(reason, sizeof(reason), "exchange \"%s\" does not exist",
				 topic->name.text);
	else
		snprintf(reason, sizeof(reason), "exchange cannot be checked: %s", text);
	topics_hold(topic, TOPIC_MISSING, reason, now, (uint32_t) random());
	for (int lane = 0; lane < LANES; lane++)
		r->channels[lane].found_missing = true;
	log_warn("exchange is missing, its rows are held back",
			 LOG_TEXT("exchange", topic->name.text), LOG_TEXT("reason", reason),
			 LOG_NUM("check_again_ms", topic->retry_at - now),
			 LOG_TEXT("next_step", "declare the exchange in this virtual host"));
	topics_drop(&r->topics, topic);
}

void
rabbit_handle_check(struct rabbit *r, amqp_method_number_t id, void *method,
					msec_t now)
{
	if (id == AMQP_EXCHANGE_DECLARE_OK_METHOD)
		handle_ok(r);
	else if (id == AMQP_CHANNEL_CLOSE_METHOD)
		handle_close(r, method, now);
	else if (id != AMQP_CHANNEL_OPEN_OK_METHOD)
		broker_drop(&r->broker, 0, "method out of place", amqp_method_name(id));
}

/* No exchange can be asked about now; those in doubt get the doubt's benefit. */
void
rabbit_forget_checks(struct rabbit *r)
{
	struct topic *topic;

	r->check_channel = CHANNEL_CLOSED;
	if (r->checking)
		topics_drop(&r->topics, r->checking);
	r->checking = NULL;
	while ((topic = topics_to_check(&r->topics)) != NULL)
	{
		topic->name.users++;
		topics_trust(topic);
		topics_drop(&r->topics, topic);
	}
}

/* May a message for this exchange go now? PUBLISH_SENT: yes. */
enum publish_result
rabbit_ask_topic(struct channel *c, struct topic *topic, msec_t now)
{
	switch (topic->state)
	{
		case TOPIC_GOOD:
			if (topic->known || c->lane == LANE_BUSINESS)
				return PUBLISH_SENT;
			topics_check(topic);
			return PUBLISH_LATER;
		case TOPIC_CHECKING:
			return PUBLISH_LATER;
		case TOPIC_MISSING:
			if (now < topic->retry_at)
				return PUBLISH_DECIDED;
			topics_check(topic);
			return PUBLISH_LATER;
		case TOPIC_REFUSED:
			if (now < topic->retry_at)
				return PUBLISH_DECIDED;
			/* alone, so that a refusal concerns no other row */
			if (c->window.open > 0)
				return PUBLISH_FULL;
			narrow_set(&c->narrow, 1);
			return PUBLISH_SENT;
	}
	return PUBLISH_FULL;
}
