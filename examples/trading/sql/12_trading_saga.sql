/*
 * trading: a sale as a saga with inventory, the target design of ADR-0012.  P 3.
 *
 *	 create_sale_saga()      trading                inventory
 *	 begin_saga     COMMIT   ReserveStock       ->  holds all lines or none
 *	 wait, bounded           on_stock_answer    <-  StockReserved or StockInsufficient
 *	 finish_saga    COMMIT   trading.sale.created, or ReleaseStock
 *
 * The answer is a row: a saga is one row of sale_saga, and who changes it has locked it.
 * A caller that gives up, or a session that dies, leaves a row that release_overdue_sagas()
 * closes; inventory's hold expires by itself as well.  The row has the trace of the request,
 * so that all of it, however it ends and in whatever session, is one trace.
 *
 * Both designs run side by side.  finish_saga() places the sale with place_sale(), which
 * checks under the row locks as create_sale() does; so inventory decides who gets stock, and
 * whatever it decides no line item is oversold.
 */

SET ROLE trading_owner;

CREATE TYPE trading.saga_state AS ENUM ('REQUESTED', 'RESERVED', 'REFUSED', 'COMPLETED',
	'RELEASED');
COMMENT ON TYPE trading.saga_state IS
	'REQUESTED -> RESERVED -> COMPLETED; or REFUSED by inventory; or RELEASED: given up';

CREATE TABLE trading.sale_saga (
	sale_id     text PRIMARY KEY,
	tenant_id   text NOT NULL DEFAULT acme_outbox.tenant(),
	state       trading.saga_state NOT NULL DEFAULT 'REQUESTED',
	request     jsonb NOT NULL,
	answer      jsonb,
	expires_at  timestamptz NOT NULL,
	traceparent text DEFAULT acme_outbox.traceparent()
);
COMMENT ON TABLE trading.sale_saga IS 'sales that wait, or waited, for inventory';
COMMENT ON COLUMN trading.sale_saga.answer IS 'payload of inventory''s answer';
COMMENT ON COLUMN trading.sale_saga.expires_at IS 'when inventory''s hold ends by itself';
COMMENT ON COLUMN trading.sale_saga.traceparent IS 'the trace that whoever ends it continues';
CREATE INDEX sale_saga_overdue ON trading.sale_saga (expires_at)
	WHERE state IN ('REQUESTED', 'RESERVED');
ALTER TABLE trading.sale_saga ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenant ON trading.sale_saga USING (acme_outbox.tenant_visible(tenant_id));
COMMENT ON POLICY tenant ON trading.sale_saga IS
	'rows of the transaction''s tenant; without one an error';

/*
 * move_saga(sale_id, wanted, answer) returns boolean
 *
 *	 The one place where a saga changes its state.
 *	 False: it is not in a state from which it could; somebody else was first.
 */
