/*
 * Accounting: invoices what a locked deal sold and bought, in an open period.
 *
 *	 trading.deal.locked  -->  an invoice for each of its sources, ISSUED
 *	 process_invoice()    -->  PROCESSED, and accounting.invoice.processed tells trading
 *
 * The application sets the tenant first, SELECT acme_outbox.context('acme'); a consumer's
 * handler takes it from the message.
 */

SET client_min_messages = warning;
SET ROLE accounting_owner;

/* changed_at: not before the row's last event, and before its next (../EVENTS.md). */
CREATE TABLE accounting.period (
	tenant_id  text NOT NULL DEFAULT acme_outbox.tenant(),
	period     text NOT NULL CHECK (period ~ '^\d{4}-(0[1-9]|1[0-2])$'),
	status     text NOT NULL DEFAULT 'OPEN' CHECK (status IN ('OPEN', 'CLOSED')),
	invoices   integer NOT NULL DEFAULT 0,
	amount     numeric(14, 2) NOT NULL DEFAULT 0,
	changed_at timestamptz NOT NULL,
	PRIMARY KEY (tenant_id, period)
);
CREATE UNIQUE INDEX one_open_period ON accounting.period (tenant_id) WHERE status = 'OPEN';
COMMENT ON TABLE accounting.period IS
	'months that invoices are booked into; a closed one has its totals';

CREATE TABLE accounting.invoice (
	tenant_id   text NOT NULL DEFAULT acme_outbox.tenant(),
	invoice_id  text NOT NULL,
	deal_id     text NOT NULL,
	source_type text NOT NULL CHECK (source_type IN ('sale', 'purchase')),
	source_id   text NOT NULL,
	amount      numeric(14, 2) NOT NULL,
	currency    text NOT NULL,
	period      text NOT NULL,
	status      text NOT NULL DEFAULT 'ISSUED' CHECK (status IN ('ISSUED', 'PROCESSED')),
	changed_at  timestamptz NOT NULL,
	traceparent text DEFAULT acme_outbox.traceparent(),
	PRIMARY KEY (tenant_id, invoice_id),
	FOREIGN KEY (tenant_id, period) REFERENCES accounting.period,
	CONSTRAINT one_invoice_per_source UNIQUE (tenant_id, source_type, source_id)
);
CREATE INDEX invoice_to_process ON accounting.invoice (tenant_id, invoice_id)
	WHERE status = 'ISSUED';
CREATE INDEX invoice_period ON accounting.invoice (tenant_id, period);
COMMENT ON TABLE accounting.invoice IS 'one per sale or purchase of a locked deal';
COMMENT ON COLUMN accounting.invoice.traceparent IS
	'of the deal''s locking; the invoice is processed in the same trace';

ALTER TABLE accounting.period ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE accounting.invoice ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON accounting.period USING (acme_outbox.tenant_visible(tenant_id));
CREATE POLICY tenant ON accounting.invoice USING (acme_outbox.tenant_visible(tenant_id));

/*
 * open_period(period) returns void
 *
 *	 period  2026-01
 *	 Errors: 23505 another one is open.
 */
