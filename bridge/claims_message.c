/*
 * claims_message.c
 *		A copy of a claimed row as the message that goes out.
 *
 * The texts stay where libpq put them. A copy on the audit lane has the row's own
 * bytes unless the database handed out others for it. A dead letter tells where the
 * message was to go and why it was given up.
 */
#include "claims_internal.h"

#include <stdlib.h>
#include <string.h>

#include "header_names.h"

#define DEAD_LETTER_HEADERS	6

static int64_t
created_ms(const struct row *row)
{
	return strtoll(PQgetvalue(row->claim->result, row->number, COL_CREATED_AT), NULL, 10);
}

/* Since the row was published, by the database's clock and by ours. */
msec_t
claims_age(const struct copy *copy)
{
	return clock_wall() - created_ms(copy->row);
}

static const char *
text_or_null(const struct row *row, enum claim_column column)
{
	const PGresult *result = row->claim->result;

	return PQgetisnull(result, row->number, column) ? NULL :
		PQgetvalue(result, row->number, column);
}

static void
fill_message(const struct copy *copy, struct message *m)
{
	const struct row *row = copy->row;
	const PGresult *result = row->claim->result;
	int			n = row->number;
	int			payload = copy->lane == LANE_AUDIT &&
		!PQgetisnull(result, n, COL_AUDIT_PAYLOAD) ? COL_AUDIT_PAYLOAD : COL_PAYLOAD;

	memset(m, 0, sizeof(*m));
	m->id = PQgetvalue(result, n, COL_EVENT_ID);
	m->type = PQgetvalue(result, n, COL_EVENT_NAME);
	m->origin = row->claim->set->settings.origin;
	m->exchange = PQgetvalue(result, n, COL_TOPIC);
	m->routing_key = PQgetvalue(result, n, COL_ROUTING_KEY);	/* NULL: '' */
	m->headers = text_or_null(row, COL_HEADERS);
	m->traceparent = text_or_null(row, COL_TRACEPARENT);
	m->payload = PQgetvalue(result, n, payload);
	m->payload_length = (size_t) PQgetlength(result, n, payload);
	m->created_at = created_ms(row) / 1000;
	m->mandatory = PQgetvalue(result, n, COL_MANDATORY)[0] == 't';
	if (copy->lane == LANE_AUDIT)
	{
		m->exchange = row->claim->set->settings.audit_exchange;
		m->mandatory = true;
	}
}

/* The message that was given up, at the dead-letter exchange, and why. */
static void
readdress(const struct row *row, struct message *m,
		  struct message_header headers[DEAD_LETTER_HEADERS])
{
	const struct claim_settings *settings = &row->claim->set->settings;
	const PGresult *result = row->claim->result;
	int			n = row->number;
	const struct message_header added[DEAD_LETTER_HEADERS] = {
		{HEADER_ORIGINAL_EXCHANGE, m->exchange, 0, false},
		{HEADER_ORIGINAL_KEY, m->routing_key, 0, false},
		{HEADER_ERROR_SERVICE, settings->origin, 0, false},
		{HEADER_ERROR_MESSAGE, PQgetvalue(result, n, COL_LAST_ERROR), 0, false},
		{HEADER_ERROR_ATTEMPTS, NULL,
		strtoll(PQgetvalue(result, n, COL_ATTEMPTS), NULL, 10), false},
		{HEADER_ERROR_TIME, NULL, m->created_at, true},
	};

	memcpy(headers, added, sizeof(added));
	m->extra = headers;
	m->extra_count = DEAD_LETTER_HEADERS;
	m->exchange = settings->dead_letter_exchange;
	m->routing_key = DEAD_LETTER_KEY;
	m->mandatory = true;
	m->sidetracked = true;
}

enum publish_result
claims_send_copy(struct copy *copy, copy_offer offer, void *context)
{
	struct message_header headers[DEAD_LETTER_HEADERS];
	struct message m;

	fill_message(copy, &m);
	if (copy->lane == LANE_DEAD_LETTER)
		readdress(copy->row, &m, headers);
	return offer(context, copy, &m);
}
