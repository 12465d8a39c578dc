/*
 * Notification: mail.  An event becomes a delivery and a job, the job becomes mail.
 *
 *	 platform.user.invited  -->  a delivery, QUEUED, and the job notification.mail.send
 *	 notification.mail.send -->  handed to the mail host: DELIVERED
 *
 * The link in the mail has the invitation's token.  It travels with the job; the table
 * has its hash, and the job's event is redacted as the invitation is.
 */

SET client_min_messages = warning;
SET ROLE notification_owner;

/* One row. */
CREATE TABLE notification.setting (
	only_row  boolean PRIMARY KEY DEFAULT true CHECK (only_row),
	link_base text NOT NULL,
	mail_host text
);
COMMENT ON COLUMN notification.setting.mail_host IS 'NULL: out of order, no mail leaves';
INSERT INTO notification.setting VALUES (true, 'https://app.acme.example/join?token=', 'mail.acme.example');

CREATE TABLE notification.delivery (
	tenant_id       text NOT NULL DEFAULT acme_outbox.tenant(),
	delivery_id     uuid NOT NULL,
	source_event_id text NOT NULL,
	template        text NOT NULL,
	recipient       text NOT NULL,
	link_hash       bytea NOT NULL,
	status          text NOT NULL DEFAULT 'QUEUED' CHECK (status IN ('QUEUED', 'DELIVERED')),
	queued_at       timestamptz NOT NULL DEFAULT now(),
	delivered_at    timestamptz,
	PRIMARY KEY (tenant_id, delivery_id),
	CONSTRAINT one_mail_per_event UNIQUE (tenant_id, source_event_id, template)
);
COMMENT ON TABLE notification.delivery IS 'mails; of their links the hash only';

ALTER TABLE notification.delivery ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON notification.delivery USING (acme_outbox.tenant_visible(tenant_id));

/*
 * delivery_id(source_event_id, template) returns uuid
 *
 *	 The same for the same event whenever it is handled, so that a replay in a restored
 *	 database makes the delivery that a job on its way is about.
 */
CREATE FUNCTION notification.delivery_id(source_event_id text, template text) RETURNS uuid
LANGUAGE sql IMMUTABLE AS $$ SELECT md5(source_event_id || ' ' || template)::uuid $$;
COMMENT ON FUNCTION notification.delivery_id(text, text) IS
	'id of the mail that an event asks for';

/*
 * on_platform_event(message) returns void
 *
 *	 Handler of notification.platform.
 *	 Safe to repeat, by the natural key (source_event_id, template) too.  P 5.
 */
CREATE FUNCTION notification.on_platform_event(message jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	invited  jsonb := message #> '{body,payload}';
	source   text := message #>> '{header,eventId}';
	link     text;
	delivery notification.delivery;
BEGIN
	PERFORM acme_outbox.context(invited ->> 'tenantId');
	SELECT s.link_base || (invited ->> 'token') INTO STRICT link FROM notification.setting s;
	INSERT INTO notification.delivery (delivery_id, source_event_id, template, recipient, link_hash)
		VALUES (notification.delivery_id(source, 'invitation'), source, 'invitation',
				invited ->> 'email', sha256(convert_to(link, 'UTF8')))
		ON CONFLICT DO NOTHING
		RETURNING * INTO delivery;
	IF NOT FOUND THEN
		RETURN;
	END IF;
	PERFORM acme_outbox.enqueue_job('acme.notification', 'notification.mail.send',
		'notification.mail.send',
		jsonb_build_object('tenantId', delivery.tenant_id, 'deliveryId', delivery.delivery_id,
						   'recipient', delivery.recipient, 'template', delivery.template,
						   'link', link));
END
$$;
COMMENT ON FUNCTION notification.on_platform_event(jsonb) IS
	'handler: queue the mail that invites a user';

/*
 * on_mail(message) returns void
 *
 *	 Handler of notification.mail.  Here SQL ends: a mailer outside would speak SMTP with
 *	 the mail host, and do the rest as here.
 *	 Errors: 55000 the mail host is out of order; 22023 the link is not the one that was
 *	 promised.  Neither says what the link is.
 *	 Safe to repeat.
 */
CREATE FUNCTION notification.on_mail(message jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	mail     jsonb := message #> '{body,payload}';
	delivery notification.delivery;
BEGIN
	PERFORM acme_outbox.context(mail ->> 'tenantId');
	SELECT * INTO STRICT delivery FROM notification.delivery d
		WHERE d.tenant_id = acme_outbox.tenant()
		  AND d.delivery_id = (mail ->> 'deliveryId')::uuid
		FOR UPDATE;
	IF delivery.status = 'DELIVERED' THEN
		RETURN;
	ELSIF delivery.link_hash <> sha256(convert_to(mail ->> 'link', 'UTF8')) THEN
		RAISE EXCEPTION 'delivery % has another link', delivery.delivery_id
			USING ERRCODE = 'invalid_parameter_value';
	ELSIF (SELECT s.mail_host IS NULL FROM notification.setting s) THEN
		RAISE EXCEPTION 'the mail host is out of order'
			USING ERRCODE = 'object_not_in_prerequisite_state';
	END IF;
	UPDATE notification.delivery d SET status = 'DELIVERED', delivered_at = clock_timestamp()
		WHERE d.tenant_id = delivery.tenant_id AND d.delivery_id = delivery.delivery_id;
END
$$;
COMMENT ON FUNCTION notification.on_mail(jsonb) IS 'handler: hand a mail to the mail host';

GRANT SELECT ON notification.setting TO notification_app;
GRANT SELECT, INSERT, UPDATE (status, delivered_at) ON notification.delivery TO notification_app;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA notification TO notification_app;

RESET ROLE;
SELECT acme_outbox.register_handler('notification.platform', 'notification.on_platform_event',
	'notification_app', 'notification');
SELECT acme_outbox.register_handler('notification.mail', 'notification.on_mail',
	'notification_app', 'notification');
SELECT acme_outbox.redact_event('notification.mail.send', 'payload.link');
