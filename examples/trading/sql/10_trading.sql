/*
 * trading: deals, their purchases and sales.  P 2.1, P 3; docs/selling-stock.md.
 *
 * Three rules carry the whole service:
 *
 * - The deal is the aggregate.  Whoever changes it, its purchases or its sales holds its row
 *   lock first and publishes second, so events of a deal are in the order of its changes.
 * - Stock is checked under the row locks of the purchase line items, taken in the order of
 *   their ids, after the deal's.  The check takes the locks itself: it cannot be called
 *   without them.
 * - A purchase or sale becomes INVOICED through mark_invoiced() only; a trigger sees to it.
 *
 * Everything runs with the caller's rights but mark_invoiced().  Rows are their tenant's:
 * another tenant's row is not there, and a transaction without a tenant fails.
 */

SET ROLE trading_owner;

CREATE TYPE trading.source_status AS ENUM ('DRAFT', 'FINALISED', 'INVOICED');
COMMENT ON TYPE trading.source_status IS 'life of a purchase or sale; see guard_status()';

CREATE TYPE trading.deal_status AS ENUM ('DRAFT', 'LOCKED', 'PARTLY_INVOICED', 'INVOICED');
COMMENT ON TYPE trading.deal_status IS 'derived from a deal''s purchases and sales';

/* JSON's text "NaN" is a numeric too, and above every other one. */
CREATE DOMAIN trading.quantity AS numeric(14, 3) CHECK (VALUE > 0 AND VALUE <> 'NaN');
COMMENT ON DOMAIN trading.quantity IS 'how much is bought or sold';
CREATE DOMAIN trading.price AS numeric(14, 2) CHECK (VALUE >= 0 AND VALUE <> 'NaN');
COMMENT ON DOMAIN trading.price IS 'of a unit, in the deal''s currency';

/* ---------------------------------------------------------------------------------------
 * Tables
 */

