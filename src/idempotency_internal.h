/*
 * idempotency_internal.h
 *		What the files of the idempotency keys share: a request, its row, the table.
 */
#ifndef ACME_OUTBOX_IDEMPOTENCY_INTERNAL_H
#define ACME_OUTBOX_IDEMPOTENCY_INTERNAL_H

#include "common/sha2.h"
#include "plans.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#define HASH_HEX_LENGTH (PG_SHA256_DIGEST_LENGTH * 2)

/* What a request is known by. */
typedef struct IdempotencyRequest
{
	const char *tenant;
	const char *endpoint;
	const char *key;
	char		hash[HASH_HEX_LENGTH + 1];
	TimestampTz now;
	TimestampTz expires_at;
	TimestampTz in_flight_until;
	uint64		lock_hash;
} IdempotencyRequest;

/* A row of idempotency_key as idempotency_find() returns it. */
typedef struct IdempotencyRow
{
	pg_uuid_t	id;
	bool		same_request;
	bool		completed;
	bool		expired;
	Jsonb	   *stored;			/* NULL: none */
} IdempotencyRow;

/* The statements of one schema's table. */
typedef struct IdempotencyTable
{
	char		schema[NAMEDATALEN];	/* first: the cache's key */
	KeptPlan	find;
	KeptPlan	insert;
	KeptPlan	reclaim;
	KeptPlan	complete;
	KeptPlan	completed;
	KeptPlan	abandon;
} IdempotencyTable;

typedef enum BodyKind
{
	BODY_BYTES,					/* text, bytea */
	BODY_JSON,
	BODY_JSONB
} BodyKind;

/* src/idempotency_table.c */
extern IdempotencyTable *idempotency_table(const IdempotencyRequest *request);
extern void idempotency_key_args(Datum *args, const IdempotencyRequest *request);
extern Datum idempotency_column(int column, bool *isnull);
extern bool idempotency_find(IdempotencyTable *table, const IdempotencyRequest *request,
							 IdempotencyRow *found);
extern bool idempotency_claim_absent(IdempotencyTable *table, const IdempotencyRequest *request,
									 pg_uuid_t *execution);
extern bool idempotency_claim_expired(IdempotencyTable *table, const IdempotencyRequest *request,
									  const IdempotencyRow *found, pg_uuid_t *execution);

/* src/idempotency_request.c */
extern void idempotency_read_key(FunctionCallInfo fcinfo, int tenant_arg,
								 IdempotencyRequest *request);
extern TimestampTz idempotency_time_after(TimestampTz now, FunctionCallInfo fcinfo, int i,
										  const char *name);
extern void idempotency_hash_request(FunctionCallInfo fcinfo, int i, BodyKind kind, char *hex);
extern Jsonb *idempotency_arg_json(FunctionCallInfo fcinfo, int i, bool is_jsonb,
								   const char *name);
extern int	idempotency_arg_status(FunctionCallInfo fcinfo, int i);
extern uint64 idempotency_lock_hash(const char *schema, const IdempotencyRequest *request);

#endif							/* ACME_OUTBOX_IDEMPOTENCY_INTERNAL_H */
