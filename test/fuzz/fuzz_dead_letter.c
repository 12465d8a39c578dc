/*
 * fuzz_dead_letter.c
 *		A dead letter's content header: what it tells, and how it is put back.
 *
 * The input is the encoded properties. Whatever the frame scanner lets through must
 * be put back in a form that librabbitmq reads, without a sign of the death, and
 * that stays as it is when it is put back again.
 */
#include <assert.h>
#include <string.h>

#include "dead_letter.h"
#include "fuzz.h"
#include "match.h"
#include "reprocess_names.h"

static void
put_frame(struct buffer *out, const uint8_t *data, size_t size)
{
	buffer_clear(out);
	assert(frame_put_encoded(out, 1, FRAME_MAX, data, size, NULL, 0));
}

static bool
receive(struct dead_letter *letter, const uint8_t *data, size_t size)
{
	struct buffer frames = {0};
	struct frame frame;
	const char *problem;
	bool		good;

	put_frame(&frames, data, size);
	assert(frame_scan(buffer_head(&frames), buffer_length(&frames), FRAME_MAX,
					  &frame, &problem) == FRAME_OK);
	good = dead_letter_add(letter, &frame) && !letter->unreadable;
	buffer_free(&frames);
	return good;
}

static void
tell(const struct dead_letter *letter)
{
	char		text[FIELD_TEXT_MAX];
	int64_t		seconds;

	for (int field = LETTER_EVENT_NAME; field <= LETTER_HEADER; field++)
		if (dead_letter_text(letter, (enum letter_field) field, "x", text))
			assert(memchr(text, '\0', sizeof(text)));
	dead_letter_death_time(letter, &seconds);
	dead_letter_reason(letter, text);
	assert(memchr(text, '\0', sizeof(text)));
}

/* As it is put back, by two decoders. */
static void
check_fresh(struct buffer *list)
{
	amqp_bytes_t bytes = {buffer_length(list), buffer_head(list)};
	struct dead_letter again = {0};
	struct buffer twice = {0};
	struct field field;
	amqp_pool_t pool;
	void	   *decoded;

	init_amqp_pool(&pool, 4096);
	assert(amqp_decode_properties(AMQP_BASIC_CLASS, &pool, bytes, &decoded) >= 0);
	empty_amqp_pool(&pool);
	assert(receive(&again, bytes.bytes, bytes.len));
	assert(!table_find(again.properties.encoded[PROPERTY_HEADERS], "x-death",
					   &field));
	dead_letter_put_fresh(&twice, &again, "me", NULL);
	assert(buffer_length(&twice) == bytes.len &&
		   memcmp(buffer_head(&twice), bytes.bytes, bytes.len) == 0);
	dead_letter_free(&again);
	buffer_free(&twice);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct dead_letter letter = {0};
	struct buffer list = {0};

	if (size > 0 && size < 8192 && receive(&letter, data, size))
	{
		tell(&letter);
		dead_letter_put_fresh(&list, &letter, "me", NULL);
		check_fresh(&list);
		buffer_clear(&list);
		dead_letter_put_fresh(&list, &letter, "me", REPROCESS_KEY);
		assert(buffer_length(&list) > 0);
	}
	dead_letter_free(&letter);
	buffer_free(&list);
	return 0;
}
