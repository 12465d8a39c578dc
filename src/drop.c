/*
 * drop.c
 *		Keeps undelivered entries from being dropped with the extension.
 *
 * DROP EXTENSION is one of several ways: DROP SCHEMA ... CASCADE, DROP OWNED BY the
 * owner and DROP LANGUAGE plpgsql CASCADE end the same.  So it is not the statement that
 * is looked at, but the tables: the server calls object_access_hook before it drops each,
 * when all of the statement's objects are locked and other writers have ended.  A fresh
 * snapshot then shows what they committed, and what this transaction wrote itself.
 *
 * The hook is there only where the library is loaded.  Where it is not preloaded the event
 * trigger of sql/80_drop.sql loads it before such a statement begins.
 *
 * Rows are read from the heap: the indexes may be gone already.  An update script may
 * replace a table, pg_upgrade drops nothing that anybody needs, and DROP DATABASE never
 * asks.
 */
#include "acme_outbox.h"

#include "access/relation.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "catalog/pg_enum.h"
#include "commands/extension.h"
#include "drop.h"
#include "executor/tuptable.h"
#include "guc.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#define ENTRIES "outbox_entry"
#define PARKED "parked_message"

/* states of entries that never arrived */
enum
{
	UNSENT_PENDING, UNSENT_PUBLISHING, UNSENT_FAILED, UNSENT_STATES
};

static const char *const state_names[UNSENT_STATES] = {
	"PENDING", "PUBLISHING", "FAILED"
};

typedef struct Undelivered
{
	int64		entries[UNSENT_STATES];
	int64		parked;
	Oid			states[UNSENT_STATES];
} Undelivered;

typedef void (*CountRow) (Undelivered *found, Datum value, bool isnull);

static object_access_hook_type prev_object_access_hook = NULL;

static void
count_entry(Undelivered *found, Datum value, bool isnull)
{
	for (int i = 0; i < UNSENT_STATES; i++)
		if (!isnull && DatumGetObjectId(value) == found->states[i])
			found->entries[i]++;
}

/* An open parked message is one without a time of resolution. */
static void
count_parked(Undelivered *found, Datum value, bool isnull)
{
	found->parked += isnull;
}

/* Shows one column of every row of a locked table. */
static void
scan_column(Oid table, AttrNumber column, CountRow count, Undelivered *found)
{
	Relation	relation = table_open(table, NoLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	TableScanDesc scan = table_beginscan(relation, snapshot, 0, NULL);
	TupleTableSlot *slot = table_slot_create(relation, NULL);

	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		bool		isnull;
		Datum		value = slot_getattr(slot, column, &isnull);

		CHECK_FOR_INTERRUPTS();
		count(found, value, isnull);
	}
	ExecDropSingleTupleTableSlot(slot);
	table_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(relation, NoLock);
}

/* What bears the name without being ours has no such column or states. */
static void
count_entries(Oid table, Undelivered *found)
{
	AttrNumber	column = get_attnum(table, "status");
	Oid			type = column == InvalidAttrNumber ? InvalidOid : get_atttype(table, column);

	if (!OidIsValid(type))
		return;
	for (int i = 0; i < UNSENT_STATES; i++)
	{
		found->states[i] = GetSysCacheOid2(ENUMTYPOIDNAME, Anum_pg_enum_oid,
										   ObjectIdGetDatum(type),
										   CStringGetDatum(state_names[i]));
		if (!OidIsValid(found->states[i]))
			return;
	}
	scan_column(table, column, count_entry, found);
}

static void
count_open_parked(Oid table, Undelivered *found)
{
	AttrNumber	column = get_attnum(table, "resolved_at");

	if (column != InvalidAttrNumber)
		scan_column(table, column, count_parked, found);
}

static bool
is_any(const Undelivered *found)
{
	return found->parked > 0 || found->entries[UNSENT_PENDING] > 0 ||
		found->entries[UNSENT_PUBLISHING] > 0 || found->entries[UNSENT_FAILED] > 0;
}

static void
refuse(const Undelivered *found)
{
	ereport(ERROR,
			(errcode(ERRCODE_OX_UNDELIVERED),
			 errmsg("dropping extension \"acme_outbox\" would lose what was not delivered"),
			 errdetail("Entries: %lld PENDING, %lld PUBLISHING, %lld FAILED; open parked messages: %lld.",
					   (long long) found->entries[UNSENT_PENDING],
					   (long long) found->entries[UNSENT_PUBLISHING],
					   (long long) found->entries[UNSENT_FAILED],
					   (long long) found->parked),
			 errhint("Let a relay send them and deal with what failed or is parked, see acme_outbox.outbox_stuck and acme_outbox.parked_open; or lose them: SET acme_outbox.allow_drop = on")));
}

/*
 * The two tables go one after the other, in an order of the server's; each is counted
 * when its turn comes, and the other one, if it is still there, for a whole report.
 */
static void
check_table(Oid table, Oid schema)
{
	char	   *name = get_rel_name(table);
	Undelivered found = {0};
	Oid			other;

	if (name != NULL && strcmp(name, ENTRIES) == 0)
	{
		count_entries(table, &found);
		other = get_relname_relid(PARKED, schema);
		if (is_any(&found) && OidIsValid(other))
			count_open_parked(other, &found);
	}
	else if (name != NULL && strcmp(name, PARKED) == 0)
	{
		count_open_parked(table, &found);
		other = get_relname_relid(ENTRIES, schema);
		if (is_any(&found) && OidIsValid(other))
			count_entries(other, &found);
	}
	if (is_any(&found))
		refuse(&found);
}

static void
check_drop(ObjectAccessType access, Oid class, Oid object, int sub, void *argument)
{
	Oid			schema;

	if (prev_object_access_hook)
		prev_object_access_hook(access, class, object, sub, argument);
	if (access != OAT_DROP || class != RelationRelationId || sub != 0 ||
		guc_allow_drop || creating_extension || IsBinaryUpgrade)
		return;
	if (get_rel_relkind(object) != RELKIND_RELATION)
		return;
	schema = get_namespace_oid(ACME_OUTBOX_SCHEMA, true);
	if (OidIsValid(schema) && get_rel_namespace(object) == schema)
		check_table(object, schema);
}

/*
 * drop_init
 *		Installs the hook; called once, when the library is loaded.
 */
void
drop_init(void)
{
	prev_object_access_hook = object_access_hook;
	object_access_hook = check_drop;
}
