/*
 * inventory: what is in stock, and for whom it is kept.  P 2.1, P 3; docs/selling-stock.md.
 *
 * A message is a list of steps (steps_of), and a step is one change of one line item with
 * what it publishes (apply_step).  A step that was made before changes nothing: a stock
 * movement has a unique event_id, {eventId}:{lineItemId}, and a hold has its sale.  So both
 * legal orders of P 2.1 work, with the same steps:
 *
 * - on_trading_event(), a handler: record, then apply, all steps in one transaction.
 * - with_inbox(), a procedure: each step in a transaction of its own, recorded after the last.
 *   A crash in between makes the rest of the steps, and none of them twice.
 *
 * Locks: the sale's hold or reservations first, then positions in the order of their line
 * items.  ADR-0012 names pg_advisory_xact_lock(hashtext(line item)); the row of the position
 * does the same without collisions, and can be seen in the table (ADR-0070).
 */

SET ROLE inventory_owner;

CREATE TYPE inventory.direction AS ENUM ('INBOUND', 'OUTBOUND');
COMMENT ON TYPE inventory.direction IS 'bought, or sold';

CREATE TYPE inventory.reservation_state AS ENUM ('HELD', 'ACTIVE', 'RELEASED');
COMMENT ON TYPE inventory.reservation_state IS
	'HELD for a sale that was asked for, ACTIVE for one that exists; both take from the position';

CREATE TYPE inventory.hold_state AS ENUM ('HELD', 'REFUSED', 'CLOSED');
COMMENT ON TYPE inventory.hold_state IS
	'answer to ReserveStock; CLOSED: released, expired, or never to be given';

/* ---------------------------------------------------------------------------------------
 * Tables
 */

