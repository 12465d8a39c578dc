/*
 * test_config.c
 *		Settings: precedence, every kind of error, secrets, reload.
 */
#include "unit.h"

#include <unistd.h>

#include "config.h"

static struct config config;
static char path[] = "/tmp/acme_config_XXXXXX";

static int
setup(void **state)
{
	char		name[64];

	(void) state;
	unsetenv("ACME_OUTBOX_CONFIG");
	unsetenv("RABBITMQ_URI");
	for (const char *const *n = (const char *const[]){"ORIGIN", "DSN", "WINDOW",
			 "BROKER_URI", "POLL_INTERVAL", "ONCE", NULL}; *n; n++)
	{
		snprintf(name, sizeof(name), "ACME_OUTBOX_%s", *n);
		unsetenv(name);
	}
	strcpy(path + strlen(path) - 6, "XXXXXX");
	close(mkstemp(path));
	return 0;
}

static int
teardown(void **state)
{
	(void) state;
	config_free(&config);
	unlink(path);
	return 0;
}

static void
write_file(const char *text)
{
	FILE	   *file = fopen(path, "w");

	fputs(text, file);
	fclose(file);
}

static enum exit_status
load_into(struct config *c, enum command command, char **argv)
{
	struct command_line line = {command, 0, argv, "test"};

	while (argv[line.argc])
		line.argc++;
	config_free(c);
	return config_load(c, &line);
}

#define load_as(command, ...) \
	load_into(&config, command, (char *[]){__VA_ARGS__, NULL})
#define load(...) load_as(COMMAND_RELAY, __VA_ARGS__)

static void
assert_error(enum exit_status got, enum exit_status expected, const char *part)
{
	assert_int_equal(got, expected);
	if (strstr(config.error, part) == NULL)
		fail_msg("\"%s\" is not in \"%s\"", part, config.error);
}

static void
defaults(void **state)
{
	(void) state;
	assert_int_equal(load("--origin", "trading"), EXIT_OK);
	assert_string_equal(config_text(&config, SET_ORIGIN), "trading");
	assert_int_equal(config_number(&config, SET_CLAIM_ROWS), 500);
	assert_int_equal(config_number(&config, SET_CLAIM_BYTES), 8 * 1024 * 1024);
	assert_int_equal(config_number(&config, SET_WINDOW), 1000);
	assert_int_equal(config_number(&config, SET_POLL_INTERVAL), 1000);
	assert_int_equal(config_number(&config, SET_RECONNECT_MIN), 200);
	assert_int_equal(config_number(&config, SET_DUTY_INTERVAL), 60000);
	assert_int_equal(config_number(&config, SET_SINK), SINK_RABBITMQ);
	assert_int_equal(config_number(&config, SET_ONCE), 0);
	assert_null(config_text(&config, SET_DSN));
}

static void
flag_beats_environment_beats_file_beats_default(void **state)
{
	(void) state;
	write_file("origin = from-file\nwindow = 11\n");
	assert_int_equal(load("--config", path), EXIT_OK);
	assert_int_equal(config_number(&config, SET_WINDOW), 11);
	setenv("ACME_OUTBOX_WINDOW", "12", 1);
	assert_int_equal(load("--config", path), EXIT_OK);
	assert_int_equal(config_number(&config, SET_WINDOW), 12);
	assert_string_equal(config_text(&config, SET_ORIGIN), "from-file");
	assert_int_equal(load("--window=13", "--config", path), EXIT_OK);
	assert_int_equal(config_number(&config, SET_WINDOW), 13);
	unsetenv("ACME_OUTBOX_WINDOW");
}

/* A list grows by what one source gives; the next source begins anew. */
static void
lists(void **state)
{
	(void) state;
	write_file("dlq = d\nqueue = q\nmatch = a=1\nmatch = \"b=2\"\n");
	assert_int_equal(load_as(COMMAND_REPROCESS, "--config", path), EXIT_OK);
	assert_string_equal(config_text(&config, SET_MATCH), "a=1\nb=2");
	assert_int_equal(load_as(COMMAND_REPROCESS, "--match", "c=3", "--config", path,
							 "--match=d=4", "--match", "e=5"), EXIT_OK);
	assert_string_equal(config_text(&config, SET_MATCH), "c=3\nd=4\ne=5");
	assert_error(load_as(COMMAND_REPROCESS, "--match=c=3", "--match="), EXIT_USAGE,
				 "\"match\"");
}

