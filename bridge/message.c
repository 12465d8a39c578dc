/*
 * message.c
 *		A claimed row as an AMQP message: basic.publish, properties, body.
 *
 * The properties are those of design section 9 and nothing else is added. The
 * headers' JSON object becomes a table: strings S, integers l, other numbers d,
 * booleans t, null V, objects F, arrays A. traceparent is set from the row, and
 * it and the added headers win over headers of their names. CC and BCC, by which
 * the broker routes to further keys, are left out of a sidetracked message.
 *
 * A row that cannot be encoded is the row's own fault. message_put() then
 * leaves the output as it was and says what is wrong without quoting any of the
 * row's content, since the text ends up in a table and in logs.
 */
#include "message.h"

#include <json-c/json.h>
#include <limits.h>
#include <string.h>

#include "amqp_text.h"
#include "header_names.h"

#define PERSISTENT		2
#define CONTENT_TYPE	"application/json"
#define CONTENT_ENCODING "UTF-8"

static const char TOO_DEEP[] = "headers are nested too deep";
static const char BAD_JSON[] = "headers are not a JSON object";
static const char LONG_NAME[] = "a header name is longer than 255 bytes";
static const char NO_MEMORY[] = "headers need too much memory";

static const char *put_value(struct json_object *json, amqp_pool_t *pool,
							 int depth, amqp_field_value_t *value);

static const char *
put_table(struct json_object *json, amqp_pool_t *pool, int depth, int spare,
		  amqp_table_t *table)
{
	int			count = json_object_object_length(json);
	const char *problem = NULL;

	if (depth > TABLE_DEPTH_MAX)
		return TOO_DEEP;
	table->num_entries = 0;
	table->entries = amqp_pool_alloc(pool, (size_t) (count + spare + 1) *
									 sizeof(amqp_table_entry_t));
	if (table->entries == NULL)
		return NO_MEMORY;
	json_object_object_foreach(json, name, member)
	{
		amqp_table_entry_t *entry = &table->entries[table->num_entries];

		entry->key = bytes_of(name);
		if (entry->key.len > SHORT_STRING_MAX)
			return LONG_NAME;
		problem = put_value(member, pool, depth, &entry->value);
		if (problem)
			return problem;
		table->num_entries++;
	}
	return NULL;
}

static const char *
put_array(struct json_object *json, amqp_pool_t *pool, int depth,
		  amqp_array_t *array)
{
	size_t		count = json_object_array_length(json);
	const char *problem = NULL;

	if (depth > TABLE_DEPTH_MAX)
		return TOO_DEEP;
	array->num_entries = 0;
	array->entries = amqp_pool_alloc(pool,
									 (count + 1) * sizeof(amqp_field_value_t));
	if (array->entries == NULL)
		return NO_MEMORY;
	for (size_t i = 0; i < count && problem == NULL; i++, array->num_entries++)
		problem = put_value(json_object_array_get_idx(json, i), pool, depth,
							&array->entries[i]);
	return problem;
}

/* Integers beyond 64 bits come out of json-c clamped: send those as doubles. */
static void
put_integer(struct json_object *json, amqp_field_value_t *value)
{
	int64_t		number = json_object_get_int64(json);

	if (number == INT64_MAX || number == INT64_MIN)
	{
		const char *text = json_object_to_json_string(json);

		if (json_object_get_uint64(json) > (uint64_t) INT64_MAX ||
			strlen(text) > 20)
		{
			value->kind = AMQP_FIELD_KIND_F64;
			value->value.f64 = json_object_get_double(json);
			return;
		}
	}
	value->kind = AMQP_FIELD_KIND_I64;
	value->value.i64 = number;
}

static const char *
put_value(struct json_object *json, amqp_pool_t *pool, int depth,
		  amqp_field_value_t *value)
{
	switch (json_object_get_type(json))
	{
		case json_type_null:
			value->kind = AMQP_FIELD_KIND_VOID;
			return NULL;
		case json_type_boolean:
			value->kind = AMQP_FIELD_KIND_BOOLEAN;
			value->value.boolean = json_object_get_boolean(json);
			return NULL;
		case json_type_double:
			value->kind = AMQP_FIELD_KIND_F64;
			value->value.f64 = json_object_get_double(json);
			return NULL;
		case json_type_int:
			put_integer(json, value);
			return NULL;
		case json_type_string:
			value->kind = AMQP_FIELD_KIND_UTF8;
			value->value.bytes.bytes = (void *) json_object_get_string(json);
			value->value.bytes.len = (size_t) json_object_get_string_len(json);
			return NULL;
		case json_type_object:
			value->kind = AMQP_FIELD_KIND_TABLE;
			return put_table(json, pool, depth + 1, 0, &value->value.table);
		case json_type_array:
			value->kind = AMQP_FIELD_KIND_ARRAY;
			return put_array(json, pool, depth + 1, &value->value.array);
	}
	return BAD_JSON;
}

static bool
has_name(const amqp_table_entry_t *entry, const char *name)
{
	return entry->key.len == strlen(name) &&
		memcmp(entry->key.bytes, name, strlen(name)) == 0;
}

