#ifndef ACME_BROKER_H
#define ACME_BROKER_H

#include <netdb.h>
#include <poll.h>

#include "amqp_frame.h"
#include "backoff.h"
#include "buffer.h"
#include "clock.h"
#include "resolver.h"
#include "transport.h"
#include "uri.h"

/* Above this much unsent output nothing more is published. */
#define BROKER_HIGH_WATER	(256 * 1024)

/* How long an orderly close may take. */
#define BROKER_CLOSE_TIMEOUT	2000

/* A connection that lasted this long was a good one: backoff starts anew. */
#define BROKER_PROVEN			10000

enum broker_state
{
	BROKER_DOWN,				/* no socket; retry_at says when to try */
	BROKER_RESOLVING,			/* the host's addresses are looked up */
	BROKER_CONNECTING,			/* TCP */
	BROKER_SECURING,			/* TLS handshake */
	BROKER_STARTING,			/* header sent, connection.start awaited */
	BROKER_TUNING,				/* login sent, connection.tune awaited */
	BROKER_OPENING,				/* connection.open sent */
	BROKER_READY,				/* channels may be used */
	BROKER_BLOCKED,				/* ready, but must not publish */
	BROKER_CLOSING				/* connection.close sent */
};

struct broker_settings
{
	struct broker_uri uri;
	struct tls_settings tls;
	const char *connection_name;
	const char *version;
	msec_t		connect_timeout;
	msec_t		heartbeat;
	msec_t		reconnect_min;
	msec_t		reconnect_max;
};

/* A refusal that TLS, not the broker, is the reason of. */
#define BROKER_NO_TLS			(-1)

#define BROKER_PROBLEM_MAX		512

struct broker_events
{
	void		(*up) (void *owner);
	void		(*down) (void *owner, int code);	/* of a ready connection */
	void		(*frame) (void *owner, const struct frame *frame, msec_t now);
	void		(*unblocked) (void *owner, msec_t blocked_for);
	void		(*refused) (void *owner, const char *reason);
	void	   *owner;
};

struct broker
{
	enum broker_state state;
	struct broker_settings settings;
	struct broker_events events;
	struct transport transport;
	int			host;			/* index of the one in use or being tried */
	int			good_host;		/* the last one that was ready, or -1 */
	int			hosts_left;		/* of this round, the current one included */
	struct resolver *resolver;
	struct addrinfo *addresses;
	struct addrinfo *address;	/* the one being tried */
	char		problem[BROKER_PROBLEM_MAX];	/* of the last attempt */
	char		refusal[BROKER_PROBLEM_MAX];	/* of this round, or empty */
	char		server_version[64];
	bool		server_tells_blocked;
	struct buffer in;
	struct buffer out;
	amqp_pool_t pool;			/* for decoding, recycled after each frame */
	uint32_t	frame_max;
	msec_t		heartbeat;		/* as agreed */
	struct backoff backoff;
	msec_t		retry_at;
	msec_t		deadline;		/* of the current step */
	msec_t		last_input;
	msec_t		last_output;
	msec_t		ready_since;
	msec_t		blocked_since;
	bool		guarded;		/* the output holds messages */
	msec_t		send_until;		/* after which those must not leave */
	bool		wants_connection;
};

void		broker_init(struct broker *b, const struct broker_settings *settings,
						const struct broker_events *events);
void		broker_free(struct broker *b);
int			broker_poll_fd(struct broker *b, struct pollfd *pfd);
msec_t		broker_deadline(struct broker *b);
void		broker_turn(struct broker *b, short revents, msec_t now);
void		broker_flush(struct broker *b);
bool		broker_is_open(const struct broker *b);
bool		broker_was_ready(const struct broker *b);
void		broker_send_method(struct broker *b, uint16_t channel,
							   amqp_method_number_t id, void *method);
void		broker_open_channel(struct broker *b, uint16_t channel);
void		broker_open_confirms(struct broker *b, uint16_t channel);
void		broker_answer_close(struct broker *b, uint16_t channel);
void		broker_drop(struct broker *b, int code, const char *reason,
						const char *detail);
void		broker_close(struct broker *b, msec_t now);
void		broker_log_refusal(const struct broker *b, const char *reason,
							   bool starting);

#endif							/* ACME_BROKER_H */
