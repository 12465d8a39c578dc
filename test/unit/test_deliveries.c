/*
 * test_deliveries.c
 *		Unacknowledged messages: batches, who is charged, how a culprit is found,
 *		and what the broker is told.
 */
#include "unit.h"

#include "deliveries.h"

#define BATCH	100
#define BYTES	1000

static struct deliveries set;
static struct delivery *members[BATCH];
static char told[256];
static const struct failure failure = {"P0001", "no", NULL};

static int
setup(void **state)
{
	(void) state;
	deliveries_clear(&set);
	set = (struct deliveries){.policy = {3, 100, true}};
	told[0] = '\0';
	return 0;
}

static int
teardown(void **state)
{
	(void) state;
	deliveries_clear(&set);
	return 0;
}

static struct delivery *
add(uint64_t tag, bool redelivered, size_t bytes)
{
	struct delivery *d = delivery_new();

	d->tag = tag;
	d->redelivered = redelivered;
	buffer_reserve(&d->body, bytes);
	buffer_commit(&d->body, bytes);
	deliveries_add(&set, d);
	return d;
}

static void
add_many(int count)
{
	for (int i = 1; i <= count; i++)
		add((uint64_t) i, false, 1);
}

static struct delivery *
tagged(uint64_t tag)
{
	struct delivery *d = set.first;

	while (d && d->tag != tag)
		d = d->next;
	assert_non_null(d);
	return d;
}

static int
pick(msec_t now)
{
	return deliveries_pick(&set, now, BATCH, BYTES, members);
}

/* "4 10* !7": acknowledged, with all before it, refused */
static void
note_settlement(void *context, const struct settlement *s)
{
	(void) context;
	snprintf(told + strlen(told), sizeof(told) - strlen(told), "%s%s%d%s",
			 *told ? " " : "", s->refused ? "!" : "", (int) s->tag,
			 s->multiple ? "*" : "");
}

static void
assert_told(const char *expected)
{
	told[0] = '\0';
	deliveries_settle(&set, note_settlement, NULL);
	assert_string_equal(told, expected);
}

static void
batches_have_bounds(void **state)
{
	(void) state;
	add_many(5);
	assert_int_equal(deliveries_pick(&set, 0, 2, BYTES, members), 2);
	assert_int_equal(members[1]->tag, 2);
	assert_int_equal(deliveries_pick(&set, 0, BATCH, 2, members), 2);
	assert_int_equal(pick(0), 1);
	assert_int_equal(pick(0), 0);
	assert_true(deliveries_due(&set) == CLOCK_NEVER);
	/* one that is larger than a batch goes all the same */
	add(6, false, BYTES + 1);
	add(7, false, 1);
	assert_int_equal(pick(0), 1);
	assert_int_equal(members[0]->tag, 6);
}

static void
acknowledgements_are_grouped(void **state)
{
	(void) state;
	add_many(10);
	assert_int_equal(pick(0), 10);
	assert_told("");
	delivery_done(&set, tagged(1));
	assert_told("1");
	for (int tag = 2; tag <= 5; tag++)
		delivery_done(&set, tagged((uint64_t) tag));
	delivery_done(&set, tagged(7));
	delivery_done(&set, tagged(9));
	assert_told("5* 7 9");
	delivery_done(&set, tagged(8));
	assert_told("8");
	delivery_done(&set, tagged(6));
	delivery_done(&set, tagged(10));
	assert_told("10*");
	assert_int_equal(set.count, 0);
	assert_null(set.first);
	assert_null(set.last);
}

/* A multiple acknowledgement behind a refused one must not cover it. */
static void
refusals_come_first(void **state)
{
	(void) state;
	set.policy.publishes = false;
	add_many(4);
	pick(0);
	delivery_done(&set, tagged(1));
	delivery_give_up(&set, tagged(2), &failure);
	delivery_done(&set, tagged(3));
	delivery_later(&set, tagged(4));
	assert_told("!2 3*");
	assert_int_equal(set.count, 1);
}

static void
failures_are_charged_and_backed_off(void **state)
{
	struct delivery *d = add(1, false, 1);

	(void) state;
	set.policy.max_attempts = 4;
	assert_int_equal(pick(0), 1);
	delivery_failed(&set, d, 1, &failure, 1000);
	assert_int_equal(d->due, 1100);
	assert_int_equal(pick(1099), 0);
	assert_int_equal(deliveries_due(&set), 1100);
	assert_int_equal(pick(1100), 1);
	delivery_failed(&set, d, 2, &failure, 2000);
	assert_int_equal(d->due, 2200);
	pick(9999);
	delivery_failed(&set, d, 3, &failure, 3000);
	assert_int_equal(d->due, 3400);
	pick(9999);
	delivery_failed(&set, d, 4, &failure, 4000);
	assert_int_equal(d->state, DELIVERY_DEAD);
	assert_string_equal(d->failure.sqlstate, "P0001");
	assert_string_equal(d->failure.message, "no");
}

static void
backoff_ends_at_its_cap(void **state)
{
	struct delivery *d = add(1, false, 1);

	(void) state;
	set.policy.max_attempts = 1000;
	pick(0);
	delivery_failed(&set, d, 999, &failure, 0);
	assert_int_equal(d->due, RETRY_BACKOFF_MAX);
}

