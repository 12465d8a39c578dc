#ifndef ACME_HEADER_NAMES_H
#define ACME_HEADER_NAMES_H

/*
 * What a dead letter carries, whoever gave up: the relay a message that the
 * broker would not take, a consumer one that its handler could not process.
 */
#define DEAD_LETTER_KEY				"dead-letter"	/* its routing key */

#define HEADER_ORIGINAL_EXCHANGE	"x-original-exchange"
#define HEADER_ORIGINAL_KEY			"x-original-routing-key"
#define HEADER_ORIGINAL_USER		"x-original-user-id"
/* The others begin with it. */
#define HEADER_ERROR_PREFIX			"x-error-"
#define HEADER_ERROR_SERVICE		"x-error-service"
#define HEADER_ERROR_SQLSTATE		"x-error-sqlstate"
#define HEADER_ERROR_MESSAGE		"x-error-message"
#define HEADER_ERROR_CONTEXT		"x-error-context"
#define HEADER_ERROR_ATTEMPTS		"x-error-attempts"
#define HEADER_ERROR_TIME			"x-error-original-time"

/* What the broker adds when a message dies, or is delivered again. */
#define HEADER_DEATHS				"x-death"
#define HEADER_FIRST_DEATH_PREFIX	"x-first-death-"
#define HEADER_FIRST_DEATH_QUEUE	HEADER_FIRST_DEATH_PREFIX "queue"
#define HEADER_FIRST_DEATH_REASON	HEADER_FIRST_DEATH_PREFIX "reason"
#define HEADER_LAST_DEATH_PREFIX	"x-last-death-"
#define HEADER_DELIVERY_COUNT		"x-delivery-count"

/* More routing keys, by which the broker routes a message, too. */
#define HEADER_CC					"CC"
#define HEADER_BCC					"BCC"

#endif							/* ACME_HEADER_NAMES_H */
