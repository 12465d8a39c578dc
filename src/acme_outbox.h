/*
 * acme_outbox.h
 *		What every file of the extension shares: names, limits, SQLSTATEs.
 *
 * Vocabulary (docs/design.md section 1): an *entry* is a row of outbox_entry;
 * an *origin* the service that published it; a *key* its aggregate, within
 * which order is kept; a *claim* a batch handed to the relay; a *waiting* entry
 * is PENDING with next_attempt_at set.
 */
#ifndef ACME_OUTBOX_H
#define ACME_OUTBOX_H

#include "postgres.h"

#include "fmgr.h"

#define ACME_OUTBOX_SCHEMA "acme_outbox"
#define ACME_OUTBOX_CONTRACT_VERSION 1
#define ENVELOPE_VERSION "1.0.0"

/* limits that no setting changes; AMQP short strings end at 255 bytes */
#define MAX_SHORT_STRING 255
#define MAX_HEADER_DEPTH 32

/* objsubids of our entries in the lock table; 1 and 2 are the advisory lock functions' */
#define LOCK_OF_ORIGIN 3
#define LOCK_OF_IDEMPOTENCY_KEY 4
#define LOCK_OF_PROJECTED_KEY 5
#define LOCK_OF_KEY_BUCKET 6

/* bits of lanes_done: where an entry has arrived */
#define LANE_BUSINESS 1
#define LANE_AUDIT 2
#define LANES_ALL (LANE_BUSINESS | LANE_AUDIT)

/*
 * SQLSTATEs of class OX, documented in docs/errors.md.  OX0xx: publish;
 * OX1xx: relay; OX2xx: inbox, handlers, parked messages; OX3xx: idempotency keys;
 * OX4xx: projections; OX5xx: the extension itself.
 */
#define ERRCODE_OX_PAYLOAD MAKE_SQLSTATE('O', 'X', '0', '0', '1')
#define ERRCODE_OX_PAYLOAD_SIZE MAKE_SQLSTATE('O', 'X', '0', '0', '2')
#define ERRCODE_OX_ROUTING MAKE_SQLSTATE('O', 'X', '0', '0', '3')
#define ERRCODE_OX_EVENT_NAME MAKE_SQLSTATE('O', 'X', '0', '0', '4')
#define ERRCODE_OX_TRACE MAKE_SQLSTATE('O', 'X', '0', '0', '5')
#define ERRCODE_OX_HEADERS MAKE_SQLSTATE('O', 'X', '0', '0', '6')
#define ERRCODE_OX_EVENT_ID_REUSE MAKE_SQLSTATE('O', 'X', '0', '0', '7')
#define ERRCODE_OX_ORIGIN MAKE_SQLSTATE('O', 'X', '0', '0', '8')
#define ERRCODE_OX_ARGUMENT MAKE_SQLSTATE('O', 'X', '0', '0', '9')
#define ERRCODE_OX_AUTOCOMMIT MAKE_SQLSTATE('O', 'X', '0', '1', '0')
#define ERRCODE_OX_ENCODING MAKE_SQLSTATE('O', 'X', '0', '1', '1')
#define ERRCODE_OX_FENCED MAKE_SQLSTATE('O', 'X', '1', '0', '1')
#define ERRCODE_OX_NOT_GRANTED MAKE_SQLSTATE('O', 'X', '1', '0', '2')
#define ERRCODE_OX_NOT_ADOPTED MAKE_SQLSTATE('O', 'X', '1', '0', '3')
#define ERRCODE_OX_CLAIM_CONTEXT MAKE_SQLSTATE('O', 'X', '1', '0', '4')
#define ERRCODE_OX_SETTLE_ARGUMENT MAKE_SQLSTATE('O', 'X', '1', '0', '5')
#define ERRCODE_OX_REDACTION_PATH MAKE_SQLSTATE('O', 'X', '1', '0', '6')
#define ERRCODE_OX_REDACTED MAKE_SQLSTATE('O', 'X', '1', '0', '7')
#define ERRCODE_OX_INBOX MAKE_SQLSTATE('O', 'X', '2', '0', '1')
#define ERRCODE_OX_HANDLER MAKE_SQLSTATE('O', 'X', '2', '0', '2')
#define ERRCODE_OX_ENVELOPE MAKE_SQLSTATE('O', 'X', '2', '0', '3')
#define ERRCODE_OX_INBOX_ARGUMENT MAKE_SQLSTATE('O', 'X', '2', '0', '4')
#define ERRCODE_OX_PARK MAKE_SQLSTATE('O', 'X', '2', '0', '5')
#define ERRCODE_OX_PARKED_ROW MAKE_SQLSTATE('O', 'X', '2', '0', '6')
#define ERRCODE_OX_TENANT MAKE_SQLSTATE('O', 'X', '2', '0', '7')
#define ERRCODE_OX_REGISTRATION MAKE_SQLSTATE('O', 'X', '2', '0', '8')
#define ERRCODE_OX_IDEMPOTENCY_ARGUMENT MAKE_SQLSTATE('O', 'X', '3', '0', '1')
#define ERRCODE_OX_NOT_IN_FLIGHT MAKE_SQLSTATE('O', 'X', '3', '0', '2')
#define ERRCODE_OX_EXECUTION MAKE_SQLSTATE('O', 'X', '3', '0', '3')
#define ERRCODE_OX_PROJECTION_TARGET MAKE_SQLSTATE('O', 'X', '4', '0', '1')
#define ERRCODE_OX_PROJECTION_COLUMN MAKE_SQLSTATE('O', 'X', '4', '0', '2')
#define ERRCODE_OX_PROJECTION_KEY MAKE_SQLSTATE('O', 'X', '4', '0', '3')
#define ERRCODE_OX_PROJECTION_VALUE MAKE_SQLSTATE('O', 'X', '4', '0', '4')
#define ERRCODE_OX_PROJECTION_EVENT MAKE_SQLSTATE('O', 'X', '4', '0', '5')
#define ERRCODE_OX_PROJECTION_SEED MAKE_SQLSTATE('O', 'X', '4', '0', '6')
#define ERRCODE_OX_UNDELIVERED MAKE_SQLSTATE('O', 'X', '5', '0', '1')

#endif							/* ACME_OUTBOX_H */
