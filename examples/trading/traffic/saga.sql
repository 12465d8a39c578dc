-- Some ask inventory first: a saga.  Who is not answered in time asks again, with the same key.
\set n random(1, 1000000000)
\set trader random(1, 6)
\set customer random(1, 25)
\set item random(1, 5)
\set quantity random(1, 9)
BEGIN;
SELECT acme_outbox.context('acme');
SELECT trading.create_deal('{"id": "saga-:n", "traderId": "trader-:trader",
  "customerId": "customer-:customer", "currency": "EUR"}');
COMMIT;
CALL trading.create_sale_saga('acme', 'saga-:n', '{"dealId": "saga-:n",
  "lines": [{"lineItemId": "shelf-:item", "quantity": :quantity, "unitPrice": 12}]}',
  patience => '1 second') \gset
\if :status = 503
CALL trading.create_sale_saga('acme', 'saga-:n', '{"dealId": "saga-:n",
  "lines": [{"lineItemId": "shelf-:item", "quantity": :quantity, "unitPrice": 12}]}',
  patience => '1 second') \gset
\endif
\if :status = 201
BEGIN;
SELECT acme_outbox.context('acme');
SELECT trading.lock_deal('saga-:n');
COMMIT;
\endif
