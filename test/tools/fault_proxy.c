/*
 * fault_proxy: a TCP proxy on loopback that misbehaves when told to
 *
 *	fault_proxy PORT
 *		listens on a free port, prints it, and forwards to 127.0.0.1:PORT.
 *		Commands come on stdin, one a line, and each is answered by one line.
 *		At the end of stdin the proxy exits.
 *
 *	pass				forward
 *	delay MS			forward each chunk so much later
 *	split				forward single bytes, both ways
 *	stall				read nothing more from clients; the other way goes on
 *	blackhole			swallow everything: the connections that are open, or are
 *						opened meanwhile, stay dead and are never closed
 *	reset				end all connections with RST
 *	halfclose up|down	end one direction of all connections with FIN
 *	cut up|down N		once: after N more bytes of that direction, but in the middle
 *						of an AMQP frame, end that connection with RST
 *	stats				print counters: connections=N up=BYTES down=BYTES
 *						swallowed=BYTES writes=N cuts=N open=N
 *
 * "up" is from the client to the server.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define LINKS_MAX	64
#define ROOM		65536

/* Small socket buffers: a client that is not read from notices soon. */
#define SOCKET_BUFFER	8192

enum mode
{
	MODE_PASS, MODE_DELAY, MODE_SPLIT, MODE_STALL, MODE_BLACKHOLE
};

enum direction
{
	UP, DOWN
};

/* Where an AMQP stream stands: inside a frame or between two. */
struct framing
{
	int			prologue;		/* bytes of the protocol header to come */
	uint8_t		header[7];
	int			have;			/* bytes of the frame's header seen */
	uint64_t	left;			/* bytes of payload and end to come */
};

struct flow
{
	uint8_t		data[ROOM];
	size_t		head;
	size_t		tail;
	int64_t		release_at;		/* under "delay" */
	bool		ended;			/* the source is at its end */
	bool		shut;			/* and the target was told */
	struct framing framing;
};

struct link
{
	bool		used;
	bool		dead;			/* swallowed for good */
	int			fd[2];			/* client, server; -1: none */
	struct flow flow[2];		/* up, down */
};

static struct link links[LINKS_MAX];
static enum mode mode = MODE_PASS;
static int64_t delay_ms;
static int	cut_direction = -1;
static long long cut_after;
static unsigned long long connections,
			forwarded[2],
			swallowed,
			writes,
			cuts;
static int	target_port;

