-- The accountant works through what is there.
BEGIN;
SELECT acme_outbox.context('acme');
SELECT accounting.process_invoices(200);
COMMIT;
