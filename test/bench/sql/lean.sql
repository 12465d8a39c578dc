/*
 * The least an outbox can be: a number and the message.
 */
CREATE TABLE lean_outbox (
	id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	topic   text NOT NULL,
	payload text NOT NULL
);
