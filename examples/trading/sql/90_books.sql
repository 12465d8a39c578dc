/*
 * The platform's books: what must hold over all services once nothing is on its way.
 *
 * For an administrator; it reads every schema, which no service may.
 */

SET client_min_messages = warning;
CREATE SCHEMA IF NOT EXISTS operation;

/*
 * differs(projection) returns bigint
 *
 *	 How many rows of a report table are not what its source says, are missing or too many.
 */
CREATE FUNCTION operation.differs(projection text) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
	found bigint;
BEGIN
	EXECUTE format($query$
		WITH source AS (
			SELECT (jsonb_populate_record(NULL::reporting.rpt_%1$s, s.key || s.fields)) AS r
			FROM reporting.seed_%1$s() s
		), expected AS (
			SELECT to_jsonb(r) - '{last_event_at,last_event_id}'::text[] AS r FROM source
		), present AS (
			SELECT to_jsonb(r) - '{last_event_at,last_event_id}'::text[] AS r
			FROM reporting.rpt_%1$s r
		)
		SELECT greatest(
			(SELECT count(*) FROM (TABLE expected EXCEPT TABLE present) missing),
			(SELECT count(*) FROM (TABLE present EXCEPT TABLE expected) wrong))
		$query$, projection) INTO found;
	RETURN found;
END
$$;
COMMENT ON FUNCTION operation.differs(text) IS
	'how many rows of a report table are not what its source says';

/* Which consumer gets what: ../queues bindings | psql -c 'COPY operation.binding FROM stdin' */
CREATE TABLE operation.binding (
	consumer text NOT NULL,
	exchange text NOT NULL,
	key      text NOT NULL
);
COMMENT ON TABLE operation.binding IS 'the broker''s bindings of work queues';
COMMENT ON COLUMN operation.binding.key IS 'regular expression of the routing keys';

CREATE VIEW operation.undelivered AS
	SELECT DISTINCT b.consumer, e.event_id, e.event_name
	FROM acme_outbox.outbox_entry e
	JOIN operation.binding b
		ON b.exchange IN (e.topic, 'acme.audit-feed') AND e.routing_key ~ b.key
	LEFT JOIN (TABLE trading.processed_event UNION ALL TABLE inventory.processed_event
		UNION ALL TABLE accounting.processed_event UNION ALL TABLE commission.processed_event
		UNION ALL TABLE reporting.processed_event UNION ALL TABLE notification.processed_event
		UNION ALL TABLE audit.processed_event) p
		ON p.consumer = b.consumer AND p.event_id = e.event_id::text
	WHERE p.event_id IS NULL;
COMMENT ON VIEW operation.undelivered IS
	'events that a consumer is to get and has not recorded: on their way, or dead letters';

CREATE VIEW operation.books AS
	SELECT page, line, trim_scale(one) AS one, trim_scale(other) AS other, one = other AS balanced
	FROM (
	VALUES
		('stock', 'line items oversold; none',
			(SELECT count(*) FROM trading.oversold), 0),
		('stock', 'positions that do not add up; none',
			(SELECT count(*) FROM inventory.inconsistent), 0),
		('stock', 'units sold; units reserved',
			(SELECT coalesce(sum(l.quantity), 0) FROM trading.sale_line l),
			(SELECT coalesce(sum(p.reserved), 0) FROM inventory.stock_position p)),
		('stock', 'stock held for nobody: sagas open, and holds; none',
			(SELECT count(*) FROM trading.sale_saga s WHERE s.state IN ('REQUESTED', 'RESERVED'))
			+ (SELECT count(*) FROM inventory.stock_hold h WHERE h.state = 'HELD' AND NOT EXISTS (
				SELECT FROM trading.sale_saga s
				WHERE s.sale_id = h.sale_id AND s.state = 'COMPLETED')), 0),
		('money', 'purchases and sales of locked deals; invoices processed',
			(SELECT count(*) FROM trading.source s WHERE s.status <> 'DRAFT'),
			(SELECT count(*) FROM accounting.invoice i WHERE i.status = 'PROCESSED')),
		('money', 'their amount; amount invoiced',
			(SELECT coalesce(sum(s.amount), 0) FROM trading.source s WHERE s.status <> 'DRAFT'),
			(SELECT coalesce(sum(i.amount), 0) FROM accounting.invoice i)),
		('money', 'amount of closed periods; of their invoices',
			(SELECT coalesce(sum(p.amount), 0) FROM accounting.period p WHERE p.status = 'CLOSED'),
			(SELECT coalesce(sum(i.amount), 0) FROM accounting.invoice i
			 JOIN accounting.period p USING (tenant_id, period) WHERE p.status = 'CLOSED')),
		('money', 'deals locked; deals invoiced',
			(SELECT count(*) FROM trading.deal d WHERE d.status <> 'DRAFT'),
			(SELECT count(*) FROM trading.deal d WHERE d.status = 'INVOICED')),
		('money', 'deals locked; commissions',
			(SELECT count(*) FROM trading.deal d WHERE d.status <> 'DRAFT'),
			(SELECT count(*) FROM commission.commission c)),
		('mail', 'users invited; mails delivered',
			(SELECT count(*) FROM platform.app_user u),
			(SELECT count(*) FROM notification.delivery d WHERE d.status = 'DELIVERED')),
		('audit', 'messages published; audit entries',
			(SELECT count(*) FROM acme_outbox.outbox_entry e WHERE e.status = 'PUBLISHED'),
			(SELECT count(*) FROM audit.audit_entry a
			 JOIN acme_outbox.outbox_entry e ON e.event_id::text = a.event_id)),
		('audit', 'tokens in the audit and in what was sent; none',
			(SELECT count(*) FROM audit.audit_entry a WHERE a.new_state::text LIKE '%token%')
			+ (SELECT count(*) FROM acme_outbox.outbox_entry e WHERE e.payload LIKE '%token%'), 0),
		('delivery', 'messages that wait to be sent, or failed; none',
			(SELECT count(*) FROM acme_outbox.outbox_entry e WHERE e.status <> 'PUBLISHED'), 0),
		('delivery', 'events that a consumer was to get and has not recorded; none',
			(SELECT count(*) FROM operation.undelivered), 0),
		('delivery', 'messages parked and open; none',
			(SELECT count(*) FROM acme_outbox.parked_open), 0),
		('delivery', 'violations that verify() finds; none',
			(SELECT count(*) FROM acme_outbox.verify()), 0)
	UNION ALL
	SELECT 'reports', format('rows of rpt_%s that are not what their source says; none', name),
		   operation.differs(name), 0
	FROM unnest(ARRAY['deal_summary', 'line_item_summary', 'invoice_summary',
		'accounting_period', 'commission_summary', 'stock_position', 'customer_summary',
		'trader_summary']) name
	) AS books (page, line, one, other);
COMMENT ON VIEW operation.books IS
	'what must be equal over all services once nothing is on its way';