CREATE FUNCTION trading.move_saga(sale_id text, wanted trading.saga_state,
	answer jsonb DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
	UPDATE trading.sale_saga s
		SET state = wanted, answer = coalesce(move_saga.answer, s.answer)
		WHERE s.sale_id = move_saga.sale_id
		AND (s.state, wanted) IN (
			('REQUESTED', 'RESERVED'), ('REQUESTED', 'REFUSED'), ('REQUESTED', 'RELEASED'),
			('RESERVED', 'COMPLETED'), ('RESERVED', 'RELEASED'));
	RETURN FOUND;
END
$$;
COMMENT ON FUNCTION trading.move_saga(text, trading.saga_state, jsonb) IS
	'change a saga''s state; false: it was changed before';

/*
 * hold_time() returns interval: how long inventory is asked to hold stock.
 *
 *	 60 seconds, or else: ALTER ROLE trading_app SET trading.hold_time = '30 seconds'
 */
CREATE FUNCTION trading.hold_time() RETURNS interval
LANGUAGE sql STABLE
AS $$
	SELECT coalesce(nullif(current_setting('trading.hold_time', true), ''), '60 seconds')::interval
$$;
COMMENT ON FUNCTION trading.hold_time() IS
	'how long inventory holds stock for a saga; nobody waits so long for it';

/*
 * reserve_sale(sale_id, request) returns void
 *
 *	 Asks inventory to hold the lines of a sale, and remembers that it was asked.
 *	 Errors: TR404 DEAL_NOT_FOUND; TR409 DEAL_NOT_OPEN; TR422 INVALID_LINES.
 */
CREATE FUNCTION trading.reserve_sale(sale_id text, request jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	expires_at timestamptz := clock_timestamp() + trading.hold_time();
	lines      jsonb := (SELECT jsonb_agg(jsonb_build_object('lineItemId', l.line_item_id,
			'quantity', l.quantity) ORDER BY l.line_item_id) FROM trading.lines_of(request) l);
BEGIN
	PERFORM trading.open_deal(request ->> 'dealId');
	INSERT INTO trading.sale_saga (sale_id, request, expires_at)
		VALUES (sale_id, request, expires_at);
	PERFORM trading.publish('ReserveStock', sale_id,
		jsonb_build_object('saleId', sale_id, 'expiresAt', expires_at, 'lines', lines),
		routing_key => 'inventory.command.reserve-stock', kind => 'COMMAND');
END
$$;
COMMENT ON FUNCTION trading.reserve_sale(text, jsonb) IS
	'ask inventory to hold the lines of a sale';

/*
 * release_saga(sale_id) returns void
 *
 *	 Gives a saga up: inventory is to release what it holds, or will.  ReleaseStock has the
 *	 same key as the ReserveStock it takes back, so it comes behind it.  The caller has the
 *	 saga's trace.
 *	 Safe to repeat; nothing happens to a saga that has ended.
 */
CREATE FUNCTION trading.release_saga(sale_id text) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
	IF trading.move_saga(sale_id, 'RELEASED') THEN
		PERFORM trading.publish('ReleaseStock', sale_id, jsonb_build_object('saleId', sale_id),
			routing_key => 'inventory.command.release-stock', kind => 'COMMAND');
	END IF;
END
$$;
COMMENT ON FUNCTION trading.release_saga(text) IS
	'give a saga up, and have inventory release its stock';

/* refused_detail(answer) returns text: what StockInsufficient says, for people. */
CREATE FUNCTION trading.refused_detail(answer jsonb) RETURNS text
LANGUAGE sql STABLE
AS $$
	SELECT string_agg(trading.shortage(l."lineItemId", l.requested, l.available), '; '
		ORDER BY l."lineItemId")
	FROM jsonb_to_recordset(answer -> 'lines') AS l
		("lineItemId" text, requested numeric, available numeric)
$$;
COMMENT ON FUNCTION trading.refused_detail(jsonb) IS 'what StockInsufficient says, for people';

/*
 * finish_saga(sale_id) returns (status, response)
 *
 *	 Ends a saga, with inventory's answer or without: 201; 409 refused by inventory, or by
 *	 trading in the end; 503 STOCK_UNAVAILABLE not answered in time.  Whatever is not 201
 *	 has given the stock back.
 */
CREATE FUNCTION trading.finish_saga(sale_id text, OUT status integer, OUT response jsonb)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	saga trading.sale_saga;
BEGIN
	SELECT * INTO saga FROM trading.sale_saga s
		WHERE s.sale_id = finish_saga.sale_id FOR UPDATE;
	PERFORM acme_outbox.context(traceparent => saga.traceparent);
	IF saga.state = 'RESERVED' AND clock_timestamp() < saga.expires_at THEN
		SELECT t.* INTO status, response FROM trading.try_step('place', sale_id, saga.request) t;
	ELSIF saga.state = 'REFUSED' THEN
		status := 409;
		response := jsonb_build_object('code', 'INSUFFICIENT_STOCK',
			'detail', trading.refused_detail(saga.answer));
	ELSE
		status := 503;
		response := jsonb_build_object('code', 'STOCK_UNAVAILABLE',
			'detail', 'inventory did not answer in time; nothing was sold');
	END IF;
	IF status = 201 THEN
		PERFORM trading.move_saga(sale_id, 'COMPLETED');
	ELSE
		PERFORM trading.release_saga(sale_id);
	END IF;
END
$$;
COMMENT ON FUNCTION trading.finish_saga(text) IS
	'end a saga: place the sale, or give the stock back';

/*
 * await_answer(tenant_id, sale_id, patience)
 *
 *	 Waits until inventory has answered, and not longer than patience.  No transaction is
 *	 open between two looks.
 */
CREATE PROCEDURE trading.await_answer(tenant_id text, sale_id text, patience interval)
LANGUAGE plpgsql
AS $$
DECLARE
	give_up timestamptz := clock_timestamp() + patience;
	pause   double precision := 0.005;
BEGIN
	LOOP
		PERFORM acme_outbox.context(tenant_id);
		EXIT WHEN clock_timestamp() > give_up OR EXISTS (
			SELECT FROM trading.sale_saga s
			WHERE s.sale_id = await_answer.sale_id AND s.state <> 'REQUESTED');
		COMMIT;
		PERFORM pg_sleep(pause);
		pause := least(pause * 1.5, 0.1);
	END LOOP;
	COMMIT;
END
$$;
COMMENT ON PROCEDURE trading.await_answer(text, text, interval) IS
	'wait for inventory''s answer, not longer than told';

/*
 * create_sale_saga(tenant_id, idempotency_key, request, status, response, patience,
 *	 traceparent)
 *
 *	 What an HTTP layer calls instead of create_sale_request(), outside a transaction:
 *	 it commits what it asks before it waits for the answer.
 *	 request  as create_sale's; the sale's id is always a new one
 *	 patience  how long to wait for inventory, less than hold_time()
 *	 traceparent  of the HTTP request; NULL: a trace begins
 *	 Result: as create_sale_request's, and 503 STOCK_UNAVAILABLE, which may be tried again
 *	 under the same key.
 *	 Safe to repeat, and to interrupt anywhere: with a key.
 */
CREATE PROCEDURE trading.create_sale_saga(tenant_id text, idempotency_key text, request jsonb,
	INOUT status integer DEFAULT NULL, INOUT response jsonb DEFAULT NULL,
	patience interval DEFAULT '5 seconds', traceparent text DEFAULT NULL)
LANGUAGE plpgsql
AS $$
DECLARE
	sale_id   text := gen_random_uuid();
	execution uuid;
BEGIN
	PERFORM acme_outbox.context(tenant_id, traceparent);
	SELECT b.* INTO status, response, execution
		FROM trading.begin_request('POST /sales', idempotency_key, request,
			trading.hold_time()) b;
	IF status IS NOT NULL THEN
		RETURN;
	END IF;
	SELECT t.* INTO status, response FROM trading.try_step('reserve', sale_id, request) t;
	IF status = 202 THEN
		COMMIT;
		CALL trading.await_answer(tenant_id, sale_id, least(patience, trading.hold_time() / 2));
		PERFORM acme_outbox.context(tenant_id);
		SELECT f.* INTO status, response FROM trading.finish_saga(sale_id) f;
	END IF;
	PERFORM trading.end_request('POST /sales', idempotency_key, status, response, execution);
	COMMIT;
END
$$;
COMMENT ON PROCEDURE trading.create_sale_saga(text, text, jsonb, integer, jsonb, interval, text) IS
	'create a sale once inventory holds its stock; returns an HTTP status and a body';

/*
 * on_stock_answer(envelope) returns void
 *
 *	 Handler of consumer trading.inventory: StockReserved or StockInsufficient.
 *	 An answer to a saga that was given up changes nothing: ReleaseStock is on its way.
 *	 Parks: UNRESOLVABLE_ENTITY no such saga; UNKNOWN_EVENT.
 *	 Errors: OX207 the message names no tenant.
 */
CREATE FUNCTION trading.on_stock_answer(envelope jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
	name   text := envelope #>> '{body,eventName}';
	answer jsonb := envelope #> '{body,payload}';
	sale   text := answer ->> 'saleId';
BEGIN
	PERFORM acme_outbox.context(tenant_id => coalesce(answer ->> 'tenantId', ''));
	IF NOT EXISTS (SELECT FROM trading.sale_saga s WHERE s.sale_id = sale) THEN
		PERFORM acme_outbox.park('UNRESOLVABLE_ENTITY', 'sale_saga', sale);
	ELSIF name = 'StockReserved' THEN
		PERFORM trading.move_saga(sale, 'RESERVED', answer);
	ELSIF name = 'StockInsufficient' THEN
		PERFORM trading.move_saga(sale, 'REFUSED', answer);
	ELSE
		PERFORM acme_outbox.park('UNKNOWN_EVENT', 'event', name);
	END IF;
END
$$;
COMMENT ON FUNCTION trading.on_stock_answer(jsonb) IS
	'handler: inventory holds the stock of a sale, or cannot';

/* overdue_sagas() returns (tenant_id, sale_id, traceparent): of all tenants, as the owner. */
CREATE FUNCTION trading.overdue_sagas()
RETURNS TABLE (tenant_id text, sale_id text, traceparent text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
	SELECT s.tenant_id, s.sale_id, s.traceparent FROM trading.sale_saga s
	WHERE s.state IN ('REQUESTED', 'RESERVED') AND s.expires_at <= clock_timestamp()
	ORDER BY s.expires_at
$$;
COMMENT ON FUNCTION trading.overdue_sagas() IS
	'sagas whose caller is gone, of all tenants';

/*
 * release_overdue_sagas(released)
 *
 *	 A job: gives up sagas whose session died before it ended them, each in a transaction of
 *	 its own.  Run it every few seconds.  Safe to repeat, and in several sessions.
 */
CREATE PROCEDURE trading.release_overdue_sagas(INOUT released integer DEFAULT 0)
LANGUAGE plpgsql
AS $$
DECLARE
	overdue record;
BEGIN
	released := 0;
	FOR overdue IN SELECT * FROM trading.overdue_sagas() LOOP
		PERFORM acme_outbox.context(overdue.tenant_id, overdue.traceparent);
		PERFORM trading.release_saga(overdue.sale_id);
		COMMIT;
		released := released + 1;
	END LOOP;
END
$$;
COMMENT ON PROCEDURE trading.release_overdue_sagas(integer) IS
	'job: give up sagas whose session died';

RESET ROLE;

GRANT SELECT, INSERT, UPDATE (state, answer) ON trading.sale_saga TO trading_app;
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA trading TO trading_app;

SELECT acme_outbox.register_handler('trading.inventory', 'trading.on_stock_answer',
	'trading_app', 'trading');
