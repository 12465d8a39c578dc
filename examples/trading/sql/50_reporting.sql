/*
 * Reporting: eight tables made from the other services' events, and reports that read
 * nothing else.  P 4.
 *
 * Four consumer groups, one for each context.  Six tables have a row per thing that
 * events tell of; acme_outbox.project() lets the newest event win, in whatever order and
 * number they come.  Two are sums of such rows.  Seeds, at the end, fill all of them
 * from the sources: at the first deployment, and when something went wrong.
 */

SET client_min_messages = warning;
SET ROLE reporting_owner;

/* ---- the tables ---- */

CREATE TABLE reporting.rpt_deal_summary (
	tenant_id     text NOT NULL,
	deal_id       text NOT NULL,
	trader_id     text NOT NULL,
	customer_id   text NOT NULL,
	currency      text NOT NULL,
	status        text NOT NULL,
	amount        numeric(14, 2),
	last_event_at timestamptz NOT NULL,
	last_event_id uuid,
	PRIMARY KEY (tenant_id, deal_id)
);
CREATE INDEX rpt_deal_summary_customer ON reporting.rpt_deal_summary (tenant_id, customer_id, currency);
CREATE INDEX rpt_deal_summary_trader ON reporting.rpt_deal_summary (tenant_id, trader_id, currency);
COMMENT ON TABLE reporting.rpt_deal_summary IS 'deals: trading.deal.*';
COMMENT ON COLUMN reporting.rpt_deal_summary.amount IS 'sales less purchases; NULL until locked';

CREATE TABLE reporting.rpt_line_item_summary (
	tenant_id     text NOT NULL,
	document_id   text NOT NULL,
	line_item_id  text NOT NULL,
	document      text NOT NULL,
	deal_id       text NOT NULL,
	product       text,
	quantity      numeric(14, 3) NOT NULL,
	unit_price    numeric(14, 2) NOT NULL,
	currency      text NOT NULL,
	last_event_at timestamptz NOT NULL,
	last_event_id uuid,
	PRIMARY KEY (tenant_id, document, document_id, line_item_id)
);
CREATE INDEX rpt_line_item_summary_line ON reporting.rpt_line_item_summary (tenant_id, line_item_id);
COMMENT ON TABLE reporting.rpt_line_item_summary IS
	'lines of purchases and sales: trading.purchase.created, trading.sale.created';

CREATE TABLE reporting.rpt_invoice_summary (
	tenant_id     text NOT NULL,
	invoice_id    text NOT NULL,
	deal_id       text NOT NULL,
	source_type   text NOT NULL,
	source_id     text NOT NULL,
	period        text NOT NULL,
	amount        numeric(14, 2) NOT NULL,
	currency      text NOT NULL,
	status        text NOT NULL,
	last_event_at timestamptz NOT NULL,
	last_event_id uuid,
	PRIMARY KEY (tenant_id, invoice_id)
);
CREATE INDEX rpt_invoice_summary_period ON reporting.rpt_invoice_summary (tenant_id, period);
COMMENT ON TABLE reporting.rpt_invoice_summary IS 'invoices: accounting.invoice.*';

CREATE TABLE reporting.rpt_accounting_period (
	tenant_id     text NOT NULL,
	period        text NOT NULL,
	status        text NOT NULL,
	invoices      integer,
	amount        numeric(14, 2),
	last_event_at timestamptz NOT NULL,
	last_event_id uuid,
	PRIMARY KEY (tenant_id, period)
);
COMMENT ON TABLE reporting.rpt_accounting_period IS 'periods: accounting.period.*';

CREATE TABLE reporting.rpt_commission_summary (
	tenant_id     text NOT NULL,
	deal_id       text NOT NULL,
	trader_id     text NOT NULL,
	base          numeric(14, 2) NOT NULL,
	rate          numeric(6, 4) NOT NULL,
	amount        numeric(14, 2) NOT NULL,
	currency      text NOT NULL,
	last_event_at timestamptz NOT NULL,
	last_event_id uuid,
	PRIMARY KEY (tenant_id, deal_id)
);
CREATE INDEX rpt_commission_summary_trader
	ON reporting.rpt_commission_summary (tenant_id, trader_id, currency);