CREATE TABLE trading.deal (
	id          text PRIMARY KEY DEFAULT gen_random_uuid(),
	tenant_id   text NOT NULL DEFAULT acme_outbox.tenant(),
	trader_id   text NOT NULL,
	customer_id text NOT NULL,
	currency    text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
	status      trading.deal_status NOT NULL DEFAULT 'DRAFT',
	changed_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE trading.deal IS 'the aggregate: its row lock serialises all changes to a deal';
COMMENT ON COLUMN trading.deal.changed_at IS
	'not before the deal''s last event, and before its next: for projections (EVENTS.md)';

CREATE TABLE trading.purchase (
	id          text PRIMARY KEY DEFAULT gen_random_uuid(),
	tenant_id   text NOT NULL DEFAULT acme_outbox.tenant(),
	deal_id     text NOT NULL REFERENCES trading.deal,
	supplier_id text NOT NULL,
	amount      numeric(14, 2) NOT NULL,
	status      trading.source_status NOT NULL DEFAULT 'DRAFT',
	invoice_id  text
);
COMMENT ON TABLE trading.purchase IS 'what a deal buys; INVOICED through mark_invoiced() only';
CREATE INDEX purchase_deal ON trading.purchase (deal_id);

CREATE TABLE trading.purchase_line_item (
	id          text PRIMARY KEY DEFAULT gen_random_uuid(),
	tenant_id   text NOT NULL DEFAULT acme_outbox.tenant(),
	purchase_id text NOT NULL REFERENCES trading.purchase,
	product     text NOT NULL,
	quantity    trading.quantity NOT NULL,
	unit_price  trading.price NOT NULL
);
COMMENT ON TABLE trading.purchase_line_item IS
	'what can be sold; its row lock is the serialisation point of selling it';
CREATE INDEX purchase_line_item_purchase ON trading.purchase_line_item (purchase_id);

CREATE TABLE trading.sale (
	id         text PRIMARY KEY DEFAULT gen_random_uuid(),
	tenant_id  text NOT NULL DEFAULT acme_outbox.tenant(),
	deal_id    text NOT NULL REFERENCES trading.deal,
	amount     numeric(14, 2) NOT NULL,
	status     trading.source_status NOT NULL DEFAULT 'DRAFT',
	invoice_id text
);
COMMENT ON TABLE trading.sale IS 'what a deal sells; INVOICED through mark_invoiced() only';
CREATE INDEX sale_deal ON trading.sale (deal_id);

CREATE TABLE trading.sale_line (
	sale_id      text NOT NULL REFERENCES trading.sale,
	line_item_id text NOT NULL REFERENCES trading.purchase_line_item,
	tenant_id    text NOT NULL DEFAULT acme_outbox.tenant(),
	quantity     trading.quantity NOT NULL,
	unit_price   trading.price NOT NULL,
	PRIMARY KEY (sale_id, line_item_id)
);
COMMENT ON TABLE trading.sale_line IS 'how much of which purchase line item a sale sells';
CREATE INDEX sale_line_line_item ON trading.sale_line (line_item_id);

CREATE TABLE trading.deal_activity (
	deal_id     text NOT NULL REFERENCES trading.deal,
	event_id    text NOT NULL,
	tenant_id   text NOT NULL DEFAULT acme_outbox.tenant(),
	what        text NOT NULL,
	source_type text NOT NULL,
	source_id   text NOT NULL,
	happened_at timestamptz NOT NULL,
	PRIMARY KEY (deal_id, event_id)
);
COMMENT ON TABLE trading.deal_activity IS 'what happened to a deal elsewhere, one row an event';

/* Purchases and sales alike: what an invoice is for. */
CREATE VIEW trading.source WITH (security_invoker = true) AS
	SELECT 'purchase' AS source_type, id, deal_id, amount, status, invoice_id
		FROM trading.purchase
	UNION ALL
	SELECT 'sale', id, deal_id, amount, status, invoice_id FROM trading.sale;
COMMENT ON VIEW trading.source IS 'purchases and sales: what an invoice is for';

/* P 1, P 2.1: the tenant filter fails closed.  The owner's own sweeps see all tenants. */
DO $$
DECLARE
	name text;
BEGIN
	FOREACH name IN ARRAY ARRAY['deal', 'purchase', 'purchase_line_item', 'sale',
		'sale_line', 'deal_activity'] LOOP
		EXECUTE format('ALTER TABLE trading.%I ENABLE ROW LEVEL SECURITY', name);
		EXECUTE format('CREATE POLICY tenant ON trading.%I
			USING (acme_outbox.tenant_visible(tenant_id))', name);
		EXECUTE format('COMMENT ON POLICY tenant ON trading.%I IS %L', name,
			'rows of the transaction''s tenant; without one an error');
	END LOOP;
END
$$;

/* ---------------------------------------------------------------------------------------
 * Refusals and events
 */

/*
 * refuse(status, code, detail) returns void: never returns
 *
 *	 A request that cannot be granted.  SQLSTATE TR<status>, the code as message.
 *	 status  HTTP status: 404, 409 or 422   code  for programs   detail  for people
 */
CREATE FUNCTION trading.refuse(status integer, code text, detail text) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
	RAISE EXCEPTION '%', code USING ERRCODE = 'TR' || status, DETAIL = detail;
END
$$;
COMMENT ON FUNCTION trading.refuse(integer, text, text) IS
	'refuse a request: raises TR404, TR409 or TR422 with a code and a detail';

/*
 * check_ids(ids) returns void
 *
 *	 Ids that callers choose become keys of events and of other services' tables, so one that
 *	 is too long here would be a dead letter there.
 *	 Errors: TR422 INVALID_ID.
 */
CREATE FUNCTION trading.check_ids(VARIADIC ids text[]) RETURNS void
LANGUAGE plpgsql STABLE
AS $$
BEGIN
	IF EXISTS (SELECT FROM unnest(ids) id
			   WHERE (octet_length(id) BETWEEN 1 AND 64) IS NOT TRUE) THEN
		PERFORM trading.refuse(422, 'INVALID_ID', 'an id has 1 to 64 bytes');
	END IF;
END
$$;
COMMENT ON FUNCTION trading.check_ids(text[]) IS 'refuse ids that cannot be keys';

/*
 * publish(event_name, aggregate, payload, ...) returns uuid
 *
 *	 Publishes on trading's exchange, for the transaction's tenant.  EVENTS.md lists what.
 */
CREATE FUNCTION trading.publish(event_name text, aggregate text, payload jsonb,
	routing_key text DEFAULT NULL, kind text DEFAULT 'EVENT',
	schema_version text DEFAULT '1.0.0')
RETURNS uuid
LANGUAGE sql VOLATILE
AS $$
	SELECT acme_outbox.publish('acme.trading', coalesce(routing_key, event_name), aggregate,
		event_name, payload || jsonb_build_object('tenantId', acme_outbox.tenant()),
		kind => kind, schema_version => schema_version)
$$;
COMMENT ON FUNCTION trading.publish(text, text, jsonb, text, text, text) IS
	'publish an event or a command of trading''s, for the transaction''s tenant';

/* ---------------------------------------------------------------------------------------
 * Deals
 */

/* touch_deal(deal_id) returns void: after an event of the deal was published. */
CREATE FUNCTION trading.touch_deal(deal_id text) RETURNS void
LANGUAGE sql VOLATILE
AS $$
	UPDATE trading.deal d SET changed_at = clock_timestamp() WHERE d.id = deal_id
$$;
COMMENT ON FUNCTION trading.touch_deal(text) IS
	'note that an event of the deal was published';

/*
 * create_deal(request) returns text: the deal's id
 *
 *	 request  {id?, traderId, customerId, currency}
 *	 Errors: TR422 INVALID_ID; 23502 or 23514 no currency; 23505 the id is taken.
 */
CREATE FUNCTION trading.create_deal(request jsonb) RETURNS text
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	new_id text := coalesce(request ->> 'id', gen_random_uuid()::text);
	deal   trading.deal;
BEGIN
	PERFORM trading.check_ids(new_id, request ->> 'traderId', request ->> 'customerId');
	INSERT INTO trading.deal (id, trader_id, customer_id, currency)
		VALUES (new_id, request ->> 'traderId', request ->> 'customerId', request ->> 'currency')
		RETURNING * INTO deal;
	PERFORM trading.publish('trading.deal.created', deal.id, jsonb_build_object(
		'dealId', deal.id, 'traderId', deal.trader_id, 'customerId', deal.customer_id,
		'currency', deal.currency));
	PERFORM trading.touch_deal(deal.id);
	RETURN deal.id;
END
$$;
COMMENT ON FUNCTION trading.create_deal(jsonb) IS 'create a deal; returns its id';

/*
 * open_deal(deal_id) returns deal
 *
 *	 Locks a deal that is to be changed, until the transaction ends.
 *	 Errors: TR404 DEAL_NOT_FOUND; TR409 DEAL_NOT_OPEN.
 */
CREATE FUNCTION trading.open_deal(deal_id text) RETURNS trading.deal
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	deal trading.deal;
BEGIN
	/* References to the deal by others may come and go meanwhile: no KEY lock. */
	SELECT * INTO deal FROM trading.deal d WHERE d.id = deal_id FOR NO KEY UPDATE;
	IF NOT FOUND THEN
		PERFORM trading.refuse(404, 'DEAL_NOT_FOUND', format('deal %s', deal_id));
	ELSIF deal.status <> 'DRAFT' THEN
		PERFORM trading.refuse(409, 'DEAL_NOT_OPEN', format('deal %s is %s', deal_id, deal.status));
	END IF;
	RETURN deal;
END
$$;
COMMENT ON FUNCTION trading.open_deal(text) IS 'lock a deal that is to be changed';

/*
 * derive_deal_status(deal_id) returns deal_status
 *
 *	 The one rule that makes a deal's status out of those of its purchases and sales.
 */
CREATE FUNCTION trading.derive_deal_status(deal_id text) RETURNS trading.deal_status
LANGUAGE sql STABLE
AS $$
	SELECT CASE
		WHEN count(*) = 0 OR bool_or(s.status = 'DRAFT') THEN 'DRAFT'
		WHEN bool_and(s.status = 'INVOICED') THEN 'INVOICED'
		WHEN bool_or(s.status = 'INVOICED') THEN 'PARTLY_INVOICED'
		ELSE 'LOCKED' END::trading.deal_status
	FROM trading.source s WHERE s.deal_id = derive_deal_status.deal_id
$$;
COMMENT ON FUNCTION trading.derive_deal_status(text) IS
	'a deal''s status, from those of its purchases and sales';

/*
 * refresh_deal(deal_id) returns deal_status
 *
 *	 Derives a deal's status again; says so once all of it is invoiced.  The caller holds
 *	 the deal's lock.
 */
CREATE FUNCTION trading.refresh_deal(deal_id text) RETURNS trading.deal_status
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	derived trading.deal_status := trading.derive_deal_status(deal_id);
BEGIN
	UPDATE trading.deal d SET status = derived WHERE d.id = deal_id AND d.status <> derived;
	IF FOUND AND derived = 'INVOICED' THEN
		PERFORM trading.publish('trading.deal.invoiced', deal_id,
				trading.deal_payload(d, '1.0.0'))
			FROM trading.deal d WHERE d.id = deal_id;
		PERFORM trading.touch_deal(deal_id);
	END IF;
	RETURN derived;
END
$$;
COMMENT ON FUNCTION trading.refresh_deal(text) IS
	'derive a deal''s status again; publishes trading.deal.invoiced when it comes to that';

/* The whole deal, as its events tell of it; version 2 tells the two amounts apart. */
CREATE FUNCTION trading.deal_payload(deal trading.deal, schema_version text) RETURNS jsonb
LANGUAGE sql STABLE
AS $$
	SELECT jsonb_build_object('dealId', deal.id, 'traderId', deal.trader_id,
			'customerId', deal.customer_id, 'currency', deal.currency)
		|| CASE WHEN schema_version LIKE '1.%'
			THEN jsonb_build_object('amount', sum(
				CASE s.source_type WHEN 'sale' THEN s.amount ELSE -s.amount END))
			ELSE jsonb_build_object(
				'saleAmount', coalesce(sum(s.amount)
					FILTER (WHERE s.source_type = 'sale'), 0),
				'purchaseAmount', coalesce(sum(s.amount)
					FILTER (WHERE s.source_type = 'purchase'), 0))
			END
	FROM trading.source s WHERE s.deal_id = deal.id
$$;
COMMENT ON FUNCTION trading.deal_payload(trading.deal, text) IS
	'payload of a locked deal''s events, in a version of its schema';

/* What accounting invoices. */
CREATE FUNCTION trading.sources_of(deal_id text) RETURNS jsonb
LANGUAGE sql STABLE
AS $$
	SELECT jsonb_agg(jsonb_build_object('sourceType', s.source_type, 'sourceId', s.id,
		'amount', s.amount) ORDER BY s.source_type, s.id)
	FROM trading.source s WHERE s.deal_id = sources_of.deal_id
$$;
COMMENT ON FUNCTION trading.sources_of(text) IS 'a deal''s purchases and sales, as JSON';

/*
 * lock_deal(deal_id, schema_version) returns void
 *
 *	 Finalises a deal with all its purchases and sales: nothing can be added any more, and
 *	 accounting invoices them.
 *	 schema_version  of the event: 1.0.0 as old instances of a rolling deploy say it, or
 *	 2.0.0; the routing key tells which (ADR-0036)
 *	 Errors: TR404 DEAL_NOT_FOUND; TR409 DEAL_NOT_OPEN, DEAL_EMPTY; TR422 UNKNOWN_VERSION.
 */
CREATE FUNCTION trading.lock_deal(deal_id text, schema_version text DEFAULT '2.0.0')
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	deal trading.deal := trading.open_deal(deal_id);
BEGIN
	IF (schema_version IN ('1.0.0', '2.0.0')) IS NOT TRUE THEN
		PERFORM trading.refuse(422, 'UNKNOWN_VERSION', 'a locked deal is told of as 1.0.0 or 2.0.0');
	END IF;
	UPDATE trading.purchase p SET status = 'FINALISED' WHERE p.deal_id = deal.id;
	UPDATE trading.sale s SET status = 'FINALISED' WHERE s.deal_id = deal.id;
	IF trading.refresh_deal(deal.id) = 'DRAFT' THEN
		PERFORM trading.refuse(409, 'DEAL_EMPTY',
			format('deal %s has no purchase and no sale', deal_id));
	END IF;
	PERFORM trading.publish('trading.deal.locked', deal.id,
		trading.deal_payload(deal, schema_version)
			|| jsonb_build_object('sources', trading.sources_of(deal.id)),
		routing_key => 'trading.deal.locked.v' || split_part(schema_version, '.', 1),
		schema_version => schema_version);
	PERFORM trading.touch_deal(deal.id);
END
$$;
COMMENT ON FUNCTION trading.lock_deal(text, text) IS
	'finalise a deal with all its purchases and sales';

/* ---------------------------------------------------------------------------------------
 * Purchases
 */

/*
 * create_purchase(request) returns text: the purchase's id
 *
 *	 request  {id?, dealId, supplierId, lines: [{id?, product, quantity, unitPrice}]}
 *	 Errors: TR404 DEAL_NOT_FOUND; TR409 DEAL_NOT_OPEN; TR422 INVALID_ID.
 */
CREATE FUNCTION trading.create_purchase(request jsonb) RETURNS text
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	deal        trading.deal := trading.open_deal(request ->> 'dealId');
	purchase_id text := coalesce(request ->> 'id', gen_random_uuid()::text);
	lines       jsonb;
BEGIN
	PERFORM trading.check_ids(purchase_id, request ->> 'supplierId');
	PERFORM trading.check_ids(VARIADIC ARRAY(
		SELECT l.id FROM jsonb_to_recordset(request -> 'lines') AS l (id text)
		WHERE l.id IS NOT NULL));
	INSERT INTO trading.purchase (id, deal_id, supplier_id, amount)
		SELECT purchase_id, deal.id, request ->> 'supplierId', sum(l.quantity * l."unitPrice")
		FROM jsonb_to_recordset(request -> 'lines')
			AS l (quantity trading.quantity, "unitPrice" trading.price);
	WITH item AS (
		INSERT INTO trading.purchase_line_item AS i (id, purchase_id, product, quantity, unit_price)
			SELECT coalesce(l.id, gen_random_uuid()::text), purchase_id, l.product, l.quantity,
				   l."unitPrice"
			FROM jsonb_to_recordset(request -> 'lines')
				AS l (id text, product text, quantity trading.quantity, "unitPrice" trading.price)
			RETURNING i.*)
	SELECT jsonb_agg(jsonb_build_object('lineItemId', i.id, 'product', i.product,
			'quantity', i.quantity, 'unitPrice', i.unit_price) ORDER BY i.id)
		INTO lines FROM item i;
	PERFORM trading.publish('trading.purchase.created', deal.id, jsonb_build_object(
			'dealId', deal.id, 'purchaseId', p.id, 'supplierId', p.supplier_id,
			'currency', deal.currency, 'amount', p.amount, 'lines', lines))
		FROM trading.purchase p WHERE p.id = purchase_id;
	RETURN purchase_id;
END
$$;
COMMENT ON FUNCTION trading.create_purchase(jsonb) IS
	'create a purchase with its line items; returns its id';

/* ---------------------------------------------------------------------------------------
 * Sales
 */

CREATE TYPE trading.line AS (
	line_item_id text,
	quantity     trading.quantity,
	unit_price   trading.price
);
COMMENT ON TYPE trading.line IS 'how much of which line item is to be sold';

/* amount_of(lines) returns numeric: what they cost.  Errors: 22003 more than an amount can be. */
CREATE FUNCTION trading.amount_of(lines trading.line[]) RETURNS numeric
LANGUAGE sql IMMUTABLE
AS $$ SELECT sum(l.quantity * l.unit_price)::numeric(14, 2) FROM unnest(lines) l $$;
COMMENT ON FUNCTION trading.amount_of(trading.line[]) IS 'what lines cost';

/*
 * lines_of(request) returns setof line
 *
 *	 The lines of a request for a sale, checked.
 *	 Errors: TR422 INVALID_LINES.
 */
CREATE FUNCTION trading.lines_of(request jsonb) RETURNS SETOF trading.line
LANGUAGE plpgsql STABLE
AS $$
DECLARE
	rule  CONSTANT text := 'a line needs a line item of its own, a quantity above 0 and a price';
	lines trading.line[];
BEGIN
	SELECT array_agg((l."lineItemId", l.quantity, l."unitPrice")::trading.line)
		INTO lines
		FROM jsonb_to_recordset(request -> 'lines') AS l
			("lineItemId" text, quantity trading.quantity, "unitPrice" trading.price);
	IF (SELECT count(DISTINCT l.line_item_id)
				FILTER (WHERE l.quantity IS NOT NULL AND l.unit_price IS NOT NULL)
			IS DISTINCT FROM nullif(cardinality(lines), 0) FROM unnest(lines) l) THEN
		PERFORM trading.refuse(422, 'INVALID_LINES', rule);
	END IF;
	PERFORM trading.amount_of(lines);
	RETURN QUERY SELECT * FROM unnest(lines);
EXCEPTION
	WHEN check_violation THEN
		PERFORM trading.refuse(422, 'INVALID_LINES', rule);
	WHEN data_exception THEN
		PERFORM trading.refuse(422, 'INVALID_LINES', SQLERRM);
END
$$;
COMMENT ON FUNCTION trading.lines_of(jsonb) IS 'lines of a request for a sale, checked';

/*
 * find_line_items_for_update(ids) returns setof purchase_line_item
 *
 *	 The repository's one way to lock line items: in the order of their ids, so that two
 *	 sales that want the same ones never wait for each other.  ADR-0070.
 *	 Errors: 25001 unless READ COMMITTED.  A row that was locked and not changed raises no
 *	 serialization failure at REPEATABLE READ, and what is read afterwards would be as old
 *	 as the snapshot: the sale that the lock waited for would be missed.
 */
CREATE FUNCTION trading.find_line_items_for_update(ids text[])
RETURNS SETOF trading.purchase_line_item
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
	IF current_setting('transaction_isolation') <> 'read committed' THEN
		RAISE EXCEPTION 'line items are locked at READ COMMITTED only'
			USING ERRCODE = 'active_sql_transaction';
	END IF;
	RETURN QUERY SELECT * FROM trading.purchase_line_item i
		WHERE i.id = ANY (ids) ORDER BY i.id FOR UPDATE;
END
$$;
COMMENT ON FUNCTION trading.find_line_items_for_update(text[]) IS
	'lock line items until the transaction ends, in the order of their ids';

/* shortage(line_item_id, requested, available) returns text: for people. */
CREATE FUNCTION trading.shortage(line_item_id text, requested numeric, available numeric)
RETURNS text
LANGUAGE sql IMMUTABLE
AS $$ SELECT format('line item %s: %s asked for, %s left', line_item_id, requested, available) $$;
COMMENT ON FUNCTION trading.shortage(text, numeric, numeric) IS
	'a line item has less than was asked for; for people';

/*
 * check_availability(lines) returns void
 *
 *	 Locks the line items, and refuses unless each has as much left as is asked for.
 *	 Errors: TR404 LINE_ITEM_NOT_FOUND; TR409 INSUFFICIENT_STOCK.
 */
CREATE FUNCTION trading.check_availability(lines trading.line[]) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	ids   text[] := ARRAY(SELECT l.line_item_id FROM unnest(lines) l);
	found text[] := ARRAY(SELECT i.id FROM trading.find_line_items_for_update(ids) i);
	short text;
BEGIN
	IF cardinality(found) < cardinality(ids) THEN
		PERFORM trading.refuse(404, 'LINE_ITEM_NOT_FOUND',
			(SELECT string_agg('line item ' || id, ', ') FROM unnest(ids) id
			 WHERE id <> ALL (found)));
	END IF;
	/* A statement of its own: its snapshot is younger than the locks. */
	SELECT string_agg(trading.shortage(i.id, l.quantity, i.quantity - sold.quantity), '; '
			ORDER BY i.id)
		INTO short
		FROM unnest(lines) l
		JOIN trading.purchase_line_item i ON i.id = l.line_item_id
		CROSS JOIN LATERAL (SELECT coalesce(sum(s.quantity), 0) AS quantity
			FROM trading.sale_line s WHERE s.line_item_id = i.id) sold
		WHERE sold.quantity + l.quantity > i.quantity;
	IF short IS NOT NULL THEN
		PERFORM trading.refuse(409, 'INSUFFICIENT_STOCK', short);
	END IF;
END
$$;
COMMENT ON FUNCTION trading.check_availability(trading.line[]) IS
	'lock line items, and refuse unless each has enough left';

/*
 * place_sale(sale_id, request) returns void
 *
 *	 The sale and its event, in the caller's transaction.  P 3, "as built".
 *	 Errors: TR404 DEAL_NOT_FOUND, LINE_ITEM_NOT_FOUND; TR409 DEAL_NOT_OPEN,
 *	 INSUFFICIENT_STOCK; TR422 INVALID_LINES, INVALID_ID.
 */
CREATE FUNCTION trading.place_sale(sale_id text, request jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	lines  trading.line[] := ARRAY(SELECT l FROM trading.lines_of(request) l);
	deal   trading.deal := trading.open_deal(request ->> 'dealId');
	amount numeric(14, 2) := trading.amount_of(lines);
BEGIN
	PERFORM trading.check_ids(sale_id);
	PERFORM trading.check_availability(lines);
	INSERT INTO trading.sale (id, deal_id, amount) VALUES (sale_id, deal.id, amount);
	INSERT INTO trading.sale_line (sale_id, line_item_id, quantity, unit_price)
		SELECT place_sale.sale_id, l.line_item_id, l.quantity, l.unit_price FROM unnest(lines) l;
	PERFORM trading.publish('trading.sale.created', deal.id, jsonb_build_object(
		'dealId', deal.id, 'saleId', sale_id, 'customerId', deal.customer_id,
		'currency', deal.currency, 'amount', amount, 'lines',
		(SELECT jsonb_agg(jsonb_build_object('lineItemId', l.line_item_id,
			'quantity', l.quantity, 'unitPrice', l.unit_price) ORDER BY l.line_item_id)
			FROM unnest(lines) l)));
END
$$;
COMMENT ON FUNCTION trading.place_sale(text, jsonb) IS
	'check stock, and store a sale and its event, in this transaction';

/*
 * create_sale(request) returns text: the sale's id
 *
 *	 request  {id?, dealId, lines: [{lineItemId, quantity, unitPrice}]}
 *	 Errors: place_sale's.  Safe to repeat: no; see create_sale_request().
 */
CREATE FUNCTION trading.create_sale(request jsonb) RETURNS text
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	sale_id text := coalesce(request ->> 'id', gen_random_uuid()::text);
BEGIN
	PERFORM trading.place_sale(sale_id, request);
	RETURN sale_id;
END
$$;
COMMENT ON FUNCTION trading.create_sale(jsonb) IS 'create a sale; returns its id';

/*
 * try_step(step, id, request) returns (status, response)
 *
 *	 A step of buying or selling, with refusals as an answer: 404, 409 or 422.  What was
 *	 refused leaves nothing, and no lock.
 *	 step  buy: create_purchase(), 201; place: place_sale(), 201; reserve: reserve_sale() of
 *	 12_trading_saga.sql, 202   id  of the purchase or sale
 */
CREATE FUNCTION trading.try_step(step text, id text, request jsonb,
	OUT status integer, OUT response jsonb)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	detail text;
BEGIN
	status := 201;
	response := jsonb_build_object('saleId', id);
	CASE step
		WHEN 'buy' THEN
			PERFORM trading.create_purchase(request || jsonb_build_object('id', id));
			response := jsonb_build_object('purchaseId', id);
		WHEN 'place' THEN
			PERFORM trading.place_sale(id, request);
		WHEN 'reserve' THEN
			PERFORM trading.reserve_sale(id, request);
			status := 202;
	END CASE;
EXCEPTION
	WHEN SQLSTATE 'TR404' OR SQLSTATE 'TR409' OR SQLSTATE 'TR422' THEN
		GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
		status := substr(SQLSTATE, 3);
		response := jsonb_build_object('code', SQLERRM, 'detail', detail);
	WHEN unique_violation THEN
		status := 409;
		response := jsonb_build_object('code', 'ID_IN_USE', 'detail', step || ' ' || id);
	WHEN check_violation OR not_null_violation OR data_exception THEN
		IF step <> 'buy' THEN
			RAISE;
		END IF;
		status := 422;
		response := jsonb_build_object('code', 'INVALID_LINES', 'detail',
			'a line needs a product, a quantity above 0 and a price');
END
$$;
COMMENT ON FUNCTION trading.try_step(text, text, jsonb) IS
	'a step of buying or selling; a refusal is an HTTP status and a body';

/*
 * begin_request(endpoint, idempotency_key, request, in_flight_ttl)
 *	 returns (status, response, execution)
 *
 *	 Has the request been answered before?  status NULL: no; run it, then end_request().
 *	 P 2.2.
 *	 endpoint  POST /purchases or POST /sales: each has its own keys
 */
CREATE FUNCTION trading.begin_request(endpoint text, idempotency_key text, request jsonb,
	in_flight_ttl interval DEFAULT '60 seconds',
	OUT status integer, OUT response jsonb, OUT execution uuid)
LANGUAGE sql VOLATILE
AS $$
	SELECT b.status,
		CASE WHEN b.status IS NOT NULL
			THEN coalesce(b.response, jsonb_build_object('code', b.code)) END,
		b.execution
	FROM acme_outbox.idempotency_begin(endpoint, idempotency_key, request,
		in_flight_ttl => in_flight_ttl) b
$$;
COMMENT ON FUNCTION trading.begin_request(text, text, jsonb, interval) IS
	'the answer that a request has had, or none: run it';

/*
 * end_request(endpoint, idempotency_key, status, response, execution) returns void
 *
 *	 Keeps an answer for those who ask again; but not a 503, which may come out otherwise.
 */
CREATE FUNCTION trading.end_request(endpoint text, idempotency_key text, status integer,
	response jsonb, execution uuid)
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
	IF status = 503 THEN
		PERFORM acme_outbox.idempotency_abandon(endpoint, idempotency_key,
			execution => execution);
	ELSE
		PERFORM acme_outbox.idempotency_complete(endpoint, idempotency_key, status, response,
			execution => execution);
	END IF;
END
$$;
COMMENT ON FUNCTION trading.end_request(text, text, integer, jsonb, uuid) IS
	'keep an answer for those who ask again';

/*
 * answer_request(endpoint, step, idempotency_key, request) returns (status, response)
 *
 *	 A request that is one step, in a transaction of its own with the tenant set.  The
 *	 answer, a refusal too, stays the same.
 */
CREATE FUNCTION trading.answer_request(endpoint text, step text, idempotency_key text,
	request jsonb, OUT status integer, OUT response jsonb)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	execution uuid;
BEGIN
	SELECT b.* INTO status, response, execution
		FROM trading.begin_request(endpoint, idempotency_key, request) b;
	IF status IS NULL THEN
		SELECT t.* INTO status, response FROM trading.try_step(step,
			coalesce(request ->> 'id', gen_random_uuid()::text), request) t;
		PERFORM trading.end_request(endpoint, idempotency_key, status, response, execution);
	END IF;
END
$$;
COMMENT ON FUNCTION trading.answer_request(text, text, text, jsonb) IS
	'run a request once per idempotency key';

/*
 * create_purchase_request(idempotency_key, request) returns (status, response)
 *
 *	 What an HTTP layer calls, in a transaction of its own with the tenant set.
 *	 idempotency_key  the header's; NULL: none   request  as create_purchase's
 *	 Result: 201 {purchaseId}; 404, 409 and 422 {code, detail}; 409 {code} for a key in
 *	 flight or used for another request.
 *	 Safe to repeat: with a key.
 */
CREATE FUNCTION trading.create_purchase_request(idempotency_key text, request jsonb,
	OUT status integer, OUT response jsonb)
LANGUAGE sql VOLATILE
AS $$ SELECT * FROM trading.answer_request('POST /purchases', 'buy', idempotency_key, request) $$;
COMMENT ON FUNCTION trading.create_purchase_request(text, jsonb) IS
	'create a purchase once per idempotency key; returns an HTTP status and a body';

/*
 * create_sale_request(idempotency_key, request) returns (status, response)
 *
 *	 What an HTTP layer calls, in a transaction of its own with the tenant set.
 *	 idempotency_key  the header's; NULL: none   request  as create_sale's
 *	 Result: 201 {saleId}; 404, 409 and 422 {code, detail}; 409 {code} for a key in flight
 *	 or used for another request.
 *	 Safe to repeat: with a key.
 */
CREATE FUNCTION trading.create_sale_request(idempotency_key text, request jsonb,
	OUT status integer, OUT response jsonb)
LANGUAGE sql VOLATILE
AS $$ SELECT * FROM trading.answer_request('POST /sales', 'place', idempotency_key, request) $$;
COMMENT ON FUNCTION trading.create_sale_request(text, jsonb) IS
	'create a sale once per idempotency key; returns an HTTP status and a body';

/* ---------------------------------------------------------------------------------------
 * Invoices
 */

/*
 * guard_status() returns trigger
 *
 *	 A purchase or sale begins as DRAFT and goes DRAFT -> FINALISED -> INVOICED; the last
 *	 step only as trading_invoicer, which is mark_invoiced() and nothing else.  P 2.1.
 *	 Errors: TR409 INVALID_TRANSITION; 42501.
 */
CREATE FUNCTION trading.guard_status() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
	IF (OLD.status, NEW.status) NOT IN (('DRAFT', 'FINALISED'), ('FINALISED', 'INVOICED'))
			OR TG_OP = 'INSERT' THEN
		PERFORM trading.refuse(409, 'INVALID_TRANSITION', format('%s %s: %s to %s',
			TG_TABLE_NAME, NEW.id, coalesce(OLD.status::text, 'nothing'), NEW.status));
	END IF;
	IF NEW.status = 'INVOICED' AND current_user <> 'trading_invoicer' THEN
		RAISE EXCEPTION 'only trading.mark_invoiced() sets INVOICED'
			USING ERRCODE = 'insufficient_privilege';
	END IF;
	RETURN NEW;
END
$$;
COMMENT ON FUNCTION trading.guard_status() IS
	'trigger: what may become of a purchase or sale, and who may make it so';

CREATE TRIGGER guard_new BEFORE INSERT ON trading.purchase
	FOR EACH ROW WHEN (NEW.status <> 'DRAFT') EXECUTE FUNCTION trading.guard_status();
CREATE TRIGGER guard_change BEFORE UPDATE ON trading.purchase
	FOR EACH ROW WHEN (OLD.status <> NEW.status) EXECUTE FUNCTION trading.guard_status();
CREATE TRIGGER guard_new BEFORE INSERT ON trading.sale
	FOR EACH ROW WHEN (NEW.status <> 'DRAFT') EXECUTE FUNCTION trading.guard_status();
CREATE TRIGGER guard_change BEFORE UPDATE ON trading.sale
	FOR EACH ROW WHEN (OLD.status <> NEW.status) EXECUTE FUNCTION trading.guard_status();

/*
 * mark_invoiced(source_type, source_id, invoice_id) returns void
 *
 *	 The only path to INVOICED.  Runs as trading_invoicer.
 *	 source_type  purchase or sale
 *	 Errors: TR409 INVALID_TRANSITION unless it is FINALISED.
 */
CREATE FUNCTION trading.mark_invoiced(source_type text, source_id text, invoice_id text)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF source_type = 'sale' THEN
		UPDATE trading.sale s SET status = 'INVOICED', invoice_id = mark_invoiced.invoice_id
			WHERE s.id = source_id;
	ELSE
		UPDATE trading.purchase p SET status = 'INVOICED', invoice_id = mark_invoiced.invoice_id
			WHERE p.id = source_id;
	END IF;
END
$$;
COMMENT ON FUNCTION trading.mark_invoiced(text, text, text) IS
	'set a purchase or sale to INVOICED; nothing else can';

/*
 * lock_deal_of(source_type, source_id) returns text: the deal's id, or NULL
 *
 *	 Locks the deal of a purchase or sale.  NULL: it does not exist, or not for this
 *	 tenant; nobody needs to know which.
 */
CREATE FUNCTION trading.lock_deal_of(source_type text, source_id text) RETURNS text
LANGUAGE sql VOLATILE
AS $$
	SELECT d.id FROM trading.deal d
	JOIN trading.source s ON s.deal_id = d.id
	WHERE s.source_type = lock_deal_of.source_type AND s.id = source_id
	FOR NO KEY UPDATE OF d
$$;
COMMENT ON FUNCTION trading.lock_deal_of(text, text) IS
	'lock the deal of a purchase or sale; returns its id';

/*
 * on_invoice_processed(envelope) returns void
 *
 *	 Handler of consumer trading.accounting: a purchase or sale was invoiced.  P 2.1.
 *	 All of it is one transaction with the inbox row: record, then apply.
 *	 Parks: UNRESOLVABLE_ENTITY unknown, or another tenant's; INVALID_STATE not FINALISED.
 *	 Safe to repeat: an invoice that is known is not news, also when the inbox has forgotten it.
 *	 Errors: OX207 the message names no tenant.
 */
CREATE FUNCTION trading.on_invoice_processed(envelope jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	invoice jsonb := envelope #> '{body,payload}';
	type    text := invoice ->> 'sourceType';
	source  text := invoice ->> 'sourceId';
	deal    text;
	present trading.source;
BEGIN
	PERFORM acme_outbox.context(tenant_id => coalesce(invoice ->> 'tenantId', ''));
	deal := trading.lock_deal_of(type, source);
	IF deal IS NULL THEN
		PERFORM acme_outbox.park('UNRESOLVABLE_ENTITY', type, source);
		RETURN;
	END IF;
	SELECT * INTO present FROM trading.source s WHERE s.source_type = type AND s.id = source;
	IF present.invoice_id = invoice ->> 'invoiceId' THEN
		RETURN;
	ELSIF present.status <> 'FINALISED' THEN
		PERFORM acme_outbox.park('INVALID_STATE', type, source);
		RETURN;
	END IF;
	PERFORM trading.mark_invoiced(type, source, invoice ->> 'invoiceId');
	PERFORM trading.refresh_deal(deal);
	INSERT INTO trading.deal_activity (deal_id, event_id, what, source_type, source_id, happened_at)
		VALUES (deal, envelope #>> '{header,eventId}', 'invoiced', type, source,
				(envelope #>> '{header,timestamp}')::timestamptz);
END
$$;
COMMENT ON FUNCTION trading.on_invoice_processed(jsonb) IS
	'handler: a purchase or sale was invoiced';

/* ---------------------------------------------------------------------------------------
 * What must hold
 */

CREATE VIEW trading.oversold WITH (security_invoker = true) AS
	SELECT i.tenant_id, i.id AS line_item_id, i.quantity, sum(l.quantity) AS sold
	FROM trading.purchase_line_item i JOIN trading.sale_line l ON l.line_item_id = i.id
	GROUP BY i.id HAVING sum(l.quantity) > i.quantity;
COMMENT ON VIEW trading.oversold IS 'line items sold beyond their quantity; always empty';

RESET ROLE;

/* ---------------------------------------------------------------------------------------
 * Rights
 */

GRANT SELECT, INSERT ON trading.deal, trading.purchase, trading.purchase_line_item,
	trading.sale, trading.sale_line, trading.deal_activity TO trading_app;
GRANT UPDATE (status, changed_at) ON trading.deal TO trading_app;
GRANT UPDATE (status) ON trading.purchase, trading.sale TO trading_app;
/* A line item never changes; who locks its row must be allowed to. */
GRANT UPDATE (product) ON trading.purchase_line_item TO trading_app;
GRANT SELECT ON trading.source, trading.oversold TO trading_app;
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA trading TO trading_app;

GRANT USAGE ON SCHEMA trading, acme_outbox TO trading_invoicer;
GRANT EXECUTE ON FUNCTION acme_outbox.tenant_visible(text) TO trading_invoicer;
GRANT EXECUTE ON FUNCTION trading.guard_status(), trading.refuse(integer, text, text)
	TO trading_invoicer;
GRANT SELECT, UPDATE (status, invoice_id) ON trading.purchase, trading.sale TO trading_invoicer;
ALTER FUNCTION trading.mark_invoiced(text, text, text) OWNER TO trading_invoicer;

SELECT acme_outbox.register_handler('trading.accounting', 'trading.on_invoice_processed',
	'trading_app', 'trading');
