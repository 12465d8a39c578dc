/*
 * The outbox of the messaging guidelines, section 4.2, as printed. Its claim
 * (section 5) is in src/claim_loop.c.
 */
CREATE TABLE outbox_message (
    id UUID PRIMARY KEY DEFAULT gen_random_uuid(),
    origin           VARCHAR(255) NOT NULL,    -- producing service (spring.application.name)
    routing_key      VARCHAR(255),             -- broker routing key (nullable for fanout)
    topic            VARCHAR(255) NOT NULL,    -- exchange/topic name
    message_key      VARCHAR(255),             -- aggregate id (Kafka partition key)
    payload          TEXT         NOT NULL,    -- JSON-serialized EventMessage<T>
    status           VARCHAR(50)  NOT NULL DEFAULT 'PENDING',  -- PENDING | IN_FLIGHT | PUBLISHED | FAILED | ARCHIVED
    attempts         INT          NOT NULL DEFAULT 0,
    error            TEXT,
    occurred_at      TIMESTAMP    NOT NULL DEFAULT NOW(),
    next_attempt_at  TIMESTAMP,
    published_at     TIMESTAMP,
    claimed_at       TIMESTAMP,                -- for stale-claim recovery
    claimed_by       VARCHAR(255)              -- instance marker: appName@processId
);

CREATE INDEX idx_outbox_origin_status_occurred
    ON outbox_message(origin, status, occurred_at ASC);

CREATE INDEX idx_outbox_origin_next_attempt
    ON outbox_message(origin, status, next_attempt_at);

-- Partial index on stale-claim recovery (Postgres / SQL Server filtered index)
CREATE INDEX idx_outbox_claim_recovery
    ON outbox_message(status, claimed_at)
    WHERE status = 'IN_FLIGHT';

GRANT SELECT, UPDATE ON outbox_message TO bench_relay;

CREATE FUNCTION bench.insert_guidelines(first integer, last integer) RETURNS void
LANGUAGE sql
AS $$
	INSERT INTO outbox_message (origin, routing_key, topic, message_key, payload)
	SELECT 'shop', 'order.placed', 'bench', 'order-' || n % 10000, bench.payload(n)
	FROM generate_series(first, last) AS n
$$;
