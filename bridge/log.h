#ifndef ACME_LOG_H
#define ACME_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum log_level
{
	LOG_DEBUG,
	LOG_INFO,
	LOG_WARN,
	LOG_ERROR
};

enum log_format
{
	LOG_KV,
	LOG_JSON
};

/* One key and its value; text NULL: the number counts. */
struct log_field
{
	const char *key;
	const char *text;
	int64_t		number;
};

#define LOG_TEXT(key, text)		log_text(key, text)
#define LOG_NUM(key, number)	log_num(key, (int64_t) (number))
#define LOG_END					log_num(NULL, 0)

#define log_debug(...)	log_write(LOG_DEBUG, __VA_ARGS__, LOG_END)
#define log_info(...)	log_write(LOG_INFO, __VA_ARGS__, LOG_END)
#define log_warn(...)	log_write(LOG_WARN, __VA_ARGS__, LOG_END)
#define log_error(...)	log_write(LOG_ERROR, __VA_ARGS__, LOG_END)

struct log_field log_text(const char *key, const char *text);
struct log_field log_num(const char *key, int64_t number);

void		log_setup(enum log_level level, enum log_format format);
void		log_write(enum log_level level, const char *message, ...);

#endif							/* ACME_LOG_H */
