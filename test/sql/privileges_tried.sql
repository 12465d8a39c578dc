-- Every function, table, view and sequence of the extension is tried by a role of every kind that
-- can be granted, and by one that was granted nothing: it may do what the lists below say, and
-- nothing else. A new function or table is tried by itself; it appears below in the line of those
-- who may, or among the administrator's.
SET client_min_messages = warning;
\pset format unaligned
\pset tuples_only on
CREATE SCHEMA tried;
GRANT USAGE ON SCHEMA tried TO PUBLIC;

-- A call with a NULL for each argument, from a subquery so that nothing is folded away.
CREATE FUNCTION tried.call_of(f pg_proc) RETURNS text LANGUAGE sql AS $$
	SELECT format('SELECT %s.%I(%s) FROM (SELECT %s OFFSET 0) AS a', f.pronamespace::regnamespace, f.proname,
		(SELECT string_agg(CASE WHEN f.provariadic <> 0 AND n = f.pronargs THEN 'VARIADIC ' ELSE '' END || 'a.a' || n, ', ' ORDER BY n)
			FROM unnest(f.proargtypes) WITH ORDINALITY AS u (type, n)),
		coalesce((SELECT string_agg(format('NULL::%s AS a%s', format_type(type, NULL), n), ', ' ORDER BY n)
			FROM unnest(f.proargtypes) WITH ORDINALITY AS u (type, n)), '1'))
$$;

-- Tries a statement and undoes it: was it the object itself that was denied?
CREATE FUNCTION tried.denied(statement text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	message text;
BEGIN
	BEGIN
		EXECUTE statement;
		RAISE SQLSTATE 'UNDO0';
	EXCEPTION
		WHEN insufficient_privilege THEN
			GET STACKED DIAGNOSTICS message = MESSAGE_TEXT;
			RETURN message ~ '^permission denied for (function|schema|table|view|sequence) ';
		WHEN OTHERS THEN
			RETURN false;
	END;
END $$;

CREATE VIEW tried.statement AS
	-- a trigger function cannot be called; who may make a trigger with it is asked instead
	SELECT CASE WHEN f.prorettype = 'trigger'::regtype THEN format('CREATE TEMP TABLE tr (i int); CREATE TRIGGER x AFTER INSERT ON tr FOR EACH ROW EXECUTE FUNCTION acme_outbox.%I()', f.proname)
		ELSE tried.call_of(f) END AS statement, 'EXECUTE' AS privilege, f.oid::regprocedure::text AS object, f.proname::text AS name
	FROM pg_proc f WHERE f.pronamespace = 'acme_outbox'::regnamespace
	  AND f.prorettype <> 'event_trigger'::regtype
	UNION ALL
	SELECT format(v.form, c.oid::regclass, (SELECT quote_ident(a.attname) FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND a.attgenerated = '' AND a.attidentity = '' LIMIT 1)),
		v.privilege, c.oid::regclass::text, c.relname
	FROM pg_class c, (VALUES ('SELECT', 'SELECT * FROM %1$s LIMIT 0', 'rvm'), ('INSERT', 'INSERT INTO %1$s DEFAULT VALUES', 'r'),
			('UPDATE', 'UPDATE %1$s SET %2$s = %2$s WHERE false', 'r'), ('DELETE', 'DELETE FROM %1$s WHERE false', 'r'),
			('TRUNCATE', 'TRUNCATE %1$s', 'r'), ('USAGE', 'SELECT nextval(''%1$s'')', 'S')) AS v (privilege, form, kinds)
	WHERE c.relnamespace = 'acme_outbox'::regnamespace AND strpos(v.kinds, c.relkind::text) > 0;

-- in one order, and readable by those who see nothing else
CREATE TABLE tried.list AS SELECT row_number() OVER (ORDER BY object, privilege)::int AS n, * FROM tried.statement;
GRANT SELECT ON tried.list TO PUBLIC;
CREATE TABLE tried.kind AS SELECT DISTINCT kind FROM acme_outbox.privilege_matrix() UNION VALUES ('nobody');
CREATE TABLE tried.outcome (kind text, privilege text, object text, name text, denied boolean);
DO $$
DECLARE
	k text;
	s record;
	denied boolean[];
BEGIN
	FOR k IN SELECT kind FROM tried.kind LOOP
		EXECUTE format('CREATE ROLE outbox_tried_%s LOGIN', k);
		PERFORM acme_outbox.apply_privileges('outbox_tried_' || k, k, true);
		EXECUTE format('SET SESSION AUTHORIZATION outbox_tried_%s', k);
		denied := '{}';
		FOR s IN SELECT * FROM tried.list ORDER BY n LOOP
			denied := denied || tried.denied(s.statement);
		END LOOP;
		RESET SESSION AUTHORIZATION;
		INSERT INTO tried.outcome SELECT k, l.privilege, l.object, l.name, denied[l.n] FROM tried.list l;
	END LOOP;
END $$;

\echo -- what each may do, having tried
SELECT kind, string_agg(DISTINCT name, ' ' ORDER BY name) FILTER (WHERE NOT denied AND privilege = 'EXECUTE'),
	coalesce(string_agg(privilege || ' ' || name, ', ' ORDER BY name, privilege) FILTER (WHERE NOT denied AND privilege <> 'EXECUTE'), '')
	FROM tried.outcome GROUP BY kind ORDER BY kind;
\echo -- what nobody but the administrator may: these functions, and nothing of these tables
SELECT DISTINCT name FROM (SELECT object, name FROM tried.outcome WHERE privilege = 'EXECUTE' GROUP BY 1, 2 HAVING bool_and(denied)) x ORDER BY 1;
SELECT name FROM tried.outcome WHERE privilege <> 'EXECUTE' GROUP BY 1 HAVING bool_and(denied) ORDER BY 1;
\echo -- every function, and every table and sequence with every privilege, was tried by all
SELECT count(DISTINCT o.object) = (SELECT count(*) FROM pg_proc WHERE pronamespace = 'acme_outbox'::regnamespace AND prorettype <> 'event_trigger'::regtype)
	FROM tried.outcome o WHERE privilege = 'EXECUTE';
SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'acme_outbox'::regnamespace AND c.relkind NOT IN ('i', 'I', 'c', 't')
	AND NOT EXISTS (SELECT FROM tried.outcome o WHERE o.object = c.oid::regclass::text);
SELECT count(*) FROM tried.outcome GROUP BY kind HAVING count(*) <> (SELECT count(*) FROM tried.list);
\echo -- the trial and the catalogue agree, and all forms of a function are granted alike
SELECT kind, object, privilege FROM tried.outcome WHERE privilege = 'EXECUTE'
	AND denied = (has_function_privilege('outbox_tried_' || kind, object, 'EXECUTE') AND has_schema_privilege('outbox_tried_' || kind, 'acme_outbox', 'USAGE'));
SELECT kind, name FROM tried.outcome WHERE privilege = 'EXECUTE' GROUP BY 1, 2 HAVING count(DISTINCT denied) > 1;

DO $$
DECLARE
	k text;
BEGIN
	FOR k IN SELECT kind FROM tried.kind LOOP
		PERFORM acme_outbox.apply_privileges('outbox_tried_' || k, k, false);
		EXECUTE format('DROP ROLE outbox_tried_%s', k);
	END LOOP;
END $$;
DROP SCHEMA tried CASCADE;
