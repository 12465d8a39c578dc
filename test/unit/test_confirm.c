/*
 * test_confirm.c
 *		The confirm window: each sentence of design section 9 as a test.
 *
 * Rows are only numbers here: the window never looks into them.
 */
#include "unit.h"

#include "confirm.h"

#define CAPACITY	8

struct answers
{
	int			count;
	long		rows[64];
	enum confirm_answer answers[64];
};

static struct confirm_window window;
static struct answers got;
static char ids[64][8];

static void
note(void *context, void *item, enum confirm_answer answer)
{
	struct answers *a = context;

	a->rows[a->count] = (long) (intptr_t) item;
	a->answers[a->count++] = answer;
}

static int
setup(void **state)
{
	(void) state;
	memset(&got, 0, sizeof(got));
	return confirm_init(&window, CAPACITY) ? 0 : -1;
}

static int
teardown(void **state)
{
	(void) state;
	confirm_free(&window);
	return 0;
}

/* Row n has message id "id<n>". */
static uint64_t
add(long n)
{
	snprintf(ids[n], sizeof(ids[n]), "id%ld", n);
	return confirm_add(&window, (void *) (intptr_t) n, ids[n], n * 10);
}

static void
add_many(long from, long to)
{
	for (long n = from; n <= to; n++)
		add(n);
}

static int
ack(uint64_t tag, bool multiple)
{
	return confirm_settle(&window, tag, multiple, false, note, &got);
}

static int
nack(uint64_t tag, bool multiple)
{
	return confirm_settle(&window, tag, multiple, true, note, &got);
}

static void
expect(int position, long row, enum confirm_answer answer)
{
	assert_true(position < got.count);
	assert_int_equal(got.rows[position], row);
	assert_int_equal(got.answers[position], answer);
}

static void
tags_begin_at_one(void **state)
{
	(void) state;
	assert_int_equal(add(1), 1);
	assert_int_equal(add(2), 2);
	assert_int_equal(window.open, 2);
}

static void
single_ack_answers_only_its_tag(void **state)
{
	(void) state;
	add_many(1, 3);
	assert_int_equal(ack(2, false), 1);
	expect(0, 2, CONFIRM_ACKED);
	assert_int_equal(window.open, 2);
	assert_int_equal(window.low, 1);
}

static void
acks_out_of_order(void **state)
{
	(void) state;
	add_many(1, 4);
	ack(4, false);
	ack(2, false);
	ack(1, false);
	assert_int_equal(window.low, 3);
	ack(3, false);
	assert_int_equal(window.open, 0);
	assert_int_equal(window.low, 5);
	expect(0, 4, CONFIRM_ACKED);
	expect(3, 3, CONFIRM_ACKED);
}

static void
multiple_ack_takes_what_is_open(void **state)
{
	(void) state;
	add_many(1, 5);
	ack(2, false);
	assert_int_equal(ack(4, true), 3);
	expect(1, 1, CONFIRM_ACKED);
	expect(2, 3, CONFIRM_ACKED);
	expect(3, 4, CONFIRM_ACKED);
	assert_int_equal(window.open, 1);
	assert_int_equal(window.low, 5);
}

static void
multiple_with_tag_zero_means_all(void **state)
{
	(void) state;
	add_many(1, 3);
	assert_int_equal(ack(0, true), 3);
	assert_int_equal(window.open, 0);
	assert_int_equal(ack(0, true), 0);
}

static void
unknown_tags_are_ignored(void **state)
{
	(void) state;
	assert_int_equal(ack(1, false), 0);
	assert_int_equal(ack(0, false), 0);
	add_many(1, 2);
	assert_int_equal(ack(3, false), 0);
	assert_int_equal(ack(99, true), 0);
	assert_int_equal(ack(UINT64_MAX, true), 0);
	assert_int_equal(ack(UINT64_MAX, false), 0);
	assert_int_equal(ack(0, false), 0);
	assert_int_equal(nack(77, false), 0);
	assert_int_equal(got.count, 0);
	assert_int_equal(window.open, 2);
}

static void
second_ack_of_a_tag_is_ignored(void **state)
{
	(void) state;
	add_many(1, 2);
	assert_int_equal(ack(2, false), 1);
	assert_int_equal(ack(2, false), 0);
	assert_int_equal(ack(2, true), 1);
	assert_int_equal(ack(1, false), 0);
	assert_int_equal(got.count, 2);
}

static void
returned_then_acked_is_a_failure(void **state)
{
	(void) state;
	add_many(1, 3);
	assert_ptr_equal(confirm_return(&window, "id2", 3),
					 (void *) (intptr_t) 2);
	assert_int_equal(got.count, 0);
	assert_int_equal(ack(3, true), 3);
	expect(0, 1, CONFIRM_ACKED);
	expect(1, 2, CONFIRM_RETURNED);
	expect(2, 3, CONFIRM_ACKED);
}

static void
returned_then_nacked_is_a_nack(void **state)
{
	(void) state;
	add(1);
	confirm_return(&window, "id1", 3);
	nack(1, false);
	expect(0, 1, CONFIRM_NACKED);
}

static void
return_of_an_unknown_message(void **state)
{
	(void) state;
	assert_null(confirm_return(&window, "id1", 3));
	add_many(1, 3);
	assert_null(confirm_return(&window, "id9", 3));
	assert_null(confirm_return(&window, "id", 2));
	assert_null(confirm_return(&window, "id1x", 4));
	assert_null(confirm_return(&window, "", 0));
	ack(2, false);
	assert_null(confirm_return(&window, "id2", 3));
	ack(3, true);
	expect(1, 1, CONFIRM_ACKED);
	expect(2, 3, CONFIRM_ACKED);
}

