/*
 * test_dsn.c
 *		The hosts of a connection string, and what libpq is told instead.
 */
#include "unit.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "dsn.h"

static struct dsn_hosts hosts;

static int
setup(void **state)
{
	const char *const variables[] = {"PGHOST", "PGPORT", "PGHOSTADDR", "PGSERVICE"};

	(void) state;
	for (int i = 0; i < 4; i++)
		unsetenv(variables[i]);
	return 0;
}

static void
add(int host, const char *text)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	struct addrinfo info = {
		.ai_addr = (struct sockaddr *) &address,
		.ai_addrlen = sizeof(address),
	};

	assert_int_equal(inet_pton(AF_INET, text, &address.sin_addr), 1);
	dsn_add_addresses(&hosts, host, &info);
}

static void
assert_texts(const char *last, const char *last_port, const char *host,
			 const char *hostaddr, const char *port)
{
	struct dsn_texts texts;

	dsn_write_texts(&hosts, last, last_port, &texts);
	assert_string_equal(buffer_text(&texts.host), host);
	assert_string_equal(buffer_text(&texts.hostaddr), hostaddr);
	assert_string_equal(buffer_text(&texts.port), port);
	dsn_free_texts(&texts);
}

static void
hosts_of_string_uri_and_variables(void **state)
{
	(void) state;
	dsn_read_hosts("host=a,b port=1,2 dbname=x", &hosts);
	assert_int_equal(hosts.count, 2);
	assert_string_equal(hosts.hosts[1].name, "b");
	assert_string_equal(hosts.hosts[1].port, "2");
	dsn_read_hosts("postgresql://u:p@c:7,[::1]:8/x", &hosts);
	assert_int_equal(hosts.count, 2);
	assert_string_equal(hosts.hosts[0].port, "7");
	assert_string_equal(hosts.hosts[1].name, "::1");
	setenv("PGHOST", "d,/tmp", 1);
	setenv("PGPORT", "9", 1);
	dsn_read_hosts(NULL, &hosts);
	assert_int_equal(hosts.count, 2);
	assert_true(hosts.hosts[0].resolvable);
	assert_false(hosts.hosts[1].resolvable);
	assert_string_equal(hosts.hosts[1].port, "9");
	dsn_read_hosts("dbname=x host=e", &hosts);
	assert_string_equal(hosts.hosts[0].name, "e");
	dsn_read_hosts("just_a_database", &hosts);
	assert_string_equal(hosts.hosts[0].name, "d");
}

static void
libpq_is_left_alone(void **state)
{
	const char *const dsns[] = {
		NULL, "dbname=x", "host=a hostaddr=127.0.0.1", "service=s host=a",
		"host=a,b port=1,2,3", "host=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17",
	};

	(void) state;
	for (size_t i = 0; i < sizeof(dsns) / sizeof(*dsns); i++)
	{
		dsn_read_hosts(dsns[i], &hosts);
		assert_int_equal(hosts.count, 0);
	}
	setenv("PGHOSTADDR", "127.0.0.1", 1);
	dsn_read_hosts("host=a", &hosts);
	assert_int_equal(hosts.count, 0);
}

static void
addresses_and_turns(void **state)
{
	(void) state;
	dsn_read_hosts("host=a,/run/s,unknown,b port=1,2,3,4", &hosts);
	add(0, "10.0.0.1");
	add(0, "10.0.0.2");
	dsn_add_addresses(&hosts, 1, NULL);
	add(3, "10.0.0.1");
	assert_texts("", "", "a,a,/run/s,b", "10.0.0.1,10.0.0.2,,10.0.0.1",
				 "1,1,2,4");
	/* behind the one that did not answer, told apart by its port too */
	assert_texts("10.0.0.1", "1", "a,/run/s,b,a", "10.0.0.2,,10.0.0.1,10.0.0.1",
				 "1,2,4,1");
	assert_texts("10.0.0.1", "4", "a,a,/run/s,b", "10.0.0.1,10.0.0.2,,10.0.0.1",
				 "1,1,2,4");
	assert_texts("10.9.9.9", "1", "a,a,/run/s,b", "10.0.0.1,10.0.0.2,,10.0.0.1",
				 "1,1,2,4");
}

static void
more_addresses_than_are_kept(void **state)
{
	(void) state;
	dsn_read_hosts("host=a port=1", &hosts);
	for (int i = 0; i < DSN_ADDRESSES_MAX + 10; i++)
		add(0, "10.0.0.1");
	assert_int_equal(hosts.address_count, DSN_ADDRESSES_MAX);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(hosts_of_string_uri_and_variables, setup),
		cmocka_unit_test_setup(libpq_is_left_alone, setup),
		cmocka_unit_test_setup(addresses_and_turns, setup),
		cmocka_unit_test_setup(more_addresses_than_are_kept, setup),
	};

	return cmocka_run_group_tests_name("dsn", tests, NULL, NULL);
}
