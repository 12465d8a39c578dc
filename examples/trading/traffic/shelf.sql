-- Everybody wants what is on one shelf.  Many are refused; a client that lost the answer
-- asks again with the same key, and gets it again.
\set n random(1, 1000000000)
\set trader random(1, 6)
\set customer random(1, 25)
\set item random(1, 5)
\set quantity random(1, 9)
BEGIN;
SELECT acme_outbox.context('acme');
SELECT trading.create_deal('{"id": "shelf-:n", "traderId": "trader-:trader",
  "customerId": "customer-:customer", "currency": "EUR"}');
SELECT status FROM trading.create_sale_request('shelf-:n', '{"id": "ware-:n", "dealId": "shelf-:n",
  "lines": [{"lineItemId": "shelf-:item", "quantity": :quantity, "unitPrice": 12}]}') \gset
COMMIT;
BEGIN;
SELECT acme_outbox.context('acme');
SELECT status AS again FROM trading.create_sale_request('shelf-:n', '{"id": "ware-:n", "dealId": "shelf-:n",
  "lines": [{"lineItemId": "shelf-:item", "quantity": :quantity, "unitPrice": 12}]}') \gset
COMMIT;
\if :status = 201
BEGIN;
SELECT acme_outbox.context('acme');
SELECT trading.lock_deal('shelf-:n');
COMMIT;
\endif