static void
queues_of_a_reprocessing(void **state)
{
	char		name[8 + CONFIG_QUEUE_MAX + 1] = "--queue=";
	char		longer[sizeof(name) + 1];

	(void) state;
	assert_error(load_as(COMMAND_REPROCESS, "--queue=q"), EXIT_USAGE, "--dlq");
	assert_error(load_as(COMMAND_REPROCESS, "--dlq=q"), EXIT_USAGE, "--queue");
	assert_error(load_as(COMMAND_REPROCESS, "--dlq=q", "--queue=q"), EXIT_USAGE,
				 "the same queue");
	/* with the lock's suffix it is a name of 255 bytes, or of one more */
	memset(name + 8, 'q', CONFIG_QUEUE_MAX);
	assert_int_equal(load_as(COMMAND_REPROCESS, "--dlq=q", name), EXIT_OK);
	strcat(strcpy(longer, name), ".");
	assert_error(load_as(COMMAND_REPROCESS, "--dlq=q", longer), EXIT_USAGE,
				 "\"queue\"");
}

static void
file_from_the_environment(void **state)
{
	(void) state;
	write_file("origin = a\n");
	setenv("ACME_OUTBOX_CONFIG", path, 1);
	assert_int_equal(load("--once"), EXIT_OK);
	assert_string_equal(config_text(&config, SET_ORIGIN), "a");
	assert_int_equal(config_number(&config, SET_ONCE), 1);
}

static void
file_syntax(void **state)
{
	(void) state;
	write_file("# comment\n\n  origin=  \"a b\"  \n\twindow\t=\t7\r\n"
			   "broker-uri = amqp://u:p#w@h\nrelay-name = 'x=y'");
	assert_int_equal(load("--config", path), EXIT_OK);
	assert_string_equal(config_text(&config, SET_ORIGIN), "a b");
	assert_int_equal(config_number(&config, SET_WINDOW), 7);
	assert_string_equal(config.uri.password, "p#w");
	assert_string_equal(config_text(&config, SET_RELAY_NAME), "x=y");
}

static void
file_errors(void **state)
{
	char		text[5000];

	(void) state;
	assert_error(load("--config", "/nonexistent/x"), EXIT_CONFIG_FILE,
				 "/nonexistent/x");
	assert_error(load("--config", "/tmp"), EXIT_CONFIG_FILE, "cannot read");
	write_file("origin = a\nwindow 7\n");
	assert_error(load("--config", path), EXIT_CONFIG_FILE, "line 2");
	write_file("windows = 7\n");
	assert_error(load("--config", path), EXIT_CONFIG_FILE, "\"windows\"");
	write_file("window = 7\nwindow = 8\n");
	assert_error(load("--config", path), EXIT_CONFIG_FILE, "twice");
	write_file("window = 0\n");
	assert_error(load("--config", path), EXIT_CONFIG_FILE, "1 to 50000");
	write_file("config = /etc/x\n");
	assert_error(load("--config", path), EXIT_CONFIG_FILE, "no setting");
	memset(text, 'x', sizeof(text));
	text[sizeof(text) - 1] = '\0';
	write_file(text);
	assert_error(load("--config", path), EXIT_CONFIG_FILE, "too long");
}

static void
origin_is_required(void **state)
{
	(void) state;
	assert_error(load("--once"), EXIT_USAGE, "\"origin\" is required");
	assert_error(load("--origin", ""), EXIT_USAGE, "\"origin\"");
}

static void
unknown_flags(void **state)
{
	(void) state;
	assert_error(load("--nope", "1"), EXIT_USAGE, "--nope");
	assert_error(load("--nope=1"), EXIT_USAGE, "--nope");
	assert_error(load("extra"), EXIT_USAGE, "extra");
	assert_error(load("-w", "1"), EXIT_USAGE, "-w");
	assert_error(load("--origin"), EXIT_USAGE, "needs a value");
	assert_error(load("--orig", "a"), EXIT_USAGE, "--orig");
}