COMMENT ON TABLE reporting.rpt_commission_summary IS
	'commissions: commission.commission.calculated';

CREATE TABLE reporting.rpt_stock_position (
	tenant_id     text NOT NULL,
	line_item_id  text NOT NULL,
	product       text,
	on_hand       numeric(14, 3) NOT NULL,
	reserved      numeric(14, 3) NOT NULL,
	available     numeric(14, 3) NOT NULL,
	last_event_at timestamptz NOT NULL,
	last_event_id uuid,
	PRIMARY KEY (tenant_id, line_item_id)
);
COMMENT ON TABLE reporting.rpt_stock_position IS 'stock: inventory.stock.updated';

/* Amounts in different currencies do not add up: a row for each. */
CREATE TABLE reporting.rpt_customer_summary (
	tenant_id     text NOT NULL DEFAULT acme_outbox.tenant(),
	customer_id   text NOT NULL,
	currency      text NOT NULL,
	deals         integer NOT NULL DEFAULT 0,
	invoiced      integer NOT NULL DEFAULT 0,
	amount        numeric(14, 2) NOT NULL DEFAULT 0,
	last_event_at timestamptz NOT NULL DEFAULT '-infinity',
	PRIMARY KEY (tenant_id, customer_id, currency)
);
COMMENT ON TABLE reporting.rpt_customer_summary IS 'sums of rpt_deal_summary';

CREATE TABLE reporting.rpt_trader_summary (
	tenant_id     text NOT NULL DEFAULT acme_outbox.tenant(),
	trader_id     text NOT NULL,
	currency      text NOT NULL,
	deals         integer NOT NULL DEFAULT 0,
	invoiced      integer NOT NULL DEFAULT 0,
	amount        numeric(14, 2) NOT NULL DEFAULT 0,
	last_event_at timestamptz NOT NULL DEFAULT '-infinity',
	PRIMARY KEY (tenant_id, trader_id, currency)
);
COMMENT ON TABLE reporting.rpt_trader_summary IS 'sums of rpt_deal_summary';

DO $$
DECLARE
	name text;
