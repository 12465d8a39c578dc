/*
 * sink_stdout.c
 *		The publisher for --sink stdout: each envelope as one line.
 *
 * For trying out and for pipes. There is nobody to confirm anything: a row is
 * PUBLISHED as soon as write() took its bytes, and the log says so once.
 *
 * A line break inside an envelope can only be white space between JSON tokens
 * (inside a string it is escaped), so it is written as a space. Writes are made
 * only when poll() said so and in small pieces, so that a reader who stalls
 * does not stop the loop and the lease with it.
 */
#include "sink_stdout.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "buffer.h"
#include "log.h"

#define SINK_HIGH_WATER (256 * 1024)
#define SINK_LINES_MAX	1000
#define SINK_PIECE		4096	/* PIPE_BUF: what a writable pipe takes whole */

struct sink_line
{
	struct copy *copy;
	size_t		end;			/* written when so many bytes are */
};

struct sink
{
	struct publisher base;
	struct buffer out;
	size_t		appended;		/* bytes since the start */
	size_t		written;
	struct sink_line lines[SINK_LINES_MAX];	/* a ring */
	size_t		first;
	size_t		count;
	bool		broken;
};

static struct sink *
sink_of(struct publisher *p)
{
	return (struct sink *) p;
}

static int
sink_poll_fd(struct publisher *p, struct pollfd *pfd)
{
	if (buffer_length(&sink_of(p)->out) == 0)
		return 0;
	pfd->fd = STDOUT_FILENO;
	pfd->events = POLLOUT;
	return 1;
}

static msec_t
sink_deadline(struct publisher *p)
{
	(void) p;
	return CLOCK_NEVER;
}

static void
answer_first(struct sink *s, enum outcome outcome, const char *error)
{
	struct copy *copy = s->lines[s->first].copy;

	s->first = (s->first + 1) % SINK_LINES_MAX;
	s->count--;
	s->base.events.answered(s->base.events.relay, copy, outcome, error);
}

static void
answer_written(struct sink *s)
{
	while (s->count > 0 && s->lines[s->first].end <= s->written)
		answer_first(s, OUTCOME_PUBLISHED, NULL);
}

/* The reader is gone: what it did not get is released. */
static void
break_off(struct sink *s, const char *reason)
{
	s->broken = true;
	buffer_clear(&s->out);
	answer_written(s);
	while (s->count > 0)
		answer_first(s, OUTCOME_RELEASED, "stdout was closed");
	log_error("cannot write to stdout", LOG_TEXT("reason", reason));
	s->base.events.failed(s->base.events.relay);
}

static void
write_piece(struct sink *s)
{
	size_t		length = buffer_length(&s->out);
	ssize_t		done = write(STDOUT_FILENO, buffer_head(&s->out),
							 length < SINK_PIECE ? length : SINK_PIECE);

	if (done < 0 && (errno == EINTR || errno == EAGAIN))
		return;
	if (done < 0)
	{
		break_off(s, strerror(errno));
		return;
	}
	buffer_consume(&s->out, (size_t) done);
	s->written += (size_t) done;
}

static void
sink_flush(struct publisher *p)
{
	struct sink *s = sink_of(p);
	struct pollfd pfd = {.fd = STDOUT_FILENO, .events = POLLOUT};

	while (!s->broken && buffer_length(&s->out) > 0 &&
		   clock_now() < p->send_until && poll(&pfd, 1, 0) > 0)
		write_piece(s);
	answer_written(s);
}

static void
sink_turn(struct publisher *p, short revents, msec_t now)
{
	(void) revents;
	(void) now;
	sink_flush(p);
}

static enum publish_result
sink_publish(struct publisher *p, struct copy *copy, const struct message *m,
			 msec_t now)
{
	struct sink *s = sink_of(p);
	uint8_t    *line;

	(void) now;
	if (s->broken || s->count == SINK_LINES_MAX ||
		buffer_length(&s->out) >= SINK_HIGH_WATER)
		return PUBLISH_FULL;
	line = buffer_reserve(&s->out, m->payload_length + 1);
	for (size_t i = 0; i < m->payload_length; i++)
		line[i] = m->payload[i] == '\n' || m->payload[i] == '\r' ? ' ' :
			(uint8_t) m->payload[i];
	line[m->payload_length] = '\n';
	buffer_commit(&s->out, m->payload_length + 1);
	s->appended += m->payload_length + 1;
	s->lines[(s->first + s->count++) % SINK_LINES_MAX] =
		(struct sink_line){copy, s->appended};
	return PUBLISH_SENT;
}

static bool
sink_ready(struct publisher *p)
{
	return !sink_of(p)->broken;
}

static bool
sink_idle(struct publisher *p)
{
	return buffer_length(&sink_of(p)->out) == 0;
}

static int
sink_unconfirmed(struct publisher *p)
{
	return (int) sink_of(p)->count;
}

/* Half a line may be out already: the rest of that line must follow. */
static void
sink_forget(struct publisher *p, const char *reason)
{
	struct sink *s = sink_of(p);
	size_t		keep = 0;

	(void) reason;
	if (s->count > 0 && buffer_length(&s->out) > 0)
		keep = s->lines[s->first].end - s->written;
	s->count = 0;
	buffer_truncate(&s->out, keep);
	s->appended = s->written + keep;
}

static void
sink_close(struct publisher *p, msec_t now)
{
	(void) p;
	(void) now;
}

static bool
sink_closed(struct publisher *p)
{
	(void) p;
	return true;
}

static void
sink_free(struct publisher *p)
{
	buffer_free(&sink_of(p)->out);
	free(p);
}

static const struct publisher_ops sink_ops = {
	.name = "stdout",
	.poll_fd = sink_poll_fd,
	.deadline = sink_deadline,
	.turn = sink_turn,
	.publish = sink_publish,
	.flush = sink_flush,
	.ready = sink_ready,
	.idle = sink_idle,
	.unconfirmed = sink_unconfirmed,
	.forget = sink_forget,
	.close = sink_close,
	.closed = sink_closed,
	.free = sink_free,
};

struct publisher *
sink_stdout_new(const struct publisher_events *events)
{
	struct sink *s = calloc(1, sizeof(*s));

	if (s == NULL)
		abort();
	s->base.ops = &sink_ops;
	s->base.events = *events;
	log_warn("entries go to stdout and are settled without any confirm");
	return &s->base;
}