/* Replace or add; put_table() left room for those to be added. */
static void
set_header(amqp_table_t *table, const struct message_header *header)
{
	amqp_table_entry_t *entry = table->entries;
	amqp_table_entry_t *end = table->entries + table->num_entries;

	while (entry < end && !has_name(entry, header->name))
		entry++;
	if (entry == end)
		table->num_entries++;
	entry->key = bytes_of(header->name);
	if (header->text)
	{
		entry->value.kind = AMQP_FIELD_KIND_UTF8;
		entry->value.value.bytes = bytes_of(header->text);
	}
	else if (header->is_time)
	{
		entry->value.kind = AMQP_FIELD_KIND_TIMESTAMP;
		entry->value.value.u64 = (uint64_t) header->number;
	}
	else
	{
		entry->value.kind = AMQP_FIELD_KIND_I64;
		entry->value.value.i64 = header->number;
	}
}

static void
add_headers(const struct message *m, amqp_table_t *table)
{
	struct message_header traceparent = {"traceparent", m->traceparent, 0, false};

	if (m->traceparent)
		set_header(table, &traceparent);
	for (int i = 0; i < m->extra_count; i++)
		set_header(table, &m->extra[i]);
}

static void
leave_out(amqp_table_t *table, const char *name)
{
	int			kept = 0;

	for (int i = 0; i < table->num_entries; i++)
		if (!has_name(&table->entries[i], name))
			table->entries[kept++] = table->entries[i];
	table->num_entries = kept;
}

/* The JSON object must be kept until the table was encoded. */
static const char *
read_headers(const struct message *m, amqp_pool_t *pool, amqp_table_t *table,
			 struct json_object **json)
{
	const char *problem = NULL;
	int			spare = 1 + m->extra_count;

	*json = NULL;
	if (m->headers)
	{
		struct json_tokener *parser = json_tokener_new_ex(TABLE_DEPTH_MAX + 1);

		if (parser == NULL)
			return NO_MEMORY;
		*json = json_tokener_parse_ex(parser, m->headers,
									  (int) strlen(m->headers) + 1);
		if (json_tokener_get_error(parser) == json_tokener_error_depth)
			problem = TOO_DEEP;
		else if (!json_object_is_type(*json, json_type_object))
			problem = BAD_JSON;
		json_tokener_free(parser);
		if (problem)
			return problem;
		problem = put_table(*json, pool, 1, spare, table);
	}
	else
		table->entries = amqp_pool_alloc(pool, (size_t) spare *
										 sizeof(amqp_table_entry_t));
	if (problem == NULL && table->entries == NULL)
		problem = NO_MEMORY;
	if (problem)
		return problem;
	if (m->sidetracked)
	{
		leave_out(table, HEADER_CC);
		leave_out(table, HEADER_BCC);
	}
	add_headers(m, table);
	return NULL;
}

static void
fill_properties(const struct message *m, amqp_basic_properties_t *p)
{
	p->_flags = AMQP_BASIC_CONTENT_TYPE_FLAG | AMQP_BASIC_CONTENT_ENCODING_FLAG |
		AMQP_BASIC_DELIVERY_MODE_FLAG | AMQP_BASIC_MESSAGE_ID_FLAG |
		AMQP_BASIC_TIMESTAMP_FLAG | AMQP_BASIC_TYPE_FLAG |
		AMQP_BASIC_APP_ID_FLAG;
	p->content_type = bytes_of(CONTENT_TYPE);
	p->content_encoding = bytes_of(CONTENT_ENCODING);
	p->delivery_mode = PERSISTENT;
	p->message_id = bytes_of(m->id);
	p->timestamp = (uint64_t) m->created_at;
	p->type = bytes_of(m->type);
	p->app_id = bytes_of(m->origin);
}

static const char *
check_short_strings(const struct message *m)
{
	if (strlen(m->exchange) > SHORT_STRING_MAX)
		return "exchange is longer than 255 bytes";
	if (strlen(m->routing_key) > SHORT_STRING_MAX)
		return "routing key is longer than 255 bytes";
	if (strlen(m->type) > SHORT_STRING_MAX)
		return "event name is longer than 255 bytes";
	if (strlen(m->origin) > SHORT_STRING_MAX)
		return "origin is longer than 255 bytes";
	return NULL;
}

/* Write one method frame, one header frame, and the body; all or nothing. */
static const char *
put_frames(struct buffer *out, uint16_t channel, uint32_t frame_max,
		   const struct message *m, amqp_basic_properties_t *properties)
{
	size_t		before = buffer_length(out);
	amqp_basic_publish_t publish = {
		.exchange = bytes_of(m->exchange),
		.routing_key = bytes_of(m->routing_key),
		.mandatory = m->mandatory,
	};

	if (frame_put_method(out, channel, AMQP_BASIC_PUBLISH_METHOD, &publish) &&
		frame_put_content(out, channel, frame_max, properties, m->payload,
						  m->payload_length))
		return NULL;
	buffer_truncate(out, before);
	return "headers do not fit into one AMQP frame";
}

/*
 * Append the message to the output. NULL if done, else what is wrong with the
 * row. The pool is the caller's scratch memory and is recycled here.
 */
const char *
message_put(struct buffer *out, uint16_t channel, uint32_t frame_max,
			const struct message *m, amqp_pool_t *pool)
{
	amqp_basic_properties_t properties = {0};
	struct json_object *json = NULL;
	const char *problem = check_short_strings(m);

	if (problem)
		return problem;
	fill_properties(m, &properties);
	if (m->headers || m->traceparent || m->extra_count > 0)
	{
		properties._flags |= AMQP_BASIC_HEADERS_FLAG;
		problem = read_headers(m, pool, &properties.headers, &json);
	}
	if (problem == NULL)
		problem = put_frames(out, channel, frame_max, m, &properties);
	json_object_put(json);
	recycle_amqp_pool(pool);
	return problem;
}