BEGIN
	FOREACH name IN ARRAY ARRAY['deal_summary', 'line_item_summary', 'invoice_summary',
			'accounting_period', 'commission_summary', 'stock_position', 'customer_summary',
			'trader_summary'] LOOP
		EXECUTE format('ALTER TABLE reporting.rpt_%s
			ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', name);
		EXECUTE format('CREATE POLICY tenant ON reporting.rpt_%s
			USING (acme_outbox.tenant_visible(tenant_id))', name);
		EXECUTE format('GRANT SELECT, INSERT, UPDATE ON reporting.rpt_%s TO reporting_app', name);
	END LOOP;
END
$$;

/* ---- the sums ---- */

/*
 * A sum is not an event's row: an old event that comes late may change it.  So it is
 * taken anew from the guarded rows, under its own row's lock, in a statement that begins
 * after the lock was had: two consumers cannot miss each other's deal.
 *
 * One group writes them.  With two consumers on its queue, batches can meet in different
 * orders and deadlock; the bridge handles them again, or give it --batch 1.
 */
CREATE VIEW reporting.customer_sums WITH (security_invoker = true) AS
	SELECT d.tenant_id, d.customer_id, d.currency, count(*) AS deals,
		   count(*) FILTER (WHERE d.status = 'INVOICED') AS invoiced,
		   coalesce(sum(d.amount), 0) AS amount, max(d.last_event_at) AS last_event_at
	FROM reporting.rpt_deal_summary d
	GROUP BY d.tenant_id, d.customer_id, d.currency;
COMMENT ON VIEW reporting.customer_sums IS 'rpt_customer_summary as it should be';

CREATE VIEW reporting.trader_sums WITH (security_invoker = true) AS
	SELECT d.tenant_id, d.trader_id, d.currency, count(*) AS deals,
		   count(*) FILTER (WHERE d.status = 'INVOICED') AS invoiced,
		   coalesce(sum(d.amount), 0) AS amount, max(d.last_event_at) AS last_event_at
	FROM reporting.rpt_deal_summary d
	GROUP BY d.tenant_id, d.trader_id, d.currency;
COMMENT ON VIEW reporting.trader_sums IS 'rpt_trader_summary as it should be';

/* sum_up(customer, trader, currency) returns void: both sums that a deal is part of. */
CREATE FUNCTION reporting.sum_up(customer text, trader text, currency text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	tenant text := acme_outbox.tenant();
BEGIN
	INSERT INTO reporting.rpt_customer_summary (customer_id, currency)
		VALUES (customer, sum_up.currency) ON CONFLICT DO NOTHING;
	PERFORM FROM reporting.rpt_customer_summary r
		WHERE (r.tenant_id, r.customer_id, r.currency) = (tenant, customer, sum_up.currency)
		FOR UPDATE;
	UPDATE reporting.rpt_customer_summary r
		SET deals = s.deals, invoiced = s.invoiced, amount = s.amount,
			last_event_at = s.last_event_at
		FROM reporting.customer_sums s
		WHERE (r.tenant_id, r.customer_id, r.currency) = (tenant, customer, sum_up.currency)
		  AND (s.tenant_id, s.customer_id, s.currency) = (tenant, customer, sum_up.currency);

	INSERT INTO reporting.rpt_trader_summary (trader_id, currency)
		VALUES (trader, sum_up.currency) ON CONFLICT DO NOTHING;
	PERFORM FROM reporting.rpt_trader_summary r
		WHERE (r.tenant_id, r.trader_id, r.currency) = (tenant, trader, sum_up.currency)
		FOR UPDATE;
	UPDATE reporting.rpt_trader_summary r
		SET deals = s.deals, invoiced = s.invoiced, amount = s.amount,
			last_event_at = s.last_event_at
		FROM reporting.trader_sums s
		WHERE (r.tenant_id, r.trader_id, r.currency) = (tenant, trader, sum_up.currency)
		  AND (s.tenant_id, s.trader_id, s.currency) = (tenant, trader, sum_up.currency);
END
$$;
COMMENT ON FUNCTION reporting.sum_up(text, text, text) IS
	'add a customer''s and a trader''s deals up anew';

/* ---- the handlers, one for each group ---- */

/*
 * project_event(target, key, fields, message) returns boolean
 *
 *	 acme_outbox.project() with the tenant, the time and the id of the message.
 */
CREATE FUNCTION reporting.project_event(target regclass, key jsonb, fields jsonb, message jsonb)
RETURNS boolean
LANGUAGE sql AS $$
	SELECT acme_outbox.project(target,
		jsonb_build_object('tenant_id', message #> '{body,payload,tenantId}') || key, fields,
		(message #>> '{header,timestamp}')::timestamptz,
		(message #>> '{header,eventId}')::uuid)
$$;
COMMENT ON FUNCTION reporting.project_event(regclass, jsonb, jsonb, jsonb) IS
	'project a row from a message';

/*
 * on_trading_event(message) returns void: handler of reporting.trading.
 *
 *	 Of trading.deal.locked it takes either version: what it needs of v2 is v1's amount.
 *	 Events it does not know it leaves alone: their producer may be newer than this.
 */
CREATE FUNCTION reporting.on_trading_event(message jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	name    text := message #>> '{body,eventName}';
	payload jsonb := message #> '{body,payload}';
	line    jsonb;
BEGIN
	PERFORM acme_outbox.context(payload ->> 'tenantId');
	IF name IN ('trading.deal.created', 'trading.deal.locked', 'trading.deal.invoiced') THEN
		IF reporting.project_event('reporting.rpt_deal_summary',
				jsonb_build_object('deal_id', payload -> 'dealId'),
				jsonb_build_object('trader_id', payload -> 'traderId',
					'customer_id', payload -> 'customerId', 'currency', payload -> 'currency',
					'status', CASE name WHEN 'trading.deal.created' THEN 'DRAFT'
							  ELSE upper(split_part(name, '.', 3)) END,
					'amount', coalesce((payload ->> 'amount')::numeric,
						(payload ->> 'saleAmount')::numeric
						- (payload ->> 'purchaseAmount')::numeric)),
				message) THEN
			PERFORM reporting.sum_up(payload ->> 'customerId', payload ->> 'traderId',
				payload ->> 'currency');
		END IF;
	ELSIF name IN ('trading.purchase.created', 'trading.sale.created') THEN
		FOR line IN SELECT l FROM jsonb_array_elements(payload -> 'lines') l
				ORDER BY l ->> 'lineItemId' LOOP
			PERFORM reporting.project_event('reporting.rpt_line_item_summary',
				jsonb_build_object('document', split_part(name, '.', 2),
					'document_id', coalesce(payload -> 'purchaseId', payload -> 'saleId'),
					'line_item_id', line -> 'lineItemId'),
				jsonb_build_object('deal_id', payload -> 'dealId', 'product', line -> 'product',
					'quantity', line -> 'quantity', 'unit_price', line -> 'unitPrice',
					'currency', payload -> 'currency'),
				message);
		END LOOP;
	END IF;
END
$$;
COMMENT ON FUNCTION reporting.on_trading_event(jsonb) IS 'handler: deals and line items';

/* on_accounting_event(message) returns void: handler of reporting.accounting. */
CREATE FUNCTION reporting.on_accounting_event(message jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	name    text := message #>> '{body,eventName}';
	payload jsonb := message #> '{body,payload}';
BEGIN
	PERFORM acme_outbox.context(payload ->> 'tenantId');
	IF name IN ('accounting.invoice.issued', 'accounting.invoice.processed') THEN
		PERFORM reporting.project_event('reporting.rpt_invoice_summary',
			jsonb_build_object('invoice_id', payload -> 'invoiceId'),
			jsonb_build_object('deal_id', payload -> 'dealId',
				'source_type', payload -> 'sourceType', 'source_id', payload -> 'sourceId',
				'period', payload -> 'period', 'amount', payload -> 'amount',
				'currency', payload -> 'currency', 'status', upper(split_part(name, '.', 3))),
			message);
	ELSIF name IN ('accounting.period.opened', 'accounting.period.closed') THEN
		PERFORM reporting.project_event('reporting.rpt_accounting_period',
			jsonb_build_object('period', payload -> 'period'),
			jsonb_build_object('status', CASE split_part(name, '.', 3)
					WHEN 'opened' THEN 'OPEN' ELSE 'CLOSED' END,
				'invoices', payload -> 'invoices', 'amount', payload -> 'amount'),
			message);
	END IF;
END
$$;
COMMENT ON FUNCTION reporting.on_accounting_event(jsonb) IS 'handler: invoices and periods';

/* on_commission_event(message) returns void: handler of reporting.commission. */
CREATE FUNCTION reporting.on_commission_event(message jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	payload jsonb := message #> '{body,payload}';
BEGIN
	PERFORM acme_outbox.context(payload ->> 'tenantId');
	IF message #>> '{body,eventName}' = 'commission.commission.calculated' THEN
		PERFORM reporting.project_event('reporting.rpt_commission_summary',
			jsonb_build_object('deal_id', payload -> 'dealId'),
			jsonb_build_object('trader_id', payload -> 'traderId', 'base', payload -> 'base',
				'rate', payload -> 'rate', 'amount', payload -> 'amount',
				'currency', payload -> 'currency'),
			message);
	END IF;
END
$$;
COMMENT ON FUNCTION reporting.on_commission_event(jsonb) IS 'handler: commissions';

/* on_inventory_event(message) returns void: handler of reporting.inventory. */
CREATE FUNCTION reporting.on_inventory_event(message jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	payload jsonb := message #> '{body,payload}';
BEGIN
	PERFORM acme_outbox.context(payload ->> 'tenantId');
	IF message #>> '{body,eventName}' = 'inventory.stock.updated' THEN
		PERFORM reporting.project_event('reporting.rpt_stock_position',
			jsonb_build_object('line_item_id', payload -> 'lineItemId'),
			jsonb_build_object('product', payload -> 'product', 'on_hand', payload -> 'onHand',
				'reserved', payload -> 'reserved', 'available', payload -> 'available'),
			message);
	END IF;
END
$$;
COMMENT ON FUNCTION reporting.on_inventory_event(jsonb) IS 'handler: stock positions';

/* ---- the reports ---- */

CREATE VIEW reporting.deals WITH (security_invoker = true) AS
	SELECT d.deal_id, d.customer_id, d.trader_id, d.status, d.amount, d.currency,
		   i.invoices, i.processed, c.amount AS commission
	FROM reporting.rpt_deal_summary d
	LEFT JOIN reporting.rpt_commission_summary c USING (tenant_id, deal_id)
	LEFT JOIN (SELECT i.tenant_id, i.deal_id, count(*) AS invoices,
					  count(*) FILTER (WHERE i.status = 'PROCESSED') AS processed
			   FROM reporting.rpt_invoice_summary i GROUP BY 1, 2) i USING (tenant_id, deal_id);
COMMENT ON VIEW reporting.deals IS 'report: each deal, how far it got, what it earned';

CREATE VIEW reporting.traders WITH (security_invoker = true) AS
	SELECT t.trader_id, t.currency, t.deals, t.invoiced, t.amount, c.commission
	FROM reporting.rpt_trader_summary t
	CROSS JOIN LATERAL (SELECT coalesce(sum(c.amount), 0) AS commission
		FROM reporting.rpt_commission_summary c
		WHERE (c.tenant_id, c.trader_id, c.currency) = (t.tenant_id, t.trader_id, t.currency)) c;
COMMENT ON VIEW reporting.traders IS 'report: what each trader dealt, and earned by it';

CREATE VIEW reporting.periods WITH (security_invoker = true) AS
	SELECT p.period, p.status, count(i.invoice_id) AS invoices,
		   coalesce(sum(i.amount), 0) AS amount, p.invoices AS closed_with,
		   p.amount AS closed_amount
	FROM reporting.rpt_accounting_period p
	LEFT JOIN reporting.rpt_invoice_summary i USING (tenant_id, period)
	GROUP BY p.tenant_id, p.period;
COMMENT ON VIEW reporting.periods IS
	'report: what is booked into each period, and what it was closed with';

/*
 * event_time(event_id) returns timestamptz: when the event was published, to the
 * millisecond, which a UUID of version 7 begins with; NULL for other ids.
 */
CREATE FUNCTION reporting.event_time(event_id text) RETURNS timestamptz
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
	SELECT CASE WHEN event_id ~ '^[0-9a-f]{8}-[0-9a-f]{4}-7' THEN
		to_timestamp(('x' || left(replace(event_id, '-', ''), 12))::bit(48)::bigint / 1000.0)
	END
$$;
COMMENT ON FUNCTION reporting.event_time(text) IS 'time in a UUID of version 7';

/*
 * How far behind each group is: the inbox says when each event was processed, its id when
 * it was published.  The target is 5 seconds.  A group that stands still has an old
 * last_processed_at while its queue grows.
 */
CREATE VIEW reporting.projection_lag AS
	SELECT p.consumer, count(*) AS events, max(p.processed_at) AS last_processed_at,
		   max(p.lag) AS max_lag,
		   percentile_disc(0.95) WITHIN GROUP (ORDER BY p.lag) AS lag_95,
		   max(p.lag) < interval '5 seconds' AS on_target
	FROM (SELECT e.consumer, e.processed_at,
				 greatest(e.processed_at - reporting.event_time(e.event_id), interval '0') AS lag
		  FROM reporting.processed_event e
		  WHERE e.processed_at > now() - interval '5 minutes') p
	GROUP BY p.consumer;
COMMENT ON VIEW reporting.projection_lag IS
	'per consumer group, of the last five minutes: from published to projected';

GRANT SELECT ON reporting.customer_sums, reporting.trader_sums, reporting.deals,
	reporting.traders, reporting.periods, reporting.projection_lag TO reporting_app;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA reporting TO reporting_app;

RESET ROLE;
SELECT acme_outbox.register_handler('reporting.' || context,
		format('reporting.on_%s_event', context), 'reporting_app', 'reporting')
	FROM unnest(ARRAY['trading', 'accounting', 'commission', 'inventory']) AS context;

/* ---- bootstrap and rebuild ----
 *
 * What each table should be, from the services' own tables.  It is the one place that
 * reads other services' schemas, so only an administrator can run it.
 *
 * event_at is the time of the source row: its changed_at where it changes.  Where it is
 * written once, its one event is over, and any later time will do.
 */

CREATE FUNCTION reporting.seed_deal_summary()
RETURNS TABLE (key jsonb, fields jsonb, event_at timestamptz)
LANGUAGE sql AS $$
	SELECT jsonb_build_object('tenant_id', d.tenant_id, 'deal_id', d.id),
		   jsonb_build_object('trader_id', d.trader_id, 'customer_id', d.customer_id,
				'currency', d.currency,
				'status', replace(d.status::text, 'PARTLY_INVOICED', 'LOCKED'),
				'amount', CASE WHEN d.status <> 'DRAFT' THEN (
					SELECT sum(CASE s.source_type WHEN 'sale' THEN s.amount ELSE -s.amount END)
					FROM trading.source s WHERE s.deal_id = d.id) END),
		   d.changed_at
	FROM trading.deal d
$$;

CREATE FUNCTION reporting.seed_line_item_summary()
RETURNS TABLE (key jsonb, fields jsonb, event_at timestamptz)
LANGUAGE sql AS $$
	SELECT jsonb_build_object('tenant_id', l.tenant_id, 'document', l.document,
				'document_id', l.document_id, 'line_item_id', l.line_item_id),
		   jsonb_build_object('deal_id', l.deal_id,
				'product', l.product, 'quantity', l.quantity, 'unit_price', l.unit_price,
				'currency', d.currency),
		   clock_timestamp()
	FROM (SELECT i.tenant_id, i.purchase_id AS document_id, i.id AS line_item_id,
				 'purchase' AS document, p.deal_id, i.product, i.quantity, i.unit_price
		  FROM trading.purchase_line_item i JOIN trading.purchase p ON p.id = i.purchase_id
		  UNION ALL
		  SELECT i.tenant_id, i.sale_id, i.line_item_id, 'sale', s.deal_id, NULL, i.quantity,
				 i.unit_price
		  FROM trading.sale_line i JOIN trading.sale s ON s.id = i.sale_id) l
	JOIN trading.deal d ON d.id = l.deal_id
$$;

CREATE FUNCTION reporting.seed_invoice_summary()
RETURNS TABLE (key jsonb, fields jsonb, event_at timestamptz)
LANGUAGE sql AS $$
	SELECT jsonb_build_object('tenant_id', i.tenant_id, 'invoice_id', i.invoice_id),
		   jsonb_build_object('deal_id', i.deal_id, 'source_type', i.source_type,
				'source_id', i.source_id, 'period', i.period, 'amount', i.amount,
				'currency', i.currency, 'status', i.status),
		   i.changed_at
	FROM accounting.invoice i
$$;

CREATE FUNCTION reporting.seed_accounting_period()
RETURNS TABLE (key jsonb, fields jsonb, event_at timestamptz)
LANGUAGE sql AS $$
	SELECT jsonb_build_object('tenant_id', p.tenant_id, 'period', p.period),
		   jsonb_build_object('status', p.status,
				'invoices', CASE p.status WHEN 'CLOSED' THEN p.invoices END,
				'amount', CASE p.status WHEN 'CLOSED' THEN p.amount END),
		   p.changed_at
	FROM accounting.period p
$$;

CREATE FUNCTION reporting.seed_commission_summary()
RETURNS TABLE (key jsonb, fields jsonb, event_at timestamptz)
LANGUAGE sql AS $$
	SELECT jsonb_build_object('tenant_id', c.tenant_id, 'deal_id', c.deal_id),
		   jsonb_build_object('trader_id', c.trader_id, 'base', c.base, 'rate', c.rate,
				'amount', c.amount, 'currency', c.currency),
		   clock_timestamp()
	FROM commission.commission c
$$;

CREATE FUNCTION reporting.seed_stock_position()
RETURNS TABLE (key jsonb, fields jsonb, event_at timestamptz)
LANGUAGE sql AS $$
	SELECT jsonb_build_object('tenant_id', p.tenant_id, 'line_item_id', p.line_item_id),
		   jsonb_build_object('product', p.product, 'on_hand', p.on_hand,
				'reserved', p.reserved, 'available', p.on_hand - p.reserved),
		   p.changed_at
	FROM inventory.stock_position p
$$;

/* The sums' source is here. */
CREATE FUNCTION reporting.seed_customer_summary()
RETURNS TABLE (key jsonb, fields jsonb, event_at timestamptz)
LANGUAGE sql AS $$
	SELECT jsonb_build_object('tenant_id', s.tenant_id, 'customer_id', s.customer_id,
				'currency', s.currency),
		   jsonb_build_object('deals', s.deals, 'invoiced', s.invoiced, 'amount', s.amount),
		   s.last_event_at
	FROM reporting.customer_sums s
$$;

CREATE FUNCTION reporting.seed_trader_summary()
RETURNS TABLE (key jsonb, fields jsonb, event_at timestamptz)
LANGUAGE sql AS $$
	SELECT jsonb_build_object('tenant_id', s.tenant_id, 'trader_id', s.trader_id,
				'currency', s.currency),
		   jsonb_build_object('deals', s.deals, 'invoiced', s.invoiced, 'amount', s.amount),
		   s.last_event_at
	FROM reporting.trader_sums s
$$;

/*
 * rebuild(projection) returns (seeded, removed)
 *
 *	 The administrator's call, while consumers go on.
 *	 projection  deal_summary and so on
 *	 Safe to repeat.  P 4.
 */
CREATE FUNCTION reporting.rebuild(projection text, OUT seeded bigint, OUT removed bigint)
LANGUAGE sql AS $$
	SELECT * FROM acme_outbox.projection_rebuild(
		('reporting.rpt_' || projection)::regclass, 'reporting.seed_' || projection)
$$;
COMMENT ON FUNCTION reporting.rebuild(text) IS
	'rebuild a projection from the services'' tables';

/*
 * rebuild_all(): each in a transaction of its own, so that no consumer waits for more
 * than one; the sums last.  This is also the bootstrap of a new deployment.
 */
CREATE PROCEDURE reporting.rebuild_all()
LANGUAGE plpgsql AS $$
DECLARE
	projection text;
	rebuilt    record;
BEGIN
	FOREACH projection IN ARRAY ARRAY['deal_summary', 'line_item_summary', 'invoice_summary',
			'accounting_period', 'commission_summary', 'stock_position', 'customer_summary',
			'trader_summary'] LOOP
		SELECT * INTO rebuilt FROM reporting.rebuild(projection);
		RAISE INFO 'rpt_%: % rows, % removed', projection, rebuilt.seeded, rebuilt.removed;
		COMMIT;
	END LOOP;
END
$$;
COMMENT ON PROCEDURE reporting.rebuild_all() IS 'rebuild all projections, one at a time';
REVOKE EXECUTE ON ALL ROUTINES IN SCHEMA reporting FROM PUBLIC;
