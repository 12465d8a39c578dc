/*
 * Commission: what a trader earns for a locked deal.
 *
 * The two versions of trading.deal.locked have one event name and different payloads.
 * What tells them apart is the routing key, so a message that is reprocessed must keep
 * it: acme-outbox-bridge reprocess --original-key.  P 5.  bonus() is in 41_bonus.sql, to be
 * released by itself.
 */

SET client_min_messages = warning;
SET ROLE commission_owner;

CREATE TABLE commission.trader_rate (
	tenant_id text NOT NULL DEFAULT acme_outbox.tenant(),
	trader_id text NOT NULL,
	rate      numeric(6, 4) NOT NULL CHECK (rate BETWEEN 0 AND 1),
	PRIMARY KEY (tenant_id, trader_id)
);
COMMENT ON TABLE commission.trader_rate IS
	'a trader''s share of a deal''s amount; without a row it is default_rate()';

CREATE TABLE commission.commission (
	tenant_id text NOT NULL DEFAULT acme_outbox.tenant(),
	deal_id   text NOT NULL,
	trader_id text NOT NULL,
	base      numeric(14, 2) NOT NULL,
	rate      numeric(6, 4) NOT NULL,
	amount    numeric(14, 2) NOT NULL,
	currency  text NOT NULL,
	PRIMARY KEY (tenant_id, deal_id)
);
COMMENT ON TABLE commission.commission IS 'one per locked deal';

ALTER TABLE commission.trader_rate ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE commission.commission ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON commission.trader_rate USING (acme_outbox.tenant_visible(tenant_id));
CREATE POLICY tenant ON commission.commission USING (acme_outbox.tenant_visible(tenant_id));

CREATE FUNCTION commission.default_rate() RETURNS numeric
LANGUAGE sql IMMUTABLE AS 'SELECT 0.02';
COMMENT ON FUNCTION commission.default_rate() IS 'rate of a trader who has none';

/*
 * on_trading_event(message) returns void
 *
 *	 Handler of commission.trading; goes by the routing key.
 *	 Errors: 0A000 a key that no version of trading.deal.locked has.
 *	 Safe to repeat: a deal has one commission, also under another event id.
 */
CREATE FUNCTION commission.on_trading_event(message jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	routing_key text := acme_outbox.message() ->> 'routing_key';
	deal        jsonb := message #> '{body,payload}';
	earned      commission.commission;
BEGIN
	PERFORM acme_outbox.context(deal ->> 'tenantId');
	earned.deal_id := deal ->> 'dealId';
	earned.trader_id := deal ->> 'traderId';
	earned.currency := deal ->> 'currency';
	SELECT r.rate INTO earned.rate FROM commission.trader_rate r
		WHERE r.tenant_id = acme_outbox.tenant() AND r.trader_id = earned.trader_id;
	earned.rate := coalesce(earned.rate, commission.default_rate());

	CASE routing_key
	WHEN 'trading.deal.locked.v1' THEN
		earned.base := (deal ->> 'amount')::numeric;
	WHEN 'trading.deal.locked.v2' THEN
		earned.base := (deal ->> 'saleAmount')::numeric - (deal ->> 'purchaseAmount')::numeric;
		earned.rate := earned.rate + commission.bonus((deal ->> 'saleAmount')::numeric,
													  (deal ->> 'purchaseAmount')::numeric);
	ELSE
		RAISE EXCEPTION 'no version of trading.deal.locked has this routing key'
			USING ERRCODE = 'feature_not_supported',
				  DETAIL = format('The key is "%s".', routing_key),
				  HINT = 'Reprocess with --original-key.';
	END CASE;
	earned.amount := round(greatest(earned.base, 0) * earned.rate, 2);

	INSERT INTO commission.commission
			(deal_id, trader_id, base, rate, amount, currency)
		VALUES (earned.deal_id, earned.trader_id, earned.base, earned.rate, earned.amount,
				earned.currency)
		ON CONFLICT DO NOTHING;
	IF NOT FOUND THEN
		RETURN;
	END IF;
	PERFORM acme_outbox.publish('acme.commission', 'commission.commission.calculated',
		earned.deal_id, 'commission.commission.calculated',
		jsonb_build_object('tenantId', acme_outbox.tenant(), 'dealId', earned.deal_id,
						   'traderId', earned.trader_id, 'base', earned.base,
						   'rate', earned.rate, 'amount', earned.amount,
						   'currency', earned.currency));
END
$$;
COMMENT ON FUNCTION commission.on_trading_event(jsonb) IS
	'handler: calculate the commission of a locked deal, by the version in the routing key';

GRANT SELECT, INSERT, UPDATE (rate) ON commission.trader_rate TO commission_app;
GRANT SELECT, INSERT ON commission.commission TO commission_app;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA commission TO commission_app;
ALTER DEFAULT PRIVILEGES IN SCHEMA commission GRANT EXECUTE ON FUNCTIONS TO commission_app;

RESET ROLE;
SELECT acme_outbox.register_handler('commission.trading', 'commission.on_trading_event',
	'commission_app', 'commission');
