/*
 * dead_copy.c
 *		The copy of a message that a consumer gave up (P 5, G 6.4).
 *
 * The original's bytes and properties, and in its headers where it came from and
 * why it was given up. Left out or changed is what would hurt the copy: it is
 * persistent, does not expire, names no user (the broker would refuse another
 * one's), and is not routed by CC and BCC. x-delivery-count is the queue's own.
 *
 * A message that was dead-lettered before and reprocessed keeps the exchange and
 * routing key it had at first; the error is the latest.
 *
 * All headers must fit into one frame. Where ours make them too large, the
 * context goes first, then the history x-death, then the original's headers. What
 * has properties that cannot be read goes without them.
 *
 * Pure: no socket, no clock.
 */
#include "dead_copy.h"

#include <string.h>

#include "amqp_frame.h"
#include "amqp_text.h"
#include "header_names.h"
#include "utf8.h"

#define MESSAGE_MAX		1024
#define CONTEXT_MAX		4096
#define OUR_HEADERS		8
#define PERSISTENT		2

/* What had to be left out for the headers to fit, growing. */
enum trimming
{
	TRIM_NOTHING,
	TRIM_CONTEXT,
	TRIM_HISTORY,
	TRIM_HEADERS,
	TRIMMINGS
};

static bool
is_named(const amqp_table_entry_t *entry, const char *name)
{
	return entry->key.len == strlen(name) &&
		memcmp(entry->key.bytes, name, entry->key.len) == 0;
}

static bool
begins_with(const amqp_table_entry_t *entry, const char *prefix)
{
	return entry->key.len >= strlen(prefix) &&
		memcmp(entry->key.bytes, prefix, strlen(prefix)) == 0;
}

static bool
is_history(const amqp_table_entry_t *entry)
{
	return is_named(entry, HEADER_DEATHS) ||
		begins_with(entry, HEADER_FIRST_DEATH_PREFIX) ||
		begins_with(entry, HEADER_LAST_DEATH_PREFIX);
}

static bool
is_origin(const amqp_table_entry_t *entry)
{
	return is_named(entry, HEADER_ORIGINAL_EXCHANGE) ||
		is_named(entry, HEADER_ORIGINAL_KEY);
}

static bool
is_kept(const amqp_table_entry_t *entry, enum trimming trimming)
{
	if (begins_with(entry, HEADER_ERROR_PREFIX) || is_named(entry, HEADER_CC) ||
		is_named(entry, HEADER_BCC) || is_named(entry, HEADER_DELIVERY_COUNT))
		return false;
	if (is_history(entry))
		return trimming < TRIM_HISTORY;
	return trimming < TRIM_HEADERS || is_origin(entry);
}

static bool
has_header(const amqp_table_t *table, const char *name)
{
	for (int i = 0; i < table->num_entries; i++)
		if (is_named(&table->entries[i], name))
			return true;
	return false;
}

static amqp_table_entry_t *
add(amqp_table_t *table, const char *name, uint8_t kind)
{
	amqp_table_entry_t *entry = &table->entries[table->num_entries++];

	entry->key = bytes_of(name);
	entry->value.kind = kind;
	return entry;
}

static void
add_bytes(amqp_table_t *table, const char *name, const char *bytes,
		  size_t length)
{
	add(table, name, AMQP_FIELD_KIND_UTF8)->value.value.bytes =
		(amqp_bytes_t){length, (void *) bytes};
}

/* Nothing without a text. */
static void
add_text(amqp_table_t *table, const char *name, const char *text, size_t most)
{
	if (text && *text)
		add_bytes(table, name, text, utf8_cut(text, most));
}

static void
add_origin(amqp_table_t *table, const struct delivery *d)
{
	if (!has_header(table, HEADER_ORIGINAL_EXCHANGE))
		add_bytes(table, HEADER_ORIGINAL_EXCHANGE, d->exchange.bytes,
				  d->exchange.length);
	if (!has_header(table, HEADER_ORIGINAL_KEY))
		add_bytes(table, HEADER_ORIGINAL_KEY, d->routing_key.bytes,
				  d->routing_key.length);
}

static void
add_error(amqp_table_t *table, const struct delivery *d, const char *service,
		  enum trimming trimming)
{
	const struct failure *failure = &d->failure;

