-- What the demo's screen shows: "outbox ORIGIN SENT WAITING", "inbox CONSUMER HANDLED
-- PARKED", "sales MADE REFUSED", "sagas OPEN".
SELECT 'outbox', origin, count(*) FILTER (WHERE status = 'PUBLISHED'),
	   count(*) FILTER (WHERE status IN ('PENDING', 'PUBLISHING'))
FROM acme_outbox.outbox_entry GROUP BY origin;

SELECT 'inbox', h.consumer, count(p.event_id),
	   (SELECT count(*) FROM acme_outbox.parked_open o WHERE o.consumer = h.consumer)
FROM acme_outbox.inbox_handler h
LEFT JOIN (TABLE trading.processed_event UNION ALL TABLE inventory.processed_event
	UNION ALL TABLE accounting.processed_event UNION ALL TABLE commission.processed_event
	UNION ALL TABLE reporting.processed_event UNION ALL TABLE notification.processed_event
	UNION ALL TABLE audit.processed_event) p USING (consumer)
GROUP BY h.consumer;

SELECT 'sales', count(*) FILTER (WHERE stored_response ->> 'status' = '201'),
	   count(*) FILTER (WHERE stored_response ->> 'status' = '409')
FROM trading.idempotency_key WHERE endpoint = 'POST /sales';

SELECT 'sagas', count(*) FROM trading.sale_saga WHERE state IN ('REQUESTED', 'RESERVED');