static void
quantities(void **state)
{
	(void) state;
	assert_int_equal(load("--origin=a", "--poll-interval=250ms"), EXIT_OK);
	assert_int_equal(config_number(&config, SET_POLL_INTERVAL), 250);
	assert_int_equal(load("--origin=a", "--poll-interval=0.25"), EXIT_OK);
	assert_int_equal(config_number(&config, SET_POLL_INTERVAL), 250);
	assert_int_equal(load("--origin=a", "--confirm-timeout=1.1 s"), EXIT_OK);
	assert_int_equal(config_number(&config, SET_CONFIRM_TIMEOUT), 1100);
	assert_int_equal(load("--origin=a", "--duty-interval=2min"), EXIT_OK);
	assert_int_equal(config_number(&config, SET_DUTY_INTERVAL), 120000);
	assert_int_equal(load("--origin=a", "--claim-bytes=64KiB"), EXIT_OK);
	assert_int_equal(config_number(&config, SET_CLAIM_BYTES), 65536);
	assert_int_equal(load("--origin=a", "--claim-bytes=70000"), EXIT_OK);
	assert_int_equal(config_number(&config, SET_CLAIM_BYTES), 70000);
}

static void
bad_quantities(void **state)
{
	const char *const bad[] = {"", "x", "-1s", "1x", "1S", "s", "1e3", "0x10",
		"1..2s", " 1s", "inf", "nan", "1 s s", "99999999999999999999s", "0.0001s"};
	char		flag[64];

	(void) state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
	{
		snprintf(flag, sizeof(flag), "--poll-interval=%s", bad[i]);
		assert_error(load("--origin=a", flag), EXIT_USAGE, "poll-interval");
	}
	assert_error(load("--origin=a", "--window=1.5"), EXIT_USAGE, "whole number");
	assert_error(load("--origin=a", "--window=5s"), EXIT_USAGE, "whole number");
	assert_error(load("--origin=a", "--window=-5"), EXIT_USAGE,
				 "\"-5\" is out of range, 1 to");
	assert_error(load("--origin=a", "--window=--5"), EXIT_USAGE, "whole number");
	assert_error(load("--origin=a", "--claim-bytes=1MB"), EXIT_USAGE, "8MiB");
}

static void
ranges_are_named(void **state)
{
	(void) state;
	assert_error(load("--origin=a", "--window=0"), EXIT_USAGE, "1 to 50000");
	assert_error(load("--origin=a", "--window=50001"), EXIT_USAGE, "--window");
	assert_error(load("--origin=a", "--claim-bytes=1KiB"), EXIT_USAGE,
				 "64KiB to 256MiB");
	assert_error(load("--origin=a", "--renew-interval=21s"), EXIT_USAGE,
				 "100ms to 20s");
	assert_error(load("--origin=a", "--reconnect-min=20s"), EXIT_USAGE,
				 "must not exceed");
}

static void
booleans_and_choices(void **state)
{
	(void) state;
	assert_int_equal(load("--once", "--origin", "a", "--strict-order=yes",
						  "--log-format=json", "--log-level", "warn"), EXIT_OK);
	assert_int_equal(config_number(&config, SET_ONCE), 1);
	assert_int_equal(config_number(&config, SET_STRICT_ORDER), 1);
	assert_int_equal(config_number(&config, SET_LOG_FORMAT), 1);
	assert_int_equal(config_number(&config, SET_LOG_LEVEL), 2);
	assert_int_equal(load("--once=off", "--origin", "a"), EXIT_OK);
	assert_int_equal(config_number(&config, SET_ONCE), 0);
	assert_error(load("--once=maybe", "--origin", "a"), EXIT_USAGE, "true");
	assert_error(load("--sink=kafka", "--origin", "a"), EXIT_USAGE,
				 "rabbitmq|stdout");
	assert_error(load("--sink=", "--origin", "a"), EXIT_USAGE, "sink");
	assert_error(load("--sink=stdout", "--origin", "a", "--audit-exchange", "feed"),
				 EXIT_USAGE, "\"audit-exchange\" needs the sink rabbitmq");
	assert_error(load("--sink=stdout", "--origin", "a", "--dead-letter-exchange",
					  "dlx"), EXIT_USAGE, "\"dead-letter-exchange\" needs");
	assert_error(load("--sink=rabbit", "--origin", "a"), EXIT_USAGE, "sink");
}

static void
assert_no_secret(const char *secret)
{
	if (strstr(config.error, secret))
		fail_msg("the error quotes a secret: %s", config.error);
}