CREATE FUNCTION accounting.open_period(period text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	PERFORM acme_outbox.publish('acme.accounting', 'accounting.period.opened', period,
		'accounting.period.opened',
		jsonb_build_object('tenantId', acme_outbox.tenant(), 'period', period));
	INSERT INTO accounting.period (period, changed_at) VALUES (period, clock_timestamp());
END
$$;
COMMENT ON FUNCTION accounting.open_period(text) IS 'open a month for invoices';

/* tell(invoice, event_name): both events of an invoice have its whole state, and its trace. */
CREATE FUNCTION accounting.tell(invoice accounting.invoice, event_name text) RETURNS void
LANGUAGE sql AS $$
	SELECT acme_outbox.publish('acme.accounting', event_name, invoice.invoice_id, event_name,
		jsonb_build_object('tenantId', invoice.tenant_id, 'invoiceId', invoice.invoice_id,
						   'dealId', invoice.deal_id, 'sourceType', invoice.source_type,
						   'sourceId', invoice.source_id, 'amount', invoice.amount,
						   'currency', invoice.currency, 'period', invoice.period),
		traceparent => invoice.traceparent)
$$;
COMMENT ON FUNCTION accounting.tell(accounting.invoice, text) IS 'publish an event of an invoice';

/* sources_of(deal) returns (type, id, amount): what a locked deal is to be invoiced for. */
CREATE FUNCTION accounting.sources_of(deal jsonb)
RETURNS TABLE (type text, id text, amount numeric)
LANGUAGE sql IMMUTABLE AS $$
	SELECT s."sourceType", s."sourceId", s.amount
	FROM jsonb_to_recordset(deal -> 'sources')
		AS s ("sourceType" text, "sourceId" text, amount numeric)
	ORDER BY s."sourceId"
$$;
COMMENT ON FUNCTION accounting.sources_of(jsonb) IS
	'what a locked deal is to be invoiced for, from its event';

/*
 * on_trading_event(message) returns void
 *
 *	 Handler of accounting.trading.  Both versions of trading.deal.locked say what to
 *	 invoice; so does neither's routing key matter, nor its schema version.
 *	 No open period: parked, to be replayed when there is one.
 *	 Errors: 22023 the message lists no source.
 *	 Safe to repeat, in whatever period: a source has one invoice, also under another event id.
 */
CREATE FUNCTION accounting.on_trading_event(message jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	deal    jsonb := message #> '{body,payload}';
	booked  text;
	source  record;
	invoice accounting.invoice;
BEGIN
	PERFORM acme_outbox.context(deal ->> 'tenantId');
	IF NOT EXISTS (SELECT FROM accounting.sources_of(deal)) THEN
		RAISE EXCEPTION 'the deal has nothing to invoice'
			USING ERRCODE = 'invalid_parameter_value',
				  DETAIL = 'A deal that is locked has purchases or sales; its event lists them.';
	END IF;
	IF NOT EXISTS (
			SELECT FROM accounting.sources_of(deal) s WHERE NOT EXISTS (
				SELECT FROM accounting.invoice i WHERE i.tenant_id = acme_outbox.tenant()
					AND (i.source_type, i.source_id) = (s.type, s.id))) THEN
		RETURN;
	END IF;
	SELECT p.period INTO booked FROM accounting.period p
		WHERE p.tenant_id = acme_outbox.tenant() AND p.status = 'OPEN'
		FOR SHARE;		-- not closed before this invoice counts
	IF NOT FOUND THEN
		PERFORM acme_outbox.park('INVALID_STATE', 'period', 'none is open');
		RETURN;
	END IF;
	FOR source IN SELECT * FROM accounting.sources_of(deal) LOOP
		INSERT INTO accounting.invoice
				(invoice_id, deal_id, source_type, source_id, amount, currency, period, changed_at)
			VALUES (concat_ws('-', 'inv', source.type, source.id), deal ->> 'dealId', source.type, source.id,
					source.amount, deal ->> 'currency', booked, clock_timestamp())
			ON CONFLICT ON CONSTRAINT one_invoice_per_source DO NOTHING
			RETURNING * INTO invoice;
		CONTINUE WHEN NOT FOUND;
		PERFORM accounting.tell(invoice, 'accounting.invoice.issued');
		UPDATE accounting.invoice i SET changed_at = clock_timestamp()
			WHERE i.tenant_id = invoice.tenant_id AND i.invoice_id = invoice.invoice_id;
	END LOOP;
END
$$;
COMMENT ON FUNCTION accounting.on_trading_event(jsonb) IS
	'handler: invoice what a locked deal sold and bought';

/*
 * process(invoice) returns void
 *
 *	 The one step from ISSUED to PROCESSED.  Whoever comes second finds it done.
 */
CREATE FUNCTION accounting.process(invoice accounting.invoice) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	PERFORM FROM accounting.invoice i
		WHERE i.tenant_id = invoice.tenant_id AND i.invoice_id = invoice.invoice_id
		AND i.status = 'ISSUED'
		FOR UPDATE;
	IF FOUND THEN
		PERFORM accounting.tell(invoice, 'accounting.invoice.processed');
		UPDATE accounting.invoice i SET status = 'PROCESSED', changed_at = clock_timestamp()
			WHERE i.tenant_id = invoice.tenant_id AND i.invoice_id = invoice.invoice_id;
	END IF;
END
$$;
COMMENT ON FUNCTION accounting.process(accounting.invoice) IS
	'process an invoice, and tell trading';

/*
 * process_invoices(max_rows) returns bigint
 *
 *	 The accountant's work.  Several may work at once.
 *	 Result: how many.
 */
CREATE FUNCTION accounting.process_invoices(max_rows integer DEFAULT 100) RETURNS bigint
LANGUAGE sql AS $$
	WITH taken AS MATERIALIZED (
		SELECT i FROM accounting.invoice i
		WHERE i.tenant_id = acme_outbox.tenant() AND i.status = 'ISSUED'
		ORDER BY i.invoice_id LIMIT max_rows
		FOR UPDATE SKIP LOCKED)
	SELECT count(accounting.process(t.i)) FROM taken t
$$;
COMMENT ON FUNCTION accounting.process_invoices(integer) IS
	'process issued invoices, and tell trading';

/*
 * close_period(period) returns void
 *
 *	 Processes what is left of it, counts and adds up.  Invoices come in until it has the
 *	 period's lock, and none afterwards.
 *	 Errors: P0002 no such period.  Safe to repeat.
 */
CREATE FUNCTION accounting.close_period(period text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	closing accounting.period;
	total   record;
BEGIN
	SELECT * INTO STRICT closing FROM accounting.period p
		WHERE p.tenant_id = acme_outbox.tenant() AND p.period = close_period.period
		FOR UPDATE;
	IF closing.status = 'CLOSED' THEN
		RETURN;
	END IF;
	PERFORM accounting.process(i) FROM accounting.invoice i
		WHERE i.tenant_id = closing.tenant_id AND i.period = closing.period
		AND i.status = 'ISSUED';
	SELECT count(*) AS invoices, coalesce(sum(i.amount), 0) AS amount
		INTO total FROM accounting.invoice i
		WHERE i.tenant_id = closing.tenant_id AND i.period = closing.period;
	PERFORM acme_outbox.publish('acme.accounting', 'accounting.period.closed', period,
		'accounting.period.closed',
		jsonb_build_object('tenantId', closing.tenant_id, 'period', period,
						   'invoices', total.invoices, 'amount', total.amount));
	UPDATE accounting.period p
		SET status = 'CLOSED', invoices = total.invoices, amount = total.amount,
			changed_at = clock_timestamp()
		WHERE p.tenant_id = closing.tenant_id AND p.period = closing.period;
END
$$;
COMMENT ON FUNCTION accounting.close_period(text) IS 'close a month, with its totals';

GRANT SELECT, INSERT, UPDATE (status, invoices, amount, changed_at) ON accounting.period
	TO accounting_app;
GRANT SELECT, INSERT, UPDATE (status, changed_at) ON accounting.invoice TO accounting_app;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA accounting TO accounting_app;

RESET ROLE;
SELECT acme_outbox.register_handler('accounting.trading', 'accounting.on_trading_event',
	'accounting_app', 'accounting');
