/*
 * The business of every part: accounts, and orders charged to them.
 */
CREATE TABLE account (
	id      integer PRIMARY KEY,
	balance bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
INSERT INTO account (id) SELECT generate_series(1, 100000);

CREATE TABLE orders (
	id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	account_id integer NOT NULL,
	amount     integer NOT NULL,
	placed_at  timestamptz NOT NULL DEFAULT now()
);

CREATE SCHEMA bench;

/* The payload of every contender: a JSON object of exactly 512 bytes. */
CREATE FUNCTION bench.payload(n integer) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
	SELECT head || repeat('x', 512 - 2 - length(head)) || '"}'
	FROM (SELECT format('{"order":%s,"filler":"', n) AS head) AS h
$$;

/*
 * fill(contender, entries, per_transaction): a backlog of that many entries, by
 * the contender's bench.insert_CONTENDER(first, last).
 */
CREATE PROCEDURE bench.fill(contender text, entries integer, per_transaction integer)
LANGUAGE plpgsql
AS $$
DECLARE
	first integer := 1;
BEGIN
	WHILE first <= entries LOOP
		EXECUTE format('SELECT bench.insert_%s($1, $2)', contender)
			USING first, least(first + per_transaction - 1, entries);
		COMMIT;
		first := first + per_transaction;
	END LOOP;
END
$$;

VACUUM ANALYZE account;