static void
secrets_are_refused_on_the_command_line(void **state)
{
	(void) state;
	assert_error(load("--origin=a", "--broker-uri=amqp://u:hunter2@h"),
				 EXIT_USAGE, "--broker-uri holds a password");
	assert_no_secret("hunter2");
	assert_error(load("--origin=a", "--broker-uri", "amqp://u:hunter2@h:x"),
				 EXIT_USAGE, "--broker-uri holds a password");
	assert_error(load("--origin=a", "--dsn", "host=h password=hunter2"),
				 EXIT_USAGE, "--dsn holds a password");
	assert_no_secret("hunter2");
	assert_error(load("--origin=a", "--dsn=postgresql://u:hunter2@h/d"),
				 EXIT_USAGE, "--dsn holds a password");
	assert_int_equal(load("--origin=a", "--dsn=postgresql://u@h/d",
						  "--broker-uri=amqp://u@h"), EXIT_OK);
	assert_int_equal(load("--origin=a", "--dsn=mydb"), EXIT_OK);
	assert_int_equal(load("--origin=a", "--dsn=passfile=/x host=h"), EXIT_OK);
}

static void
secrets_from_environment_and_file(void **state)
{
	(void) state;
	setenv("RABBITMQ_URI", "amqp://u:one@h", 1);
	assert_int_equal(load("--origin=a"), EXIT_OK);
	assert_string_equal(config.uri.password, "one");
	setenv("ACME_OUTBOX_BROKER_URI", "amqp://u:two@h", 1);
	assert_int_equal(load("--origin=a"), EXIT_OK);
	assert_string_equal(config.uri.password, "two");
	setenv("ACME_OUTBOX_DSN", "host=h password=x", 1);
	assert_int_equal(load("--origin=a"), EXIT_OK);
	write_file("three\nignored\n");
	assert_int_equal(load("--origin=a", "--broker-password-file", path),
					 EXIT_OK);
	assert_string_equal(config.uri.password, "three");
	write_file("");
	assert_error(load("--origin=a", "--broker-password-file", path),
				 EXIT_USAGE, "empty");
	assert_error(load("--origin=a", "--broker-password-file=/nonexistent/x"),
				 EXIT_USAGE, "/nonexistent/x");
}

static void
bad_connection_strings(void **state)
{
	(void) state;
	setenv("RABBITMQ_URI", "amqps://u:hunter2@h:x", 1);
	assert_error(load("--origin=a"), EXIT_USAGE, "port");
	assert_no_secret("hunter2");
	setenv("RABBITMQ_URI", "u:hunter2@h", 1);
	assert_error(load("--origin=a"), EXIT_USAGE, "amqp://");
	assert_no_secret("hunter2");
	unsetenv("RABBITMQ_URI");
	setenv("ACME_OUTBOX_DSN", "host=h password=x hunter2", 1);
	assert_error(load("--origin=a"), EXIT_USAGE, "dsn");
	assert_no_secret("hunter2");
}

static void
dump_masks_passwords(void **state)
{
	char		text[8192] = "";
	FILE	   *out = fmemopen(text, sizeof(text), "w");

	(void) state;
	setenv("RABBITMQ_URI", "amqp://u:hunter2@h/v", 1);
	setenv("ACME_OUTBOX_DSN", "postgresql://u:hunter2@h/d", 1);
	assert_int_equal(load("--origin=a"), EXIT_OK);
	config_dump(&config, out);
	fclose(out);
	assert_null(strstr(text, "hunter2"));
	assert_non_null(strstr(text, "amqp://u:********@h:5672/v"));
	assert_non_null(strstr(text, "password=********"));
	assert_non_null(strstr(text, "window = 1000"));
	unsetenv("ACME_OUTBOX_DSN");
}

/* Of the TLS settings nothing is overlooked, and the login follows from them. */
static void
tls_settings(void **state)
{
	char		text[8192] = "";
	FILE	   *out = fmemopen(text, sizeof(text), "w");

	(void) state;
	setenv("RABBITMQ_URI", "amqp://u:hunter2@h", 1);
	assert_error(load("--origin=a", "--tls-ca-file=/nonexistent/ca"), EXIT_USAGE,
				 "does not begin with amqps://");
	assert_error(load("--origin=a", "--tls-cert-file=/x"), EXIT_USAGE, "amqps://");
	setenv("RABBITMQ_URI", "amqps://u:hunter2@h", 1);
	assert_error(load("--origin=a", "--tls-ca-file=/nonexistent/ca"), EXIT_USAGE,
				 "/nonexistent/ca");
	assert_no_secret("hunter2");
	assert_error(load("--origin=a", "--tls-cert-file=/nonexistent/c"), EXIT_USAGE,
				 "/nonexistent/c");
	assert_error(load("--origin=a", "--tls-key-file=/x"), EXIT_USAGE,
				 "tls-cert-file");
	setenv("RABBITMQ_URI", "amqps://h?auth_mechanism=external", 1);
	assert_error(load("--origin=a"), EXIT_USAGE, "tls-cert-file");
	setenv("RABBITMQ_URI", "amqps://u:hunter2@h1,[::1]:5/v", 1);
	assert_int_equal(load("--origin=a", "--tls-verify=off"), EXIT_OK);
	assert_false(config_tls(&config).verify);
	assert_true(config_tls(&config).enabled);
	assert_int_equal(config.uri.auth, AUTH_PLAIN);
	config_dump(&config, out);
	fclose(out);
	assert_null(strstr(text, "hunter2"));
	assert_non_null(strstr(text, "amqps://u:********@h1:5671,[::1]:5/v"));
	unsetenv("RABBITMQ_URI");
	assert_int_equal(load("--origin=a"), EXIT_OK);
	assert_string_equal(config.uri.password, "guest");
	assert_false(config_tls(&config).enabled);
}

