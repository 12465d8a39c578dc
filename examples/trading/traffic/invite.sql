-- Somebody new joins.
\set n random(1, 1000000000)
BEGIN;
SELECT acme_outbox.context('acme');
SELECT platform.invite_user('person-:n@acme.example');
COMMIT;