/* The search must not depend on where the last return was found. */
static void
returns_in_any_order(void **state)
{
	(void) state;
	add_many(1, 6);
	assert_non_null(confirm_return(&window, "id5", 3));
	assert_non_null(confirm_return(&window, "id1", 3));
	assert_non_null(confirm_return(&window, "id6", 3));
	assert_non_null(confirm_return(&window, "id2", 3));
	assert_null(confirm_return(&window, "id2", 3));
	ack(6, true);
	expect(0, 1, CONFIRM_RETURNED);
	expect(2, 3, CONFIRM_ACKED);
	expect(4, 5, CONFIRM_RETURNED);
	expect(5, 6, CONFIRM_RETURNED);
}

static void
nack_with_multiple(void **state)
{
	(void) state;
	add_many(1, 4);
	ack(1, false);
	assert_int_equal(nack(3, true), 2);
	expect(1, 2, CONFIRM_NACKED);
	expect(2, 3, CONFIRM_NACKED);
	assert_int_equal(window.open, 1);
}

static void
window_fills_and_an_early_ack_does_not_make_room(void **state)
{
	(void) state;
	add_many(1, CAPACITY);
	assert_false(confirm_has_room(&window));
	ack(5, false);				/* the slot of tag 1 is still taken */
	assert_false(confirm_has_room(&window));
	ack(1, false);
	assert_true(confirm_has_room(&window));
	assert_int_equal(add(9), CAPACITY + 1);
	assert_false(confirm_has_room(&window));
}

static void
ring_wraps_around(void **state)
{
	long		n = 0;

	(void) state;
	for (int round = 0; round < 50; round++)
	{
		uint64_t	tag;

		got.count = 0;
		n = n % 60 + 1;
		tag = add(n);
		add(n + 1);
		add(n + 2);
		assert_non_null(confirm_return(&window, ids[n + 2], strlen(ids[n + 2])));
		assert_int_equal(ack(tag + 1, false), 1);
		assert_int_equal(ack(tag + 2, true), 2);
		expect(0, n + 1, CONFIRM_ACKED);
		expect(1, n, CONFIRM_ACKED);
		expect(2, n + 2, CONFIRM_RETURNED);
	}
	assert_int_equal(window.next, 151);
	assert_int_equal(window.open, 0);
}

static void
restart_answers_unknown_in_order_and_tags_begin_anew(void **state)
{
	(void) state;
	add_many(1, 5);
	ack(3, false);
	confirm_return(&window, "id4", 3);
	got.count = 0;
	confirm_restart(&window, note, &got);
	assert_int_equal(got.count, 4);
	expect(0, 1, CONFIRM_UNKNOWN);
	expect(1, 2, CONFIRM_UNKNOWN);
	expect(2, 4, CONFIRM_UNKNOWN);
	expect(3, 5, CONFIRM_UNKNOWN);
	assert_int_equal(window.open, 0);
	assert_int_equal(ack(5, true), 0);
	assert_int_equal(add(6), 1);
	assert_int_equal(ack(1, false), 1);
	expect(4, 6, CONFIRM_ACKED);
}

static void
restart_after_the_ring_wrapped(void **state)
{
	(void) state;
	add_many(1, CAPACITY);
	ack(CAPACITY, true);
	add_many(9, 11);
	got.count = 0;
	confirm_restart(&window, note, &got);
	expect(0, 9, CONFIRM_UNKNOWN);
	expect(2, 11, CONFIRM_UNKNOWN);
	assert_int_equal(add(12), 1);
	assert_ptr_equal(confirm_return(&window, "id12", 4),
					 (void *) (intptr_t) 12);
}

static void
oldest_is_the_lowest_open_tag(void **state)
{
	(void) state;
	assert_true(confirm_oldest(&window) == CLOCK_NEVER);
	add_many(1, 3);
	assert_int_equal(confirm_oldest(&window), 10);
	ack(2, false);
	assert_int_equal(confirm_oldest(&window), 10);
	ack(1, false);
	assert_int_equal(confirm_oldest(&window), 30);
	confirm_shift_clock(&window, 500);
	assert_int_equal(confirm_oldest(&window), 530);
}

static void
add_from_handler(void *context, void *item, enum confirm_answer answer)
{
	note(context, item, answer);
	if (got.count == 1)
		add(20);
}

/* The slot is free before the handler is told. */
static void
handler_may_use_the_window(void **state)
{
	(void) state;
	add_many(1, CAPACITY);
	confirm_settle(&window, 1, false, false, add_from_handler, &got);
	assert_int_equal(window.next, CAPACITY + 2);
	assert_int_equal(ack(0, true), CAPACITY);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(tags_begin_at_one),
		T(single_ack_answers_only_its_tag),
		T(acks_out_of_order),
		T(multiple_ack_takes_what_is_open),
		T(multiple_with_tag_zero_means_all),
		T(unknown_tags_are_ignored),
		T(second_ack_of_a_tag_is_ignored),
		T(returned_then_acked_is_a_failure),
		T(returned_then_nacked_is_a_nack),
		T(return_of_an_unknown_message),
		T(returns_in_any_order),
		T(nack_with_multiple),
		T(window_fills_and_an_early_ack_does_not_make_room),
		T(ring_wraps_around),
		T(restart_answers_unknown_in_order_and_tags_begin_anew),
		T(restart_after_the_ring_wrapped),
		T(oldest_is_the_lowest_open_tag),
		T(handler_may_use_the_window),
	};

	return cmocka_run_group_tests_name("confirm", tests, NULL, NULL);
}