static void
reload_takes_only_what_may_change(void **state)
{
	struct config fresh = {0};
	const char *needs_restart;

	(void) state;
	assert_int_equal(load("--origin=a"), EXIT_OK);
	assert_int_equal(load_into(&fresh, COMMAND_RELAY, (char *[]){"--origin=a",
					 "--claim-rows=7", "--window=8", NULL}), EXIT_OK);
	assert_int_equal(config_reload(&config, &fresh, &needs_restart), 1);
	assert_int_equal(config_number(&config, SET_CLAIM_ROWS), 7);
	assert_int_equal(config_number(&config, SET_WINDOW), 1000);
	assert_string_equal(needs_restart, "window");
	config_free(&fresh);
}

/*
 * Of another command: a mistake as a flag, passed over where commands may share
 * it, and not shown.
 */
static void
settings_of_other_commands(void **state)
{
	char		text[8192] = "";
	FILE	   *out = fmemopen(text, sizeof(text), "w");

	(void) state;
	assert_error(load_as(COMMAND_REPROCESS, "--window=7"), EXIT_USAGE,
				 "option --window is not for \"reprocess\"");
	write_file("window = 7\nheartbeat = 5s\ndlq = d\nqueue = q\n");
	setenv("ACME_OUTBOX_ORIGIN", "elsewhere", 1);
	setenv("ACME_OUTBOX_POLL_INTERVAL", "not even a duration", 1);
	assert_int_equal(load_as(COMMAND_REPROCESS, "--config", path), EXIT_OK);
	unsetenv("ACME_OUTBOX_ORIGIN");
	unsetenv("ACME_OUTBOX_POLL_INTERVAL");
	assert_int_equal(config_number(&config, SET_HEARTBEAT), 5000);
	assert_int_equal(config_number(&config, SET_WINDOW), 1000);
	assert_null(config_text(&config, SET_ORIGIN));
	config_dump(&config, out);
	config_help(COMMAND_REPROCESS, out);
	fclose(out);
	assert_non_null(strstr(text, "heartbeat = 5s"));
	assert_null(strstr(text, "window"));
	write_file("windows = 7\n");
	assert_error(load_as(COMMAND_REPROCESS, "--config", path), EXIT_CONFIG_FILE,
				 "no setting \"windows\"");
}

/* Every setting has a name, a help text and a default within its own range. */
static void
table_is_complete(void **state)
{
	char		text[16384] = "";
	FILE	   *out = fmemopen(text, sizeof(text), "w");
	int			lines = 0;

	(void) state;
	config_list(out);
	fclose(out);
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
	{
		int			tabs = 0;

		for (char *c = line; *c; c++)
			tabs += *c == '\t';
		assert_int_equal(tabs, 4);
		assert_non_null(strstr(line, "\tACME_OUTBOX_"));
		lines++;
	}
	assert_int_equal(lines, SETTINGS);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(defaults),
		T(flag_beats_environment_beats_file_beats_default),
		T(lists),
		T(queues_of_a_reprocessing),
		T(file_from_the_environment),
		T(file_syntax),
		T(file_errors),
		T(origin_is_required),
		T(unknown_flags),
		T(quantities),
		T(bad_quantities),
		T(ranges_are_named),
		T(booleans_and_choices),
		T(secrets_are_refused_on_the_command_line),
		T(secrets_from_environment_and_file),
		T(bad_connection_strings),
		T(dump_masks_passwords),
		T(tls_settings),
		T(reload_takes_only_what_may_change),
		T(settings_of_other_commands),
		T(table_is_complete),
	};

	return cmocka_run_group_tests_name("config", tests, NULL, NULL);
}
