/*
 * Platform: users and their invitations.
 *
 * An invitation's token is a bearer secret: who has it is let in.  It goes out once, in
 * platform.user.invited, because notification builds the link with it.  Here and there
 * only its hash is kept, and a redaction rule keeps it off the audit lane and takes it out
 * of the stored entry once that is published.  P 5.1.
 */

SET client_min_messages = warning;
SET ROLE platform_owner;

CREATE TABLE platform.app_user (
	tenant_id  text NOT NULL DEFAULT acme_outbox.tenant(),
	user_id    text NOT NULL,
	email      text NOT NULL,
	status     text NOT NULL DEFAULT 'INVITED' CHECK (status IN ('INVITED', 'ACTIVE')),
	token_hash bytea,
	PRIMARY KEY (tenant_id, user_id),
	UNIQUE (tenant_id, email)
);
CREATE UNIQUE INDEX app_user_token ON platform.app_user (token_hash);
COMMENT ON TABLE platform.app_user IS 'people; token_hash of those who are invited';

ALTER TABLE platform.app_user ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON platform.app_user USING (acme_outbox.tenant_visible(tenant_id));

/*
 * invite_user(email) returns text
 *
 *	 Result: the user's id.  The token is not returned: it goes by mail, to prove the
 *	 address.
 *	 Errors: 23505 there is such a user.
 */
CREATE FUNCTION platform.invite_user(email text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
	/* 244 random bits, from the server's cryptographic generator. */
	token   text := replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', '');
	user_id text := 'user-' || gen_random_uuid();
BEGIN
	INSERT INTO platform.app_user (user_id, email, token_hash)
		VALUES (user_id, email, sha256(convert_to(token, 'UTF8')));
	PERFORM acme_outbox.publish('acme.platform', 'platform.user.invited', user_id,
		'platform.user.invited',
		jsonb_build_object('tenantId', acme_outbox.tenant(), 'userId', user_id,
						   'email', email, 'token', token));
	RETURN user_id;
END
$$;
COMMENT ON FUNCTION platform.invite_user(text) IS 'invite somebody by mail';

/*
 * accept_invitation(token) returns text: the user's id, now active; NULL where no
 * invitation has this token, or it was used.
 */
CREATE FUNCTION platform.accept_invitation(token text) RETURNS text
LANGUAGE sql AS $$
	UPDATE platform.app_user u SET status = 'ACTIVE', token_hash = NULL
		WHERE u.token_hash = sha256(convert_to(token, 'UTF8'))
		RETURNING u.user_id
$$;
COMMENT ON FUNCTION platform.accept_invitation(text) IS 'let in whoever has the token, once';

GRANT SELECT, INSERT, UPDATE (status, token_hash) ON platform.app_user TO platform_app;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA platform TO platform_app;

RESET ROLE;
SELECT acme_outbox.redact_event('platform.user.invited', 'payload.token');
