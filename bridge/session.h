#ifndef ACME_SESSION_H
#define ACME_SESSION_H

#include "db.h"

#define SESSION_ERROR_MAX	512

struct session
{
	struct db	db;
	msec_t		timeout;		/* of connecting, and of each query */
	bool		up;
	char		error[SESSION_ERROR_MAX];
};

bool		session_open(struct session *s, const struct db_settings *settings);
void		session_close(struct session *s);
PGconn	   *session_connection(const struct session *s);
bool		session_begin(struct session *s);
PGresult   *session_query(struct session *s, const char *sql, int count,
						  const char *const *values);

#endif							/* ACME_SESSION_H */