	add_text(table, HEADER_ERROR_SERVICE, service, SHORT_TEXT_MAX);
	add_text(table, HEADER_ERROR_SQLSTATE, failure->sqlstate, SQLSTATE_LENGTH);
	add_text(table, HEADER_ERROR_MESSAGE, failure->message, MESSAGE_MAX);
	if (trimming < TRIM_CONTEXT)
		add_text(table, HEADER_ERROR_CONTEXT, failure->context, CONTEXT_MAX);
	add(table, HEADER_ERROR_ATTEMPTS, AMQP_FIELD_KIND_I64)->value.value.i64 =
		d->attempts;
}

/* The original's headers that are kept, and ours; false without memory. */
static bool
fill_headers(amqp_basic_properties_t *p, const amqp_table_t *original,
			 const struct delivery *d, const char *service,
			 enum trimming trimming, amqp_pool_t *pool)
{
	amqp_table_t *table = &p->headers;

	table->num_entries = 0;
	table->entries = amqp_pool_alloc(pool, sizeof(amqp_table_entry_t) *
									 (size_t) (original->num_entries +
											   OUR_HEADERS));
	if (table->entries == NULL)
		return false;
	for (int i = 0; i < original->num_entries; i++)
		if (is_kept(&original->entries[i], trimming))
			table->entries[table->num_entries++] = original->entries[i];
	add_origin(table, d);
	add_error(table, d, service, trimming);
	if (p->_flags & AMQP_BASIC_TIMESTAMP_FLAG)
		add(table, HEADER_ERROR_TIME,
			AMQP_FIELD_KIND_TIMESTAMP)->value.value.u64 = p->timestamp;
	p->_flags |= AMQP_BASIC_HEADERS_FLAG;
	return true;
}

static void
protect(amqp_basic_properties_t *p)
{
	p->_flags &= ~(amqp_flags_t) (AMQP_BASIC_USER_ID_FLAG |
								  AMQP_BASIC_EXPIRATION_FLAG);
	p->_flags |= AMQP_BASIC_DELIVERY_MODE_FLAG;
	p->delivery_mode = PERSISTENT;
}

/* All frames or none. */
static bool
put_frames(struct buffer *out, uint16_t channel, uint32_t frame_max,
		   const char *exchange, const struct delivery *d,
		   amqp_basic_properties_t *p)
{
	size_t		before = buffer_length(out);
	amqp_basic_publish_t publish = {
		.exchange = bytes_of(exchange),
		.routing_key = bytes_of(DEAD_LETTER_KEY),
		.mandatory = 1,
	};

	if (frame_put_method(out, channel, AMQP_BASIC_PUBLISH_METHOD, &publish) &&
		frame_put_content(out, channel, frame_max, p,
						  d->body.data + d->body.head,
						  buffer_length(&d->body)))
		return true;
	buffer_truncate(out, before);
	return false;
}

/*
 * Append the copy to the output; false if even without the original's headers it
 * cannot be encoded. The pool is the caller's scratch memory.
 */
bool
dead_copy_put(struct buffer *out, uint16_t channel, uint32_t frame_max,
				const struct dead_copy_settings *settings,
				const struct delivery *d, amqp_pool_t *pool)
{
	struct frame header = {.type = AMQP_FRAME_HEADER,
		.payload = d->header.data + d->header.head,
	.length = (uint32_t) buffer_length(&d->header)};
	amqp_basic_properties_t none = {0};
	amqp_basic_properties_t *original;
	amqp_basic_properties_t copy;
	uint64_t	size;
	bool		done = false;

	if (!frame_decode_header(&header, pool, &size, &original))
		original = &none;
	copy = *original;
	if (!(copy._flags & AMQP_BASIC_HEADERS_FLAG))
		original->headers = amqp_empty_table;
	protect(&copy);
	for (enum trimming t = TRIM_NOTHING; t < TRIMMINGS && !done; t++)
		done = fill_headers(&copy, &original->headers, d, settings->service,
							t, pool) &&
			put_frames(out, channel, frame_max, settings->exchange, d, &copy);
	recycle_amqp_pool(pool);
	return done;
}
