/*
 * relay_stop.c
 *		The orderly end, and its bounds.
 *
 * STOPPING claims no more, waits for confirms until a reserve of the stop
 * timeout is left, releases the rest, settles, and hands the lease over; then
 * CLOSING ends the publisher's connection. Whoever loses the database on the
 * way has nothing more to settle.
 */
#include "relay_internal.h"

#include "log.h"

/* Of the stop timeout, what is kept for the last settles. */
#define STOP_RESERVE		3000

/* Begin the publisher's orderly end; the process exits with the status. */
void
relay_begin_closing(struct relay *r, msec_t now)
{
	relay_set_state(r, RELAY_CLOSING);
	db_close(&r->db);
	r->publisher->ops->close(r->publisher, now);
}

/* No epoch, no window: whatever was in memory is the database's again. */
void
relay_forget_window(struct relay *r, const char *reason)
{
	if (relay_rows(r) > 0)
		log_warn("window dropped", LOG_TEXT("reason", reason),
				 LOG_NUM("rows", relay_rows(r)),
				 LOG_NUM("unconfirmed", relay_unconfirmed(r)));
	r->epoch[0] = '\0';
	relay_set_lease(r, 0);
	r->publisher->ops->forget(r->publisher, reason);
	claims_clear(&r->claims);
	claims_clear(&r->failed);
	r->settling = NULL;
}

void
relay_begin_stopping(struct relay *r, const char *reason, msec_t now)
{
	msec_t		bound = relay_span(r, SET_STOP_TIMEOUT);
	msec_t		reserve = bound / 4 < STOP_RESERVE ? bound / 4 : STOP_RESERVE;

	if (r->state >= RELAY_STOPPING)
		return;
	log_info("relay stopping", LOG_TEXT("reason", reason),
			 LOG_NUM("unconfirmed", relay_unconfirmed(r)),
			 LOG_NUM("unsent", r->claims.waiting));
	r->stop_until = now + bound;
	r->confirm_until = r->stop_until - reserve;
	if (r->state == RELAY_OFFLINE)
	{
		relay_begin_closing(r, now);
		return;
	}
	relay_set_state(r, RELAY_STOPPING);
	relay_release_rows(r, false, "relay stopped before sending", now);
}

/* End with that status, orderly if a lease is held. */
void
relay_give_up(struct relay *r, enum exit_status status, msec_t now)
{
	if (r->state >= RELAY_STOPPING)
		return;
	r->status = status;
	relay_begin_stopping(r, "cannot go on", now);
}

/* Has the stop run into its bounds? */
static void
keep_bounds(struct relay *r, msec_t now)
{
	if (now >= r->confirm_until && relay_unconfirmed(r) > 0)
	{
		log_warn("stopping without all confirms, releasing the rest",
				 LOG_NUM("unconfirmed", relay_unconfirmed(r)));
		r->publisher->ops->forget(r->publisher, "relay stopped");
		relay_release_rows(r, true, "relay stopped before the confirm", now);
	}
	if (now >= r->stop_until)
	{
		log_warn("stop timeout: not everything could be settled",
				 LOG_NUM("rows", relay_rows(r)));
		r->status = EXIT_TEMPORARY;
		relay_forget_window(r, "stop timeout");
		relay_begin_closing(r, now);
	}
}

/* The end comes in the turn that began it, if nothing is left to be closed. */
void
relay_keep_stopping(struct relay *r, msec_t now)
{
	if (r->state == RELAY_STOPPING)
		keep_bounds(r, now);
	if (r->state == RELAY_CLOSING && r->publisher->ops->closed(r->publisher))
		relay_set_state(r, RELAY_DONE);
}