CREATE TABLE inventory.stock_position (
	line_item_id text PRIMARY KEY,
	tenant_id    text NOT NULL DEFAULT acme_outbox.tenant(),
	product      text,
	on_hand      numeric(14, 3) NOT NULL DEFAULT 0,
	reserved     numeric(14, 3) NOT NULL DEFAULT 0,
	available    numeric(14, 3) GENERATED ALWAYS AS (on_hand - reserved) STORED,
	changed_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE inventory.stock_position IS
	'what there is of a line item; its row lock serialises reservations';
COMMENT ON COLUMN inventory.stock_position.product IS 'null until the purchase is known';
COMMENT ON COLUMN inventory.stock_position.available IS
	'below 0 while a sale is known before its purchase';
COMMENT ON COLUMN inventory.stock_position.changed_at IS
	'not before the position''s last event, and before its next: for projections (EVENTS.md)';

CREATE TABLE inventory.stock_movement (
	event_id     text PRIMARY KEY,
	tenant_id    text NOT NULL DEFAULT acme_outbox.tenant(),
	line_item_id text NOT NULL,
	direction    inventory.direction NOT NULL,
	quantity     numeric(14, 3) NOT NULL,
	sale_id      text
);
COMMENT ON TABLE inventory.stock_movement IS 'what changed stock; append-only';
COMMENT ON COLUMN inventory.stock_movement.event_id IS
	'{eventId}:{lineItemId}: the same event moves the same stock once';

CREATE TABLE inventory.stock_reservation (
	sale_id      text NOT NULL,
	line_item_id text NOT NULL,
	tenant_id    text NOT NULL DEFAULT acme_outbox.tenant(),
	quantity     numeric(14, 3) NOT NULL,
	state        inventory.reservation_state NOT NULL,
	PRIMARY KEY (sale_id, line_item_id)
);
COMMENT ON TABLE inventory.stock_reservation IS 'what is kept for which sale';

CREATE TABLE inventory.stock_hold (
	sale_id     text PRIMARY KEY,
	tenant_id   text NOT NULL DEFAULT acme_outbox.tenant(),
	state       inventory.hold_state NOT NULL,
	expires_at  timestamptz,
	traceparent text DEFAULT acme_outbox.traceparent()
);
COMMENT ON TABLE inventory.stock_hold IS
	'how ReserveStock was answered, once per sale; also that it never will be';
COMMENT ON COLUMN inventory.stock_hold.traceparent IS
	'of the command that made it; what becomes of it later continues that trace';
CREATE INDEX stock_hold_expires ON inventory.stock_hold (expires_at) WHERE state = 'HELD';

DO $$
DECLARE
	name text;
BEGIN
	FOREACH name IN ARRAY ARRAY['stock_position', 'stock_movement', 'stock_reservation',
		'stock_hold'] LOOP
		EXECUTE format('ALTER TABLE inventory.%I ENABLE ROW LEVEL SECURITY', name);
		EXECUTE format('CREATE POLICY tenant ON inventory.%I
			USING (acme_outbox.tenant_visible(tenant_id))', name);
		EXECUTE format('COMMENT ON POLICY tenant ON inventory.%I IS %L', name,
			'rows of the transaction''s tenant; without one an error');
	END LOOP;
END
$$;

/* ---------------------------------------------------------------------------------------
 * Positions
 */

/*
 * publish(event_name, routing_key, aggregate, payload) returns uuid
 *
 *	 Publishes on inventory's exchange, for the transaction's tenant.
 */
CREATE FUNCTION inventory.publish(event_name text, routing_key text, aggregate text,
	payload jsonb)
RETURNS uuid
LANGUAGE sql VOLATILE
AS $$
	SELECT acme_outbox.publish('acme.inventory', routing_key, aggregate, event_name,
		payload || jsonb_build_object('tenantId', acme_outbox.tenant()))
$$;
COMMENT ON FUNCTION inventory.publish(text, text, text, jsonb) IS
	'publish an event of inventory''s, for the transaction''s tenant';

/*
 * change_position(line_item_id, on_hand, reserved, product) returns void
 *
 *	 Adds to a position, and says what it is then.  Whoever changes a position does it here.
 *	 on_hand, reserved  differences
 */
CREATE FUNCTION inventory.change_position(line_item_id text, on_hand numeric, reserved numeric,
	product text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	changed inventory.stock_position;
BEGIN
	INSERT INTO inventory.stock_position AS p (line_item_id, product, on_hand, reserved)
		VALUES (change_position.line_item_id, change_position.product,
				change_position.on_hand, change_position.reserved)
		ON CONFLICT ON CONSTRAINT stock_position_pkey DO UPDATE
		SET on_hand = p.on_hand + excluded.on_hand, reserved = p.reserved + excluded.reserved,
			product = coalesce(excluded.product, p.product)
		RETURNING p.* INTO changed;
	PERFORM inventory.publish('inventory.stock.updated', 'inventory.stock.updated',
		changed.line_item_id, jsonb_build_object('lineItemId', changed.line_item_id,
			'product', changed.product, 'onHand', changed.on_hand,
			'reserved', changed.reserved, 'available', changed.available));
	UPDATE inventory.stock_position p SET changed_at = clock_timestamp()
		WHERE p.line_item_id = changed.line_item_id;
END
$$;
COMMENT ON FUNCTION inventory.change_position(text, numeric, numeric, text) IS
	'add to a position, and publish what it is then';

/* ---------------------------------------------------------------------------------------
 * Movements: what was bought and sold
 */

/*
 * record_movement(event_id, direction, line_item_id, quantity, sale_id) returns boolean
 *
 *	 False: it was recorded before, and all that belongs to it was done then.
 */
CREATE FUNCTION inventory.record_movement(event_id text, direction inventory.direction,
	line_item_id text, quantity numeric, sale_id text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
	INSERT INTO inventory.stock_movement VALUES (event_id, acme_outbox.tenant(),
		line_item_id, direction, quantity, sale_id)
		ON CONFLICT ON CONSTRAINT stock_movement_pkey DO NOTHING;
	RETURN FOUND;
END
$$;
COMMENT ON FUNCTION inventory.record_movement(text, inventory.direction, text, numeric, text) IS
	'record a stock movement; false: it was before';

/* receive_line(event_id, line) returns void: a line of a purchase is in stock. */
CREATE FUNCTION inventory.receive_line(event_id text, line jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	item     text := line ->> 'lineItemId';
	quantity numeric := line -> 'quantity';
BEGIN
	IF inventory.record_movement(event_id, 'INBOUND', item, quantity) THEN
		PERFORM inventory.change_position(item, quantity, 0, line ->> 'product');
	END IF;
END
$$;
COMMENT ON FUNCTION inventory.receive_line(text, jsonb) IS 'a line of a purchase is in stock';

/*
 * activate_reservation(sale_id, line_item_id, quantity) returns boolean
 *
 *	 A line was sold.  What was held for it is kept; what was not, or no more, is from now
 *	 on: the sale exists, and stock follows it.
 *	 Result: must it be taken from the position?
 */
CREATE FUNCTION inventory.activate_reservation(sale_id text, line_item_id text,
	quantity numeric)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	was inventory.reservation_state;
BEGIN
	INSERT INTO inventory.stock_reservation VALUES (sale_id, line_item_id,
		acme_outbox.tenant(), quantity, 'RELEASED')
		ON CONFLICT ON CONSTRAINT stock_reservation_pkey DO NOTHING;
	SELECT r.state INTO was FROM inventory.stock_reservation r
		WHERE r.sale_id = activate_reservation.sale_id
		AND r.line_item_id = activate_reservation.line_item_id FOR UPDATE;
	UPDATE inventory.stock_reservation r SET state = 'ACTIVE'
		WHERE r.sale_id = activate_reservation.sale_id
		AND r.line_item_id = activate_reservation.line_item_id;
	RETURN was = 'RELEASED';
END
$$;
COMMENT ON FUNCTION inventory.activate_reservation(text, text, numeric) IS
	'a line was sold; is it still to be taken from the position?';

/* sell_line(event_id, sale_id, line) returns void: a line was sold.  P 3. */
CREATE FUNCTION inventory.sell_line(event_id text, sale_id text, line jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	item     text := line ->> 'lineItemId';
	quantity numeric := line -> 'quantity';
BEGIN
	IF NOT inventory.record_movement(event_id, 'OUTBOUND', item, quantity, sale_id) THEN
		RETURN;
	END IF;
	IF inventory.activate_reservation(sale_id, item, quantity) THEN
		PERFORM inventory.change_position(item, 0, quantity);
	END IF;
	PERFORM inventory.publish('inventory.stock.reserved', 'inventory.stock.reserved', item,
		jsonb_build_object('lineItemId', item, 'saleId', sale_id, 'quantity', quantity));
END
$$;
COMMENT ON FUNCTION inventory.sell_line(text, text, jsonb) IS 'a line was sold';

/* ---------------------------------------------------------------------------------------
 * Holds: what is asked for before it is sold (ADR-0012)
 */

/*
 * find_positions_for_update(ids) returns setof stock_position
 *
 *	 Locks positions in the order of their line items, as trading locks those.
 */
CREATE FUNCTION inventory.find_positions_for_update(ids text[])
RETURNS SETOF inventory.stock_position
LANGUAGE sql VOLATILE
AS $$
	SELECT * FROM inventory.stock_position p
	WHERE p.line_item_id = ANY (ids) ORDER BY p.line_item_id FOR UPDATE
$$;
COMMENT ON FUNCTION inventory.find_positions_for_update(text[]) IS
	'lock positions until the transaction ends, in the order of their line items';

/*
 * shortfalls(lines) returns jsonb: [{lineItemId, requested, available}], or NULL: none
 *
 *	 Locks the positions; what they have is the truth until the transaction ends.
 *	 lines  [{lineItemId, quantity}]
 */
CREATE FUNCTION inventory.shortfalls(lines jsonb) RETURNS jsonb
LANGUAGE sql VOLATILE
AS $$
	WITH wanted AS (
		SELECT * FROM jsonb_to_recordset(lines) AS l ("lineItemId" text, quantity numeric)
	), present AS MATERIALIZED (
		SELECT * FROM inventory.find_positions_for_update(ARRAY(SELECT "lineItemId" FROM wanted))
	)
	SELECT jsonb_agg(jsonb_build_object('lineItemId', w."lineItemId", 'requested', w.quantity,
			'available', coalesce(p.available, 0)) ORDER BY w."lineItemId")
	FROM wanted w LEFT JOIN present p ON p.line_item_id = w."lineItemId"
	WHERE coalesce(p.available, 0) < w.quantity
$$;
COMMENT ON FUNCTION inventory.shortfalls(jsonb) IS
	'lock positions; which lines ask for more than there is?';

/* answer(sale_id, event_name, routing_key, payload) returns uuid: to who sent ReserveStock. */
CREATE FUNCTION inventory.answer(sale_id text, event_name text, reply text, payload jsonb)
RETURNS uuid
LANGUAGE sql VOLATILE
AS $$
	SELECT inventory.publish(event_name, 'inventory.reply.' || reply, sale_id,
		payload || jsonb_build_object('saleId', sale_id))
$$;
COMMENT ON FUNCTION inventory.answer(text, text, text, jsonb) IS 'answer ReserveStock';

/* hold_lines(sale_id, lines) returns void: takes the lines from their positions. */
CREATE FUNCTION inventory.hold_lines(sale_id text, lines jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	line record;
BEGIN
	FOR line IN SELECT l."lineItemId" AS item, l.quantity
			FROM jsonb_to_recordset(lines) AS l ("lineItemId" text, quantity numeric)
			ORDER BY l."lineItemId" LOOP
		INSERT INTO inventory.stock_reservation VALUES (sale_id, line.item,
			acme_outbox.tenant(), line.quantity, 'HELD')
			ON CONFLICT ON CONSTRAINT stock_reservation_pkey DO NOTHING;
		IF FOUND THEN
			PERFORM inventory.change_position(line.item, 0, line.quantity);
		END IF;
	END LOOP;
END
$$;
COMMENT ON FUNCTION inventory.hold_lines(text, jsonb) IS 'take lines from their positions';

/*
 * reserve_stock(command) returns void
 *
 *	 ReserveStock: holds all lines or none, and answers.  Once per sale: where there is a
 *	 hold in whatever state, the command was answered or is wanted no more.
 *	 command  {saleId, expiresAt, lines: [{lineItemId, quantity}]}
 *	 A command that comes too late is not answered: nobody waits for it.
 */
CREATE FUNCTION inventory.reserve_stock(command jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	sale       text := command ->> 'saleId';
	expires_at timestamptz := command ->> 'expiresAt';
	late       boolean := expires_at <= clock_timestamp();
	short      jsonb;
BEGIN
	INSERT INTO inventory.stock_hold VALUES (sale, acme_outbox.tenant(),
		CASE WHEN late THEN 'CLOSED' ELSE 'HELD' END::inventory.hold_state, expires_at)
		ON CONFLICT ON CONSTRAINT stock_hold_pkey DO NOTHING;
	IF NOT FOUND OR late THEN
		RETURN;
	END IF;
	short := inventory.shortfalls(command -> 'lines');
	IF short IS NULL THEN
		PERFORM inventory.hold_lines(sale, command -> 'lines');
		PERFORM inventory.answer(sale, 'StockReserved', 'stock-reserved',
			jsonb_build_object('expiresAt', expires_at));
	ELSE
		UPDATE inventory.stock_hold h SET state = 'REFUSED' WHERE h.sale_id = sale;
		PERFORM inventory.answer(sale, 'StockInsufficient', 'stock-insufficient',
			jsonb_build_object('lines', short));
	END IF;
END
$$;
COMMENT ON FUNCTION inventory.reserve_stock(jsonb) IS
	'command ReserveStock: hold all lines or none, and answer';

/*
 * close_hold(sale_id) returns void
 *
 *	 ReleaseStock, or a hold that expired: gives back what is held and was not sold.
 *	 Leaves a row where there was none, so that a ReserveStock overtaken by its own
 *	 ReleaseStock finds that it is wanted no more.
 *	 Safe to repeat.
 */
CREATE FUNCTION inventory.close_hold(sale_id text) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	held inventory.stock_reservation;
BEGIN
	INSERT INTO inventory.stock_hold AS h VALUES (sale_id, acme_outbox.tenant(), 'CLOSED')
		ON CONFLICT ON CONSTRAINT stock_hold_pkey DO UPDATE SET state = 'CLOSED'
		WHERE h.state = 'HELD';
	FOR held IN SELECT * FROM inventory.stock_reservation r
			WHERE r.sale_id = close_hold.sale_id AND r.state = 'HELD'
			ORDER BY r.line_item_id FOR UPDATE LOOP
		UPDATE inventory.stock_reservation r SET state = 'RELEASED'
			WHERE r.sale_id = held.sale_id AND r.line_item_id = held.line_item_id;
		PERFORM inventory.change_position(held.line_item_id, 0, -held.quantity);
	END LOOP;
END
$$;
COMMENT ON FUNCTION inventory.close_hold(text) IS
	'give back what is held for a sale that will not be';

/* overdue_holds() returns (tenant_id, sale_id, traceparent): of all tenants, as the owner. */
CREATE FUNCTION inventory.overdue_holds()
RETURNS TABLE (tenant_id text, sale_id text, traceparent text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
	SELECT h.tenant_id, h.sale_id, h.traceparent FROM inventory.stock_hold h
	WHERE h.state = 'HELD' AND h.expires_at <= clock_timestamp()
	ORDER BY h.expires_at
$$;
COMMENT ON FUNCTION inventory.overdue_holds() IS 'holds past their time, of all tenants';

/*
 * expire_holds()
 *
 *	 A job: closes holds past their time, each in a transaction of its own.  Run it every
 *	 few seconds, and in as many sessions as happen to.  Safe to repeat.
 */
CREATE PROCEDURE inventory.expire_holds(INOUT closed integer DEFAULT 0)
LANGUAGE plpgsql
AS $$
DECLARE
	overdue record;
BEGIN
	closed := 0;
	FOR overdue IN SELECT * FROM inventory.overdue_holds() LOOP
		PERFORM acme_outbox.context(overdue.tenant_id, overdue.traceparent);
		PERFORM inventory.close_hold(overdue.sale_id);
		COMMIT;
		closed := closed + 1;
	END LOOP;
END
$$;
COMMENT ON PROCEDURE inventory.expire_holds(integer) IS 'job: close holds past their time';

/* ---------------------------------------------------------------------------------------
 * Messages
 */

CREATE TYPE inventory.step AS (
	event_name text,
	event_id   text,
	sale_id    text,
	detail     jsonb
);
COMMENT ON TYPE inventory.step IS
	'one change that a message asks for; detail is a line, or the command as a whole';

/* steps_of(envelope) returns setof step: by line item; none for an event that is not known. */
CREATE FUNCTION inventory.steps_of(envelope jsonb) RETURNS SETOF inventory.step
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
	name    text := envelope #>> '{body,eventName}';
	id      text := envelope #>> '{header,eventId}';
	payload jsonb := envelope #> '{body,payload}';
BEGIN
	CASE name
		WHEN 'trading.purchase.created', 'trading.sale.created' THEN
			RETURN QUERY SELECT name, id || ':' || (line ->> 'lineItemId'),
					payload ->> 'saleId', line
				FROM jsonb_array_elements(payload -> 'lines') line
				ORDER BY line ->> 'lineItemId';
		WHEN 'ReserveStock', 'ReleaseStock' THEN
			RETURN QUERY SELECT name, id, payload ->> 'saleId', payload;
		ELSE
			NULL;
	END CASE;
END
$$;
COMMENT ON FUNCTION inventory.steps_of(jsonb) IS 'changes that a message asks for';

/*
 * apply_step(step) returns void
 *
 *	 Makes one change, with what it publishes.  Safe to repeat: a second time it changes
 *	 nothing and publishes nothing.
 */
CREATE FUNCTION inventory.apply_step(step inventory.step) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
	CASE step.event_name
		WHEN 'trading.purchase.created' THEN
			PERFORM inventory.receive_line(step.event_id, step.detail);
		WHEN 'trading.sale.created' THEN
			PERFORM inventory.sell_line(step.event_id, step.sale_id, step.detail);
		WHEN 'ReserveStock' THEN
			PERFORM inventory.reserve_stock(step.detail);
		WHEN 'ReleaseStock' THEN
			PERFORM inventory.close_hold(step.sale_id);
	END CASE;
END
$$;
COMMENT ON FUNCTION inventory.apply_step(inventory.step) IS
	'make one change once, with what it publishes';

/* enter_tenant(envelope) returns void: the transaction works for the message's tenant. */
CREATE FUNCTION inventory.enter_tenant(envelope jsonb) RETURNS void
LANGUAGE sql VOLATILE
AS $$
	SELECT acme_outbox.context(
		tenant_id => coalesce(envelope #>> '{body,payload,tenantId}', ''))
$$;
COMMENT ON FUNCTION inventory.enter_tenant(jsonb) IS
	'work for the message''s tenant; a message without one fails at the first row';

/*
 * on_trading_event(envelope) returns void
 *
 *	 Handler of consumer inventory.trading: record, then apply, in one transaction.
 *	 Parks: UNKNOWN_EVENT.  Errors: OX207 the message names no tenant.
 */
CREATE FUNCTION inventory.on_trading_event(envelope jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	step inventory.step;
BEGIN
	PERFORM inventory.enter_tenant(envelope);
	FOR step IN SELECT * FROM inventory.steps_of(envelope) LOOP
		PERFORM inventory.apply_step(step);
	END LOOP;
	IF NOT FOUND THEN
		PERFORM acme_outbox.park('UNKNOWN_EVENT', 'event', envelope #>> '{body,eventName}');
	END IF;
END
$$;
COMMENT ON FUNCTION inventory.on_trading_event(jsonb) IS
	'handler: a purchase, a sale or a command of trading''s';

/*
 * with_inbox(consumer, envelope, outcome, traceparent)
 *
 *	 The other legal order, apply, then record, where no transaction spans all steps (P 2.1,
 *	 withInbox): acknowledge the message once it returned.  No handler runs here, so each
 *	 transaction is told which trace the message has.
 *	 traceparent  the message's header, if it has one
 *	 Result: applied, duplicate or parked.
 *	 Safe to repeat, to interrupt between any two steps, and in several sessions at once.
 */
CREATE PROCEDURE inventory.with_inbox(consumer text, envelope jsonb,
	INOUT outcome text DEFAULT NULL, traceparent text DEFAULT NULL)
LANGUAGE plpgsql
AS $$
DECLARE
	id   text := envelope #>> '{header,eventId}';
	step inventory.step;
BEGIN
	/* A probe only: what passes it twice at once is caught by the steps. */
	IF EXISTS (SELECT FROM inventory.processed_event e
			   WHERE e.consumer = with_inbox.consumer AND e.event_id = id) THEN
		outcome := 'duplicate';
		RETURN;
	END IF;
	outcome := 'applied';
	FOR step IN SELECT * FROM inventory.steps_of(envelope) LOOP
		PERFORM inventory.enter_tenant(envelope);
		PERFORM acme_outbox.context(traceparent => traceparent,
			trace_id => envelope #>> '{header,traceId}');
		PERFORM inventory.apply_step(step);
		COMMIT;
	END LOOP;
	IF FOUND THEN
		PERFORM acme_outbox.inbox_record(consumer, id);
	ELSE
		PERFORM inventory.enter_tenant(envelope);
		PERFORM acme_outbox.park_message(consumer, envelope, 'UNKNOWN_EVENT', 'event',
			envelope #>> '{body,eventName}');
		outcome := 'parked';
	END IF;
	COMMIT;
END
$$;
COMMENT ON PROCEDURE inventory.with_inbox(text, jsonb, text, text) IS
	'handle a message step by step, and record it after the last';

/* ---------------------------------------------------------------------------------------
 * What must hold
 */

CREATE VIEW inventory.inconsistent WITH (security_invoker = true) AS
	SELECT p.tenant_id, p.line_item_id, p.on_hand, m.received, p.reserved, r.kept
	FROM inventory.stock_position p
	CROSS JOIN LATERAL (SELECT coalesce(sum(m.quantity), 0) AS received
		FROM inventory.stock_movement m
		WHERE m.line_item_id = p.line_item_id AND m.direction = 'INBOUND') m
	CROSS JOIN LATERAL (SELECT coalesce(sum(r.quantity), 0) AS kept
		FROM inventory.stock_reservation r
		WHERE r.line_item_id = p.line_item_id AND r.state <> 'RELEASED') r
	WHERE p.on_hand <> m.received OR p.reserved <> r.kept;
COMMENT ON VIEW inventory.inconsistent IS
	'positions that are not the sum of their movements and reservations; always empty';

RESET ROLE;

/* ---------------------------------------------------------------------------------------
 * Rights
 */

GRANT SELECT, INSERT ON inventory.stock_position, inventory.stock_reservation,
	inventory.stock_hold, inventory.stock_movement TO inventory_app;
GRANT UPDATE (on_hand, reserved, product, changed_at) ON inventory.stock_position
	TO inventory_app;
GRANT UPDATE (state) ON inventory.stock_reservation, inventory.stock_hold TO inventory_app;
GRANT SELECT ON inventory.inconsistent TO inventory_app;
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA inventory TO inventory_app;

SELECT acme_outbox.register_handler('inventory.trading', 'inventory.on_trading_event',
	'inventory_app', 'inventory');
