-- A small order service: an order and its event are written in one transaction,
-- so there is never one without the other.

CREATE EXTENSION acme_outbox;

-- Events of this database come from the service "shop".
ALTER DATABASE shop SET acme_outbox.origin = 'shop';
-- So that the demo does not wait half a minute for a bridge that was killed.
ALTER DATABASE shop SET acme_outbox.lease_duration = '2s';

CREATE ROLE shop_app LOGIN;
CREATE ROLE shop_relay LOGIN;
SELECT acme_outbox.grant_publisher('shop_app');
SELECT acme_outbox.grant_relay('shop_relay', 'shop');

CREATE TABLE orders (
  id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  customer  text NOT NULL,
  amount    numeric(10, 2) NOT NULL,
  placed_at timestamptz NOT NULL DEFAULT now()
);
GRANT SELECT, INSERT ON orders TO shop_app;

CREATE FUNCTION place_order(customer text, amount numeric) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
  order_id bigint;
BEGIN
  INSERT INTO orders (customer, amount) VALUES (customer, amount)
    RETURNING id INTO order_id;

  PERFORM acme_outbox.publish(
    topic       => 'shop.orders',
    routing_key => 'order.placed',
    aggregate   => order_id::text,
    event_name  => 'OrderPlaced',
    payload     => jsonb_build_object(
      'orderId', order_id, 'customer', customer, 'amount', amount));
  RETURN order_id;
END
$$;
