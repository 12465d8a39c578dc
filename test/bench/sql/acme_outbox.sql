/*
 * acme_outbox, as an administrator would set it up for one service.
 */
CREATE EXTENSION acme_outbox;
SELECT acme_outbox.grant_relay('bench_relay', 'shop');

CREATE FUNCTION bench.insert_acme_outbox(first integer, last integer) RETURNS void
LANGUAGE sql
AS $$
	SELECT count(acme_outbox.publish('bench', 'order.placed', 'order-' || n % 10000,
		'OrderPlaced', bench.payload(n)))
	FROM generate_series(first, last) AS n
$$;
