/*
 * The rule for a good deal's bonus, a release of its own.  Safe to repeat.
 */

SET client_min_messages = warning;
SET ROLE commission_owner;

/*
 * bonus(sale_amount, purchase_amount) returns numeric
 *
 *	 Half a percent more where the deal earned a quarter of what it had paid.  A deal that
 *	 bought nothing, because it sold what another deal had bought, has no such quarter.
 */
CREATE OR REPLACE FUNCTION commission.bonus(sale_amount numeric, purchase_amount numeric)
RETURNS numeric
LANGUAGE sql IMMUTABLE AS $$
	SELECT CASE
		WHEN (sale_amount - purchase_amount) / nullif(purchase_amount, 0) >= 0.25 THEN 0.005
		ELSE 0
	END
$$;
COMMENT ON FUNCTION commission.bonus(numeric, numeric) IS 'what a good deal adds to the rate';

RESET ROLE;