/* Nobody is charged when many are lost; each then goes alone, counted before. */
static void
a_culprit_is_found(void **state)
{
	struct delivery *culprit;

	(void) state;
	add_many(5);
	assert_int_equal(pick(0), 5);
	deliveries_lost(&set, members, 5, &failure, 0);
	culprit = tagged(3);
	for (int tag = 1; tag <= 5; tag++)
	{
		struct delivery *d = tagged((uint64_t) tag);

		assert_int_equal(pick(0), 1);
		assert_ptr_equal(members[0], d);
		assert_true(d->suspect && !d->counted);
		assert_int_equal(d->attempts, 0);
		assert_true(delivery_may_run(&set, d, 1));
		if (d == culprit)
			deliveries_lost(&set, members, 1, &failure, 0);
		else
			delivery_done(&set, d);
	}
	assert_told("2* 4 5");
	assert_int_equal(culprit->due, 100);
	for (int attempt = 2; attempt <= 3; attempt++)
	{
		assert_int_equal(pick(9999), 1);
		assert_true(delivery_may_run(&set, culprit, attempt));
		deliveries_lost(&set, members, 1, &failure, 0);
	}
	assert_int_equal(culprit->state, DELIVERY_DEAD);
	assert_int_equal(culprit->attempts, 3);
}

/* Whoever died of it has counted: it is not run once more. */
static void
one_attempt_too_many(void **state)
{
	struct delivery *d = add(1, true, 1);

	(void) state;
	add(2, false, 1);
	assert_int_equal(pick(0), 1);
	assert_true(d->suspect);
	assert_false(delivery_may_run(&set, d, 4));
	assert_int_equal(d->state, DELIVERY_DEAD);
	assert_int_equal(d->attempts, 3);
	assert_non_null(d->failure.message);
	assert_int_equal(pick(0), 1);
	assert_int_equal(members[0]->tag, 2);
}

/* It raised, so it does not end its session: it may run with others again. */
static void
a_plain_failure_clears_a_suspect(void **state)
{
	struct delivery *d = add(1, true, 1);

	(void) state;
	add(2, false, 1);
	pick(0);
	delivery_may_run(&set, d, 2);
	delivery_failed(&set, d, 0, &failure, 0);
	assert_int_equal(d->attempts, 2);
	assert_false(d->suspect || d->counted);
	assert_int_equal(pick(9999), 2);
}

/* An attempt that was counted before a deadlock is not counted again. */
static void
trouble_is_not_charged(void **state)
{
	struct delivery *d = add(1, true, 1);

	(void) state;
	pick(0);
	delivery_may_run(&set, d, 1);
	deliveries_troubled(&set, members, 1, false, 0);
	assert_true(d->counted);
	assert_int_equal(d->due, 100);
	pick(9999);
	deliveries_troubled(&set, members, 1, false, 0);
	assert_int_equal(d->due, 200);
	assert_int_equal(d->attempts, 1);
}

static void
lasting_trouble_separates(void **state)
{
	(void) state;
	add_many(3);
	pick(0);
	deliveries_troubled(&set, members, 3, false, 0);
	assert_int_equal(pick(0), 3);
	deliveries_troubled(&set, members, 3, true, 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(pick(0), 1);
	assert_false(tagged(1)->suspect);
}

static void
copies_are_confirmed(void **state)
{
	(void) state;
	add_many(5);
	pick(0);
	for (int tag = 1; tag <= 5; tag++)
	{
		delivery_give_up(&set, tagged((uint64_t) tag), &failure);
		assert_ptr_equal(deliveries_dead(&set), tagged((uint64_t) tag));
		delivery_copied(&set, tagged((uint64_t) tag), (uint64_t) tag + 10);
	}
	assert_null(deliveries_dead(&set));
	assert_int_equal(deliveries_confirm(&set, 99, false), 0);
	assert_int_equal(deliveries_confirm(&set, 14, false), 1);
	assert_int_equal(deliveries_confirm(&set, 12, true), 2);
	assert_told("2* 4");
	/* a nack is about its own: what is confirmed behind it counts */
	assert_int_equal(deliveries_nack(&set, 13, false), 1);
	assert_ptr_equal(deliveries_dead(&set), tagged(3));
	assert_int_equal(set.in_state[DELIVERY_COPIED], 1);
	assert_int_equal(deliveries_unconfirm(&set), 1);
	assert_int_equal(set.in_state[DELIVERY_DEAD], 2);
	/* the answers for those copies come late, and mean nothing */
	assert_int_equal(deliveries_confirm(&set, 15, true), 0);
	assert_told("");
	delivery_refuse(&set, tagged(3));
	assert_told("!3");
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(batches_have_bounds),
		T(acknowledgements_are_grouped),
		T(refusals_come_first),
		T(failures_are_charged_and_backed_off),
		T(backoff_ends_at_its_cap),
		T(a_culprit_is_found),
		T(one_attempt_too_many),
		T(a_plain_failure_clears_a_suspect),
		T(trouble_is_not_charged),
		T(lasting_trouble_separates),
		T(copies_are_confirmed),
	};

	return cmocka_run_group_tests_name("deliveries", tests, NULL, NULL);
}
