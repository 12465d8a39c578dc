/*
 * Last month's release of commission.bonus(): it divides by nothing where a deal bought
 * nothing.  The demo and the tests put it in, and ../sql/41_bonus.sql mends it.
 */

CREATE OR REPLACE FUNCTION commission.bonus(sale_amount numeric, purchase_amount numeric)
RETURNS numeric
LANGUAGE sql IMMUTABLE AS $$
	SELECT CASE WHEN (sale_amount - purchase_amount) / purchase_amount >= 0.25 THEN 0.005 ELSE 0 END
$$;
