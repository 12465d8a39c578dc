/*
 * test_uri.c
 *		Broker URIs: every part optional, percent-decoded, errors without secrets.
 */
#include "unit.h"

#include "uri.h"

static struct broker_uri uri;

static void
parse(const char *text)
{
	const char *problem = uri_parse(text, &uri);

	if (problem)
		fail_msg("%s: %s", text, problem);
}

static void
all_parts(void **state)
{
	(void) state;
	parse("amqp://bob:s3cret@broker.example:5673/trading");
	assert_string_equal(uri.user, "bob");
	assert_string_equal(uri.password, "s3cret");
	assert_true(uri.has_password);
	assert_string_equal(uri.hosts[0].name, "broker.example");
	assert_string_equal(uri.hosts[0].port, "5673");
	assert_string_equal(uri.vhost, "trading");
}

static void
defaults(void **state)
{
	(void) state;
	parse("amqp://");
	assert_string_equal(uri.hosts[0].name, "localhost");
	assert_string_equal(uri.hosts[0].port, "5672");
	assert_string_equal(uri.user, "guest");
	assert_false(uri.has_password);
	assert_string_equal(uri.vhost, "/");
	parse("amqp://h");
	assert_string_equal(uri.vhost, "/");
	parse("amqp://h/");
	assert_string_equal(uri.vhost, "");
	parse("amqp://h/%2f");
	assert_string_equal(uri.vhost, "/");
}

static void
percent_decoding(void **state)
{
	(void) state;
	parse("amqp://a%3Ab:p%40ss%2Fw%25@h/x%20y");
	assert_string_equal(uri.user, "a:b");
	assert_string_equal(uri.password, "p@ss/w%");
	assert_string_equal(uri.vhost, "x y");
}

static void
several_hosts(void **state)
{
	char		text[512] = "amqp://";

	(void) state;
	parse("amqp://u:p@h1:5672,h2,[::1]:5674/v");
	assert_int_equal(uri.count, 3);
	assert_string_equal(uri.hosts[0].name, "h1");
	assert_string_equal(uri.hosts[1].name, "h2");
	assert_string_equal(uri.hosts[1].port, "5672");
	assert_string_equal(uri.hosts[2].name, "::1");
	assert_string_equal(uri.hosts[2].port, "5674");
	assert_string_equal(uri.vhost, "v");
	for (int i = 0; i < URI_HOSTS_MAX; i++)
		sprintf(text + strlen(text), "%sh%d", i ? "," : "", i);
	parse(text);
	assert_int_equal(uri.count, URI_HOSTS_MAX);
	strcat(text, ",one-more");
	assert_non_null(uri_parse(text, &uri));
}

static void
tls_and_external(void **state)
{
	(void) state;
	parse("amqps://h1,h2:5672");
	assert_true(uri.tls);
	assert_string_equal(uri.hosts[0].port, "5671");
	assert_string_equal(uri.hosts[1].port, "5672");
	assert_int_equal(uri.auth, AUTH_AUTO);
	assert_false(uri.has_user);
	parse("amqps://h/v?auth_mechanism=external");
	assert_int_equal(uri.auth, AUTH_EXTERNAL);
	assert_string_equal(uri.vhost, "v");
	parse("amqps://h?auth_mechanism=plain");
	assert_int_equal(uri.auth, AUTH_PLAIN);
	assert_string_equal(uri.vhost, "/");
	parse("amqp://u:what?@h");
	assert_string_equal(uri.password, "what?");
	assert_true(uri.has_user);
	assert_false(uri.tls);
}

/* People forget to encode; the last @ ends the login. */
static void
at_sign_and_colon_in_the_password(void **state)
{
	(void) state;
	parse("amqp://u:p@ss:w@h:1/");
	assert_string_equal(uri.password, "p@ss:w");
	assert_string_equal(uri.hosts[0].name, "h");
}

static void
ipv6_hosts(void **state)
{
	(void) state;
	parse("amqp://[::1]:5673/");
	assert_string_equal(uri.hosts[0].name, "::1");
	assert_string_equal(uri.hosts[0].port, "5673");
	parse("amqp://u@[fe80::1]");
	assert_string_equal(uri.hosts[0].name, "fe80::1");
	assert_string_equal(uri.hosts[0].port, "5672");
}

static void
empty_password_is_one(void **state)
{
	(void) state;
	parse("amqp://u:@h");
	assert_true(uri.has_password);
	assert_string_equal(uri.password, "");
}

static void
errors(void **state)
{
	const char *const bad[] = {
		"", "amqp", "http://h", "amqp:/h", "AMQP://h", "amqps:/h",
		"amqp://h:0", "amqp://h:65536", "amqp://h:x", "amqp://h:", "amqp://h:-1",
		"amqp://h:123456", "amqp://[::1", "amqp://[::1]x", "amqp://h/%",
		"amqp://h/%2", "amqp://h/%zz", "amqp://h/%00", "amqp://u%@h",
		"amqp://u:%4@h", "amqp://h/a/b", "amqp://h/a?heartbeat=1", "amqp://h/a#b",
	};

	(void) state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		if (uri_parse(bad[i], &uri) == NULL)
			fail_msg("\"%s\" was accepted", bad[i]);
}

static void
parts_that_are_too_long(void **state)
{
	char		text[4096];
	char		part[2000];

	(void) state;
	memset(part, 'x', sizeof(part));
	part[sizeof(part) - 1] = '\0';
	snprintf(text, sizeof(text), "amqp://%s", part);
	assert_non_null(uri_parse(text, &uri));
	snprintf(text, sizeof(text), "amqp://%s@h", part);
	assert_non_null(uri_parse(text, &uri));
	snprintf(text, sizeof(text), "amqp://u:%s@h", part);
	assert_non_null(uri_parse(text, &uri));
	snprintf(text, sizeof(text), "amqp://h/%s", part);
	assert_non_null(uri_parse(text, &uri));
}

static void
errors_do_not_quote_the_password(void **state)
{
	const char *problem = uri_parse("amqp://u:hunter2%@h", &uri);

	(void) state;
	assert_non_null(problem);
	assert_null(strstr(problem, "hunter2"));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_parts),
		cmocka_unit_test(defaults),
		cmocka_unit_test(percent_decoding),
		cmocka_unit_test(several_hosts),
		cmocka_unit_test(tls_and_external),
		cmocka_unit_test(at_sign_and_colon_in_the_password),
		cmocka_unit_test(ipv6_hosts),
		cmocka_unit_test(empty_password_is_one),
		cmocka_unit_test(errors),
		cmocka_unit_test(parts_that_are_too_long),
		cmocka_unit_test(errors_do_not_quote_the_password),
	};

	return cmocka_run_group_tests_name("uri", tests, NULL, NULL);
}
