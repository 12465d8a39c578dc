-- The extension comes and goes whole, and gives PUBLIC nothing.
SET client_min_messages = warning;

-- only UTF8 databases
CREATE DATABASE acme_outbox_latin1 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0;
\set database :DBNAME
\c acme_outbox_latin1
DO $$
BEGIN
	CREATE EXTENSION acme_outbox;
EXCEPTION WHEN OTHERS THEN
	RAISE NOTICE '% %', SQLSTATE, SQLERRM;
END $$;
-- nothing was left there
SELECT count(*) FROM pg_namespace WHERE nspname = 'acme_outbox';
\c :database
DROP DATABASE acme_outbox_latin1;

CREATE EXTENSION acme_outbox;
SELECT extversion FROM pg_extension WHERE extname = 'acme_outbox';

-- it goes, and leaves an empty schema: that is not a member of an extension
DROP EXTENSION acme_outbox;
SELECT count(*) FROM pg_depend
	WHERE refclassid = 'pg_namespace'::regclass AND refobjid = 'acme_outbox'::regnamespace;
SELECT count(*) FROM pg_proc WHERE probin LIKE '%acme_outbox%';

-- and comes again
CREATE EXTENSION acme_outbox;

-- its tables, and the indexes that the code names
SELECT relname FROM pg_class
	WHERE relnamespace = 'acme_outbox'::regnamespace AND relkind = 'r' ORDER BY 1;
SELECT relname FROM pg_class
	WHERE relnamespace = 'acme_outbox'::regnamespace AND relkind = 'i'
	  AND relname LIKE 'outbox\_entry%' ORDER BY 1;

-- no index, predicate or constraint mentions a column that changes on the normal path
SELECT c.relname, a.attname
FROM pg_index i
JOIN pg_class c ON c.oid = i.indexrelid
JOIN pg_attribute a ON a.attrelid = i.indrelid
WHERE i.indrelid = 'acme_outbox.outbox_entry'::regclass
  AND a.attname IN ('status', 'attempts', 'holds', 'claim_id', 'published_at', 'lanes_done')
  AND pg_get_indexdef(i.indexrelid) ~ ('\m' || a.attname || '\M');
-- ... which is all of what is indexed
SELECT DISTINCT a.attname
FROM pg_index i
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
WHERE i.indrelid = 'acme_outbox.outbox_entry'::regclass ORDER BY 1;

-- no CHECK on tables that carry payloads: its error would print the row
SELECT conname FROM pg_constraint
	WHERE conrelid = 'acme_outbox.outbox_entry'::regclass AND contype = 'c';

-- PUBLIC has no privilege at all, by default or by grant
SELECT 'relation' AS kind, c.relname AS name
	FROM pg_class c, aclexplode(coalesce(c.relacl,
		acldefault(CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", c.relowner))) a
	WHERE c.relnamespace = 'acme_outbox'::regnamespace AND a.grantee = 0
UNION ALL
SELECT 'function', p.oid::regprocedure::text
	FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
	WHERE p.pronamespace = 'acme_outbox'::regnamespace AND a.grantee = 0
UNION ALL
SELECT 'schema', n.nspname
	FROM pg_namespace n, aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) a
	WHERE n.nspname = 'acme_outbox' AND a.grantee = 0
UNION ALL
SELECT 'column', c.relname || '.' || t.attname
	FROM pg_attribute t JOIN pg_class c ON c.oid = t.attrelid, aclexplode(t.attacl) a
	WHERE c.relnamespace = 'acme_outbox'::regnamespace AND a.grantee = 0
ORDER BY 1, 2;

-- every function, table, view and type says what it is
SELECT p.oid::regprocedure AS silent_function FROM pg_proc p
	WHERE p.pronamespace = 'acme_outbox'::regnamespace
	  AND obj_description(p.oid, 'pg_proc') IS NULL ORDER BY 1;
SELECT c.oid::regclass AS silent_relation FROM pg_class c
	WHERE c.relnamespace = 'acme_outbox'::regnamespace AND c.relkind IN ('r', 'v')
	  AND obj_description(c.oid, 'pg_class') IS NULL ORDER BY 1;
SELECT t.oid::regtype AS silent_type FROM pg_type t
	WHERE t.typnamespace = 'acme_outbox'::regnamespace AND t.typtype = 'e'
	  AND obj_description(t.oid, 'pg_type') IS NULL ORDER BY 1;

-- whatever runs with the owner's rights looks into pg_catalog only
SELECT p.oid::regprocedure AS loose_function FROM pg_proc p
	WHERE p.pronamespace = 'acme_outbox'::regnamespace AND p.prosecdef
	  AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (p.proconfig), false) ORDER BY 1;

-- the C functions: strict or not, with the owner's rights or the caller's
SELECT p.proname, count(*) AS overloads, bool_and(p.proisstrict) AS strict,
	   bool_and(p.prosecdef) AS definer, string_agg(DISTINCT p.provolatile::text, '') AS volatility
FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
WHERE p.pronamespace = 'acme_outbox'::regnamespace AND l.lanname = 'c'
GROUP BY p.proname ORDER BY p.proname;

-- functions that an index, a pooler or parallel plan could move are not marked so
SELECT p.oid::regprocedure FROM pg_proc p
	WHERE p.pronamespace = 'acme_outbox'::regnamespace AND p.proparallel <> 'u'
	  AND p.provolatile = 'v';

-- users' data is dumped, positions, claims and leases are not
SELECT c.relname FROM pg_extension e, unnest(e.extconfig) o JOIN pg_class c ON c.oid = o
	WHERE e.extname = 'acme_outbox' ORDER BY 1;

-- an empty outbox is sound, and this database is its own installation
SELECT * FROM acme_outbox.verify();
SELECT count(*) FROM acme_outbox.installation i, pg_control_system() s, pg_database d
	WHERE d.datname = current_database()
	  AND (i.system_identifier, i.database_oid) = (s.system_identifier, d.oid);
SELECT acme_outbox.contract_version();
