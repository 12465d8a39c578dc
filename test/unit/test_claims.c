/*
 * test_claims.c
 *		Rows in memory: the order within a key, releases, and settle batches.
 */
#include "unit.h"

#include "rows.h"

static struct claim_set set;
static char offered[1024];		/* the ids of the last pass, "1 2 3 " */
static const char *later_topic; /* put off */
static int	room;				/* then the publisher is full */
static struct row *rows_sent[64];
static int	sent;

static int
setup(void **state)
{
	(void) state;
	claims_init(&set, "trading");
	later_topic = "";
	room = 1000;
	sent = 0;
	return 0;
}

static int
teardown(void **state)
{
	(void) state;
	claims_clear(&set);
	names_free(&set.keys);
	return 0;
}

static enum publish_result
offer(void *context, struct row *row, const struct message *m)
{
	(void) context;
	if (room-- <= 0)
		return PUBLISH_FULL;
	if (strcmp(m->topic, later_topic) == 0)
		return PUBLISH_LATER;
	sprintf(offered + strlen(offered), "%ld ", (long) row->id);
	rows_sent[sent++] = row;
	return PUBLISH_SENT;
}

static void
pass(const char *expected)
{
	offered[0] = '\0';
	claims_offer(&set, offer, NULL);
	assert_string_equal(offered, expected);
}

/* "1:k 2:k 3:" : ids with keys. */
static struct claim *
add(const char *text)
{
	PGresult   *result = rows_new();
	char		copy[256];

	strcpy(copy, text);
	for (char *word = strtok(copy, " "); word; word = strtok(NULL, " "))
	{
		char	   *colon = strchr(word, ':');
		char	   *slash = strchr(word, '/');

		*colon = '\0';
		if (slash)
			*slash = '\0';
		rows_add(result, atol(word), slash ? slash + 1 : "t",
				 colon[1] ? colon + 1 : NULL, "{}");
	}
	return claims_add(&set, result);
}

static void
decide(int position, enum outcome outcome)
{
	claims_decide(&set, rows_sent[position], outcome,
				  outcome == OUTCOME_PUBLISHED ? NULL : "why", 100);
}

/* Settle what is ripe in the claim; returns the ids array. */
static const char *
settle(struct claim *claim)
{
	static char text[1024];
	struct buffer ids = {0},
				outcomes = {0},
				errors = {0};

	claims_settle_texts(&set, claim, 1000, &ids, &outcomes, &errors);
	snprintf(text, sizeof(text), "%s %s %s", buffer_text(&ids),
			 buffer_text(&outcomes), buffer_text(&errors));
	buffer_free(&ids);
	buffer_free(&outcomes);
	buffer_free(&errors);
	return text;
}

static void
rows_are_offered_in_order(void **state)
{
	(void) state;
	add("1:a 2: 3:b");
	add("4:a 5:");
	pass("1 2 3 4 5 ");
	pass("");
	assert_int_equal(set.sent, 5);
	assert_int_equal(set.waiting, 0);
}

static void
a_full_publisher_continues_where_it_stopped(void **state)
{
	(void) state;
	add("1:a 2: 3:b");
	room = 2;
	pass("1 2 ");
	room = 2;
	pass("3 ");
}

static void
a_row_put_off_holds_its_key_in_that_pass(void **state)
{
	(void) state;
	add("1/later:a 2:a 3:b 4:");
	add("5:a 6/later: 7:");
	later_topic = "later";
	pass("3 4 7 ");
	pass("");
	later_topic = "";
	pass("1 2 5 6 ");
}

static void
a_failed_row_releases_those_behind_it(void **state)
{
	struct claim *claim;

	(void) state;
	claim = add("1:a 2:a 3:b");
	room = 1;
	pass("1 ");
	decide(0, OUTCOME_NACKED);
	room = 10;
	pass("3 ");					/* 2 is released instead */
	assert_int_equal(claim->decided, 2);
	assert_string_equal(settle(claim), "{1,2} {NACKED,RELEASED} {\"why\","
						"\"released behind an earlier row of its key\"}");
}