static int64_t
now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t) t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void __attribute__((noreturn))
fail(const char *what)
{
	fprintf(stderr, "fault_proxy: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void
close_link(struct link *l, bool reset)
{
	struct linger linger = {1, 0};

	for (int i = 0; i < 2; i++)
	{
		if (l->fd[i] < 0)
			continue;
		if (reset)
			setsockopt(l->fd[i], SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
		close(l->fd[i]);
	}
	l->used = false;
}

static void
prepare(int fd)
{
	int			on = 1;

	fcntl(fd, F_SETFL, O_NONBLOCK);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

static int
connect_target(void)
{
	struct sockaddr_in address = {
		.sin_family = AF_INET,
		.sin_port = htons((uint16_t) target_port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	int			fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd >= 0 && connect(fd, (struct sockaddr *) &address, sizeof(address)) != 0)
	{
		close(fd);
		fd = -1;
	}
	return fd;
}

static void
accept_client(int listener)
{
	int			fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	struct link *l = links;

	if (fd < 0)
		return;
	while (l < links + LINKS_MAX && l->used)
		l++;
	if (l == links + LINKS_MAX)
	{
		close(fd);
		return;
	}
	memset(l, 0, sizeof(*l));
	l->used = true;
	l->fd[0] = fd;
	l->fd[1] = -1;
	l->dead = mode == MODE_BLACKHOLE;
	l->flow[UP].framing.prologue = 8;
	prepare(fd);
	connections++;
	if (l->dead)
		return;
	l->fd[1] = connect_target();
	if (l->fd[1] < 0)
		close_link(l, true);
	else
		prepare(l->fd[1]);
}

/* Moves on by one byte; true if that byte leaves us inside a frame. */
static bool
frame_step(struct framing *f, uint8_t byte)
{
	if (f->prologue > 0)
		return --f->prologue > 0;
	if (f->left > 0)
		return --f->left > 0;
	f->header[f->have++] = byte;
	if (f->have == 7)
	{
		f->have = 0;
		f->left = 1 + ((uint64_t) f->header[3] << 24 | (uint64_t) f->header[4] << 16 |
					   (uint64_t) f->header[5] << 8 | f->header[6]);
	}
	return true;
}

/* How many bytes may go; *cut when the connection ends behind them. */
static size_t
measure(struct link *l, int direction, size_t length, bool *cut)
{
	struct flow *flow = &l->flow[direction];

	for (size_t i = 0; i < length; i++)
	{
		bool		inside = frame_step(&flow->framing, flow->data[flow->head + i]);

		if (cut_direction == direction && --cut_after < 0 && inside)
		{
			*cut = true;
			return i + 1;
		}
	}
	return length;
}

static void
forward(struct link *l, int direction)
{
	struct flow *flow = &l->flow[direction];
	size_t		length = flow->tail - flow->head;
	bool		cut = false;
	ssize_t		sent;

	if (mode == MODE_SPLIT)
		length = 1;
	if (mode == MODE_DELAY && now_ms() < flow->release_at)
		return;
	if (cut_direction == direction)
		length = 1;				/* so that what was measured is what is sent */
	sent = send(l->fd[1 - direction], flow->data + flow->head, length, MSG_NOSIGNAL);
	if (sent <= 0)
	{
		if (sent < 0 && errno != EAGAIN && errno != EINTR)
			close_link(l, true);
		return;
	}
	writes++;
	measure(l, direction, (size_t) sent, &cut);
	flow->head += (size_t) sent;
	forwarded[direction] += (size_t) sent;
	if (cut)
	{
		cut_direction = -1;
		cuts++;
		close_link(l, true);
	}
}

static void
receive(struct link *l, int direction)
{
	struct flow *flow = &l->flow[direction];
	static uint8_t nowhere[ROOM];
	ssize_t		got;

	if (l->dead)
	{
		got = recv(l->fd[direction], nowhere, sizeof(nowhere), 0);
		if (got > 0)
			swallowed += (size_t) got;
		else if (got == 0 || errno != EAGAIN)
		{
			close(l->fd[direction]);
			l->fd[direction] = -1;
			if (l->fd[0] < 0 && l->fd[1] < 0)
				l->used = false;
		}
		return;
	}
	if (flow->head == flow->tail)
		flow->head = flow->tail = 0;
	got = recv(l->fd[direction], flow->data + flow->tail, ROOM - flow->tail, 0);
	if (got < 0 && errno != EAGAIN)
		close_link(l, true);
	else if (got == 0)
		flow->ended = true;
	else if (got > 0)
	{
		flow->tail += (size_t) got;
		flow->release_at = now_ms() + delay_ms;
	}
}

/* Pass an end of input on; both ends: the connection is over. */
static void
finish(struct link *l)
{
	for (int d = 0; d < 2; d++)
		if (l->flow[d].ended && !l->flow[d].shut && l->flow[d].head == l->flow[d].tail)
		{
			shutdown(l->fd[1 - d], SHUT_WR);
			l->flow[d].shut = true;
		}
	if (l->flow[UP].shut && l->flow[DOWN].shut)
		close_link(l, false);
}

static short
wanted(const struct link *l, int side)
{
	const struct flow *from = &l->flow[side];
	const struct flow *to = &l->flow[1 - side];
	short		events = 0;

	if (l->dead)
		return POLLIN;
	if (!from->ended && (from->tail < ROOM || from->head == from->tail) &&
		!(mode == MODE_STALL && side == 0))
		events |= POLLIN;
	if (to->head < to->tail && !(mode == MODE_DELAY && now_ms() < to->release_at))
		events |= POLLOUT;
	return events;
}

static int
direction_of(const char *word)
{
	return strcmp(word, "up") == 0 ? UP : strcmp(word, "down") == 0 ? DOWN : -1;
}

static void
for_all_links(void (*act) (struct link *, int), int argument)
{
	for (struct link *l = links; l < links + LINKS_MAX; l++)
		if (l->used)
			act(l, argument);
}

static void
kill_link(struct link *l, int argument)
{
	(void) argument;
	l->dead = true;
}

static void
reset_link(struct link *l, int argument)
{
	(void) argument;
	close_link(l, true);
}

static void
half_close_link(struct link *l, int direction)
{
	if (!l->dead && l->fd[1 - direction] >= 0)
		shutdown(l->fd[1 - direction], SHUT_WR);
}

static void
print_stats(void)
{
	int			open = 0;

	for (struct link *l = links; l < links + LINKS_MAX; l++)
		open += l->used;
	printf("connections=%llu up=%llu down=%llu swallowed=%llu writes=%llu cuts=%llu open=%d\n",
		   connections, forwarded[UP], forwarded[DOWN], swallowed, writes, cuts, open);
}

static void
obey(char *line)
{
	char		word[16] = "",
				argument[16] = "",
				number[24] = "";

	sscanf(line, "%15s %15s %23s", word, argument, number);
	if (strcmp(word, "pass") == 0)
		mode = MODE_PASS;
	else if (strcmp(word, "split") == 0)
		mode = MODE_SPLIT;
	else if (strcmp(word, "stall") == 0)
		mode = MODE_STALL;
	else if (strcmp(word, "delay") == 0)
	{
		mode = MODE_DELAY;
		delay_ms = atoll(argument);
	}
	else if (strcmp(word, "blackhole") == 0)
	{
		mode = MODE_BLACKHOLE;
		for_all_links(kill_link, 0);
	}
	else if (strcmp(word, "reset") == 0)
		for_all_links(reset_link, 0);
	else if (strcmp(word, "halfclose") == 0 && direction_of(argument) >= 0)
		for_all_links(half_close_link, direction_of(argument));
	else if (strcmp(word, "cut") == 0 && direction_of(argument) >= 0)
	{
		cut_direction = direction_of(argument);
		cut_after = atoll(number);
	}
	else if (strcmp(word, "stats") == 0)
	{
		print_stats();
		return;
	}
	else
	{
		puts("unknown command");
		return;
	}
	puts("ok");
}

/* False at the end of stdin. */
static bool
read_commands(void)
{
	static char text[1024];
	static size_t length;
	ssize_t		got = read(STDIN_FILENO, text + length, sizeof(text) - 1 - length);
	char	   *end;

	if (got <= 0)
		return got < 0 && errno == EINTR;
	length += (size_t) got;
	text[length] = '\0';
	while ((end = strchr(text, '\n')) != NULL)
	{
		*end = '\0';
		obey(text);
		length -= (size_t) (end + 1 - text);
		memmove(text, end + 1, length + 1);
	}
	return length < sizeof(text) - 1;
}

static int
listen_anywhere(void)
{
	struct sockaddr_in address = {
		.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	socklen_t	size = sizeof(address);
	int			room = SOCKET_BUFFER;
	int			fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		fail("socket");
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof(room));
	if (bind(fd, (struct sockaddr *) &address, size) != 0 || listen(fd, 64) != 0 ||
		getsockname(fd, (struct sockaddr *) &address, &size) != 0)
		fail("listen");
	printf("%d\n", ntohs(address.sin_port));
	return fd;
}

static void
turn(int listener)
{
	struct pollfd fds[2 + 2 * LINKS_MAX];
	int			owner[2 + 2 * LINKS_MAX];
	int			n = 2;
	int			wait = mode == MODE_DELAY ? 1 : 1000;

	fds[0] = (struct pollfd){STDIN_FILENO, POLLIN, 0};
	fds[1] = (struct pollfd){listener, POLLIN, 0};
	for (int i = 0; i < LINKS_MAX; i++)
		for (int side = 0; links[i].used && side < 2; side++)
		{
			if (links[i].fd[side] < 0)
				continue;
			owner[n] = i * 2 + side;
			fds[n++] = (struct pollfd){links[i].fd[side], wanted(&links[i], side), 0};
		}
	if (poll(fds, (nfds_t) n, wait) < 0 && errno != EINTR)
		fail("poll");
	if (fds[0].revents && !read_commands())
		exit(0);
	for (int i = 2; i < n; i++)
	{
		struct link *l = &links[owner[i] / 2];
		int			side = owner[i] % 2;

		if (l->used && l->fd[side] == fds[i].fd &&
			(fds[i].revents & fds[i].events & POLLIN))
			receive(l, side);
		if (l->used && !l->dead && (fds[i].revents & fds[i].events & POLLOUT))
			forward(l, 1 - side);
		/* gone while nothing was wanted of it */
		if (l->used && !l->dead && (fds[i].revents & (POLLERR | POLLNVAL)))
			close_link(l, true);
		if (l->used && !l->dead)
			finish(l);
	}
	if (fds[1].revents)
		accept_client(listener);
}

int
main(int argc, char **argv)
{
	int			listener;

	if (argc != 2 || (target_port = atoi(argv[1])) <= 0)
	{
		fputs("usage: fault_proxy PORT\n", stderr);
		return 2;
	}
	signal(SIGPIPE, SIG_IGN);
	setvbuf(stdout, NULL, _IOLBF, 0);
	listener = listen_anywhere();
	for (;;)
		turn(listener);
}
