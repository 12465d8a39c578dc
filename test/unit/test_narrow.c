/*
 * test_narrow.c
 *		Finding the message at fault, and which refusals are worth a line.
 */
#include "unit.h"

#include "narrow.h"
#include "refusals.h"

/* Send a batch while there is room; the one at fault fails it. True: it was sent. */
static bool
send_batch(struct narrow *n, uint32_t *next, uint32_t at_fault, uint32_t *size)
{
	uint32_t	open = 0;

	while (!narrow_is_full(n, open))
		narrow_sending(n, open++);
	*size = open;
	if (*next + open <= at_fault)
	{
		*next += open;
		for (; open > 0; open--)
			narrow_answered(n, open - 1);
		return true;
	}
	narrow_set(n, open / 2);
	return false;
}

static void
the_one_at_fault_is_found_alone(void **state)
{
	(void) state;
	for (uint32_t at_fault = 0; at_fault < 300; at_fault += 7)
	{
		struct narrow n;
		uint32_t	next = 0,
					size = 0;
		int			failures = 0;

		narrow_init(&n, 100);
		do
		{
			failures += !send_batch(&n, &next, at_fault, &size);
		} while (next < at_fault || size > 1);
		assert_int_equal(next, at_fault);
		assert_in_range(failures, 1, 20);
	}
}

static void
a_search_ends_when_all_may_be_sent(void **state)
{
	struct narrow n;

	(void) state;
	narrow_init(&n, 3);
	assert_false(narrow_answered(&n, 0));
	narrow_set(&n, 1);
	assert_true(narrow_is_full(&n, 1));
	assert_false(narrow_answered(&n, 1));
	assert_false(narrow_answered(&n, 0));
	assert_int_equal(n.limit, 2);
	assert_true(narrow_answered(&n, 0));
	assert_false(narrow_is_on(&n));
}

/* What was answered of a batch makes no room: it is sent as a whole. */
static void
a_batch_is_answered_before_the_next(void **state)
{
	struct narrow n;

	(void) state;
	narrow_init(&n, 100);
	narrow_set(&n, 2);
	narrow_sending(&n, 0);
	narrow_sending(&n, 1);
	assert_true(narrow_is_full(&n, 1));
	assert_false(narrow_is_full(&n, 0));
}

static void
one_line_a_minute_for_a_key(void **state)
{
	static struct refusals refusals;
	int			unlogged = -1;

	(void) state;
	assert_true(refusals_note(&refusals, "e", "k", 1000, &unlogged));
	assert_int_equal(unlogged, 0);
	assert_false(refusals_note(&refusals, "e", "k", 2000, &unlogged));
	assert_false(refusals_note(&refusals, "e", "k", 60999, &unlogged));
	assert_true(refusals_note(&refusals, "e", "k2", 2000, &unlogged));
	assert_true(refusals_note(&refusals, "ek", "", 2000, &unlogged));
	assert_true(refusals_note(&refusals, "e", "k", 61000, &unlogged));
	assert_int_equal(unlogged, 2);
}

static void
as_many_keys_as_there_are_orders(void **state)
{
	static struct refusals refusals;
	char		key[32];
	int			unlogged;

	(void) state;
	for (int i = 0; i < 10000; i++)
	{
		snprintf(key, sizeof(key), "orders.%d", i);
		assert_true(refusals_note(&refusals, "e", key, 1000 + i, &unlogged));
		assert_false(refusals_note(&refusals, "e", key, 1000 + i, &unlogged));
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_one_at_fault_is_found_alone),
		cmocka_unit_test(a_search_ends_when_all_may_be_sent),
		cmocka_unit_test(a_batch_is_answered_before_the_next),
		cmocka_unit_test(one_line_a_minute_for_a_key),
		cmocka_unit_test(as_many_keys_as_there_are_orders),
	};

	return cmocka_run_group_tests_name("narrow", tests, NULL, NULL);
}