static void
rows_claimed_meanwhile_are_released_until_the_failure_is_settled(void **state)
{
	struct claim *first;

	(void) state;
	first = add("1:a 9:");
	room = 1;
	pass("1 ");
	decide(0, OUTCOME_UNROUTABLE);
	room = 10;
	add("2:a");
	pass("9 ");
	settle(first);
	claims_settle_done(&set, first);
	add("3:a");					/* 2 is not settled yet: it fails too */
	pass("");
	settle(set.first->next);
	claims_settle_done(&set, set.first->next);
	assert_int_equal(set.first->next->rows[0].outcome, OUTCOME_RELEASED);
	settle(set.first->next);
	claims_settle_done(&set, set.first->next);
	add("4:a");
	pass("4 ");
}

/* The publisher was full, or not connected, between the failure and its settle. */
static void
rows_not_offered_before_the_failure_is_settled_are_released(void **state)
{
	struct claim *first,
			   *second;

	(void) state;
	first = add("1:a 2:b");
	pass("1 2 ");
	second = add("3:a 4:b 5:");
	decide(0, OUTCOME_RELEASED);
	decide(1, OUTCOME_PUBLISHED);
	settle(first);
	claims_settle_done(&set, first);
	pass("4 5 ");
	assert_int_equal(second->rows[0].outcome, OUTCOME_RELEASED);
	assert_int_equal(second->decided, 1);
}

static void
a_published_row_releases_nobody(void **state)
{
	(void) state;
	add("1:a 2:a");
	room = 1;
	pass("1 ");
	decide(0, OUTCOME_PUBLISHED);
	room = 1;
	pass("2 ");
}

static void
strict_order_has_one_unconfirmed_row_per_key(void **state)
{
	(void) state;
	set.strict = true;
	add("1:a 2:a 3:b 4: 5: 6:a");
	pass("1 3 4 5 ");
	decide(0, OUTCOME_PUBLISHED);
	pass("2 ");
	pass("");
}

static void
rows_to_be_sent_again_come_first_and_in_order(void **state)
{
	(void) state;
	add("1:a 2:a 3:b 4:a");
	room = 3;
	pass("1 2 3 ");
	for (int i = 0; i < 3; i++)
		claims_again(&set, rows_sent[i]);
	room = 10;
	pass("1 2 3 4 ");
}

static void
release_takes_waiting_and_optionally_sent_rows(void **state)
{
	(void) state;
	add("1:a 2: 3:");
	room = 1;
	pass("1 ");
	claims_release(&set, false, "stopped", 100);
	assert_int_equal(set.decided, 2);
	assert_int_equal(set.sent, 1);
	claims_release(&set, true, "stopped", 100);
	assert_int_equal(set.decided, 3);
	assert_int_equal(set.counts[OUTCOME_RELEASED], 3);
}

static void
settle_waits_for_a_batch_or_an_age(void **state)
{
	struct claim *claim;

	(void) state;
	claim = add("1: 2:");
	pass("1 2 ");
	assert_null(claims_to_settle(&set, true, 1000));
	assert_true(claims_settle_due(&set) == CLOCK_NEVER);
	decide(0, OUTCOME_PUBLISHED);
	assert_null(claims_to_settle(&set, false, 100));
	assert_int_equal(claims_settle_due(&set), 100 + SETTLE_AGE);
	assert_ptr_equal(claims_to_settle(&set, false, 100 + SETTLE_AGE), claim);
	assert_ptr_equal(claims_to_settle(&set, true, 100), claim);
	decide(1, OUTCOME_PUBLISHED);
	assert_ptr_equal(claims_to_settle(&set, false, 100), claim);
}

static void
locked_rows_are_settled_again(void **state)
{
	struct claim *claim;

	(void) state;
	claim = add("1: 2:");
	pass("1 2 ");
	decide(0, OUTCOME_PUBLISHED);
	decide(1, OUTCOME_PUBLISHED);
	settle(claim);
	claims_settle_locked(&set, claim, 2, 1000);
	claims_settle_locked(&set, claim, 99, 1000);	/* not ours: ignored */
	claims_settle_done(&set, claim);
	assert_int_equal(set.rows, 1);
	assert_null(claims_to_settle(&set, true, 1500));
	assert_int_equal(claims_settle_due(&set), 1000 + SETTLE_LOCKED_RETRY);
	assert_ptr_equal(claims_to_settle(&set, true, 2000), claim);
}

