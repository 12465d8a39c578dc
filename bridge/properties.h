#ifndef ACME_PROPERTIES_H
#define ACME_PROPERTIES_H

#include "table.h"

/* Those of the basic class, in the order of the wire. */
enum property
{
	PROPERTY_CONTENT_TYPE,
	PROPERTY_CONTENT_ENCODING,
	PROPERTY_HEADERS,
	PROPERTY_DELIVERY_MODE,
	PROPERTY_PRIORITY,
	PROPERTY_CORRELATION_ID,
	PROPERTY_REPLY_TO,
	PROPERTY_EXPIRATION,
	PROPERTY_MESSAGE_ID,
	PROPERTY_TIMESTAMP,
	PROPERTY_TYPE,
	PROPERTY_USER_ID,
	PROPERTY_APP_ID,
	PROPERTY_CLUSTER_ID,
	PROPERTIES
};

/* Each as it is encoded, or without data if it is absent. */
struct properties
{
	struct span encoded[PROPERTIES];
};

bool		properties_parse(struct properties *properties, struct span list);
struct span properties_text(const struct properties *properties,
							enum property property);
void		properties_put(struct buffer *out,
						   const struct properties *properties);

#endif							/* ACME_PROPERTIES_H */
