-- A trader buys, sells what was bought, and locks the deal; half of the instances run the
-- old release, whose event is version 1.
\set n random(1, 1000000000)
\set trader random(1, 6)
\set customer random(1, 25)
\set quantity random(10, 40)
\set price random(100, 900)
\set asked :price + random(-20, 300)
\set version random(1, 2)
BEGIN;
SELECT acme_outbox.context('acme');
SELECT trading.create_deal('{"id": "deal-:n", "traderId": "trader-:trader",
  "customerId": "customer-:customer", "currency": "EUR"}');
SELECT status FROM trading.create_purchase_request('buy-:n', '{"id": "buy-:n", "dealId": "deal-:n", "supplierId": "supplier-:trader",
  "lines": [{"id": "line-:n", "product": "copper", "quantity": :quantity, "unitPrice": :price}]}');
COMMIT;
BEGIN;
SELECT acme_outbox.context('acme');
SELECT status FROM trading.create_sale_request('request-:n', '{"id": "sale-:n", "dealId": "deal-:n",
  "lines": [{"lineItemId": "line-:n", "quantity": :quantity, "unitPrice": :asked}]}');
COMMIT;
BEGIN;
SELECT acme_outbox.context('acme');
SELECT trading.lock_deal('deal-:n', ':version.0.0');
COMMIT;