static void
a_failed_settle_is_sent_again(void **state)
{
	struct claim *claim;

	(void) state;
	claim = add("1: 2:");
	pass("1 2 ");
	decide(0, OUTCOME_PUBLISHED);
	settle(claim);
	claims_settle_failed(&set, claim, 900);
	assert_int_equal(set.decided, 1);
	assert_string_equal(settle(claim), "{1} {PUBLISHED} {NULL}");
	claims_settle_done(&set, claim);
	assert_int_equal(set.rows, 1);
}

/* With nothing else ripe, the claim must not look ripe until the retry. */
static void
a_failed_settle_does_not_spin(void **state)
{
	struct claim *claim;

	(void) state;
	claim = add("1: 2:");
	pass("1 2 ");
	decide(0, OUTCOME_PUBLISHED);
	settle(claim);
	decide(1, OUTCOME_PUBLISHED);
	claims_settle_failed(&set, claim, 9000);
	assert_ptr_equal(claims_to_settle(&set, true, 1000), claim);
	assert_string_equal(settle(claim), "{2} {PUBLISHED} {NULL}");
	claims_settle_done(&set, claim);
	assert_null(claims_to_settle(&set, true, 1000));
	assert_int_equal(claims_settle_due(&set), 9000);
	assert_ptr_equal(claims_to_settle(&set, true, 9000), claim);
}

static void
errors_survive_any_bytes(void **state)
{
	struct claim *claim;

	(void) state;
	claim = add("1:");
	pass("1 ");
	claims_decide(&set, rows_sent[0], OUTCOME_REJECTED,
				  "a \"quote\" \\ \n \xff {,}", 100);
	assert_string_equal(settle(claim), "{1} {REJECTED} "
						"{\"a \\\"quote\\\" \\\\ ? ? {,}\"}");
}

static void
a_claim_is_freed_when_all_is_settled(void **state)
{
	struct claim *first,
			   *second;

	(void) state;
	first = add("1:k 2:k");
	second = add("3:k");
	pass("1 2 3 ");
	for (int i = 0; i < 3; i++)
		decide(i, OUTCOME_PUBLISHED);
	assert_int_equal(set.keys.count, 1);
	settle(second);
	claims_settle_done(&set, second);
	assert_ptr_equal(set.first, first);
	assert_ptr_equal(set.last, first);
	settle(first);
	claims_settle_done(&set, first);
	assert_null(set.first);
	assert_int_equal(set.rows, 0);
	assert_int_equal(set.bytes, 0);
	assert_int_equal(set.keys.count, 0);
}

/* An entry locked for hours must not keep its claim's messages in memory. */
static void
a_decided_claim_is_unloaded(void **state)
{
	struct claim *claim;

	(void) state;
	claim = add("1:k 2:k");
	assert_int_equal(set.loaded, 1);
	pass("1 2 ");
	decide(0, OUTCOME_PUBLISHED);
	assert_int_equal(set.loaded, 1);
	assert_int_equal(set.confirmed, 1);
	decide(1, OUTCOME_PUBLISHED);
	assert_int_equal(set.loaded, 0);
	assert_int_equal(set.bytes, 0);
	assert_int_equal(set.confirmed, 2);
	settle(claim);
	claims_settle_locked(&set, claim, 2, 0);
	claims_settle_done(&set, claim);
	assert_ptr_equal(set.first, claim);
	assert_int_equal(set.confirmed, 1);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(rows_are_offered_in_order),
		T(a_full_publisher_continues_where_it_stopped),
		T(a_row_put_off_holds_its_key_in_that_pass),
		T(a_failed_row_releases_those_behind_it),
		T(rows_claimed_meanwhile_are_released_until_the_failure_is_settled),
		T(rows_not_offered_before_the_failure_is_settled_are_released),
		T(a_published_row_releases_nobody),
		T(strict_order_has_one_unconfirmed_row_per_key),
		T(rows_to_be_sent_again_come_first_and_in_order),
		T(release_takes_waiting_and_optionally_sent_rows),
		T(settle_waits_for_a_batch_or_an_age),
		T(locked_rows_are_settled_again),
		T(a_failed_settle_is_sent_again),
		T(a_failed_settle_does_not_spin),
		T(errors_survive_any_bytes),
		T(a_claim_is_freed_when_all_is_settled),
		T(a_decided_claim_is_unloaded),
	};

	return cmocka_run_group_tests_name("claims", tests, NULL, NULL);
}
