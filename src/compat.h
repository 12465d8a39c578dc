/*
 * compat.h
 *		The only file that knows about PostgreSQL versions.
 *
 * Run and tested: 15.  Older servers lack shmem_request_hook and
 * MarkGUCPrefixReserved, so the build stops there rather than failing later.
 */
#ifndef ACME_OUTBOX_COMPAT_H
#define ACME_OUTBOX_COMPAT_H

#include "postgres.h"

#if PG_VERSION_NUM < 150000
#error "acme_outbox needs PostgreSQL 15 or later"
#endif

#include "catalog/pg_database.h"
#include "common/jsonapi.h"
#include "executor/executor.h"
#include "mb/pg_wchar.h"
#include "utils/acl.h"

/* 17 moved the lexer's storage to the caller; drop when 17 is the minimum. */
static inline JsonLexContext *
compat_json_lexer(const char *json, int len)
{
#if PG_VERSION_NUM >= 170000
	return makeJsonLexContextCstringLen(NULL, json, len, PG_UTF8, false);
#else
	return makeJsonLexContextCstringLen((char *) json, len, PG_UTF8, false);
#endif
}

/* 16 made one ownership check of many; drop when 16 is the minimum. */
static inline bool
compat_database_owner(Oid database, Oid role)
{
#if PG_VERSION_NUM >= 160000
	return object_ownercheck(DatabaseRelationId, database, role);
#else
	return pg_database_ownercheck(database, role);
#endif
}

/* 16 added "only summarizing"; drop when 16 is the minimum. */
static inline void
compat_insert_index_tuples(ResultRelInfo *target, TupleTableSlot *slot, EState *estate)
{
#if PG_VERSION_NUM >= 160000
	(void) ExecInsertIndexTuples(target, slot, estate, false, false, NULL, NIL, false);
#else
	(void) ExecInsertIndexTuples(target, slot, estate, false, false, NULL, NIL);
#endif
}

#endif							/* ACME_OUTBOX_COMPAT_H */
