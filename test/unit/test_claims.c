/*
 * test_claims.c
 *		Rows in memory: the order within a key, releases, and settle batches.
 */
#include "unit.h"

#include "rows.h"

static struct claim_set set;
static char offered[1024];		/* the ids of the last pass, "1 2 3 " */
static const char *later_exchange;	/* copies for it are put off */
static const char *full_exchange;	/* the lane is full */
static int	room;				/* then the publisher is full */
static struct copy *copies_sent[64];
static int	sent;

static int
setup(void **state)
{
	(void) state;
	claims_init(&set, &(struct claim_settings){.origin = "trading", .window = 1000});
	later_exchange = full_exchange = "";
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
offer(void *context, struct copy *copy, const struct message *m)
{
	(void) context;
	if (strcmp(m->exchange, later_exchange) == 0)
		return PUBLISH_LATER;
	if (strcmp(m->exchange, full_exchange) == 0 || room-- <= 0)
		return PUBLISH_FULL;
	sprintf(offered + strlen(offered), "%ld%s ", (long) copy->id,
			copy->lane == LANE_AUDIT ? "a" : "");
	copies_sent[sent++] = copy;
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
	claims_answer(copies_sent[position], outcome,
				  outcome == OUTCOME_PUBLISHED ? NULL : "why", 100);
}

/* Settle what is ripe in the claim; returns the four arrays. */
static const char *
settle(struct claim *claim)
{
	static char text[1024];
	struct settle_texts texts = {0};

	claims_settle_texts(claim, 1000, &texts);
	snprintf(text, sizeof(text), "%s %s %s %s", buffer_text(&texts.ids),
			 buffer_text(&texts.outcomes), buffer_text(&texts.lanes),
			 buffer_text(&texts.errors));
	claims_free_texts(&texts);
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
	later_exchange = "later";
	pass("3 4 7 ");
	pass("");
	later_exchange = "";
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
	assert_string_equal(settle(claim), "{1,2} {NACKED,RELEASED} {0,0} {\"why\","
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
	claims_settle_done(first);
	add("3:a");					/* 2 is not settled yet: it fails too */
	pass("");
	settle(set.first->next);
	claims_settle_done(set.first->next);
	assert_int_equal(set.first->next->rows[0].copies[0].outcome, OUTCOME_RELEASED);
	settle(set.first->next);
	claims_settle_done(set.first->next);
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
	claims_settle_done(first);
	pass("4 5 ");
	assert_int_equal(second->rows[0].copies[0].outcome, OUTCOME_RELEASED);
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
		claims_again(copies_sent[i]);
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
	claims_settle_locked(claim, 2, 1000);
	claims_settle_locked(claim, 99, 1000);	/* not ours: ignored */
	claims_settle_done(claim);
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
	claims_settle_failed(claim, 900);
	assert_int_equal(set.decided, 1);
	assert_string_equal(settle(claim), "{1} {PUBLISHED} {1} {NULL}");
	claims_settle_done(claim);
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
	claims_settle_failed(claim, 9000);
	assert_ptr_equal(claims_to_settle(&set, true, 1000), claim);
	assert_string_equal(settle(claim), "{2} {PUBLISHED} {1} {NULL}");
	claims_settle_done(claim);
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
	claims_answer(copies_sent[0], OUTCOME_REJECTED,
				  "a \"quote\" \\ \n \xff {,}", 100);
	assert_string_equal(settle(claim), "{1} {REJECTED} {0} "
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
	claims_settle_done(second);
	assert_ptr_equal(set.first, first);
	assert_ptr_equal(set.last, first);
	settle(first);
	claims_settle_done(first);
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
	assert_int_equal(set.places, 2);
	decide(1, OUTCOME_PUBLISHED);
	assert_int_equal(set.loaded, 0);
	assert_int_equal(set.bytes, 0);
	assert_int_equal(set.places, 2);
	settle(claim);
	claims_settle_locked(claim, 2, 0);
	claims_settle_done(claim);
	assert_ptr_equal(set.first, claim);
	assert_int_equal(set.places, 1);
}

/* ---- two lanes ---- */

static void
use_audit_lane(int window)
{
	claims_init(&set, &(struct claim_settings){.origin = "trading",
		.audit_exchange = "audit", .window = window});
}

/* As add(), for one row; lanes_done and the audit lane's own text may be given. */
static struct claim *
add_lanes(long id, const char *key, const char *done, const char *audit_payload)
{
	PGresult   *result = rows_new();

	rows_add(result, id, "t", key, "{\"secret\": 1}");
	rows_set_lanes(result, done, audit_payload);
	return claims_add(&set, result);
}

static void
a_row_goes_on_both_lanes(void **state)
{
	struct claim *claim;

	(void) state;
	use_audit_lane(1000);
	claim = add("1:a 2:");
	pass("1 1a 2 2a ");
	decide(0, OUTCOME_PUBLISHED);
	assert_int_equal(claim->decided, 0);
	decide(1, OUTCOME_PUBLISHED);
	decide(2, OUTCOME_PUBLISHED);
	decide(3, OUTCOME_PUBLISHED);
	assert_string_equal(settle(claim), "{1,2} {PUBLISHED,PUBLISHED} {3,3} {NULL,NULL}");
}

static void
an_audit_fault_leaves_the_business_lane_done(void **state)
{
	struct claim *claim;

	(void) state;
	use_audit_lane(1000);
	claim = add("1:a 2:a");
	room = 2;
	pass("1 1a ");
	decide(1, OUTCOME_UNROUTABLE);
	decide(0, OUTCOME_PUBLISHED);
	room = 10;
	pass("2 2a ");				/* the key goes on */
	decide(2, OUTCOME_PUBLISHED);
	decide(3, OUTCOME_REJECTED);
	assert_string_equal(settle(claim), "{1,2} {UNROUTABLE,REJECTED} {1,1} "
						"{\"why (audit lane)\",\"why (audit lane)\"}");
	claims_settle_done(claim);
	assert_int_equal(set.keys.count, 0);
}

static void
a_business_fault_counts_before_one_of_the_audit_lane(void **state)
{
	struct claim *claim;

	(void) state;
	use_audit_lane(1000);
	claim = add("1:a 2:b 3:b");
	room = 4;
	pass("1 1a 2 2a ");
	decide(0, OUTCOME_REJECTED);
	decide(1, OUTCOME_PUBLISHED);
	decide(3, OUTCOME_NACKED);
	decide(2, OUTCOME_UNROUTABLE);
	room = 10;
	pass("");					/* 3 is released behind 2, both copies */
	assert_string_equal(settle(claim), "{1,2,3} {REJECTED,UNROUTABLE,RELEASED} "
						"{2,0,0} {\"why\",\"why\","
						"\"released behind an earlier row of its key\"}");
}

static void
a_lane_already_done_is_not_repeated(void **state)
{
	struct claim *first,
			   *second;

	(void) state;
	use_audit_lane(1000);
	first = add_lanes(1, "a", "1", NULL);
	second = add_lanes(2, "a", "2", NULL);
	pass("1a 2 ");
	decide(0, OUTCOME_PUBLISHED);
	decide(1, OUTCOME_PUBLISHED);
	assert_string_equal(settle(first), "{1} {PUBLISHED} {2} {NULL}");
	assert_string_equal(settle(second), "{2} {PUBLISHED} {1} {NULL}");
}

static void
without_an_audit_lane_what_waits_for_it_is_finished(void **state)
{
	struct claim *claim;

	(void) state;
	claim = add_lanes(1, "a", "1", NULL);
	assert_int_equal(set.unaudited, 1);
	assert_int_equal(set.loaded, 0);
	assert_int_equal(set.waiting, 0);
	pass("");
	assert_string_equal(settle(claim), "{1} {PUBLISHED} {0} {NULL}");
	claims_settle_done(claim);
	assert_int_equal(set.rows, 0);
}

static void
the_window_counts_messages(void **state)
{
	struct claim *claim;

	(void) state;
	use_audit_lane(3);
	claim = add("1: 2: 3:");
	pass("1 1a ");				/* one place is left: not enough for two */
	assert_int_equal(set.places, 2);
	assert_int_equal(set.sent, 2);
	decide(0, OUTCOME_PUBLISHED);
	decide(1, OUTCOME_NACKED);
	assert_int_equal(set.places, 1);	/* the confirmed one, until it is settled */
	pass("2 2a ");
	decide(2, OUTCOME_PUBLISHED);
	decide(3, OUTCOME_PUBLISHED);
	pass("");
	settle(claim);
	claims_settle_done(claim);
	assert_int_equal(set.places, 0);
	pass("3 3a ");
}

/* However narrow the window: a row that has begun goes on. */
static void
a_row_that_has_begun_can_go_on(void **state)
{
	(void) state;
	use_audit_lane(1);
	add("1: 2:");
	full_exchange = "audit";
	pass("1 ");
	decide(0, OUTCOME_PUBLISHED);
	pass("");
	full_exchange = "";
	pass("1a ");
	decide(1, OUTCOME_PUBLISHED);
	pass("");
	assert_int_equal(set.waiting, 1);
}

static void
a_full_audit_lane_does_not_stop_the_business_lane(void **state)
{
	(void) state;
	use_audit_lane(1000);
	add("1:a 2:a 3:");
	full_exchange = "audit";
	pass("1 2 3 ");
	pass("");
	full_exchange = "";
	pass("1a 2a 3a ");
}

static void
the_audit_copy_does_not_go_first(void **state)
{
	(void) state;
	use_audit_lane(1000);
	add("1/later:a 2:a 3:b");
	later_exchange = "later";
	pass("3 3a ");
	later_exchange = "";
	full_exchange = "t";
	pass("1 1a ");
}

static void
only_what_is_unknown_is_sent_again(void **state)
{
	struct claim *claim;

	(void) state;
	use_audit_lane(1000);
	claim = add("1:a");
	pass("1 1a ");
	decide(0, OUTCOME_PUBLISHED);
	claims_again(copies_sent[1]);
	assert_int_equal(set.waiting, 1);
	pass("1a ");
	claims_release(&set, true, "stopped", 100);
	assert_string_equal(settle(claim),
						"{1} {RELEASED} {1} {\"stopped (audit lane)\"}");
}

static char seen_payload[64];

static enum publish_result
note_payload(void *context, struct copy *copy, const struct message *m)
{
	(void) context;
	if (copy->lane == LANE_AUDIT)
		snprintf(seen_payload, sizeof(seen_payload), "%s %.*s %s", m->exchange,
				 (int) m->payload_length, m->payload, m->mandatory ? "mandatory" : "");
	return PUBLISH_SENT;
}

static void
the_audit_lane_gets_its_own_text(void **state)
{
	(void) state;
	use_audit_lane(1000);
	add_lanes(1, NULL, "0", "{}");
	claims_offer(&set, note_payload, NULL);
	assert_string_equal(seen_payload, "audit {} mandatory");
	add_lanes(2, NULL, "0", NULL);
	claims_offer(&set, note_payload, NULL);
	assert_string_equal(seen_payload, "audit {\"secret\": 1} mandatory");
}

/* ---- dead letters ---- */

static char seen_letter[512];

static enum publish_result
note_letter(void *context, struct copy *copy, const struct message *m)
{
	(void) context;
	copies_sent[sent++] = copy;
	snprintf(seen_letter, sizeof(seen_letter), "%s %s %d%d", m->exchange,
			 m->routing_key, m->mandatory, m->sidetracked);
	for (int i = 0; i < m->extra_count; i++)
		snprintf(seen_letter + strlen(seen_letter),
				 sizeof(seen_letter) - strlen(seen_letter), " %s=%s", m->extra[i].name,
				 m->extra[i].text ? m->extra[i].text : m->extra[i].is_time ?
				 "time" : m->extra[i].number == 5 ? "#5" : "?");
	return PUBLISH_SENT;
}

static void
a_dead_letter_tells_what_it_was(void **state)
{
	struct claim *claim;

	(void) state;
	claims_init(&set, &(struct claim_settings){.origin = "trading",
		.dead_letter_exchange = "dlx", .window = 20});
	claim = add("1:a 2:a");
	claims_offer(&set, note_letter, NULL);
	assert_string_equal(seen_letter, "dlx dead-letter 11 x-original-exchange=t "
						"x-original-routing-key=key x-error-service=trading "
						"x-error-message=406 too large x-error-attempts=#5 "
						"x-error-original-time=time");
	decide(0, OUTCOME_UNROUTABLE);
	decide(1, OUTCOME_PUBLISHED);
	assert_string_equal(settle(claim), "{1,2} {UNROUTABLE,ARCHIVED} {0,0} {NULL,NULL}");
	claims_settle_done(claim);
	assert_int_equal(set.last_settled[OUTCOME_ARCHIVED], 1);
	assert_int_equal(set.keys.count, 0);
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
		T(a_row_goes_on_both_lanes),
		T(an_audit_fault_leaves_the_business_lane_done),
		T(a_business_fault_counts_before_one_of_the_audit_lane),
		T(a_lane_already_done_is_not_repeated),
		T(without_an_audit_lane_what_waits_for_it_is_finished),
		T(the_window_counts_messages),
		T(a_row_that_has_begun_can_go_on),
		T(a_full_audit_lane_does_not_stop_the_business_lane),
		T(the_audit_copy_does_not_go_first),
		T(only_what_is_unknown_is_sent_again),
		T(the_audit_lane_gets_its_own_text),
		T(a_dead_letter_tells_what_it_was),
	};

	return cmocka_run_group_tests_name("claims", tests, NULL, NULL);
}
