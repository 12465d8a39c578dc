/*
 * test_backoff.c
 *		Delays that double up to a cap, with +-50 % of jitter.
 */
#include "unit.h"

#include "backoff.h"

static void
doubles_up_to_the_cap(void **state)
{
	struct backoff b;
	const msec_t expected[] = {200, 400, 800, 1600, 3200, 6400, 12800, 15000,
	15000};

	(void) state;
	backoff_init(&b, 200, 15000);
	for (size_t i = 0; i < sizeof(expected) / sizeof(*expected); i++)
	{
		assert_int_equal(b.next, expected[i]);
		backoff_next(&b, 0);
	}
}

static void
jitter_stays_within_half(void **state)
{
	const uint32_t randoms[] = {0, 1, 99, 100, 101, 12345, UINT32_MAX};

	(void) state;
	for (size_t i = 0; i < sizeof(randoms) / sizeof(*randoms); i++)
	{
		struct backoff b;
		msec_t		delay;

		backoff_init(&b, 100, 1000);
		delay = backoff_next(&b, randoms[i]);
		assert_in_range(delay, 50, 150);
	}
}

static void
jitter_reaches_both_ends(void **state)
{
	struct backoff b;

	(void) state;
	backoff_init(&b, 100, 1000);
	assert_int_equal(backoff_next(&b, 0), 50);
	backoff_reset(&b);
	assert_int_equal(backoff_next(&b, 100), 150);
}

static void
reset_begins_anew(void **state)
{
	struct backoff b;

	(void) state;
	backoff_init(&b, 200, 15000);
	for (int i = 0; i < 10; i++)
		backoff_next(&b, 7);
	backoff_reset(&b);
	assert_int_equal(b.next, 200);
}

static void
odd_bounds_are_mended(void **state)
{
	struct backoff b;

	(void) state;
	backoff_init(&b, 0, 0);
	assert_in_range(backoff_next(&b, UINT32_MAX), 0, 1);
	backoff_init(&b, 500, 100);
	backoff_next(&b, 0);
	assert_int_equal(b.next, 500);
}

/* Doubling must not overflow, however long the outage. */
static void
never_overflows(void **state)
{
	struct backoff b;

	(void) state;
	backoff_init(&b, 1, INT64_MAX / 4);
	for (int i = 0; i < 1000; i++)
		assert_true(backoff_next(&b, UINT32_MAX) >= 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(doubles_up_to_the_cap),
		cmocka_unit_test(jitter_stays_within_half),
		cmocka_unit_test(jitter_reaches_both_ends),
		cmocka_unit_test(reset_begins_anew),
		cmocka_unit_test(odd_bounds_are_mended),
		cmocka_unit_test(never_overflows),
	};

	return cmocka_run_group_tests_name("backoff", tests, NULL, NULL);
}
