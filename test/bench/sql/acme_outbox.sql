/*
 * acme_outbox, as an administrator would set it up for one service.
 */
CREATE EXTENSION acme_outbox;
SELECT acme_outbox.grant_relay('bench_relay', 'shop');

-- An origin in use: the first claim ever looks through all there is for what a restored
-- dump left in flight, and hands out nothing before that is done.
SELECT epoch FROM acme_outbox.relay_acquire('shop', 'bench') \gset
SELECT count(*) FROM acme_outbox.claim('shop', :epoch, 1, 1000);
SELECT acme_outbox.relay_release('shop', :epoch);

CREATE FUNCTION bench.insert_acme_outbox(first integer, last integer) RETURNS void
LANGUAGE sql
AS $$
	SELECT count(acme_outbox.publish('bench', 'order.placed', 'order-' || n % 10000,
		'OrderPlaced', bench.payload(n)))
	FROM generate_series(first, last) AS n
$$;
