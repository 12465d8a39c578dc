/*
 * What pg_dump takes along: the users' data.  Cursor, claims and leases stay behind,
 * they mean nothing in another cluster.
 */
SELECT pg_catalog.pg_extension_config_dump('acme_outbox.outbox_entry', '');
SELECT pg_catalog.pg_extension_config_dump('acme_outbox.outbox_entry_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('acme_outbox.topic_policy', '');
SELECT pg_catalog.pg_extension_config_dump('acme_outbox.redaction_rule', '');
SELECT pg_catalog.pg_extension_config_dump('acme_outbox.outbox_pause', '');
SELECT pg_catalog.pg_extension_config_dump('acme_outbox.installation', '');
SELECT pg_catalog.pg_extension_config_dump('acme_outbox.relay_grant', '');
SELECT pg_catalog.pg_extension_config_dump('acme_outbox.operator_action', '');
SELECT pg_catalog.pg_extension_config_dump('acme_outbox.operator_action_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('acme_outbox.inbox', 'WHERE schema <> ''acme_outbox''');
SELECT pg_catalog.pg_extension_config_dump('acme_outbox.inbox_handler', '');
SELECT pg_catalog.pg_extension_config_dump('acme_outbox.consumer_grant', '');
SELECT pg_catalog.pg_extension_config_dump('acme_outbox.idempotency_key', '');
SELECT pg_catalog.pg_extension_config_dump('acme_outbox.projection_tombstone',
	'WHERE target IN (SELECT oid FROM pg_catalog.pg_class)');
SELECT pg_catalog.pg_extension_config_dump('acme_outbox.processed_event', '');
SELECT pg_catalog.pg_extension_config_dump('acme_outbox.consumer_attempt', '');
SELECT pg_catalog.pg_extension_config_dump('acme_outbox.consumed_version', '');
SELECT pg_catalog.pg_extension_config_dump('acme_outbox.parked_message', '');
SELECT pg_catalog.pg_extension_config_dump('acme_outbox.parked_resolution', '');
SELECT pg_catalog.pg_extension_config_dump('acme_outbox.parked_resolution_id_seq', '');
