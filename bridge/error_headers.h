#ifndef ACME_ERROR_HEADERS_H
#define ACME_ERROR_HEADERS_H

/*
 * What a dead letter carries, whoever gave up: the relay a message that the
 * broker would not take, a consumer one that its handler could not process.
 */
#define DEAD_LETTER_KEY				"dead-letter"

#define HEADER_ORIGINAL_EXCHANGE	"x-original-exchange"
#define HEADER_ORIGINAL_KEY			"x-original-routing-key"
/* The others begin with it. */
#define HEADER_ERROR_PREFIX			"x-error-"
#define HEADER_ERROR_SERVICE		"x-error-service"
#define HEADER_ERROR_SQLSTATE		"x-error-sqlstate"
#define HEADER_ERROR_MESSAGE		"x-error-message"
#define HEADER_ERROR_CONTEXT		"x-error-context"
#define HEADER_ERROR_ATTEMPTS		"x-error-attempts"
#define HEADER_ERROR_TIME			"x-error-original-time"

#endif							/* ACME_ERROR_HEADERS_H */
