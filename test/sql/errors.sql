-- docs/errors.md has a row for every SQLSTATE of src/acme_outbox.h, and for no other.
\set defined `sed -n "s/.*MAKE_SQLSTATE('O', 'X', '\(.\)', '\(.\)', '\(.\)').*/OX\1\2\3/p" "$PG_ABS_SRCDIR/../src/acme_outbox.h" | sort | xargs`
\set documented `grep -o '^| OX[0-9]*' "$PG_ABS_SRCDIR/../docs/errors.md" | tr -d '| ' | sort | xargs`
SELECT code AS documented_not_defined FROM regexp_split_to_table(:'documented', ' ') code
	EXCEPT SELECT regexp_split_to_table(:'defined', ' ');
SELECT code AS defined_not_documented FROM regexp_split_to_table(:'defined', ' ') code
	EXCEPT SELECT regexp_split_to_table(:'documented', ' ');
SELECT cardinality(regexp_split_to_array(:'defined', ' ')) > 10 AS found;
